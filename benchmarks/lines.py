"""CSV files of benchmarks: lines that are appended one at a time, and numbers as tables show them."""

import csv
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any


def append_lines(
    path: Path,
    fields: Sequence[str],
    jobs: Iterable[Callable[[], dict[str, Any]]],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Append the line of each job with the `seconds` it took by this clock; start none once the time is over."""
    begun = clock()
    for job in jobs:
        now = clock()
        if now - begun > seconds:
            print("out of time: no more lines", flush=True)
            return
        line = job()
        line["seconds"] = round(clock() - now, 1)
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, fields)
            if is_new:
                writer.writeheader()
            writer.writerow(line)
        print(*(f"{name}={value}" for name, value in line.items()), sep=", ", flush=True)


def with_error(value: float, error: float) -> str:
    """A value to two significant digits of its error."""
    shown = float(f"{error:.1e}")
    digits = max(0, 1 - math.floor(math.log10(shown))) if shown > 0 else 3
    return f"{value:.{digits}f} ± {error:.{digits}f}"
