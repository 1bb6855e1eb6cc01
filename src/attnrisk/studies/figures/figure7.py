"""Figure 7: what every attention of the catalogue learns from finite data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from ..._rows import BAYES
from ...attention import CATALOGUE, get_attention
from ...learning import ERMAsymptotics, optimal_asymptotics
from ...learning.tuning import tuned_erm_asymptotics
from .asking import Asking
from .rows import Curve, Question
from .style import BAYES_LINE, INK, WIDTH, line, smooth

STEM = "figure7"

CAPTION = """\
Test risk after learning from N = αD sequences, D to infinity, with the two ridges of least test risk, for the \
attentions of the catalogue that heed the scale of their scores, on the spiked task with ν = 5, with L = 3 and L = 10 \
tokens. Black is the Bayes optimum. Solid lines are normalised kernels, dashed ones act on each token alone, dotted \
ones are neither. Points are white inside where the risk is an approximation: replica symmetry fails, or the samples \
have their minimum at a kink of the attention. A cross marks a point that did not converge, and no line goes through \
it. Biases are not learned: erf and sigmoid have theirs at zero. figure7.csv holds errors, ridges and what is \
approximate.
"""

TASK, NU = "spiked", 5.0
LENGTHS = ("3", "10")
CONVERGED = "converged"

# They ignore the scale of their scores, so that their empirical risk with a ridge has no minimum.
SCALELESS = ("relu", "relu2", "hardmax")
ATTENTIONS = tuple(name for name in CATALOGUE if name not in SCALELESS)


class Grid(NamedTuple):
    """Attentions; for each length the samples per dimension, and how many points (of base two) are averaged over."""

    attentions: tuple[str, ...]
    alphas: dict[str, tuple[float, ...]]
    log2_points: dict[str, int]


# A fixed point with L = 10 takes ten times as long.
_FULL = Grid(
    ATTENTIONS,
    {"3": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), "10": (1.0, 4.0, 16.0)},
    {"3": 8, "10": 6},
)
_QUICK = Grid(("softmax", "linear"), {"3": (1.0, 4.0, 16.0)}, {"3": 7})


@dataclass(frozen=True)
class Row:
    """A point of a curve, which is that of an attention or of the Bayes optimum, which has no ridges.

    `warning` says why the risk is an approximation, if it is one.
    """

    task: str
    nu: float
    length: str
    attention: str
    alpha: float
    risk: float
    error: float
    result: str
    warning: str | None = None
    ridge_k: float | None = None
    ridge_v: float | None = None


def compute(quick: bool, ask: Asking) -> list[Row]:
    """The rows of the figure."""
    return ask(curve, curves(_QUICK if quick else _FULL), Row)


def curves(grid: Grid) -> list[Curve]:
    """All curves of both panels, the longer sequences first."""
    return [
        Curve(TASK, NU, length, name, alphas, grid.log2_points[length])
        for length, alphas in reversed(grid.alphas.items())
        for name in (*grid.attentions, BAYES)
    ]


def curve(asked: Curve) -> list[Row]:
    """The points of one."""
    return optimum(asked) if asked.attention == BAYES else learned(asked)


def learned(question: Curve) -> list[Row]:
    """Test risks with the best ridges, from many data to few."""
    task, student = question.problem, get_attention(question.attention)
    rows, start = [], None
    for alpha in sorted(question.alphas, reverse=True):
        found = tuned_erm_asymptotics(task, student, alpha, 0, question.log2_points, start)
        rows.append(_row(question, alpha, found))
        start = found.ridge if found.converged else None
    return rows


def _row(question: Question, alpha: float, found: ERMAsymptotics) -> Row:
    inputs = question.task, question.nu, question.length, question.attention, alpha
    risk = float(found.test_risk.value), float(found.test_risk.error)
    ridge = float(found.ridge.k), float(found.ridge.v)
    return Row(*inputs, *risk, found.result, found.warning or None, *ridge)


def optimum(question: Curve) -> list[Row]:
    """The Bayes optimum."""
    inputs = question.task, question.nu, question.length, BAYES
    found = {
        alpha: optimal_asymptotics(question.problem, alpha).optimum for alpha in question.alphas
    }
    return [
        Row(*inputs, alpha, float(point.risk.value), float(point.risk.error), point.result)
        for alpha, point in found.items()
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each length, one legend."""
    lengths = [length for length in LENGTHS if length in {row.length for row in rows}]
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    panels = figure.subplots(1, len(lengths), sharex=True, sharey=True, squeeze=False)[0]
    for axes, length in zip(panels, lengths, strict=True):
        _draw_panel(axes, [row for row in rows if row.length == length])
        axes.set(title=f"$L = {length}$", xlabel=r"samples per dimension $\alpha$")
    alphas = sorted({row.alpha for row in rows})
    panels[0].set(xscale="log", xlim=(alphas[0] / 1.1, alphas[-1] * 1.1), ylim=(-0.02, 1.1))
    panels[0].set_ylabel("test risk")
    panels[0].xaxis.set_major_locator(FixedLocator(alphas))
    panels[0].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panels[0].xaxis.set_minor_locator(NullLocator())
    figure.legend(handles=_legend(rows), loc="outside right upper")
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    for name in (*ATTENTIONS[::-1], BAYES):
        curve = sorted((row for row in rows if row.attention == name), key=lambda row: row.alpha)
        settled = [row for row in curve if row.result == CONVERGED]
        if not settled:
            continue
        style = BAYES_LINE if name == BAYES else line(name)._replace(width=1.3)
        x, y = smooth([np.log(row.alpha) for row in settled], [row.risk for row in settled])
        axes.add_line(style.through(np.exp(x), y))
        if name != BAYES:
            axes.add_line(_dots(style.colour, [row for row in settled if not row.warning], "full"))
            axes.add_line(_dots(style.colour, [row for row in settled if row.warning], "none"))
    axes.add_line(_crosses([row for row in rows if row.result != CONVERGED]))


def _dots(colour: str, curve: Sequence[Row], fill: Any) -> Line2D:
    x, y = np.reshape([(row.alpha, row.risk) for row in curve], (-1, 2)).T
    shape: dict[str, Any] = {"marker": "o", "markersize": 3.0, "fillstyle": fill}
    return Line2D(x, y, color=colour, linestyle="none", **shape)


def _crosses(rows: Sequence[Row]) -> Line2D:
    """Where the iteration has not converged."""
    x, y = np.reshape([(row.alpha, row.risk) for row in rows], (-1, 2)).T
    return Line2D(
        x, y, color=INK, marker="x", markersize=4, linestyle="none", label="not converged"
    )


def _legend(rows: Sequence[Row]) -> list[Line2D]:
    """The attentions, best first: by their risk with the most data, at the largest length."""
    last = max(LENGTHS.index(row.length) for row in rows)
    ends = {
        row.attention: (row.result != CONVERGED, row.risk)
        for row in sorted(rows, key=lambda row: row.alpha)
        if row.length == LENGTHS[last]
    }
    names = sorted((name for name in ends if name != BAYES), key=lambda name: ends[name])
    handles = [BAYES_LINE.through(), *(line(name)._replace(width=1.3).through() for name in names)]
    if any(row.result != CONVERGED for row in rows):
        handles.append(_crosses([]))
    return handles
