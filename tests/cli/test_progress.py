"""The sign of life: only at a terminal, only on standard error, only after a while."""

import io
import re
import sys
import time

import pytest

from attnrisk.cli import render as progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch, patience=0.0):
    """Standard error as a terminal; set inside a test, since pytest puts its own back after the fixtures."""
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_seen_once_patience_ends(monkeypatch):
    screen = terminal(monkeypatch)
    with progress.working("waiting") as report:
        report("softmax", 3, 15)
        time.sleep(0.3)
    assert "softmax" in screen.getvalue()
    assert "3/15" in screen.getvalue()


def test_a_quick_answer_shows_nothing(monkeypatch):
    screen = terminal(monkeypatch, patience=10.0)
    with progress.working("waiting") as report:
        report("softmax", 3, 15)
    assert screen.getvalue() == ""


def test_ends_when_the_work_fails(monkeypatch):
    screen = terminal(monkeypatch)

    def fail():
        with progress.working("waiting"):
            time.sleep(0.1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    shown = screen.getvalue()
    assert "waiting" in shown
    time.sleep(0.2)
    assert screen.getvalue() == shown


def test_nothing_where_no_one_looks(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with progress.working("waiting") as report:
        report("softmax", 3, 15)
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


def test_a_line_now_and_then_in_a_log(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.05)
    told = ""
    with progress.working("waiting") as report:
        for words in ("waiting", "3 of 15, softmax"):
            patience = time.monotonic() + 30.0
            while not re.search(rf"^\d+ s: {words}$", told, re.MULTILINE):
                assert time.monotonic() < patience
                time.sleep(0.05)
                captured = capsys.readouterr()
                assert captured.out == ""
                told += captured.err
            report("softmax", 3, 15)
