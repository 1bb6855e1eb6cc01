"""Specialise: where two heads learn different features from finite data, in theory and in experiments."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import jax
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._results import record
from ...attention import Heads, Softmax
from ...learning import Ridge, erm_asymptotics, head_separation
from ...simulation import fit_erm, sample
from ...tasks import FeatureSLR, flipped
from ..question import AbstractQuestion, Record, is_converged
from .rows import Ask, Row, make_row
from .style import INK, WIDTH, Line, add_legend, columns, marks, set_ticks, where

CAPTION = """\
Two averaged softmax heads with one value vector, learned from N = αD sequences with a ridge r_k on the keys and r_v = \
1, on flipped needles with ν = 9 and L = 3. Colour: how far the heads are from copies of each other, 1 − cos of the \
angle between their keys, from 0 (copies: collapsed) to 2 (opposite: specialised). Squares: the fixed point of lowest \
objective, D to infinity; small circles inside: L-BFGS at D = 300, from small random vectors and from the teacher, the \
lower of the two. Line: the transition, computed from the collapsed heads alone; to its left small differences \
between them shrink, to its right they grow. With few data or a strong ridge the heads collapse onto one direction; \
with more data or a weaker ridge they specialise. A specialised minimum may be the lowest already a little to the left \
of the line, where collapsed heads are a minimum too. Hatched: replica symmetry is unstable or not exact there (see \
warning in specialise.csv): different starts end in different minima, and the theory is an approximation. A cross: the \
fixed point was not found.
"""

NU, LENGTH, HEADS, RIDGE_V, DIM = 9.0, 3, 2, 1.0, 300
_LOG2_POINTS = 6
_AT = ("alpha", "ridge_k")


def _problem() -> tuple[FeatureSLR, Heads]:
    return FeatureSLR(flipped(NU), LENGTH), Heads(Softmax(), HEADS)


@dataclass(frozen=True)
class LearnedHeads(AbstractQuestion):
    """The fixed point for two heads with these ridges."""

    kind: ClassVar[str] = "learned heads"
    package: ClassVar[str] = "learning"

    alpha: float
    ridge_k: float
    log2_points: int = _LOG2_POINTS

    def answer(self) -> Record:
        ridge = Ridge(self.ridge_k, RIDGE_V)
        found = erm_asymptotics(*_problem(), self.alpha, ridge, 0, self.log2_points)
        told: Record = record(found) | {"warning": found.warning or "", "start": found.start}
        told["separation"] = head_separation(found.overlaps)
        told["minima"] = sum(each.converged for each in (found, *found.rivals))
        growths = (each.separation_growth for each in (found, *found.rivals))
        of_copies = next(growth for growth in growths if growth is not None)
        told |= {"growth": float(of_copies), "growth_error": float(of_copies.error)}
        return {
            name: value for name, value in told.items() if name[:3] not in ("m_k", "q_k", "V_k")
        }


@dataclass(frozen=True)
class FittedHeads(AbstractQuestion):
    """The same on a drawn dataset; `spread` is how far the separation from the other start is."""

    kind: ClassVar[str] = "fitted heads"
    package: ClassVar[str] = "simulation"

    alpha: float
    ridge_k: float
    dim: int = DIM
    seed: int = 0

    def answer(self) -> Record:
        task, attention = _problem()
        for_data, for_start = jax.random.split(jax.random.key(self.seed))
        data = sample(task, for_data, round(self.alpha * self.dim), self.dim)
        fit = fit_erm(data, attention, Ridge(self.ridge_k, RIDGE_V), for_start)
        own = head_separation(fit.overlaps)
        others = [head_separation(each.overlaps) for each in fit.rivals]
        told: Record = {"separation": own, "train_error": fit.train_error, "start": fit.start}
        told |= {"objective": fit.objective, "test_risk": float(fit.test_risk)}
        told["spread"] = float(np.max(np.abs(np.array([*others, own]) - own)))
        return told | {"result": str(fit.result), "converged": fit.converged}


def _asked(alphas: Sequence[float], ridges: Sequence[float]) -> list[AbstractQuestion]:
    places = product(alphas, ridges)
    return [kind(*place) for place in places for kind in (LearnedHeads, FittedHeads)]


FULL = _asked((2.0, 3.0, 4.0, 6.0, 8.0, 12.0), (0.05, 0.1, 0.2, 0.4, 0.8))
QUICK = _asked((4.0, 8.0), (0.1, 0.4))
_COLUMNS = """\
alpha ridge_k separation test_risk test_risk_error train_error replicon minima growth growth_error warning result
fitted_separation fitted_spread fitted_train_error fitted_test_risk fitted_result"""


def compute(asked: Sequence[AbstractQuestion], ask: Ask) -> list[Row]:
    """A row for each place: theory and experiment."""
    found = ask(asked)
    return [
        make_row(_COLUMNS, theory, {f"fitted_{name}": value for name, value in fit.items()})
        for theory, fit in zip(found[::2], found[1::2], strict=True)
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """Squares of theory with circles of experiments, on logarithmic axes."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    # So few levels are drawn as vectors: more would be a picture inside the SVG.
    colours: Any = {"cmap": colormaps["viridis"].resampled(40), "vmin": 0.0, "vmax": 2.0}
    known = [row for row in rows if is_converged(row.result)]
    for warned, hatch in ((False, None), (True, "////")):
        some = [row for row in known if bool(row.warning) == warned]
        alpha, ridge, shades = columns(some, *_AT, "separation")
        shape: dict[str, Any] = {"s": 620, "marker": "s", "hatch": hatch, "edgecolors": "white"}
        drawn = axes.scatter(alpha, ridge, c=shades, **shape, **colours)
    _draw_transition(axes, rows)
    alpha, ridge, shades = columns(rows, *_AT, "fitted_separation")
    axes.scatter(alpha, ridge, c=shades, s=90, edgecolors="white", linewidths=1.0, **colours)
    axes.add_line(marks("x", INK, [r for r in rows if r not in known], _AT, markersize=9))
    axes.set(xscale="log", yscale="log", title=where("flipped", NU, LENGTH))
    axes.set(xlabel=r"samples per dimension $\alpha$", ylabel=r"ridge on the keys $r_k$")
    axes.use_sticky_edges = False  # those of the contour
    axes.margins(0.2)
    set_ticks(axes.xaxis, sorted({row.alpha for row in rows}))
    set_ticks(axes.yaxis, sorted({row.ridge_k for row in rows}))
    figure.colorbar(drawn, ax=axes, label="0: copies … 2: opposite keys")
    open_marks: dict[str, Any] = {"colour": INK, "fillstyle": "none"}
    handles = [
        marks("s", label="theory", markersize=11, **open_marks),
        marks("o", label=f"L-BFGS, $D = {DIM}$", markersize=6, **open_marks),
        Line("collapsed heads separate to the right", INK, "--", 1.5),
    ]
    add_legend(figure, handles, 3)
    return figure


def _draw_transition(axes: Axes, rows: Sequence[Row]) -> None:
    """Where differences between collapsed heads neither grow nor shrink, between the places of the grid."""
    alphas, ridges = (sorted({getattr(row, name) for row in rows}) for name in ("alpha", "ridge_k"))
    growth = {(row.ridge_k, row.alpha): row.growth for row in rows}
    logs = [[np.log(growth[ridge, alpha]) for alpha in alphas] for ridge in ridges]
    axes.contour(alphas, ridges, logs, levels=[0.0], colors=[INK], linestyles="--", linewidths=1.2)
