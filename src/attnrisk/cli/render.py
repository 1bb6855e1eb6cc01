"""Output: JSON for scripts, panels and tables for people."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread, Timer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import attnrisk as ar

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


INTERRUPTED = 130  # the exit code of a process that Ctrl-C ended
DIGITS = 12  # more than anyone compares by eye
UNCONVERGED = "NOT CONVERGED"
_WIDE = 160  # columns where the output is no terminal, so that a row stays on its line
_UNBOUNDED = 1000  # columns, to measure how many a table would take
_PATIENCE = 1.0  # seconds before there is any progress to see
_BETWEEN_LINES = 60.0  # seconds, where the output is no terminal

Report = Callable[[str, int, int], None]  # what is next, how much is done, and of how much

# Where the entries of a flat record go in JSON.
_OVERLAPS = ("m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv", "M", "Q")
_GROUPS = dict.fromkeys(_OVERLAPS, "overlaps") | dict.fromkeys(("V_k", "V_v"), "response")


class Shown(NamedTuple):
    """A result as JSON fields and as text, the exit code, and messages for standard error."""

    fields: Mapping[str, Any] = {}
    parts: Sequence[Any] = ()  # each plain text, a renderable, or a pair of a wide and a narrow one
    code: int = 0
    note: str = ""
    always_json: bool = False

    def interrupted(self, note: str = "Interrupted") -> Shown:
        """The partial result after Ctrl-C."""
        return self._replace(code=INTERRUPTED, note=note)


def fields_of(answer: Any, *more: str, **renamed: str) -> dict[str, Any]:
    """The record of a result as JSON fields, with more of its attributes, some under other names."""
    return picked(answer, *answer.recorded, *more, **renamed)


def picked(answer: Any, *names: str, **renamed: str) -> dict[str, Any]:
    """These attributes of a result as JSON fields."""
    values = {name: getattr(answer, name) for name in names}
    flat = ar.record(SimpleNamespace(recorded=tuple(values), **values))
    return nested({renamed.get(name, name): value for name, value in flat.items()})


def nested(record: Mapping[str, Any]) -> dict[str, Any]:
    """A flat record with `overlaps`, `response` and `ridge` in objects of their own.

    Where there are responses, all errors but that of the risk are in `errors`, and the other order parameters
    `m_k, q_k, m_v, q_v` are among the overlaps.
    """
    fields: dict[str, Any] = {}
    for name, value in record.items():
        head, _, tail = name.rpartition("_")
        group = _GROUPS.get(name)
        if group:
            fields.setdefault(group, {})[name] = value
        elif head == "ridge":
            fields.setdefault(head, {})[tail] = value
        elif "V_k" in record and tail == "error" and head in record and head != "test_risk":
            fields.setdefault("errors", {})[head] = value
        elif "V_k" not in record or name not in ("m_k", "q_k", "m_v", "q_v"):
            fields[name] = value
    return fields


def one_or_many(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fields of a single row, or all rows under this name."""
    return rows[0] if len(rows) == 1 else {name: list(rows)}


def task_fields(task: Any) -> dict[str, Any]:
    """The task as JSON fields, in the words of the options."""
    from dataclasses import fields

    names = (field.name for field in fields(task))
    values = {name: getattr(task, name) for name in names if name != "shift_law"}
    if task.name == "features":
        values = {"features": str(task.shift_law)} | values
    return {"name": task.name} | values | {"length": str(task.length)}


def task_words(task: Any) -> str:
    """`spiked task, ν = 5, L = 10`, and other values that are not the default."""
    signal = str(task.shift_law) if task.name == "features" else f"ν = {task.nu:g}"
    words = f"{task.name} task, {signal}, L = {task.length}"
    if task.noise:
        words += f", noise {task.noise:g}"
    if task.spread != 1.0:
        words += f", spread {task.spread:g}"
    return words


def with_error(estimate: ar.Estimate, most: int = DIGITS) -> str:
    """`0.457643565998 ± 7e-15`, with at most this number of digits."""
    error = float(estimate.error)
    return significant(estimate, most) + (f" ± {error:.1g}" if error else "")


def significant(estimate: ar.Estimate, most: int = DIGITS) -> str:
    """The significant digits of the value given its error; 0 if there are none."""
    value, error = float(estimate.value), float(estimate.error)
    if not (error > 0 and math.isfinite(value) and math.isfinite(error)):
        return f"{value:.{most}g}"
    if abs(value) <= error:
        return "0"
    digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 1
    return f"{value:#.{min(digits, most)}g}".rstrip(".")


