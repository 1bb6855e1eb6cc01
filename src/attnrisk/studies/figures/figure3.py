"""Figure 3: the test risk after learning from finite data, with the best ridges, against the Bayes optimum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from ..._results import Estimate
from ..._rows import BAYES
from ...attention import get_attention
from ...learning import FixedPoint, Ridge, optimal_asymptotics, optimal_thresholds
from ...learning.tuning import tuned_erm_asymptotics
from ...population import population_minimum
from ...simulation import ERMFit, fit_erm, sample
from .asking import Asking
from .rows import Curve, Question
from .style import GREY, INK, WIDTH, Line, line, smooth

STEM = "figure3"

CAPTION = """\
Test risk after learning from N = αD sequences of L = 3 tokens, D to infinity, by minimising the empirical risk of \
softmax and of linear attention, with the two ridges of least test risk that were found between 10⁻³ and 10³. \
Horizontal lines are what each attention has with infinite data. Black is the Bayes optimum: with noiseless labels it \
jumps at α = 1. In the shaded hard phase message passing, the best fast algorithm known, stays on the grey line. \
Softmax wins once there are data enough, but the two curves cross: with few data linear attention is as good or \
slightly better, as figure3.csv tells with its errors. Bars are one standard error. A point is white inside where \
replica symmetry fails, so that its risk is an approximation. Squares are experiments: the empirical risk \
minimised on drawn datasets, with the ridges of the theory, mean and standard deviation over a few datasets, the size \
of which stands in the legend. A cross marks a point that did not converge. Ridges are tuned until the slope of the \
risk in log r is below its standard error, so that those in figure3.csv are rough where the risk is flat. Lines are \
interpolated between the points.
"""

ATTENTIONS = ("softmax", "linear")
LENGTH = "3"
REACHABLE = "reachable"
CONVERGED, INFIMUM = "converged", "not attained by any finite k"

_LIMITS: dict[str, Any] = {"softmax": "dashed", "linear": "dotted"}
_OPTIMUM = Line("Bayes optimum", INK, "solid", 1.2)
_REACHED = Line("reachable, where below it is hard", GREY, "solid", 1.2)
_SHADE = "#ececec"
_JUMP = 1.0  # α at which the optimum of noiseless labels jumps
_NEAR = 0.005  # relative distance of the points on both sides of a jump
_SURE = 3.0  # standard errors by which the optimum is out of reach


class Grid(NamedTuple):
    """Panels, the α of the learners and of the optimum, and how many points (of base two) a task is averaged over.

    Experiments are done at every second α of the learners, `runs` times, with `√(ND)` equal to `size`.
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
_FULL = Grid(
    (("spiked", 1.0), ("spiked", 2.0), ("spiked", 5.0), ("max", 2.0), ("max", inf)),
    _spaced(10),
    _spaced(25),
    {"spiked": 9, "max": 7},
    size=10_000,
    runs=3,
)
_QUICK = Grid(_FULL.panels[1:2], _spaced(4), _spaced(9), {"spiked": 7}, size=1000, runs=4)


@dataclass(frozen=True)
class Row:
    """A point of a curve, which is that of an attention, of the Bayes optimum, or of what algorithms reach.

    `alpha` is infinite where the row is the least population risk, or its infimum. Only learners have ridges
    and maybe a `warning`, which says why the risk is an approximation. Rows with a
    `size` are experiments: the mean over `runs` datasets with `√(ND) = size`, and as error their standard deviation.
    """

    task: str
    nu: float
    length: str
    curve: str
    alpha: float
    risk: float
    error: float
    result: str
    ridge_k: float | None = None
    ridge_v: float | None = None
    warning: str | None = None
    size: int | None = None
    runs: int | None = None


def compute(quick: bool, ask: Asking) -> list[Row]:
    """The rows of the figure: curves, then experiments with the ridges that these found best."""
    grid = _QUICK if quick else _FULL
    rows = ask(curve, curves(grid), Row)
    return [*rows, *ask(experiments, trials(grid, rows), Row)]


def curves(grid: Grid) -> list[Curve]:
    """Every curve; the max task, which is the slowest, first."""
    learners = dict.fromkeys(ATTENTIONS, grid.alphas)
    return [
        Curve(task, nu, LENGTH, name, alphas, 0 if name == BAYES else grid.log2_points[task])
        for task, nu in grid.panels[::-1]
        for name, alphas in {**learners, BAYES: grid.optimal_alphas}.items()
    ]


def curve(asked: Curve) -> list[Row]:
    """The points of one."""
    return optimum(asked) if asked.attention == BAYES else learned(asked)


@dataclass(frozen=True)
class Trial(Question):
    """Learners, each with its ridges `r_k` and `r_v`, on `runs` datasets of one `alpha` and with `√(ND)` of `size`."""

    alpha: float
    learners: tuple[tuple[str, float, float], ...]
    size: int
    runs: int


