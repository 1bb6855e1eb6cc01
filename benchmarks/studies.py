"""The studies room: a sweep of many points against as many calls of the command line."""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from attnrisk.studies import Store, Study, sweep
from benchmarks.population import Row

POINTS, CALLS, FASTER = 400, 5, 20.0
NU, LENGTHS = {"from": 1, "to": 8, "points": POINTS // 4}, [2, 3, 5, 10]


def one_sweep() -> float:
    """Seconds of a sweep in two processes, their start included."""
    study = Study(question="population", nu=NU, length=LENGTHS, attention="linear")
    begun = time.perf_counter()
    with TemporaryDirectory() as folder, Store(Path(folder) / "answers.sqlite") as store:
        end = sweep(study, store, workers=2)
    if end.done - end.failed != POINTS:
        raise RuntimeError(f"{end.failed} of {POINTS} points failed")
    return time.perf_counter() - begun


def one_call() -> float:
    """Seconds of one point asked by the command line, of several, two at a time as on two cores."""
    command = [sys.executable, "-c", "from attnrisk.cli import main; main()", "population"]
    begun = time.perf_counter()
    for call in range(CALLS):
        options = [f"--nu={1 + call}", "--length=10", "--attention=linear", "--json"]
        pair = [subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) for _ in "ab"]
        if any(each.wait() for each in pair):
            raise RuntimeError("the command line failed")
    return (time.perf_counter() - begun) / (2 * CALLS)


def rows() -> list[Row]:
    """What this room promises; it needs two cores."""
    swept, called = one_sweep(), POINTS * one_call()
    ratio = called / swept
    return [
        Row(f"sweep of {POINTS} population minima, two processes", f"{swept:.1f} s", "", True),
        Row(
            "against as many calls of the command line, two at a time",
            f"{ratio:.0f} times faster",
            f"≥ {FASTER:g}",
            ratio >= FASTER,
        ),
    ]


if __name__ == "__main__":
    for row in rows():
        print(row.what, row.found, row.bar, sep=" | ")
