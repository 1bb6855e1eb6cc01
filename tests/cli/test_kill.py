"""Long commands, stopped at a random moment: exit code 130 and one line after Ctrl-C, and nothing lost by a kill."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnrisk.studies import Store

RUN = "from attnrisk.cli import main; print('begun', flush=True); main()"
EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 5.0  # seconds, from Ctrl-C to the end
COMMANDS = {
    "population": "population --attention all --length 20",
    "erm": "erm --alpha 4 --attention all",
    "tune": "erm --alpha 4 --tune",
    "flow": "flow --runs 200",
    "optimal": "optimal --alpha 1.1 --noise 0.1 --thresholds",
    "simulate": "simulate --alpha 4 --dim 2000 --nu 2",
    "amp": "amp --alpha 2 --dim 2000 --nu 2",
    "train": "train --checkpoint state --steps 100000",
    "judge": "judge softplus",
    "figure": "figure haystack --out figures --store a.sqlite",
    "report": "report --out report.html --store a.sqlite",
    "sweep": f"sweep {EXAMPLES / 'attentions.toml'} --store a.sqlite --workers 1",
    "atlas": "atlas --out atlas.json --store a.sqlite --workers 1",
}


def begin(command, folder):
    """A process that has begun, in a session of its own."""
    begun = subprocess.Popen(
        [sys.executable, "-c", RUN, *command.split()],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert begun.stdout.readline() == "begun\n"
    return begun


def stop(begun, number):
    """Exit code, standard error and the seconds until the end, after a signal to the process."""
    sent = time.monotonic()
    begun.send_signal(number)
    try:
        _, err = begun.communicate(timeout=60)
        return begun.returncode, err, time.monotonic() - sent
    finally:
        if begun.poll() is None:
            os.killpg(begun.pid, signal.SIGKILL)


def check_interrupt(name, moment, folder):
    begun = begin(COMMANDS[name], folder)
    time.sleep(moment)
    while begun.poll() == 0:  # it was over before: again, and sooner
        begun, moment = begin(COMMANDS[name], folder), moment / 2
        time.sleep(moment)
    code, err, seconds = stop(begun, signal.SIGINT)
    assert "Traceback" not in err
    assert code == 130, err
    assert err.count("\n") == 1, err
    assert seconds < PATIENCE


@pytest.mark.parametrize("name", COMMANDS)
def test_interrupt(name, tmp_path):
    check_interrupt(name, random.Random(name).uniform(0.0, 2.0), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupt_at_many_moments(name, tmp_path):
    moments = random.Random(name)
    for _ in range(6):
        check_interrupt(name, moments.uniform(0.0, 15.0), tmp_path)


@pytest.mark.parametrize("name", ["population", "sweep"])
def test_terminate_is_quiet(name, tmp_path):
    begun = begin(COMMANDS[name], tmp_path)
    time.sleep(1.5)
    code, err, seconds = stop(begun, signal.SIGTERM)
    assert err == ""
    assert code in (-signal.SIGTERM, 128 + signal.SIGTERM)  # the second once it has ended workers
    assert seconds < PATIENCE


def counted(store):
    """Rows of a store."""
    with Store(store) as opened:
        return sum(opened.numerics().values())


@pytest.mark.parametrize("name", ["sweep", pytest.param("report", marks=pytest.mark.slow)])
def test_killed_it_resumes(name, tmp_path):
    store, study = tmp_path / "a.sqlite", tmp_path / "study.toml"
    study.write_text('question = "bayes"\nnu = {from = 1, to = 9, points = 2000}\nlength = 2\n')
    command = COMMANDS[name].replace(str(EXAMPLES / "attentions.toml"), str(study))
    kept = [0]
    for _ in range(2):
        begun = begin(command, tmp_path)
        while counted(store) <= kept[-1]:
            assert begun.poll() is None, begun.communicate()
            time.sleep(0.2)
        os.killpg(begun.pid, signal.SIGKILL)
        begun.communicate()
        kept.append(counted(store))
    assert 0 < kept[1] < kept[2]
