"""Figure 6: the test risk after training as a function of the two ridge penalties."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..question import Record
from ..questions import ERM, LearningCurve
from .rows import Ask, Row, risk_row
from .style import INK, add_legend, columns, has_converged, marks, panels, where

CAPTION = """\
Test risk after training on N = αD sequences of L = 3 tokens, in the limit of infinite D, as a function of the two \
ridge penalties, for softmax (top) and linear attention (bottom), on the spiked task with ν = 2. The star marks the \
tuned penalties of figure 3, found by following the derivative of the risk through the fixed point. Hatched: replica \
symmetry fails, so the risk is an approximation. A cross marks a grid point whose fixed point was not found. Contours \
are interpolated between the grid points, which figure6.csv has with their errors. Risks above 1.2, worse than \
predicting zero, have the same colour.
"""

TASK, NU, LENGTH = "spiked", 2.0, "3"
ATTENTIONS = ("softmax", "linear")

_WORST = 1.2
_LEVELS = np.linspace(0.4, _WORST, 17)
_STAR: dict[str, Any] = {"markersize": 9, "markeredgecolor": INK, "zorder": 5}
_CROSS = _STAR | {"markersize": 4}
_MAP = "cividis"  # the same to colour-blind readers


def planes(alphas: Sequence[float], ridges: Sequence[float], log2_points: int) -> list[list[ERM]]:
    """For each `alpha` and attention, all pairs of ridges."""
    return [
        [ERM(TASK, NU, LENGTH, name, alpha, k, v, log2_points) for k in ridges for v in ridges]
        for alpha in alphas
        for name in ATTENTIONS
    ]


FULL = planes((1.0, 2.0, 8.0), np.geomspace(0.03, 100.0, 9).tolist(), 7)
QUICK = planes((4.0,), np.geomspace(0.1, 30.0, 6).tolist(), 7)


def questions(planes: Sequence[Sequence[ERM]]) -> list[ERM]:
    """What can be asked at once: tuning starts from the best point of a plane."""
    return [each for plane in planes for each in plane]


def compute(planes: Sequence[Sequence[ERM]], ask: Ask) -> list[Row]:
    """The points of each plane, and after them the one where tuning ends.

    `warning` says why a risk is an approximation.
    """
    ask(questions(planes))
    found = [ask(plane) for plane in planes]
    tuned = ask(map(_tuning, found))
    rows = []
    for plane, ends in zip(found, tuned, strict=True):
        rows += [_row(point, point, tuned=False) for point in plane]
        rows += [_row(plane[0], end, tuned=True) for end in ends]
    return rows


def _tuning(plane: Sequence[Record]) -> LearningCurve:
    """From the best point of a plane."""
    best = min(plane, key=lambda point: (not point["converged"], point["test_risk"]))
    where = best["task"], best["nu"], best["length"], best["attention"], (best["alpha"],)
    return LearningCurve(*where, best["log2_points"], (best["ridge_k"], best["ridge_v"]))


def _row(where: Record, found: Record, tuned: bool) -> Row:
    columns = "task nu length attention alpha ridge_k ridge_v tuned risk error result warning"
    others = {"warning": found["warning"] or None, "tuned": tuned}
    return risk_row(columns, where, found, named="test_risk", **others)


def plot(rows: Sequence[Row]) -> Figure:
    """A row of panels for each attention, a column for each α, and one scale of colours."""
    by = {"attention": ATTENTIONS, "alpha": sorted({row.alpha for row in rows})}
    labels = r"ridge penalty on $k$, $r_k$", r"ridge penalty on $v$, $r_v$"
    height = 2.4 * len(ATTENTIONS) + 0.6
    figure, drawn = panels(rows, height, by, *labels, sharex=True, sharey=True)
    ridges = "ridge_k", "ridge_v"
    for axes, here, (name, alpha) in drawn:
        grid = [row for row in here if not row.tuned]
        k, v = map(np.unique, columns(grid, *ridges))
        risk, warned = (
            np.reshape(values, (k.size, v.size)).T for values in columns(grid, "risk", "warning")
        )
        colours = axes.contourf(k, v, np.clip(risk, _LEVELS[0], _WORST), _LEVELS, cmap=_MAP)
        axes.contour(k, v, risk, _LEVELS[::2], colors=INK, linewidths=0.3)
        if np.any(warned):
            axes.contourf(k, v, warned.astype(bool), [0.5, 1.5], colors="none", hatches=["////"])
        axes.add_line(marks("*", "white", [row for row in here if row.tuned], ridges, **_STAR))
        failed = [row for row in here if not has_converged(row)]
        axes.add_line(marks("x", "white", failed, ridges, **_CROSS))
        axes.set(xscale="log", yscale="log")
        axes.set_title(rf"{name}, $\alpha = {alpha:g}$" + "\n" + where("", NU, LENGTH))
    figure.colorbar(colours, ax=figure.axes, label="test risk", pad=0.015, ticks=_LEVELS[::4])
    handles: list[Any] = [marks("*", "white", label="tuned penalties", **_STAR)]
    if any(row.warning for row in rows):
        handles.append(Patch(facecolor="none", hatch="////", label="replica symmetry fails"))
    if not all(map(has_converged, rows)):
        handles.append(marks("x", "white", label="not converged", **_CROSS))
    add_legend(figure, handles, 3)
    return figure