def trials(grid: Grid, rows: Sequence[Row]) -> list[Trial]:
    """Experiments at every second α, with the ridges that the theory found best."""
    asked = []
    for task, nu in grid.panels:
        for alpha in grid.alphas[1::2]:
            theory = [row for row in rows if (row.task, row.nu, row.alpha) == (task, nu, alpha)]
            learners = tuple(
                (row.curve, row.ridge_k, row.ridge_v)
                for row in theory
                if row.ridge_k is not None and row.ridge_v is not None
            )
            asked.append(
                Trial(task, nu, LENGTH, "experiment", alpha, learners, grid.size, grid.runs)
            )
    return asked


def experiments(trial: Trial) -> list[Row]:
    """Empirical risk minimisation on drawn datasets, which all learners share."""
    dim = round(trial.size / trial.alpha**0.5)
    fits: dict[str, list[ERMFit]] = {name: [] for name, *_ in trial.learners}
    for seed in range(trial.runs):
        key = jax.random.key(seed)
        data = sample(trial.problem, key, round(trial.alpha * dim), dim, jnp.float32)
        for name, r_k, r_v in trial.learners:
            fits[name].append(fit_erm(data, get_attention(name), Ridge(r_k, r_v)))
    return [
        replace(_measured(trial, name, fits[name]), ridge_k=r_k, ridge_v=r_v)
        for name, r_k, r_v in trial.learners
    ]


def _measured(trial: Trial, curve: str, fits: Sequence[ERMFit]) -> Row:
    """Mean and standard deviation over the datasets."""
    risks = [float(fit.test_risk) for fit in fits]
    failed = [fit.result for fit in fits if not fit.converged]
    spread = Estimate(float(np.mean(risks)), float(np.std(risks, ddof=1)))
    row = _row(trial, curve, trial.alpha, spread, failed[0] if failed else CONVERGED)
    return replace(row, size=trial.size, runs=trial.runs)


def learned(question: Curve) -> list[Row]:
    """Test risks with the best ridges, and the limit of infinite data."""
    task, student = question.problem, get_attention(question.attention)
    limit = population_minimum(task, student)
    reached = CONVERGED if limit.attained else INFIMUM
    rows = [_row(question, question.attention, inf, limit.risk, reached)]
    start: Ridge | None = None
    for alpha in sorted(question.alphas, reverse=True):
        found = tuned_erm_asymptotics(task, student, alpha, 0, question.log2_points, start)
        row = _row(question, question.attention, alpha, found.test_risk, found.result)
        r_k, r_v = float(found.ridge.k), float(found.ridge.v)
        rows.append(replace(row, ridge_k=r_k, ridge_v=r_v, warning=found.warning or None))
        start = found.ridge if found.converged else None
    return rows


def optimum(question: Curve) -> list[Row]:
    """The Bayes optimum and what algorithms reach, also next to where these jump."""
    task = question.problem
    jumps = [_JUMP, optimal_thresholds(task).algorithmic]
    sides = [float(jump) * (1 + side) for jump in jumps if jump for side in (-_NEAR, _NEAR)]
    rows = []
    for alpha in sorted({*question.alphas, *sides}):
        found = optimal_asymptotics(task, alpha)
        rows.append(_branch(question, BAYES, alpha, found.optimum))
        rows.append(_branch(question, REACHABLE, alpha, found.reachable))
    return rows


def _branch(question: Question, curve: str, alpha: float, point: FixedPoint) -> Row:
    return _row(question, curve, alpha, point.risk, point.result)


