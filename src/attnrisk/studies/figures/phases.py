"""The phases of learning: where the Bayes optimum jumps, and where message passing does."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..questions import Thresholds
from .rows import Ask, Row, place
from .style import GREY, INK, WIDTH, smooth

STEM = "phases"

CAPTION = """\
What can be learned from N = αD sequences without label noise, D to infinity, against the strength ν of the signal, \
for L = 3 tokens. Left of the black line v* cannot be found. Right of it the optimum knows v* exactly, but in the \
shaded hard phase message passing, the best fast algorithm known, does not: it finds v* only right of the grey line. \
Dots are computed, each to one percent; phases.csv holds them with their errors.
"""

TASKS = ("spiked", "max")
LENGTH = "3"

_Grid = dict[str, tuple[float, ...]]

_NU: _Grid = {"spiked": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0), "max": (0.5, 1.0, 2.0, 3.0, 5.0)}
_QUICK_NU: _Grid = {"spiked": (1.0, 2.0, 5.0), "max": ()}
_SHADE = "#ececec"


def questions(quick: bool) -> list[Thresholds]:
    """What the figure asks."""
    grid = _QUICK_NU if quick else _NU
    return [Thresholds(task, nu, LENGTH) for task in TASKS[::-1] for nu in grid[task]]


def compute(quick: bool, ask: Ask) -> list[Row]:
    """The two thresholds in `α`, empty where there is no jump."""
    names = ("information", "information_error", "algorithmic", "algorithmic_error")
    return [
        Row(**place(found), **{name: found[name] for name in names})
        for found in ask(questions(quick))
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each task, one legend."""
    tasks = [task for task in TASKS if task in {row.task for row in rows}]
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharex=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        _draw_panel(axes, sorted((r for r in rows if r.task == task), key=lambda row: row.nu))
        axes.set(title=f"{task} task, $L = {LENGTH}$", xlabel=r"samples per dimension $\alpha$")
    panels[0].set(ylabel=r"signal $\nu$", xlim=(0.9, None))
    figure.legend(handles=_legend(), loc="outside lower center", ncols=3)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    found = [row for row in rows if row.algorithmic is not None and row.information is not None]
    nu = [row.nu for row in found]
    fine, reached = smooth(nu, [row.algorithmic for row in found])
    _, possible = smooth(nu, [row.information for row in found])
    axes.fill_betweenx(fine, possible, reached, color=_SHADE, linewidth=0.0)
    axes.add_line(_line(INK, possible, fine))
    axes.add_line(_line(GREY, reached, fine))
    axes.errorbar(
        [row.algorithmic or 0.0 for row in found],
        nu,
        xerr=[row.algorithmic_error or 0.0 for row in found],
        fmt="o",
        color=GREY,
        markersize=3,
        elinewidth=0.8,
    )


def _line(colour: str, x: Any = (), y: Any = (), label: str = "") -> Line2D:
    return Line2D(x, y, color=colour, linewidth=1.5, label=label)


def _legend() -> list[Any]:
    return [
        _line(INK, label="the optimum finds $v^*$"),
        _line(GREY, label="message passing finds $v^*$"),
        Patch(color=_SHADE, label="hard phase"),
    ]
