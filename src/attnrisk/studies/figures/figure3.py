"""Figure 3: the test risk after training on finite data with the best ridge penalties, and the Bayes optimum."""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ..._results import Result
from ..._rows import BAYES
from ..question import Record
from ..questions import (
    AbstractTaskQuestion,
    LearningCurve,
    Optimal,
    Population,
    Simulate,
    Thresholds,
)
from .rows import JUMP, Ask, Row, beside, risk_row
from .style import (
    GREY,
    INK,
    SHADE,
    WIDTH,
    Line,
    add_legend,
    columns,
    draw_curve,
    line,
    marks,
    set_ticks,
    smooth,
    where,
)

CAPTION = """\
Test risk after training on N = αD sequences of L = 3 tokens, in the limit of infinite D, by empirical risk \
minimisation of softmax and of linear attention, with the best ridge penalties between 10⁻³ and 10³. Horizontal lines \
show the lowest risk of each attention with infinite data. Black is the Bayes optimum: with noiseless labels it jumps \
at α = 1. In the shaded hard phase message passing, the best known polynomial-time algorithm, stays on the grey line. \
With enough data softmax has the lower risk, but the two curves cross: with few data linear attention is as good or \
slightly better (errors are in figure3.csv). Error bars are one standard error. A point is hollow where replica \
symmetry fails, so its risk is an approximation. Squares are simulations: empirical risk minimisation on drawn \
datasets with the ridge penalties of the theory, mean and standard deviation over a few datasets, whose size is in \
the legend. A cross marks a point that did not converge. Ridge penalties are tuned until the derivative of the risk \
with respect to log r is below its standard error, so those in figure3.csv are rough where the risk is flat. Lines \
are interpolated between the points.
"""

ATTENTIONS = ("softmax", "linear")
LENGTH = "3"
REACHABLE = "reachable"

# Solid curves, all of one width: dashes distinguish limits.
_LINES = {name: line(name, dashes="solid", width=1.5) for name in ATTENTIONS}
_LIMITS = {
    name: line(name, label=rf"{name}, $\alpha = \infty$", dashes=dashes, width=0.9)
    for name, dashes in (("softmax", "dashed"), ("linear", "dotted"))
}
_OPTIMUM = Line("Bayes optimum", INK, "solid", 1.2)
_REACHED = Line("message passing, in the hard phase", GREY, "solid", 1.2)
_SQUARE: dict[str, Any] = {"markersize": 5.0, "markeredgecolor": "white", "zorder": 4}
_SURE = 3.0  # standard errors by which the optimum is out of reach
_COLUMNS = "task nu length curve alpha risk error result ridge_k ridge_v warning size runs"
_ABSENT = dict.fromkeys(("ridge_k", "ridge_v", "warning", "size", "runs"))


class Grid(NamedTuple):
    """Panels, the α of learning curves and of the optimum, and how many points (of base two) a task is averaged over.

    Experiments are done at every second α of the learning curves, `runs` times, with `√(ND)` equal to `size`.
    """

    panels: tuple[tuple[str, float], ...]
    alphas: tuple[float, ...]
    optimal_alphas: tuple[float, ...]
    log2_points: dict[str, int]
    size: int
    runs: int


def _spaced(count: int) -> tuple[float, ...]:
    return tuple(np.geomspace(0.3, 20.0, count).tolist())


# On the max task a fixed point takes six times as long.
FULL = Grid(
    (("spiked", 1.0), ("spiked", 2.0), ("spiked", 5.0), ("max", 2.0), ("max", inf)),
    _spaced(10),
    _spaced(25),
    {"spiked": 9, "max": 7},
    size=10_000,
    runs=3,
)
QUICK = Grid(FULL.panels[1:2], _spaced(7), _spaced(14), {"spiked": 7}, size=1000, runs=4)


def questions(grid: Grid) -> list[AbstractTaskQuestion]:
    """What can be asked at once; experiments, and points beside a jump, need the answers."""
    return [
        *(each for pair in learning_curves(grid) for each in pair),
        *(Thresholds(task, nu, LENGTH) for task, nu in grid.panels),
        *(Optimal(task, nu, LENGTH, a) for task, nu in grid.panels for a in grid.optimal_alphas),
    ]


def compute(grid: Grid, ask: Ask) -> list[Row]:
    """The rows of the figure, each a point of a curve: of an attention, the Bayes optimum, or what algorithms reach.

    `alpha` is infinite where the row is the least population risk, or its infimum. Only learning curves have ridges and
    maybe a `warning`, which says why the risk is an approximation. Rows with a `size` are experiments: the mean over
    `runs` datasets with `√(ND) = size`, and as error their standard deviation.
    """
    ask(questions(grid))
    learned = [row for pair in learning_curves(grid) for row in _learned(*ask(pair))]
    optima = [row for task, nu in grid.panels for row in optimum(task, nu, grid, ask)]
    return [*learned, *optima, *experiments(grid, learned, ask)]


def learning_curves(grid: Grid) -> list[tuple[LearningCurve, Population]]:
    """The curve of each attention and its limit of infinite data; the max task, which is the slowest, first."""
    return [
        (
            LearningCurve(task, nu, LENGTH, name, grid.alphas, grid.log2_points[task]),
            Population(task, nu, LENGTH, name),
        )
        for task, nu in grid.panels[::-1]
        for name in ATTENTIONS
    ]


def _learned(curve: list[Record], limit: Record) -> list[Row]:
    """The limit of infinite data, and test risks with the best ridges."""
    at = _ABSENT | {name: limit[name] for name in ("task", "nu", "length")}
    at["curve"] = limit["attention"]
    learned = [risk_row(_COLUMNS, at, each, named="test_risk") for each in curve]
    return [risk_row(_COLUMNS, at, limit, alpha=inf), *learned]


