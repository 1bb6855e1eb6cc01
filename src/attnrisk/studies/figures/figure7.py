"""Figure 7: what every attention of the catalogue learns from finite data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..._rows import BAYES
from ...attention import CATALOGUE, get_attention
from ..questions import AbstractTaskQuestion, LearningCurve, Optimal, Record, is_converged
from .rows import Ask, Row, place
from .style import BAYES_LINE, INK, WIDTH, line, marks, set_ticks, smooth

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
_CROSS: dict[str, Any] = {"markersize": 4, "label": "not converged"}

# Without sensitivity to the scale of scores, an empirical risk with a ridge has no minimum.
ATTENTIONS = tuple(name for name in CATALOGUE if get_attention(name).is_scale_sensitive)


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


def questions(quick: bool) -> list[AbstractTaskQuestion]:
    """What the figure asks."""
    grid = _QUICK if quick else _FULL
    return [*curves(grid), *(each for asked in optima(grid) for each in asked)]


def curves(grid: Grid) -> list[LearningCurve]:
    """All attentions in both panels, the longer sequences first."""
    return [
        LearningCurve(TASK, NU, length, name, alphas, grid.log2_points[length])
        for length, alphas in reversed(grid.alphas.items())
        for name in grid.attentions
    ]


def optima(grid: Grid) -> list[list[Optimal]]:
    """The Bayes optimum in both panels."""
    return [
        [Optimal(TASK, NU, length, a) for a in alphas] for length, alphas in grid.alphas.items()
    ]


def compute(quick: bool, ask: Ask) -> list[Row]:
    """The rows of the figure, each a point of the curve of an attention or of the Bayes optimum, without ridges.

    `warning` says why the risk is an approximation, if it is one.
    """
    grid = _QUICK if quick else _FULL
    ask(questions(quick))
    rows = []
    for asked in curves(grid):
        (found,) = ask([asked])
        rows += [_row(asked.inputs, asked.name, each, "test_risk") for each in found]
    return rows + [_row(each, BAYES, each, "risk") for asked in optima(grid) for each in ask(asked)]


def _row(where: Record, name: str, found: Record, risk: str) -> Row:
    return Row(
        **place(where),
        attention=name,
        alpha=found["alpha"],
        risk=found[risk],
        error=found[f"{risk}_error"],
        result=found["result"],
        warning=found.get("warning"),
        ridge_k=found.get("ridge_k"),
        ridge_v=found.get("ridge_v"),
    )


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
    set_ticks(panels[0].xaxis, alphas)
    figure.legend(handles=_legend(rows), loc="outside right upper")
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    for name in (*ATTENTIONS[::-1], BAYES):
        curve = sorted((row for row in rows if row.attention == name), key=lambda row: row.alpha)
        settled = [row for row in curve if is_converged(row.result)]
        if not settled:
            continue
        style = BAYES_LINE if name == BAYES else line(name)._replace(width=1.3)
        x, y = smooth([np.log(row.alpha) for row in settled], [row.risk for row in settled])
        axes.add_line(style.through(np.exp(x), y))
        if name != BAYES:
            for fill, bad in (("full", False), ("none", True)):
                shown = [row for row in settled if bool(row.warning) == bad]
                axes.add_line(marks("o", style.colour, shown, markersize=3.0, fillstyle=fill))
    axes.add_line(marks("x", INK, [r for r in rows if not is_converged(r.result)], **_CROSS))


def _legend(rows: Sequence[Row]) -> list[Line2D]:
    """The attentions, best first: by their risk with the most data, at the largest length."""
    last = max(LENGTHS.index(row.length) for row in rows)
    ends = {
        row.attention: (not is_converged(row.result), row.risk)
        for row in sorted(rows, key=lambda row: row.alpha)
        if row.length == LENGTHS[last]
    }
    names = sorted((name for name in ends if name != BAYES), key=lambda name: ends[name])
    handles = [BAYES_LINE.through(), *(line(name)._replace(width=1.3).through() for name in names)]
    if not all(is_converged(row.result) for row in rows):
        handles.append(marks("x", INK, **_CROSS))
    return handles
