"""Basins: the fraction of random initialisations from which gradient flow finds the teacher."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import jax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...flow.landscape import basins, share_of
from ..question import Record
from ..questions import AbstractAttentionQuestion
from .rows import Ask, Row, make_row
from .style import GREY, INK, WIDTH, add_legend, columns, line, set_ticks

CAPTION = """\
End points of gradient flow from random initial vectors. Solid lines with filled dots: fraction of runs that reach the \
global minimum, k along k* and v along v*. Dashed lines with open dots: fraction that converges elsewhere, to a local \
minimum of higher risk. Dotted lines with crosses: fraction that does neither before the final time or before the norm \
of k leaves the range that can be integrated, as for linear attention, whose risk decreases for ever along one \
direction. Top: spiked task. Bottom: max task. Each point has [[100 runs, or 16 for softmax on the max task, whose \
flow is slow (quick form: 20 runs, without softmax)|20 runs]]. Left: against the signal strength ν, with L = 10 \
tokens; middle: against L, with ν = 2; right: against the size of the initial vectors, with ν = 2 and L = 10. The size \
is the standard deviation of every component of k and v, along k* and v* and outside their span. Error bars are one \
standard error of a fraction; all counts are in basins.csv. A fraction that is zero in a whole panel is not drawn. All \
points of an attention use the same random initial vectors, so their errors are correlated. A run counts as having \
reached the global minimum if its risk is within 1e-5 of the lowest risk.
"""

ATTENTIONS = ("softmax", "erf", "linear")
TASKS = ("spiked", "max")
NU, LENGTH, SIZE = 2.0, 10, 1.0


_SLOW = ("max", "softmax")
_RUNS = dict.fromkeys(product(TASKS, ATTENTIONS), 100) | {_SLOW: 16}


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


def starts(
    nu: dict[str, Sequence[float]],
    lengths: Sequence[int],
    sizes: Sequence[float],
    runs: dict[tuple[str, str], int],
) -> list[Starts]:
    """So many runs of each attention on each task, the slowest first; the centre belongs to all three columns."""
    found = [
        Starts(task, *point, count)
        for (task, name), count in sorted(runs.items(), key=lambda item: item[0] != _SLOW)
        for point in (
            *((signal, str(LENGTH), name, SIZE) for signal in nu[task]),
            *((NU, str(length), name, SIZE) for length in lengths),
            *((NU, str(LENGTH), name, size) for size in sizes),
        )
    ]
    return list(dict.fromkeys(found))


FULL = starts(
    {"spiked": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0), "max": (0.5, 1.0, 1.5, 2.0, 2.5)},
    (2, 3, 5, 10, 20),
    (0.1, 0.3, 0.5, 1.0),
    _RUNS,
)
QUICK = starts(
    {"spiked": (0.5, 1.0, 2.0, 4.0), "max": (0.5, 1.0, 2.0)},
    (2, 5, 10, 20),
    (0.1, 0.3, 1.0),
    {("spiked", "erf"): 20, ("spiked", "linear"): 20, ("max", "linear"): 20},
)


def compute(asked: Sequence[Starts], ask: Ask) -> list[Row]:
    columns = "task nu length attention size runs matched mismatched unfinished"
    return [make_row(columns, found) for found in ask(asked)]


# A fate: its column, line style, marker, whether that is filled, and what the legend says.
_FATES: dict[str, tuple[Any, str, bool, str]] = {
    "matched": ("solid", "o", True, "global minimum"),
    "mismatched": ((0, (4, 1.5)), "o", False, "local minimum"),
    "unfinished": ((0, (1, 1.5)), "x", False, "neither"),
}
CENTRE = {"nu": NU, "length": str(LENGTH), "size": SIZE}
_LABELS = {  # of what is varied, and of what is not
    "nu": (r"signal strength $\nu$", rf"$L = {LENGTH}$, size {SIZE:g}"),
    "length": ("tokens $L$", rf"$\nu = {NU:g}$, size {SIZE:g}"),
    "size": ("size of initial vectors", rf"$\nu = {NU:g}$, $L = {LENGTH}$"),
}


def is_varied(row: Any, name: str) -> bool:
    """Whether all but this quantity are at the centre."""
    return all(getattr(row, each) == at for each, at in CENTRE.items() if each != name)


def plot(rows: Sequence[Row]) -> Figure:
    """Tasks downwards, what is varied to the right, one legend."""
    figure = Figure(figsize=(WIDTH, 4.7), layout="constrained")
    panels = figure.subplots(len(TASKS), len(_LABELS), sharey=True, sharex="col")
    for axes, (task, name) in zip(panels.flat, product(TASKS, _LABELS), strict=True):
        _draw_panel(axes, [row for row in rows if row.task == task and is_varied(row, name)], name)
        label, fixed = _LABELS[name]
        axes.set(title=f"{task}, {fixed}", xlabel=label if task == TASKS[-1] else "")
    for axes in panels[:, 0]:
        axes.set(ylabel="fraction of runs", ylim=(-0.03, 1.03))
    panels[0, 1].set_xscale("log")
    set_ticks(panels[0, 1].xaxis, sorted({int(row.length) for row in rows}))
    named = {row.attention for row in rows}
    seen = [fate for fate in _FATES if any(getattr(row, fate) for row in rows)]
    handles: list[Any] = [
        line(name, dashes="solid", width=1.3) for name in ATTENTIONS if name in named
    ]
    handles += [Line2D([], [], label=_FATES[fate][-1], **_look(fate, INK)) for fate in seen]
    add_legend(figure, handles, 6)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row], varied: str) -> None:
    axes.axhline(0.0, color=GREY, linewidth=0.5, zorder=0)
    for name, fate in product(ATTENTIONS, _FATES):
        curve = [row for row in rows if row.attention == name]
        curve.sort(key=lambda row: float(getattr(row, varied)))
        if any(getattr(row, fate) for row in curve):
            at = [float(getattr(row, varied)) for row in curve]
            shares = [share_of(getattr(row, fate), row.runs) for row in curve]
            value, error = columns(shares, "value", "error")
            axes.errorbar(at, value, error, elinewidth=0.7, **_look(fate, line(name).colour))


def _look(fate: str, colour: str) -> dict[str, Any]:
    dashes, marker, filled, _ = _FATES[fate]
    face = colour if filled else "white"
    shape = {"marker": marker, "markersize": 3.5, "markerfacecolor": face}
    return {"color": colour, "linestyle": dashes, "linewidth": 1.3, **shape}
