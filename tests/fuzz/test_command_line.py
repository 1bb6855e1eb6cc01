"""Random command lines: an answer, or one line that names what was given. Never a traceback."""

import random
import shlex
from collections import Counter

import pytest
import typer

from attnrisk.cli import main
from attnrisk.cli.app import app

COMMANDS = typer.main.get_command(app).commands
OPTION_NAMES = {
    each.name for command in COMMANDS.values() for each in command.params if "_" in each.name
}
ABSURD = [
    *("", " ", "nan", "inf", "-inf", "-1", "0", "-0", "1e-300", "1e300", "1e12", "0x10", "1_0"),
    *(
        "9" * 400,
        "-" + "9" * 400,
        "9" * 5000,
        "1e" + "9" * 30,
        "1.5",
        "٣",
        "ν",
        "😀",
        "a b",
        "None",
    ),
    *("--nu", "-", "--", "1-3", "3-1", "2:0.5,3:0.5", "2:nan", "1:1,1:1", ":", ",", "1-", "a\nb"),
    *("/proc/no/file", "/dev/full", ".", "\udcff", "softmax", "all", "spiked", "x" * 5000),
]
VALID = {
    "task": ["spiked", "max"],
    "nu": ["5", "0", "0.25", "1e12", "inf"],
    "length": ["1", "10", "1-3", "1:0.25,8:0.75", "1000000"],
    "noise": ["0", "0.1", "1e12"],
    "spread": ["1", "0.5", "1e12"],
    "attention": ["softmax", "linear,erf", "all", "hardmax", "no_such_module:f", "json:loads"],
    "attentions": ["softmax", "linear", "hardmax", "no_such_module:f", "mine:f", "loud:f"],
    "bias": ["free", "default", "-1", "1e12"],
    "signal": ["4logL", "logL", "0logL"],
    "alpha": ["1", "0.5", "1e-9", "1e12"],
    "dim": ["2", "10", "100000000"],
    "seed": ["0", "4294967295"],
    "start": ["random", "mismatched", "nothing", "teacher"],
    "name": ["2", "haystack", "phases"],
    "kernel": ["no_such_module:f", "math:exp"],
    "export": ["csv", "nc"],
    "precision": ["float32", "float64"],
    "host": ["127.0.0.1", "192.0.2.1"],
    "port": ["8501", "1", "65535"],
    "scheduler": ["tcp://127.0.0.1:1"],
}
NUMBERS = ["1", "2", "0.5", "-0.5", "100"]
STUDIES = [
    'question = "bayes"\nnu = [1, 2]\nlength = 2\n',
    "question = 3\nnu = 1\nlength = 2\n",
    'question = "bayes"\nnu = nan\nlength = 2\n',
    'question = "bayes"\nnu = 1\nlength = 2\nunheard = 1\n',
    'question = "erm"\nnu = 1\nlength = 2\nattention = "softmax"\nalpha = -1\nridge_k = 1\n',
    'question = "bayes"\nnu = {from = 1, to = 1e999, points = 3}\nlength = 2\n',
    'question = "bayes"\nnu = {from = 1, points = [3]}\nlength = "x"\n',
    'question = ["bayes"]\nnu = "1"\nlength = [[2]]\n',
    f'question = "bayes"\nnu = {"9" * 400}\nlength = {"9" * 400}\n',
    'question = "bayes"\nnu = 1979-05-27\nlength = true\n',
    'question = "bayes\n',
    "",
    "\x00",
]


def files(folder):
    """Studies, good and damaged, and other files."""
    made = [folder / f"study{at}.toml" for at in range(len(STUDIES))]
    for file, text in zip(made, STUDIES, strict=True):
        file.write_text(text)
    (folder / "bytes.toml").write_bytes(b"\xff\xfe")
    (folder / "mine.py").write_text("raise SystemExit(5)\n")
    (folder / "loud.py").write_text("print('loud')\ndef f(x): raise ZeroDivisionError('a\\nb')\n")
    return [*map(str, made), str(folder / "bytes.toml"), str(folder / "missing.toml"), str(folder)]


