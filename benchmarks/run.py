"""`make bench`: run every benchmark, print the table, and keep it in benchmarks/results.md.

All rooms but the last are measured on one core; processes that a sweep or a report starts have all of them.
"""

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

# Not in the workers of a sweep, which import this again.
if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):
    CORES = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(CORES)})  # before jax counts the cores

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import flow, learning, population, simulation, studies, waits, walk

RESULTS = Path(__file__).with_name("results.md")


def main() -> int:
    """Print and keep the table; fail if a bar is missed."""
    rows = population.rows() + walk.rows() + flow.rows() + learning.rows() + simulation.rows()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, CORES)
    rows += studies.rows() + waits.rows()
    table = Table("what", "found", "bar", "reached")
    for row in rows:
        table.add_row(escape(row.what), row.found, row.bar, _mark(row))
    Console().print(table)
    RESULTS.write_text(_markdown(rows))
    return 0 if all(row.reached for row in rows) else 1


def _mark(row: population.Row) -> str:
    return ("yes" if row.reached else "no") if row.bar else ""


def _markdown(rows: list[population.Row]) -> str:
    today = datetime.now(UTC).date()
    head = [
        "# Benchmarks",
        "",
        f"`make bench`, {today}, one core ({platform.machine()}), Python {platform.python_version()}, "
        f"jax {jax.__version__}; commands, sweeps and the report on {os.cpu_count()}. Ratios are within one run.",
        "",
        "| what | found | bar | reached |",
        "|---|---|---|---|",
    ]
    return (
        "\n".join(head + [f"| {r.what} | {r.found} | {r.bar} | {_mark(r)} |" for r in rows]) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
