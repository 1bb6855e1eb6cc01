"""`attnrisk train`: its answer, its refusals, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from attnrisk.cli import main
from attnrisk.cli import train as command
from attnrisk.studies import Study, execute
from attnrisk.trained import TASKS
from attnrisk.trained.training import PRECISIONS

TINY = "--length 8 --pairs 2 --vocabulary 8 --width 4 --layers 1 --batch 2"
RUN = "from attnrisk.cli import main; main()"
MODULE = """
import jax.numpy as jnp
def cubic(scores):
    raised = jnp.maximum(scores + 1.0, 0.0) ** 3
    return raised / jnp.maximum(jnp.sum(raised), 1e-30)
def masked(scores, mask):
    raised = jnp.where(mask, jnp.exp(-(scores**2)), 0.0)
    return raised / jnp.sum(raised)
def mixes(scores):
    return scores - jnp.mean(scores)
"""


@pytest.fixture
def run(capsys):
    """Exit code, standard output and standard error of a command line."""

    def run(line):
        with pytest.raises(SystemExit) as stop:
            main(line.split())
        return stop.value.code, *capsys.readouterr()

    return run


def test_the_words_are_those_of_the_package():
    assert command._TASKS == TASKS
    assert command._PRECISIONS == PRECISIONS


def test_a_question_of_a_study_is_what_the_command_says(run):
    code, out, err = run(f"train {TINY} --steps 3 --seed 5 --learning-rate 0.01 --json")
    assert (code, err) == (0, "")
    fields = json.loads(out)
    given = {"length": 8, "pairs": 2, "vocabulary": 8, "width": 4, "layers": 1, "batch_size": 2}
    study = Study(
        question="train", attention="softmax", steps=3, seed=[5, 6], learning_rate=0.01, **given
    )
    rows = execute.answer(study.points)  # together
    assert not any(row.failed for row in rows), rows[0].result
    assert rows[0].outputs["parameters"] == fields["parameters"]
    assert rows[0].outputs["loss"] == pytest.approx(
        fields["loss"], rel=1e-5
    )  # of two copies at once
    assert rows[0].outputs["loss"] != rows[1].outputs["loss"]
    assert fields["bits_per_character"] is None


@pytest.mark.parametrize("name", ["cubic", "masked"])
def test_a_function_of_a_user(run, name, tmp_path, monkeypatch):
    (tmp_path / f"mine_{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(f"train {TINY} --steps 2 --attention mine_{name}:{name} --json")
    assert (code, err) == (0, "")
    assert np.isfinite(json.loads(out)["loss"])


def test_a_text_of_a_user(run, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, " * 20)
    code, out, _ = run(
        f"train --task text --text {file} --length 8 --width 4 --layers 1 --batch 2 --steps 2"
    )
    assert code == 0
    assert "bits per character" in out


BAD = [
    ("--attention sofmax", "--attention = 'sofmax'", "did you mean softmax"),
    ("--attention no_such_module:f", "--attention = 'no_such_module:f", "can be imported"),
    ("--attention mine_bad:mixes", "--attention", "mask"),
    ("--task recal", "--task = 'recal'", "one of recall, needle, text"),
    ("--width 5", "--width = 5", "a multiple of 2"),
    ("--width 12 --heads 5", "--width = 12", "a multiple of 10"),
    ("--width 0", "--width = 0", "from 2 to"),
    ("--steps 0", "--steps = 0", "from 1 to"),
    ("--steps many", "--steps = 'many'", "a whole number"),
    ("--seed -1", "--seed = -1", "from 0 to"),
    ("--learning-rate 0", "--learning-rate = 0", "> 0"),
    ("--learning-rate nan", "--learning-rate = nan", "a number"),
    ("--pairs 40", "--length = 128", "at least 160"),
    ("--vocabulary 4", "--vocabulary = 4", "at least 32"),
    ("--task needle --pairs 4", "--pairs = 4", "left out where the task is needle"),
    ("--text setup.txt", "--text = 'setup.txt'", "can be read"),
    ("--text . --task text", "--text = '.'", "must be a regular file"),
    ("--text short.txt --task text", "--text = 5 characters", "at least 100"),
    ("--text bytes.txt --task text", "--text = 'bytes.txt'", "UTF-8"),
    ("--text short.txt", "--text = 5 characters", "left out where the task is recall"),
    ("--checkpoint short.txt", "--checkpoint = 'short.txt'", "a folder"),
    ("--checkpoint /proc/no", "--checkpoint = '/proc/no'", "can be written"),
    ("--precision float16", "--precision = 'float16'", "one of float32, bfloat16"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_bad_input_is_one_line(run, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe" * 100)
    (tmp_path / "mine_bad.py").write_text(MODULE)
    arguments, *words = case
    code, out, err = run(f"train {arguments}")
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_an_interrupt_keeps_the_checkpoint(tmp_path):
    state = tmp_path / "state"
    line = f"train {TINY} --steps 100000 --checkpoint {state}"
    begun = subprocess.Popen(
        [sys.executable, "-c", RUN, *line.split()], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while not (state / "training.eqx").exists():
            assert begun.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sent = time.monotonic()
        begun.send_signal(signal.SIGINT)
        _, err = begun.communicate(timeout=60)
    finally:
        if begun.poll() is None:
            os.kill(begun.pid, signal.SIGKILL)
    assert begun.returncode == 130
    assert time.monotonic() - sent < 5
    assert err == "Interrupted: run the same command again to go on\n"
    head = json.loads((state / "training.eqx").read_bytes().partition(b"\n")[0])
    assert head["done"] >= 25