def draw(rng, studies):
    """The name of a command, and its arguments."""
    name = rng.choice(list(COMMANDS))
    paths = {"file": studies[:1] * 5 + studies, "store": ["new/a.sqlite", *studies], "out": studies}
    paths["attention"] = [*VALID["attention"], "mine", "mine:f", "loud:f", "loud:g"]

    def value(parameter):
        known = paths | {"attention": paths["attention"]} if name == "judge" else VALID | paths
        valid = (VALID | known).get(parameter, NUMBERS)
        return rng.choice(ABSURD if rng.random() < 0.2 else valid)

    words = []
    for parameter in COMMANDS[name].params:
        if parameter.name == "help" or rng.random() > (0.9 if parameter.required else 0.35):
            continue
        flag = parameter.opts[0]
        if not flag.startswith("-"):
            words.append(value(parameter.name))
        elif parameter.is_flag:
            words.append(flag)
        else:
            words += [flag, value(parameter.name)] if rng.random() < 0.9 else [f"{flag}=1"]
    if rng.random() < 0.05:
        words.insert(rng.randint(0, len(words)), rng.choice(["--unheard", "5", *ABSURD]))
    return [name, *words]


@pytest.fixture
def _no_work(monkeypatch, tmp_path):
    """What is heavy without being compiled."""
    monkeypatch.chdir(tmp_path)
    for place in (
        "attnrisk.studies.sweep",
        "attnrisk.studies.figures.draw",
        "attnrisk.studies.report.write_report",
        "webbrowser.open",
    ):
        monkeypatch.setattr(place, lambda *given, **more: [])
    surface = {"attention": "softmax", "task": "spiked", "bias": "0", "nu": [0.0], "error": 0.0}
    empty = {"surfaces": [surface], "learning": [], "flows": []}
    monkeypatch.setattr("attnrisk.studies.atlas.collect", lambda *given: ({}, []))
    monkeypatch.setattr("attnrisk.studies.atlas.make", lambda answers: empty)


def is_named(words, line):
    """Whether a refusal says what it is about as it was typed: an option, a value, or what is missing."""
    typed = [word.split("=")[0][:20] for word in words if word.strip()]
    named = any(word in line or repr(word)[1:-1] in line for word in typed)
    functions = [word.partition(":")[2] for word in words if ":" in word]
    named |= any(f"attention = {each} " in line for each in functions if each)
    named |= "" in words and "'.'" in line  # an empty path is the current folder
    return named or "Missing" in line or "nothing is not allowed" in line


def fault(words, found, out, err):
    """What is wrong with an outcome, if anything."""
    if type(found).__name__ == "BeganToCompute":
        return None
    if not isinstance(found, SystemExit):
        return "a traceback"
    if found.code in (0, None, 130):
        return None
    if found.code not in (1, 2):
        return f"exit code {found.code}"
    err = err.replace("loud\n", "")  # what the judged module prints
    line = err.partition("\nimport jax.numpy as jnp\n")[0].rstrip("\n")  # an example may follow it
    if "\n" in line or not err.startswith("Error: ") or out:
        return "not one line on standard error alone"
    if "Input should" in err or any(f" {name} " in err for name in OPTION_NAMES):
        return "words of the program, not of the user"
    if found.code == 2 and not is_named(words, err):
        return "what was given is not named"
    return None


@pytest.mark.usefixtures("_no_work")
def test_command_lines(outcome, capsys, tmp_path, cases):
    studies, faults, ends = files(tmp_path), [], Counter()
    for seed in cases:
        words = draw(random.Random(seed), studies)
        found = outcome(lambda: main(words))  # noqa: B023
        out, err = capsys.readouterr()
        ends[getattr(found, "code", type(found).__name__)] += 1
        why = fault(words, found, out, err)
        if why:
            faults.append(f"{seed}: {why}: {shlex.join(words)[:300]}\n{err[:500]}{found!r}"[:900])
    assert not faults, f"{len(faults)} faults\n" + "\n\n".join(faults[:20])
    assert ends[0] > len(cases) / 20
    assert ends[2] > len(cases) / 3
    assert ends["BeganToCompute"] > len(cases) / 40