def optimum(task: str, nu: float, grid: Grid, ask: Ask) -> list[Row]:
    """The Bayes optimum and what algorithms reach, also next to where these jump."""
    (thresholds,) = ask([Thresholds(task, nu, LENGTH)])
    jumps = [jump for jump in (JUMP, thresholds["algorithmic"]) if jump]
    alphas = sorted({*grid.optimal_alphas, *(side for jump in jumps for side in beside(jump))})
    return [
        risk_row(_COLUMNS, _ABSENT, found, named=name, curve=curve)
        for found in ask(Optimal(task, nu, LENGTH, alpha) for alpha in alphas)
        for curve, name in ((BAYES, "risk"), (REACHABLE, "reachable_risk"))
    ]


def experiments(grid: Grid, learned: Sequence[Row], ask: Ask) -> list[Row]:
    """Empirical risk minimisation at every second α, with the ridges that the theory found best."""
    tuned = [row for row in learned if row.alpha in grid.alphas[1::2]]
    trials = [
        Simulate(
            *(row.task, row.nu, row.length, row.curve, row.alpha, row.ridge_k, row.ridge_v),
            *(round(grid.size / row.alpha**0.5), seed, "float32"),
        )
        for row in tuned
        for seed in range(grid.runs)
    ]
    found = iter(ask(trials))
    rows = []
    for row in tuned:
        fits = [next(found) for _ in range(grid.runs)]
        risks = [fit["test_risk"] for fit in fits]
        failed = [fit["result"] for fit in fits if not fit["converged"]]
        result = failed[0] if failed else str(Result.CONVERGED)
        mean, spread = float(np.mean(risks)), float(np.std(risks, ddof=1))
        others = {"size": grid.size, "runs": grid.runs, "warning": None}
        changed = {"risk": mean, "error": spread, "result": result, **others}
        rows.append(Row(**vars(row) | changed))
    return rows


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each task and signal, at most three beside one another, one legend."""
    panels = [panel for panel in FULL.panels if panel in {(row.task, row.nu) for row in rows}]
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(WIDTH, 1.0 + 2.3 * down), layout="constrained")
    drawn = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes in drawn.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (task, nu) in zip(drawn.flat, panels, strict=False):
        _draw_panel(axes, [row for row in rows if (row.task, row.nu) == (task, nu)])
        axes.set(title=where(task, nu, LENGTH), xlabel=r"samples per dimension $\alpha$")
        axes.tick_params(labelbottom=True)  # also above an empty place of the last row
    first, last = (pick(row.alpha for row in rows if row.alpha < inf) for pick in (min, max))
    drawn[0, 0].set(xscale="log", xlim=(first / 1.08, last * 1.08), ylim=(-0.02, 1.05))
    for axes in drawn[:, 0]:
        axes.set_ylabel("test risk")
    set_ticks(drawn[0, 0].xaxis, [0.3, 1.0, 3.0, 10.0])
    sizes = sorted({row.size for row in rows if row.size is not None})
    handles = [
        *(*_LINES.values(), *_LIMITS.values(), _OPTIMUM, _REACHED),
        *(marks("s", GREY, label=rf"simulation, $\sqrt{{ND}} = {n}$", **_SQUARE) for n in sizes),
    ]
    add_legend(figure, handles, 3, rows)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    _draw_optimum(axes, _curve(rows, BAYES), _curve(rows, REACHABLE))
    for name in ATTENTIONS:
        *curve, limit = _curve(rows, name)
        axes.axhline(limit.risk, **_LIMITS[name].style)
        draw_curve(axes, _LINES[name], curve, log="x", dots=2.4)
        measured = [row for row in rows if row.curve == name and row.size is not None]
        for shown in (curve, measured):  # one standard error up and down
            ends = [[(row.alpha, row.risk + side * row.error) for side in (-1, 1)] for row in shown]
            axes.add_collection(LineCollection(ends, colors=line(name).colour, linewidths=0.8))
        axes.add_line(marks("s", line(name).colour, measured, **_SQUARE))


def _curve(rows: Sequence[Row], name: str) -> list[Row]:
    chosen = (row for row in rows if row.curve == name and row.size is None)
    return sorted(chosen, key=lambda row: row.alpha)


def _smooth(curve: Sequence[Row]) -> tuple[Any, Any]:
    alpha, risk = columns(curve, "alpha", "risk")
    return smooth(alpha, risk, "x")


def _draw_optimum(axes: Axes, best: Sequence[Row], reached: Sequence[Row]) -> None:
    """The optimum before and after its jump, and the hard phase: what lies between it and the reachable."""
    draw_curve(axes, _OPTIMUM, best, log="x", jumps=(JUMP,))
    before, after = ([r for r in best if (r.alpha < JUMP) == side] for side in (True, False))
    ends = [before[-1].risk, after[0].risk]
    axes.add_line(_OPTIMUM._replace(dashes="dotted").through([JUMP, JUMP], ends))
    hard = [pair for pair in zip(best, reached, strict=True) if _is_hard(*pair)]
    if not hard:
        return
    alpha, risk = _smooth([above for _, above in hard])
    below = np.interp(alpha, *_smooth(after))
    axes.fill_between(alpha, below, risk, color=SHADE, linewidth=0.0, zorder=0)
    if hard[-1][0] is not best[-1]:  # the reachable jumps too, and falls onto the optimum
        alpha, risk = np.append(alpha, alpha[-1]), np.append(risk, below[-1])
    axes.add_line(_REACHED.through(alpha, risk))


def _is_hard(best: Row, reached: Row) -> bool:
    return reached.risk - best.risk > _SURE * (best.error + reached.error)
