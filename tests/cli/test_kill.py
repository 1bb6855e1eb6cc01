"""Long commands, stopped at a random moment: exit code 130 and one line after Ctrl-C, and nothing lost by a kill."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    "judge": "judge softplus",
    "figure": "figure haystack --out figures --store a.sqlite",
    "report": "report --out report.html --store a.sqlite",
    "sweep": f"sweep {EXAMPLES / 'attentions.toml'} --store a.sqlite --workers 1",
    "explore": "explore --port PORT",
}


def begin(command, folder):
    """A process that has begun, in a session of its own, without code compiled before."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        words = command.replace("PORT", str(free.getsockname()[1])).split()
    begun = subprocess.Popen(
        [sys.executable, "-c", RUN, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={key: os.environ[key] for key in os.environ if not key.startswith("JAX_")},
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
    code, err, seconds = stop(begun, signal.SIGINT)
    assert "Traceback" not in err
    assert (code, err.count("\n")) == (130, 1 if name != "explore" else 0), err
    assert seconds < PATIENCE


@pytest.mark.parametrize("name", COMMANDS)
def test_interrupt(name, tmp_path):
    check_interrupt(name, random.Random(name).uniform(0.0, 3.0), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupt_at_many_moments(name, tmp_path):
    moments = random.Random(name)
    for _ in range(6):
        check_interrupt(name, moments.uniform(0.0, 15.0), tmp_path)


@pytest.mark.parametrize("name", ["population", "sweep"])
def test_terminate_is_quiet(name, tmp_path):
    begun = begin(COMMANDS[name], tmp_path)
    time.sleep(2.0)
    code, err, seconds = stop(begun, signal.SIGTERM)
    assert (code, err) == (-signal.SIGTERM, "")
    assert seconds < PATIENCE


def counted(store):
    """Rows of a store, which may not be there yet."""
    import sqlite3

    if not store.exists():
        return 0
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as opened:
        try:
            tables = opened.execute(
                "select name from sqlite_master where type = 'table'"
            ).fetchall()
            return max(
                (opened.execute(f"select count(*) from {t}").fetchone()[0] for (t,) in tables),
                default=0,
            )
        except sqlite3.OperationalError:  # being made
            return 0


@pytest.mark.parametrize("name", ["sweep", "report"])
def test_killed_it_resumes(name, tmp_path):
    store = tmp_path / "a.sqlite"
    begun = begin(COMMANDS[name], tmp_path)
    deadline = time.monotonic() + 90
    while not counted(store) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.communicate()
    kept = counted(store)
    assert kept > 0
    again = begin(COMMANDS[name], tmp_path)
    while counted(store) <= kept and time.monotonic() < deadline + 90:
        time.sleep(0.2)
    assert stop(again, signal.SIGINT)[0] == 130
    assert counted(store) > kept