def _row(question: Question, curve: str, alpha: float, risk: Estimate, result: str) -> Row:
    inputs = question.task, question.nu, question.length, curve, float(alpha)
    return Row(*inputs, float(risk.value), float(risk.error), result)


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each task and signal, one legend."""
    panels = [panel for panel in _FULL.panels if panel in {(row.task, row.nu) for row in rows}]
    figure = Figure(figsize=(max(1.9 * len(panels), WIDTH), 3.1), layout="constrained")
    drawn = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (task, nu) in zip(drawn, panels, strict=True):
        _draw_panel(axes, [row for row in rows if (row.task, row.nu) == (task, nu)])
        axes.set_title(rf"{task}, $\nu = {_symbol(nu)}$")
        axes.set_xlabel(r"samples per dimension $\alpha$")
    first, last = (pick(row.alpha for row in rows if row.alpha < inf) for pick in (min, max))
    drawn[0].set(xscale="log", xlim=(first / 1.08, last * 1.08), ylim=(-0.02, 1.05))
    drawn[0].set_ylabel("test risk")
    drawn[0].xaxis.set_major_locator(FixedLocator([0.3, 1.0, 3.0, 10.0]))
    drawn[0].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    drawn[0].xaxis.set_minor_locator(NullLocator())
    figure.legend(handles=_legend(rows), loc="outside lower center", ncols=4)
    return figure


def _symbol(nu: float) -> str:
    return r"\infty" if nu == inf else f"{nu:g}"


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    _draw_optimum(axes, _curve(rows, BAYES), _curve(rows, REACHABLE))
    for name in ATTENTIONS:
        *curve, limit = _curve(rows, name)
        axes.axhline(limit.risk, **_limit_style(name))
        alpha, risk = _smooth(curve)
        axes.add_line(_line(name).through(alpha, risk))
        axes.add_collection(_bars(name, curve))
        axes.add_line(_dots(name, [row for row in curve if not row.warning], "full"))
        axes.add_line(_dots(name, [row for row in curve if row.warning], "none"))
        measured = [row for row in rows if row.curve == name and row.size is not None]
        axes.add_collection(_bars(name, measured))
        axes.add_line(_squares(measured, line(name).colour))
    axes.add_line(_crosses([(row.alpha, row.risk) for row in rows if _is_moving(row)]))


def _curve(rows: Sequence[Row], name: str) -> list[Row]:
    chosen = (row for row in rows if row.curve == name and row.size is None)
    return sorted(chosen, key=lambda row: row.alpha)


def _smooth(curve: Sequence[Row]) -> tuple[Any, Any]:
    log_alpha, risk = smooth([np.log(row.alpha) for row in curve], [row.risk for row in curve])
    return np.exp(log_alpha), risk


def _draw_optimum(axes: Axes, best: Sequence[Row], reached: Sequence[Row]) -> None:
    """The optimum before and after its jump, and the hard phase: what lies between it and the reachable."""
    sides = [[row for row in best if (row.alpha < _JUMP) == before] for before in (True, False)]
    for side in sides:
        axes.add_line(_OPTIMUM.through(*_smooth(side)))
    ends = [sides[0][-1].risk, sides[1][0].risk]
    axes.add_line(_OPTIMUM._replace(dashes="dotted").through([_JUMP, _JUMP], ends))
    hard = [pair for pair in zip(best, reached, strict=True) if _is_hard(*pair)]
    if not hard:
        return
    alpha, risk = _smooth([above for _, above in hard])
    below = np.interp(alpha, *_smooth(sides[1]))
    axes.fill_between(alpha, below, risk, color=_SHADE, linewidth=0.0, zorder=0)
    if hard[-1][0] is not best[-1]:  # the reachable jumps too, and falls onto the optimum
        alpha, risk = np.append(alpha, alpha[-1]), np.append(risk, below[-1])
    axes.add_line(_REACHED.through(alpha, risk))


def _is_moving(row: Row) -> bool:
    return row.result not in (CONVERGED, INFIMUM)


def _bars(name: str, curve: Sequence[Row]) -> LineCollection:
    """One standard error up and down."""
    ends = [[(row.alpha, row.risk + side * row.error) for side in (-1, 1)] for row in curve]
    return LineCollection(ends, colors=line(name).colour, linewidths=0.8)


def _dots(name: str, curve: Sequence[Row], fill: Any) -> Line2D:
    """The computed points, white inside where replica symmetry fails."""
    x, y = np.reshape([(row.alpha, row.risk) for row in curve], (-1, 2)).T
    shape: dict[str, Any] = {"marker": "o", "markersize": 2.4, "fillstyle": fill}
    return Line2D(x, y, color=line(name).colour, linestyle="none", **shape)


def _squares(rows: Sequence[Row], colour: str, label: str = "") -> Line2D:
    """The experiments."""
    x, y = np.reshape([(row.alpha, row.risk) for row in rows], (-1, 2)).T
    shape: dict[str, Any] = {"marker": "s", "markersize": 5.0, "markeredgecolor": "white"}
    return Line2D(x, y, color=colour, linestyle="none", zorder=4, label=label, **shape)


def _is_hard(best: Row, reached: Row) -> bool:
    return reached.risk - best.risk > _SURE * (best.error + reached.error)


def _line(name: str) -> Line:
    """As everywhere, but solid and of one width: here dashes tell limits from curves."""
    return line(name)._replace(dashes="solid", width=1.5)


def _limit_style(name: str) -> dict[str, Any]:
    return {"color": line(name).colour, "linestyle": _LIMITS[name], "linewidth": 0.9}


def _crosses(places: Sequence[tuple[float, float]]) -> Line2D:
    """Where the iteration has not converged."""
    x, y = np.reshape(places, (-1, 2)).T
    return Line2D(x, y, color=INK, marker="x", linestyle="none", zorder=5, label="not converged")


def _legend(rows: Sequence[Row]) -> list[Line2D]:
    learners = [_line(name).through() for name in ATTENTIONS]
    limits = [
        Line2D([], [], label=rf"{name}, $\alpha = \infty$", **_limit_style(name))
        for name in ATTENTIONS
    ]
    handles = [*learners, *limits, _OPTIMUM.through(), _REACHED.through()]
    sizes = sorted({row.size for row in rows if row.size is not None})
    handles += [_squares([], GREY, rf"experiment, $\sqrt{{ND}} = {size}$") for size in sizes]
    return [*handles, _crosses([])] if any(map(_is_moving, rows)) else handles
