"""Completion as shells ask for it, through environment variables."""

import os
import subprocess
import sys

import pytest

import attnrisk


def run(*words, **variables):
    command = [sys.executable, "-m", "attnrisk", *words]
    environment = os.environ | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def completed(line):
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    found = run(_ATTNRISK_COMPLETE="complete_bash", **variables)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("attnrisk exp", ["explore"]),
        ("attnrisk atlas --min", ["--minutes"]),
        ("attnrisk bayes --task s", ["spiked"]),
        ("attnrisk flow --attention softm", ["softmax", "softmax-1"]),
    ],
)
def test_words_are_completed(line, words):
    assert completed(line)[: len(words)] == words


def test_the_script_names_the_command():
    shown = run(
        "--show-completion",
        "bash",
        SHELL="/bin/bash",
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )
    assert shown.returncode == 0
    assert "complete -o default -F _attnrisk_completion attnrisk" in shown.stdout


def test_the_package_runs_as_a_module():
    assert run("--version").stdout == f"attnrisk {attnrisk.__version__}\n"
