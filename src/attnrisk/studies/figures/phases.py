"""The phases of learning: where the Bayes optimum jumps, and where message passing does."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..questions import Thresholds
from .rows import Ask, Row, make_row
from .style import GREY, INK, SHADE, Line, add_legend, columns, panels, smooth, where

CAPTION = """\
Phase diagram of learning from N = αD sequences without label noise, in the limit of infinite D, against the signal \
strength ν, for L = 3 tokens. Left of the black line v* cannot be recovered. Right of it the optimum recovers v* \
exactly, but in the shaded hard phase message passing, the best known polynomial-time algorithm, does not: it \
recovers v* only right of the grey line. Dots are computed, each to one percent; phases.csv has them with their \
errors.
"""

TASKS = ("spiked", "max")
LENGTH = "3"

_NU = {"spiked": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0), "max": (0.5, 1.0, 2.0, 3.0, 5.0)}
FULL = [Thresholds(task, nu, LENGTH) for task in TASKS[::-1] for nu in _NU[task]]
QUICK = [each for each in FULL if each.task == "spiked"]
_LINES = (
    Line("optimum recovers $v^*$", INK, "solid", 1.5),
    Line("message passing recovers $v^*$", GREY, "solid", 1.5),
)


def compute(asked: Sequence[Thresholds], ask: Ask) -> list[Row]:
    """The two thresholds in `α`, empty where there is no jump."""
    columns = "task nu length information information_error algorithmic algorithmic_error"
    return [make_row(columns, found) for found in ask(asked)]


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each task, one legend."""
    by, x = {"task": TASKS}, r"samples per dimension $\alpha$"
    figure, drawn = panels(rows, 3.2, by, x, sharex=True)
    dots: dict[str, Any] = {"fmt": "o", "color": GREY, "markersize": 3, "elinewidth": 0.8}
    for axes, here, task in drawn:
        found = [r for r in here if r.algorithmic is not None and r.information is not None]
        found.sort(key=lambda row: row.nu)
        names = "nu", "information", "algorithmic", "algorithmic_error"
        nu, information, algorithmic, error = columns(found, *names)
        (fine, reached), (_, possible) = smooth(nu, algorithmic), smooth(nu, information)
        axes.fill_betweenx(fine, possible, reached, color=SHADE, linewidth=0.0)
        for line, alpha in zip(_LINES, (possible, reached), strict=True):
            axes.add_line(line.through(alpha, fine))
        axes.errorbar(algorithmic, nu, xerr=error, **dots)
        axes.set(title=where(task, None, LENGTH), ylabel=r"signal strength $\nu$", xlim=(0.9, None))
    add_legend(figure, [*_LINES, Patch(color=SHADE, label="hard phase")], 3)
    return figure
