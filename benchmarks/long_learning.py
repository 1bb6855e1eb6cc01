"""The data of `attnrisk figure samples` on one machine with many cores and an accelerator.

    python -m benchmarks.long_learning run FILE --seconds 520 --accelerator cuda
    python -m benchmarks.long_learning store FILE STORE

`run` starts a process for each search of the figure and one for the Bayes optimum. Each appends a line to FILE for each
`α` as soon as it is known; what FILE holds already is not computed again, so that a run may be killed and continued.
Searches of at least 100 tokens run on the accelerator, and with low priority on the CPU as well, until one is complete.
`store` adds what is complete to a store, from which `attnrisk figure samples --store STORE` draws. A line has the
fingerprint of the code that computed it; those of other code are left out.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attnrisk.studies import figures
from attnrisk.studies.questions import AbstractTaskQuestion, Optimal, RiskCrossing

_LONG = 100  # tokens from which an accelerator is faster
_OPTIMUM, _CPU, _NICE = "optimum", "cpu", 15
_POLL = 1.0  # seconds
_PACKAGES = "jax", "jaxlib", "numpy", "scipy"


def searches(quick: bool) -> dict[str, RiskCrossing]:
    """Those of the figure, by name."""
    asked = figures.questions("samples", quick)
    return {f"{it.length}-{it.name}": it for it in asked if isinstance(it, RiskCrossing)}


def lines(file: Path) -> list[dict[str, Any]]:
    """The lines of the file, without those of processes that were killed while they wrote."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"left out: {line[:60]!r}", file=sys.stderr)
    return found


def known(file: Path, question: AbstractTaskQuestion, device: str | None = None) -> list[Any]:
    """The lines of a question, computed by this code."""
    found = [it for it in lines(file) if it["address"] == question.address]
    return [it for it in found if device in (None, it["device"])]


def append(
    file: Path, question: AbstractTaskQuestion, device: str, found: Any, begun: float
) -> None:
    """One line, in one write."""
    line = {
        "address": question.address,
        "question": question.kind,
        "inputs": question.inputs,
        "device": device,
        "record": found,
        "seconds": round(time.monotonic() - begun, 1),
        "versions": {name: version(name) for name in _PACKAGES}
        | {"python": platform.python_version()},
        "host": platform.node(),
        "answered": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    is_cut_off = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("a") as out:
        out.write("\n" * is_cut_off + json.dumps(line) + "\n")
    told = ("alpha", "test_risk", "test_risk_error", "risk", "result", "ridge_k", "ridge_v")
    shown = ", ".join(f"{name} {found[name]}" for name in told if name in found)
    print(f"{question.length} {question.name} {device}: {shown}, {line['seconds']} s", flush=True)


def search(file: Path, question: RiskCrossing, device: str) -> None:
    """On from what this device has found."""
    records = [it["record"] for it in known(file, question, device)]
    while (alpha := question.next_alpha(records)) is not None:
        begun = time.monotonic()
        records.append(question.learn(alpha, records))
        append(file, question, device, records[-1], begun)


def optimum(file: Path, quick: bool) -> None:
    """All `α` of all lengths."""
    for question in figures.questions("samples", quick):
        if isinstance(question, Optimal) and not known(file, question):
            begun = time.monotonic()
            append(file, question, _CPU, question.answer(), begun)


def jobs(quick: bool, accelerator: str | None) -> Iterator[tuple[str, str]]:
    """The name of each search and the device it runs on, those that take longest first."""
    named = sorted(searches(quick).items(), key=lambda it: -int(it[1].length))
    if accelerator is not None:
        yield from ((name, accelerator) for name, it in named if int(it.length) >= _LONG)
    yield _OPTIMUM, _CPU
    yield from ((name, _CPU) for name, _ in reversed(named))


def environment(device: str) -> dict[str, str]:
    """For one process of many."""
    if device == _CPU:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        return {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
    return {"JAX_PLATFORMS": f"{device},cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def is_complete(file: Path, question: RiskCrossing, device: str) -> bool:
    """Whether a device has ended the search."""
    return question.next_alpha([it["record"] for it in known(file, question, device)]) is None


def run(file: Path, seconds: float, quick: bool, accelerator: str | None) -> None:
    """All processes at once; at the end of the time they are killed, and what they have found stays."""
    end, asked = time.monotonic() + seconds, searches(quick)
    running = {}
    for name, device in jobs(quick, accelerator):
        words = ["one", str(file), name, device, *(["--quick"] if quick else [])]
        nice = ["nice", "-n", str(_NICE)] if accelerator and device == _CPU else []
        command = [*nice, sys.executable, "-m", "benchmarks.long_learning", *words]
        running[name, device] = subprocess.Popen(command, env=os.environ | environment(device))
    while running and time.monotonic() < end:
        time.sleep(_POLL)
        for (name, device), process in list(running.items()):
            if process.poll() is not None:
                print(f"{name} {device}: exit code {process.returncode}", flush=True)
                del running[name, device]
            elif name in asked and any(
                is_complete(file, asked[name], each) for each in (_CPU, accelerator or _CPU)
            ):
                process.kill()
    for process in running.values():
        process.kill()


def store(file: Path, place: Path, quick: bool) -> None:
    """Add what is complete; say what is not."""
    from attnrisk.studies.execute import row_of
    from attnrisk.studies.store import Store

    with Store(place) as answers:
        for question in figures.questions("samples", quick):
            rows = known(file, question)
            for device in sorted({it["device"] for it in rows}):
                mine = [it for it in rows if it["device"] == device]
                found: Any = [it["record"] for it in mine]
                if isinstance(question, Optimal):
                    found = found[0]
                elif isinstance(question, RiskCrossing) and question.next_alpha(found) is not None:
                    continue
                took = sum(it["seconds"] for it in mine)
                origin = {name: mine[-1][name] for name in ("versions", "host", "answered")}
                answers.add([replace(row_of(question, found, took), **origin)])
                break
            else:
                print(f"{question.length} {question.name}: {len(rows)} lines, not complete")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "one", "store"))
    parser.add_argument("file", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--accelerator")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.what == "run":
        run(given.file, given.seconds, given.quick, given.accelerator)
    elif given.what == "store":
        store(given.file, Path(given.rest[0]), given.quick)
    elif given.rest[0] == _OPTIMUM:
        optimum(given.file, given.quick)
    else:
        name, device = given.rest
        search(given.file, searches(given.quick)[name], device)


if __name__ == "__main__":
    main()
