"""What a user waits for: each command in a new process, with nothing compiled before, and a second time.

`python -m benchmarks.waits [NAME]` prints a table.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from attnrisk._compile_cache import VARIABLE
from benchmarks.population import Row

KERNEL = """
import jax
def phi(score):
    return jax.nn.softplus(score) ** 2
"""


class Wait(NamedTuple):
    """A command, and the seconds that it may take cold and the second time: to its end, or to a line with `until`."""

    command: tuple[str, ...]
    cold: float
    second: float
    until: str = ""


WAITS = {
    "population": Wait(("population",), 2, 1),
    "population, softplus on max": Wait(
        ("population", "--task", "max", "--attention", "softplus"), 4, 3
    ),
    "erm, two attentions": Wait(("erm", "--alpha", "2", "--attention", "softmax,linear"), 10, 3),
    "flow, five runs": Wait(("flow", "--runs", "5", "--start", "mismatched"), 10, 5),
    "judge, a kernel": Wait(("judge", "--kernel", "waits_kernel:phi"), 30, 12),
    "judge, exact tables": Wait(
        ("judge", "--kernel", "waits_kernel:phi"), 5, 5, until="Mean gap to the Bayes risk"
    ),
    "quick report": Wait(("report", "--out", "report.html", "--store", "answers.sqlite"), 90, 90),
}


def seconds(wait: Wait, folder: Path) -> tuple[float, float]:
    """Cold, and a second time in a new process; what was answered before is forgotten, what was compiled is not."""
    (folder / "waits_kernel.py").write_text(KERNEL)
    spent = []
    for _ in range(2):
        spent.append(_run(wait, folder))
        for kept_answers in folder.glob("answers.sqlite*"):
            kept_answers.unlink()
    return spent[0], spent[1]


def _run(wait: Wait, folder: Path) -> float:
    """Seconds until the command ends or, if it is waited for, until a line with `until` is printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "attnrisk", *wait.command]
    begun = time.perf_counter()
    with subprocess.Popen(
        command,
        env={**kept, VARIABLE: str(folder / "compiled")},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if wait.until and wait.until in line:
                spent = time.perf_counter() - begun
                process.terminate()
                return spent
    if process.returncode or wait.until:
        missing = f", without {wait.until!r}" if wait.until else ""
        raise RuntimeError(f"exit code {process.returncode}{missing}")
    return time.perf_counter() - begun


def measure(name: str) -> Row:
    """One wait; a command that fails misses its bars."""
    wait = WAITS[name]
    what, bar = f"wait for {name}, cold / second run", f"≤ {wait.cold:g} s / {wait.second:g} s"
    try:
        with tempfile.TemporaryDirectory() as folder:
            cold, second = seconds(wait, Path(folder))
    except RuntimeError as error:
        return Row(what, f"failed: {error}", bar, False)
    met = cold <= wait.cold and second <= wait.second
    return Row(what, f"{cold:.1f} s / {second:.1f} s", bar, met)


def rows(names: list[str] | None = None) -> list[Row]:
    """All waits, or those of these names."""
    return [measure(name) for name in names or WAITS]


def main() -> None:
    """Print each row of the table as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {list(WAITS)}; all if not given"
    )
    for name in parser.parse_args().names or WAITS:
        row = measure(name)
        print(f"{row.what:45} {row.found:20} {row.bar}", flush=True)


if __name__ == "__main__":
    main()