def overlap_words(overlaps: Any) -> str:
    """Overlaps with the teacher on one line, those among student vectors on another."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(shown, value))}]"
        return f"{round(value, 12):z.8g}"

    words = [f"{name} = {shown(value)}" for name, value in overlaps.as_dict().items()]
    lines = ([each for each in words if each[0] in letters] for letters in ("mM", "qQ"))
    return "\n".join(", ".join(line) for line in lines)


def heads_words(attention: ar.AbstractAttention) -> str:
    """`2 heads of softmax`."""
    return f"{attention.keys} heads of " * (attention.keys > 1) + attention.head_name


def head_fields(
    task: ar.AbstractTask, attention: ar.AbstractAttention, found: Any
) -> dict[str, Any]:
    """JSON fields of several heads or features: overlaps as matrices, head weights and biases.

    `separation` is 0 for identical heads; `separation_growth` is that of a small difference between them.
    """
    import numpy as np

    if attention.family != "heads" and not task.has_random_shift:
        return {}
    learned = getattr(found, "bias", None)
    biases = attention.bias if learned is None else learned.value
    growth = getattr(found, "separation_growth", None)
    return {
        "heads": attention.keys,
        "separation": ar.head_separation(found.overlaps) if attention.keys > 1 else None,
        "separation_growth": None if growth is None else float(growth),
        "separation_growth_error": None if growth is None else float(growth.error),
        "overlaps": matrices(found.overlaps),
        **picked(attention, "head_weights"),
        "biases": np.ravel(biases).tolist(),
    }


def limit(number: float) -> str:
    """Where a number tends that grows in size without bound."""
    return "→ ∞" if number > 0 else "→ −∞"


def matrices(overlaps: ar.Overlaps) -> dict[str, Any]:
    """The overlaps of several heads or features as JSON fields."""
    return {"M": overlaps.M.tolist(), "Q": overlaps.Q.tolist()}


def listed(numbers: Iterable[float] | None) -> str | None:
    """Numbers on one line, where there are any."""
    return None if numbers is None else ", ".join(f"{each:.6g}" for each in numbers)


def optional(value: float | None, form: str) -> str | None:
    """A number in this format, where there is one."""
    return None if value is None else format(value, form)


def short_result(result: ar.Result) -> str:
    """The result in a table; `result_notes` gives the reasons below it."""
    return "converged" if result.converged else "!"


def result_notes(results: Sequence[ar.Result]) -> list[str]:
    """Notes below a table on the rows that did not converge."""
    failed = [result for result in results if not result.converged]
    return [
        f"! {result_words(result)} ({failed.count(result)} of {len(results)})"
        for result in dict.fromkeys(failed)
    ]


def result_words(result: ar.Result) -> str:
    """The result, marked where the computation did not converge."""
    words = str(result)
    if result.converged:
        return words
    return f"{UNCONVERGED}: {words.removeprefix('not converged: ')}"


def print_json(fields: Mapping[str, Any]) -> None:
    """One JSON object on standard output; JSON has no infinity, which becomes the word `inf`."""
    print(json.dumps(_valid(fields), indent=2, allow_nan=False), flush=True)


def _valid(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _valid(each) for key, each in value.items()}
        case list() | tuple():
            return [_valid(each) for each in value]
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            return f"{value:g}"
    return value


def print_parts(*parts: Any) -> None:
    """Print each part; of a pair the second if the first does not fit."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    unbounded = console.options.update_width(_UNBOUNDED)
    for part in parts:
        if isinstance(part, str):
            print(part, flush=True)
            continue
        wide, narrow = part if isinstance(part, tuple) else (part, part)
        fits = console.measure(wide, options=unbounded).maximum <= console.width
        console.print(wide if fits else narrow)


def facts(title: str, rows: Mapping[str, str | None]) -> RenderableType:
    """A small panel of names and values; names without a value are left out."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in rows.items():
        if value is not None:
            grid.add_row(name, value)
    return Panel.fit(grid, title=Text(title), title_align="left", padding=(0, 1))


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Iterable[str] = (),
    head: int = 0,
    optional: Sequence[str] = (),
) -> Any:
    """A table with notes below; the first `head` rows are set apart, and `optional` columns left out where the terminal
    is too narrow."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    def made(without: Sequence[str]) -> Table:
        grid = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        kept = [index for index, column in enumerate(columns) if column not in without]
        for index in kept:
            grid.add_column(columns[index])
        for number, row in enumerate(rows, start=1):
            cells = (row[index] for index in kept if index < len(row))
            grid.add_row(*cells, end_section=number == head)
        grid.caption, grid.caption_justify = "\n".join(notes) or None, "left"
        return grid

    return (made(()), made(optional)) if optional else made(())


@contextmanager
def working(what: str) -> Iterator[Report]:
    """Show `what` and the elapsed time on standard error: on a terminal as a bar, else as a line every minute."""
    if not sys.stderr.isatty():
        with _lines(what) as report:
            yield report
        return
    from rich import progress as bars
    from rich.console import Console

    progress = bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=30),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    job = progress.add_task(what, total=None)
    timer = Timer(_PATIENCE, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda label, done, total: progress.update(
            job, description=label, completed=done, total=total
        )
    finally:
        timer.cancel()
        timer.join()  # it may be starting the display just now
        progress.stop()


@contextmanager
def _lines(what: str) -> Iterator[Report]:
    """Progress for a log: a line every minute, also where nothing was reported."""
    begun, shown, ended = time.perf_counter(), [what], Event()

    def tell() -> None:
        with suppress(OSError, ValueError):  # standard error is closed
            while not ended.wait(_BETWEEN_LINES):
                elapsed = time.perf_counter() - begun
                print(f"{elapsed:.0f} s: {shown[0]}", file=sys.stderr, flush=True)

    def report(label: str, done: int, total: int) -> None:
        shown[0] = f"{done} of {total}, {label}"

    Thread(target=tell, daemon=True).start()
    try:
        yield report
    finally:
        ended.set()
