"""Questions are answered elsewhere, the most urgent first, and a process that dies is replaced."""

import queue
import threading
import time

import page_questions
import pytest
from page_questions import Deadly, Echo

from attnrisk.explorer import desk as desks
from attnrisk.explorer.answers import Least
from attnrisk.explorer.desk import Answer, Desk, Worker


def echo(name):
    return Echo("spiked", 1.0, "2", name)


class Scripted:
    """A worker whose answers come when the test says so."""

    def __init__(self):
        self.sent, self.allowed = queue.Queue(), threading.Semaphore(0)

    def ask(self, question):
        self.sent.put(question.name)
        self.allowed.acquire()
        return Answer((question,))


@pytest.fixture
def scripted(monkeypatch):
    worker = Scripted()
    monkeypatch.setattr(desks, "Worker", lambda: worker)
    return worker


def test_what_nobody_waits_for_any_more_is_not_begun(scripted):
    desk = Desk()
    desk.ask("me", [echo("a"), echo("b")])
    assert scripted.sent.get(timeout=10) == "a"
    desk.ask("me", [echo("c"), echo("a")])
    scripted.allowed.release()
    assert scripted.sent.get(timeout=10) == "c"
    scripted.allowed.release()
    desk.wait([echo("c")], 10.0)
    assert desk.find(echo("c")).rows == (echo("c"),)
    time.sleep(0.1)
    assert scripted.sent.empty()
    assert desk.find(echo("b")) is None


def test_who_asked_last_is_served_first(scripted):
    desk = Desk()
    desk.ask("one", [echo("a"), echo("b")])
    assert scripted.sent.get(timeout=10) == "a"
    desk.ask("two", [echo("c")])
    for expected in ("c", "b"):
        scripted.allowed.release()
        assert scripted.sent.get(timeout=10) == expected


def test_nothing_is_begun_for_who_has_left(scripted, monkeypatch):
    desk = Desk()
    monkeypatch.setattr(desks, "_PRESENT", 0.0)
    desk.ask("gone", [echo("a")])
    time.sleep(0.1)
    assert scripted.sent.empty()
    monkeypatch.undo()
    desk.ask("here", [])
    assert scripted.sent.get(timeout=10) == "a"  # the control: within their time


def test_waiting_ends(scripted):
    began = time.monotonic()
    Desk().wait([echo("a")], 0.1)
    assert 0.1 <= time.monotonic() - began < 5.0


def test_the_oldest_answers_are_forgotten(scripted, monkeypatch):
    monkeypatch.setattr(desks, "_REMEMBERED", 2)
    desk, asked = Desk(), [echo("a"), echo("b"), echo("c")]
    scripted.allowed.release(3)
    for question in asked:
        desk.ask("me", [question])
        desk.wait([question], 10.0)
    assert [desk.find(question) is None for question in asked] == [True, False, False]


def test_processes(capfd):
    """A process that dies is replaced; one question over which two have died keeps no other from its answer."""
    assert page_questions.__name__ == "page_questions"  # as the process will import it
    worker, deadly = Worker(), Deadly("spiked", 1.0, "2")
    assert worker.ask(echo("a")).rows == (echo("a"),)
    worker._process.kill()
    assert worker.ask(echo("b")).rows == (echo("b"),)
    assert worker.ask(deadly).sentence == "The process that computed this has died."
    assert capfd.readouterr().err.count("the process ended with code 1\n") == 2


@pytest.mark.slow
def test_a_real_desk():
    desk, bayes = Desk(), Least("spiked", 5.0, "10", "bayes")
    refused = Least("spiked", -1.0, "10", "bayes")
    desk.ask("me", [refused, bayes])
    desk.wait([refused, bayes], 90.0)
    assert desk.find(bayes).rows == bayes.answer()
    assert desk.find(refused).sentence.startswith("nu = -1 is not allowed")
