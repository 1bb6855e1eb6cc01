"""Basins: the fraction of random initialisations from which gradient flow finds the teacher."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import jax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...flow.landscape import basins, share_of
from ..question import Record
from ..questions import AbstractAttentionQuestion
from .rows import Ask, Row, placed
from .style import GREY, INK, WIDTH, line, set_ticks

CAPTION = """\
End points of gradient flow from random initial vectors. Solid lines with filled dots: fraction of runs that reach \
the global minimum, k along k* and v along v*. Dashed lines with open dots: fraction that converges elsewhere, to a \
local minimum of higher risk. Dotted lines with crosses: fraction that does neither before the final time or before \
the norm of k leaves the range that can be integrated, as for linear attention, whose risk decreases for ever along \
one direction. Top: spiked task. Bottom: max task. Each point has 100 runs, or 16 for softmax on the max task, whose \
flow is slow (quick form: 20 runs, without softmax). Left: against the signal strength ν, with L = 10 \
tokens; middle: against L, with ν = 2; right: against the size of the initial vectors, with ν = 2 and L = 10. The \
size is the standard deviation of every component of k and v, along k* and v* and outside their span. Error bars are \
one standard error of a fraction; all counts are in basins.csv. A fraction that is zero in a whole panel is not \
drawn. All points of an attention use the same random initial vectors, so their errors are correlated. A run counts \
as having reached the global minimum if its risk is within 1e-5 of the lowest risk.
"""

ATTENTIONS = ("softmax", "erf", "linear")
TASKS = ("spiked", "max")
NU, LENGTH, SIZE = 2.0, 10, 1.0

_Points = tuple[tuple[float, int, float], ...]


class _Grid(NamedTuple):
    """The points of the three columns, and the number of starts."""

    nu: dict[str, tuple[float, ...]]
    length: tuple[int, ...]
    size: tuple[float, ...]
    runs: dict[tuple[str, str], int]

    def points(self, task: str) -> _Points:
        """Signal, length and size: the centre belongs to all three columns."""
        signals = [(nu, LENGTH, SIZE) for nu in self.nu[task]]
        lengths = [(NU, length, SIZE) for length in self.length]
        sizes = [(NU, LENGTH, size) for size in self.size]
        return tuple(dict.fromkeys([*signals, *lengths, *sizes]))


_SLOW = ("max", "softmax")
_RUNS = dict.fromkeys(product(TASKS, ATTENTIONS), 100) | {_SLOW: 16}
_QUICK_RUNS = {("spiked", "erf"): 20, ("spiked", "linear"): 20, ("max", "linear"): 20}

FULL = _Grid(
    {"spiked": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0), "max": (0.5, 1.0, 1.5, 2.0, 2.5)},
    (2, 3, 5, 10, 20),
    (0.1, 0.3, 0.5, 1.0),
    _RUNS,
)
QUICK = _Grid(
    {"spiked": (0.5, 1.0, 2.0, 4.0), "max": (0.5, 1.0, 2.0)},
    (2, 5, 10, 20),
    (0.1, 0.3, 1.0),
    _QUICK_RUNS,
)


@dataclass(frozen=True)
class Starts(AbstractAttentionQuestion):
    """Counts of the end points of gradient flow from random initialisations of one size."""

    kind: ClassVar[str] = "basins"
    package: ClassVar[str] = "flow"

    size: float
    runs: int

    def answer(self) -> Record:
        found = basins(self.problem, self.student, jax.random.key(0), self.runs, self.size)
        return {name: int(getattr(found, name)) for name in ("matched", "mismatched", "unfinished")}


def questions(grid: _Grid) -> list[Starts]:
    """Each attention on each task, the slowest first."""
    return [
        Starts(task, nu, str(length), name, size, runs)
        for (task, name), runs in sorted(grid.runs.items(), key=lambda item: item[0] != _SLOW)
        for nu, length, size in grid.points(task)
    ]


def compute(grid: _Grid, ask: Ask) -> list[Row]:
    """The rows of the figure."""
    return [placed(it, "attention", "size", "runs", *_FATES) for it in ask(questions(grid))]


# A fate: its column, line style, marker, whether that is filled, and what the legend says.
_FATES: dict[str, tuple[Any, str, bool, str]] = {
    "matched": ("solid", "o", True, "global minimum"),
    "mismatched": ((0, (4, 1.5)), "o", False, "local minimum"),
    "unfinished": ((0, (1, 1.5)), "x", False, "neither"),
}

_COLUMNS: dict[str, Callable[[Row], float]] = {
    r"signal strength $\nu$": lambda row: row.nu,
    "tokens $L$": lambda row: float(row.length),
    "size of initial vectors": lambda row: row.size,
}
_FIXED = (
    rf"$L = {LENGTH}$, size {SIZE:g}",
    rf"$\nu = {NU:g}$, size {SIZE:g}",
    rf"$\nu = {NU:g}$, $L = {LENGTH}$",
)


def plot(rows: Sequence[Row]) -> Figure:
    """Tasks downwards, what is varied to the right, one legend."""
    figure = Figure(figsize=(WIDTH, 4.7), layout="constrained")
    panels = figure.subplots(len(TASKS), len(_COLUMNS), sharey=True, sharex="col")
    for (above, task), (column, (label, shown)) in product(
        enumerate(TASKS), enumerate(_COLUMNS.items())
    ):
        axes = panels[above, column]
        _draw_panel(axes, [row for row in rows if row.task == task and _is_in(row, column)], shown)
        axes.set_title(f"{task}, {_FIXED[column]}")
        if above:
            axes.set_xlabel(label)
    for axes in panels[:, 0]:
        axes.set(ylabel="fraction of runs", ylim=(-0.03, 1.03))
    lengths = sorted({int(row.length) for row in rows})
    panels[0, 1].set_xscale("log")
    set_ticks(panels[0, 1].xaxis, lengths)
    named = {row.attention for row in rows}
    handles = [
        line(name)._replace(dashes="solid", width=1.3).through()
        for name in ATTENTIONS
        if name in named
    ]
    seen = [fate for fate in _FATES if any(getattr(row, fate) for row in rows)]
    handles += [Line2D([], [], label=_FATES[fate][-1], **_look(fate, INK)) for fate in seen]
    figure.legend(handles=handles, loc="outside lower center", ncols=6)
    return figure


def _is_in(row: Row, column: int) -> bool:
    """Whether all but the quantity of this column is at the centre."""
    centred = row.nu == NU, row.length == str(LENGTH), row.size == SIZE
    return all(at for number, at in enumerate(centred) if number != column)


def _draw_panel(axes: Axes, rows: Sequence[Row], place: Callable[[Row], float]) -> None:
    axes.axhline(0.0, color=GREY, linewidth=0.5, zorder=0)
    for name, fate in product(ATTENTIONS, _FATES):
        curve = sorted((row for row in rows if row.attention == name), key=place)
        if not any(getattr(row, fate) for row in curve):
            continue
        shares = [share_of(getattr(row, fate), row.runs) for row in curve]
        axes.errorbar(
            [place(row) for row in curve],
            [float(share.value) for share in shares],
            [float(share.error) for share in shares],
            elinewidth=0.7,
            **_look(fate, line(name).colour),
        )


def _look(fate: str, colour: str) -> dict[str, Any]:
    dashes, marker, filled, _ = _FATES[fate]
    face = colour if filled else "white"
    shape = {"marker": marker, "markersize": 3.5, "markerfacecolor": face}
    return {"color": colour, "linestyle": dashes, "linewidth": 1.3, **shape}
