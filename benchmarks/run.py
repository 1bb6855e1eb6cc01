"""`make bench`: run the benchmarks, print the table, and keep it in benchmarks/results.md.

`python -m benchmarks.run flow "wait for erm"` runs the groups whose names begin with one of these words, and replaces
their tables alone; `--list` names all groups. The groups of one core are measured on one, processes that a sweep or a
report starts have all of them.
"""

import argparse
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

# Not in the workers of a sweep, which import this again.
if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):
    CORES = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(CORES)})  # before jax counts the cores

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import flow, learning, page, population, simulation, studies, waits, walk

RESULTS = Path(__file__).with_name("results.md")

ON_ONE_CORE: dict[str, Callable[[], list[population.Row]]] = {
    "risks": population.risks,
    "heads": population.heads,
    "minimisers": population.minimisers,
    "descents of heads": population.descents,
    "walk": walk.rows,
    "flow": flow.rows,
    "learning, lengths": learning.lengths,
    "learning, fixed points": learning.fixed_points,
    "learning, tuning": learning.tuning,
    "simulation": simulation.rows,
}
ON_ALL_CORES: dict[str, Callable[[], list[population.Row]]] = {
    "figure 2": studies.figure,
    "sweeps": studies.sweeping,
    "max task": studies.on_max,
    "batching": studies.batching,
    **{f"wait for {name}": partial(waits.rows, [name]) for name in waits.WAITS},
    "page": page.rows,
}


def main() -> int:
    """Print and keep the tables; fail if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help="beginnings of names; all if not given"
    )
    parser.add_argument("--list", action="store_true", help="name the groups")
    given = parser.parse_args()
    every = ON_ONE_CORE | ON_ALL_CORES
    if given.list:
        print(*every, sep="\n")
        return 0
    unknown = [word for word in given.groups if not any(name.startswith(word) for name in every)]
    if unknown:
        parser.error(f"no group begins with {unknown[0]!r}: --list names them")
    chosen = [name for name in every if name.startswith(tuple(given.groups or [""]))]
    reached = True
    for name in chosen:
        if name in ON_ALL_CORES and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, CORES)
        rows = every[name]()
        table = Table("what", "found", "bar", "reached", title=name)
        for row in rows:
            table.add_row(escape(row.what), row.found, row.bar, _mark(row))
        Console().print(table)
        _keep(name, rows)
        reached = reached and all(row.reached for row in rows)
    return 0 if reached else 1


def _mark(row: population.Row) -> str:
    return ("yes" if row.reached else "no") if row.bar else ""


def _keep(name: str, rows: list[population.Row]) -> None:
    """Replace the table of a group, in the order of the groups."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    tables = {head.strip(): body.strip() for head, _, body in parts}
    where = f"{platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}"
    cores = 1 if name in ON_ONE_CORE else len(CORES)
    head = f"{datetime.now(UTC).date()}, {where}, cores: {cores}."
    lines = [f"| {row.what} | {row.found} | {row.bar} | {_mark(row)} |" for row in rows]
    columns = ["| what | found | bar | reached |", "|---|---|---|---|"]
    tables[name] = "\n".join([head, "", *columns, *lines] if rows else [head, "", "Not measured."])
    title = "# Benchmarks\n\nWritten by `make bench`. Ratios are within one run.\n"
    order = [*ON_ONE_CORE, *ON_ALL_CORES]
    names = sorted(tables, key=lambda each: order.index(each) if each in order else len(order))
    RESULTS.write_text(title + "".join(f"\n## {each}\n\n{tables[each]}\n" for each in names))


if __name__ == "__main__":
    sys.exit(main())
