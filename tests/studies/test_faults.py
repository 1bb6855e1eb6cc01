"""What the engine promises of processes that are killed, interrupted, or in each other's way."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fake_questions
import pytest
from fake_questions import table

from attnrisk.studies import EngineError, Store, Study, status, sweep

HELPERS = str(Path(fake_questions.__file__).parent)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fakes")]


@contextmanager
def process(*arguments, output=subprocess.PIPE):
    """A process in a group of its own, of which nothing is left behind."""
    path = os.pathsep.join([HELPERS, os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=output,
        stderr=output,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    ) as begun:
        try:
            yield begun
        finally:
            if begun.poll() is None:
                os.killpg(begun.pid, signal.SIGKILL)


@contextmanager
def loopback(folder):
    """A scheduler and two workers, as one starts them on a cluster: its address, and its process."""
    file = folder / "scheduler.json"
    with ExitStack() as stack:

        def start(*arguments):
            options = ("--scheduler-file", str(file), "--dashboard-address", ":0")
            silent = process("dask", *arguments, *options, output=subprocess.DEVNULL)
            return stack.enter_context(silent)

        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0")
        while not file.exists() or not file.read_text():
            time.sleep(0.1)
        for _ in range(2):
            start("worker", "--nthreads", "1")
        yield json.loads(file.read_text())["address"], scheduler


def test_a_cluster_gives_the_bits_of_the_local_engine(tmp_path):
    nu = [0.5, 1, 2, 3, 5]
    study = Study(question="population", nu=nu, length=[2, 10], attention=["linear", "erf"])
    with Store(tmp_path / "local.sqlite") as local, Store(tmp_path / "far.sqlite") as far:
        sweep(study, local, workers=2)
        with loopback(tmp_path) as (address, _):
            sweep(study, far, scheduler=address)
        assert status(study, far) == (20, 20, 0, 0)
        assert table(study, far) == table(study, local)


def test_a_scheduler_that_goes_away_loses_nothing(tmp_path, store):
    study = Study(question="sleepy", nu={"from": 1, "to": 400, "points": 400}, length=2)
    with loopback(tmp_path) as (address, scheduler):

        def kill(failures, done, total):
            if done >= 20:
                scheduler.kill()

        with pytest.raises(EngineError, match="the scheduler went away"):
            sweep(study, store, scheduler=address, progress=kill)
    assert 20 <= status(study, store).done < 400


def write_study(folder, question, points):
    file = folder / "study.toml"
    file.write_text(
        f'question = "{question}"\nnu = {{ from = 1, to = {points}, points = {points} }}\nlength = 2\n'
    )
    return Study(question=question, nu={"from": 1, "to": points, "points": points}, length=2), file


def wait_for_progress(store, before):
    while sum(store.numerics().values()) == before:
        time.sleep(0.02)


def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path):
    study, file = write_study(tmp_path, "sleepy", 1200)
    path = tmp_path / "answers.sqlite"
    arguments = ("fake_questions", "sweep", str(file), "--store", str(path), "--json")
    moments, done = random.Random(7), [0]
    with Store(path) as store:
        for kill in range(30):
            with process(*arguments) as begun:
                if kill % 2:  # while it answers; else while it starts
                    wait_for_progress(store, done[-1])
                time.sleep(moments.uniform(0.0, 1.0 if kill % 2 else 5.0))
                begun.send_signal(signal.SIGKILL)
            done.append(status(study, store).done)
        assert done == sorted(done)
        assert len(set(done)) > 15  # none of the kills above came too late
        assert done[-1] < 1200
        with process(*arguments) as begun:
            said, _ = begun.communicate(timeout=200)
        assert json.loads(said)["done"] == sum(store.numerics().values()) == 1200
        risks = [
            store.find([point.address])[point.address].outputs["risk"] for point in study.points
        ]
        assert risks == [point.nu / 3 for point in study.points]


def test_two_sweeps_on_one_store(tmp_path):
    study, file = write_study(tmp_path, "sleepy", 200)
    path = tmp_path / "answers.sqlite"
    arguments = ("fake_questions", "sweep", str(file), "--store", str(path), "--json")
    with process(*arguments) as one, process(*arguments) as other:
        said = [begun.communicate(timeout=200) for begun in (one, other)]
    assert [json.loads(out)["done"] for out, _ in said] == [200, 200]
    assert [err for _, err in said] == ["", ""]
    with Store(path) as store:
        assert status(study, store) == (200, 200, 0, 0)
        assert sum(store.numerics().values()) == 200


@pytest.mark.parametrize("seconds", [3.0, 4.0, 12.0])
def test_ctrl_c_stops_within_five_seconds(tmp_path, seconds):
    _, file = write_study(tmp_path, "slow", 100)
    store = ("--store", str(tmp_path / "answers.sqlite"))
    with process("fake_questions", "sweep", str(file), *store) as begun:
        time.sleep(seconds)
        pressed = time.monotonic()
        os.killpg(begun.pid, signal.SIGINT)  # as a terminal does: to the workers too
        _, said = begun.communicate(timeout=60)
    assert time.monotonic() - pressed < 5
    assert begun.returncode == 130
    assert said == "Interrupted: run the same command again to go on\n"


@pytest.mark.parametrize("seconds", [5.0, 12.0])
def test_sigterm_is_quiet(tmp_path, seconds):
    _, file = write_study(tmp_path, "slow", 100)
    store = ("--store", str(tmp_path / "answers.sqlite"))
    with process("fake_questions", "sweep", str(file), *store) as begun:
        time.sleep(seconds)
        begun.send_signal(signal.SIGTERM)
        _, said = begun.communicate(timeout=60)
    assert begun.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)  # with workers, or before
    assert said == ""


def test_a_script_that_its_workers_cannot_import_is_told_how_to_mend_it(tmp_path):
    (tmp_path / "unguarded.py").write_text(
        "from attnrisk.studies import Store, Study, sweep\n"
        "with Store('answers.sqlite') as store:\n"
        "    sweep(Study(question='bayes', nu=1, length=2), store)\n"
    )
    command = [sys.executable, "unguarded.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert last.startswith("attnrisk.studies.cluster.EngineError: no local worker could start")
    assert last.endswith('under `if __name__ == "__main__":`')
