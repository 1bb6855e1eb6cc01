"""How answers look: numbers with their errors, tables for people, JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from .._results import Estimate

_DIGITS = 12  # more than anyone compares by eye
_WIDE = 160  # columns where nobody looks, so that a row stays on its line
_UNBOUNDED = 1000  # columns, to see how many a table would take


def with_error(estimate: Estimate, most: int = _DIGITS) -> str:
    """`0.457643565998 ± 7e-15`, with at most so many digits."""
    error = float(estimate.error)
    return significant(estimate, most) + (f" ± {error:.1g}" if error else "")


def significant(estimate: Estimate, most: int = _DIGITS) -> str:
    """The digits of the value that its error leaves, and 0 where it leaves none."""
    value, error = float(estimate.value), float(estimate.error)
    if not (error > 0 and math.isfinite(value) and math.isfinite(error)):
        return f"{value:.{most}g}"
    if abs(value) <= error:
        return "0"
    digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 1
    return f"{value:#.{min(digits, most)}g}".rstrip(".")


def task_words(task: Any) -> str:
    """`spiked task, ν = 5, L = 10`, and what else is not as usual."""
    words = f"{task.name} task, ν = {task.nu:g}, L = {task.length}"
    if task.noise:
        words += f", noise {task.noise:g}"
    if getattr(task, "spread", 1.0) != 1.0:
        words += f", spread {task.spread:g}"
    return words


def task_fields(task: Any) -> dict[str, Any]:
    """The task as JSON fields, in the words of the options."""
    fields = {"name": task.name, "nu": task.nu, "length": str(task.length), "noise": task.noise}
    return fields | ({"spread": task.spread} if hasattr(task, "spread") else {})


def print_json(fields: dict[str, Any]) -> None:
    """One JSON object on standard output; JSON has no infinity, which becomes the word `inf`."""
    print(json.dumps(_valid(fields), indent=2, allow_nan=False), flush=True)


def _valid(value: Any) -> Any:
    match value:
        case dict():
            return {key: _valid(each) for key, each in value.items()}
        case list():
            return [_valid(each) for each in value]
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            return f"{value:g}"
    return value


def print_rich(what: RenderableType, narrow: RenderableType | None = None) -> None:
    """A table or panel on standard output, or the `narrow` one where it does not fit."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    full = console.measure(what, options=console.options.update_width(_UNBOUNDED)).maximum
    console.print(what if narrow is None or full <= console.width else narrow)


def facts(title: str, rows: dict[str, str]) -> RenderableType:
    """A small panel of names and values."""
    from rich.panel import Panel
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in rows.items():
        grid.add_row(name, value)
    return Panel.fit(grid, title=title, title_align="left", padding=(0, 1))


def table(title: str, *columns: str) -> Table:
    """An empty table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    empty = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column in columns:
        empty.add_column(column)
    return empty
