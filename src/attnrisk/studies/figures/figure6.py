"""Figure 6: the test risk after learning over the plane of the two ridges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...attention import get_attention
from ...learning import ERMAsymptotics, Ridge, erm_asymptotics
from ...learning.tuning import tuned_erm_asymptotics
from .asking import Asking
from .rows import Question
from .style import INK, WIDTH

STEM = "figure6"

CAPTION = """\
Test risk after learning from N = αD sequences of L = 3 tokens, D to infinity, over the plane of the two ridges, for \
softmax (above) and linear attention (below), on the spiked task with ν = 2. The star is where the tuning of figure 3 \
ends, which follows the derivative of the risk through the fixed point. Hatched: replica symmetry fails, so that the \
risk is an approximation. A cross marks a point of the grid whose fixed point was not found. Contours are drawn \
between the points of the grid, which figure6.csv holds with their errors. Risks above 1.2, worse than no answer at \
all, share one colour.
"""

TASK, NU, LENGTH = "spiked", 2.0, "3"
ATTENTIONS = ("softmax", "linear")
CONVERGED = "converged"

_WORST = 1.2
_LEVELS = np.linspace(0.4, _WORST, 17)
_MAP = "cividis"  # the same to colour-blind readers


class Grid(NamedTuple):
    """Samples per dimension, ridges of both axes, and how many points (of base two) are averaged over."""

    alphas: tuple[float, ...]
    ridges: tuple[float, ...]
    log2_points: int


_FULL = Grid((1.0, 2.0, 8.0), tuple(np.geomspace(0.03, 100.0, 9).tolist()), 7)
_QUICK = Grid((4.0,), tuple(np.geomspace(0.1, 30.0, 3).tolist()), 7)


@dataclass(frozen=True)
class Plane(Question):
    """The plane of one attention at one `alpha`, over all pairs of these ridges."""

    alpha: float
    ridges: tuple[float, ...]
    log2_points: int


@dataclass(frozen=True)
class Row:
    """A point of a plane; `tuned` is the one where tuning ends. `warning` says why the risk is approximate."""

    task: str
    nu: float
    length: str
    attention: str
    alpha: float
    ridge_k: float
    ridge_v: float
    tuned: bool
    risk: float
    error: float
    result: str
    warning: str | None


def compute(quick: bool, ask: Asking) -> list[Row]:
    """The rows of the figure."""
    grid = _QUICK if quick else _FULL
    return ask(points, planes(grid), Row)


def planes(grid: Grid) -> list[Plane]:
    """A plane for each attention and `alpha`."""
    return [
        Plane(TASK, NU, LENGTH, name, alpha, grid.ridges, grid.log2_points)
        for alpha in grid.alphas
        for name in ATTENTIONS
    ]


def points(asked: Plane) -> list[Row]:
    """The points of one plane, and at the end the one where tuning ends."""
    task, student = asked.problem, get_attention(asked.attention)
    rows = [
        _row(asked, erm_asymptotics(task, student, asked.alpha, Ridge(k, v), 0, asked.log2_points))
        for k in asked.ridges
        for v in asked.ridges
    ]
    best = min(rows, key=lambda row: (row.result != CONVERGED, row.risk))
    start = Ridge(best.ridge_k, best.ridge_v)
    tuned = tuned_erm_asymptotics(task, student, asked.alpha, 0, asked.log2_points, start)
    return [*rows, _row(asked, tuned, tuned=True)]


def _row(asked: Plane, found: ERMAsymptotics, tuned: bool = False) -> Row:
    inputs = asked.task, asked.nu, asked.length, asked.attention, asked.alpha
    ridge = float(found.ridge.k), float(found.ridge.v)
    risk = float(found.test_risk.value), float(found.test_risk.error)
    return Row(*inputs, *ridge, tuned, *risk, found.result, found.warning or None)


def plot(rows: Sequence[Row]) -> Figure:
    """A row of panels for each attention, a column for each α, and one scale of colours."""
    alphas = sorted({row.alpha for row in rows})
    figure = Figure(figsize=(WIDTH, 2.2 * len(ATTENTIONS) + 0.6), layout="constrained")
    panels = figure.subplots(len(ATTENTIONS), len(alphas), sharex=True, sharey=True, squeeze=False)
    for name, line in zip(ATTENTIONS, panels, strict=True):
        for alpha, axes in zip(alphas, line, strict=True):
            here = [row for row in rows if (row.attention, row.alpha) == (name, alpha)]
            colours = _draw_panel(axes, here)
            axes.set_title(rf"{name}, $\alpha = {alpha:g}$")
        line[0].set_ylabel(r"ridge on $v$, $r_v$")
    for axes in panels[-1]:
        axes.set_xlabel(r"ridge on $k$, $r_k$")
    figure.colorbar(colours, ax=panels, label="test risk", pad=0.015, ticks=_LEVELS[::4])
    figure.legend(handles=_legend(rows), loc="outside lower center", ncols=3)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> Any:
    grid = [row for row in rows if not row.tuned]
    k, v = (np.unique([getattr(row, name) for row in grid]) for name in ("ridge_k", "ridge_v"))
    risk = np.array([row.risk for row in grid]).reshape(k.size, v.size).T
    colours = axes.contourf(k, v, np.clip(risk, _LEVELS[0], _WORST), _LEVELS, cmap=_MAP)
    axes.contour(k, v, risk, _LEVELS[::2], colors=INK, linewidths=0.3)
    unstable = np.array([float(row.warning is not None) for row in grid]).reshape(k.size, v.size).T
    if unstable.any():
        axes.contourf(k, v, unstable, [0.5, 1.5], colors="none", hatches=["////"])
    axes.add_line(_marks("*", [row for row in rows if row.tuned]))
    axes.add_line(_marks("x", [row for row in rows if row.result != CONVERGED]))
    axes.set(xscale="log", yscale="log")
    return colours


def _marks(marker: str, rows: Sequence[Row] = (), label: str = "") -> Line2D:
    x, y = np.reshape([(row.ridge_k, row.ridge_v) for row in rows], (-1, 2)).T
    size = 9 if marker == "*" else 4
    shape: dict[str, Any] = {"marker": marker, "markersize": size, "markeredgecolor": INK}
    return Line2D(x, y, color="white", linestyle="none", label=label, zorder=5, **shape)


def _legend(rows: Sequence[Row]) -> list[Any]:
    handles: list[Any] = [_marks("*", label="tuned ridges")]
    if any(row.warning for row in rows):
        handles.append(Patch(facecolor="none", hatch="////", label="replica symmetry fails"))
    if any(row.result != CONVERGED for row in rows):
        handles.append(_marks("x", label="not converged"))
    return handles
