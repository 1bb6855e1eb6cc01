"""Least risks without a compiled search, for an attention that is seen for the first time.

To compile the search of `search.py` for a new attention takes seconds, a risk of an analytic one milliseconds. Here the
same integrals are sums of NumPy: a coarse rule for the search, and at the minimum the two rules of `search.py`, whose
difference is the error. What that does not settle is left to `population_minima`: kinks of a kernel, limits, and errors
above `ACCURACY`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from .._check import LARGEST
from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..attention.kernel import power_limit
from ..numerics.quadrature import estimate_from
from ..tasks import AbstractPlanted, AbstractTask
from .bias import homogeneous_minimum, power_minimum, softmax_limit, threshold_angles
from .engines import AbstractEngine, Correlations, each_length
from .engines.base import Range
from .functions import in_numpy
from .minimisers import Minimum, softmax_minimum
from .minimum import at_one_length, population_minima
from .overlaps import Overlaps, aligned
from .plan import SEARCH_FINENESS, WIDENED, find_method, is_exact, light_plan
from .search import EXTRAPOLATED, FLAT, VANISHING, Search, explained

ACCURACY, _LIMIT_ACCURACY = 1e-7, 1e-6  # of a risk that is attained, and of a limit
_COARSE = 0.5  # fineness of the rule of a search: right to 10^-4 or so, which places a minimum well enough
_FINE = 3.0  # fineness for powers, which vanish somewhere
_LONGEST, _MOST_TERMS = 64.0, 4e5  # `k`, and the terms of a sum, up to which a rule is doubled
_NARROW, _SIMPLEX = (
    1e-6,
    1e-4,
)  # of a length by Brent's method, and of a length and a bias by a simplex
_STEPS = 2e-4, 2e-3  # of differences in the length and in the bias
_MOST_NEWTON_STEPS, _FARTHEST_STEP = 6, 500.0  # the latter in those of differences


def uncompiled_minima(tasks: Sequence[AbstractTask], attention: AbstractAttention) -> list[Minimum]:
    """Lowest population risk of an attention on several tasks, as `population_minima`, with errors up to `ACCURACY`."""
    if attention.free_bias and attention.bias_is_void:
        attention = attention.with_bias(0.0).with_free_bias(False)
    found = [_minimum(task, attention) for task in tasks]
    missing = [task for task, each in zip(tasks, found, strict=True) if each is None]
    rest = iter(population_minima(missing, attention) if missing else [])
    return [each or next(rest) for each in found]


def _minimum(task: AbstractTask, attention: Any) -> Minimum | None:
    """`None` where it takes a compiled search."""
    if not is_exact(task, attention) or task.spread != 1.0 or task.strength == 0:
        return None
    if task.length.longest == 1 or (attention.compares_tokens and not attention.analytic):
        return None
    biased = attention.free_bias or attention.bias != 0.0
    if biased and not attention.analytic and attention.is_homogeneous:
        return None
    if attention.knows_length and len(task.length.lengths) == 1:
        known, _ = attention.at_length(task.length.longest)
        found = _minimum(task, known.with_bias(float(known.bias)))
        return found and at_one_length(task, attention, found)
    sums = _Sums(task, attention)
    if not (attention.free_bias and attention.compares_tokens):
        return _searched(sums)
    if attention.knows_length:
        return None
    limit = softmax_limit(task, attention, softmax_minimum(task), _risk)
    if limit is not None:
        return limit
    power = None if attention.constant > 0 else power_limit(attention)
    stretched = None
    if power is not None and math.isfinite(power.log_ratio):
        stretched = power_minimum(task, attention, power, _risk, _homogeneous_minimum)
    return _searched(sums, stretched)


class _Sums:
    """`A` and `B` of one attention on one task, by NumPy."""

    def __init__(self, task: AbstractTask, attention: AbstractAttention):
        self.task, self.attention = task, attention
        self.functions = None if attention.knows_length else in_numpy(attention)
        self.search = Search(task, attention, 0)
        self.plan_stage()

    def plan_stage(self) -> None:
        """Rules for the lengths of `k` that the search is at."""
        self.problem = self.search.problem()
        reach = self.search.plan.reach
        self.coarse = light_plan(self.task, self.attention, reach, 0.0, reach, _COARSE)

    def profile(self, engine: Any, m_kk: float, bias: float) -> Correlations:
        """At `k = m_kk k*`, `v = v*`."""
        if self.functions is not None:
            return engine.profile(self.task, self.functions._replace(bias=bias), m_kk)
        label = power = 0.0
        attention = self.attention.with_bias(bias)
        parts = zip(engine.engines, each_length(self.task, attention), strict=True)
        for part, (chance, alone, _, by) in parts:
            known = in_numpy(attention, float(alone.length.longest))
            found = part.profile(alone, known, float(by) * m_kk)
            label, power = label + chance * found.label, power + chance * found.power
        return Correlations(label, power)

    def loss(self, engine: AbstractEngine, at: Sequence[float]) -> float:
        """`−log(A²/B)` at a length of `k` and a bias."""
        m_kk, bias = (*at, float(self.attention.bias))[:2]
        a, b = self.profile(engine, m_kk, bias)
        sound = 0 < abs(a) < math.sqrt(LARGEST) * b and math.isfinite(b)
        return math.log(b) - 2.0 * math.log(abs(a)) if sound else math.inf


def _risk(task: AbstractTask, attention: Any, overlaps: Overlaps) -> float:
    """At aligned overlaps."""
    m_kk, m_vv = float(overlaps.m_kk), float(overlaps.m_vv)
    fixed, scale = attention.with_free_bias(False), abs(m_kk)
    engine = light_plan(task, fixed, scale, 0.0, scale, SEARCH_FINENESS)
    a, b = engine.profile(task, in_numpy(fixed), m_kk)
    return float(task.label_variance - 2.0 * m_vv * a + m_vv**2 * b)


def _homogeneous_minimum(task: AbstractTask, power: Any) -> Minimum:
    """Of a power of the score, over the angle of `(k, bias)`; compiled where equal steps are not accurate enough."""
    within, variance = Range(1.0, 0.0, 1.0), float(task.label_variance)
    method: Any = find_method(task, power)
    coarse, fine, wide = (
        method.light(task, power, within, fineness, widened)
        for fineness, widened in ((1.0, 1.0), (_FINE, 1.0), (_FINE, WIDENED))
    )

    functions = in_numpy(power)

    def profile(engine: AbstractEngine, angle: float) -> Correlations:
        return engine.profile(task, functions._replace(bias=math.sin(angle)), math.cos(angle))

    angles = threshold_angles(task)
    risks = [variance - explained(profile(coarse, angle)) for angle in angles]
    best = min(max(1, int(np.argmin(risks))), angles.size - 2)
    bounds = angles[best - 1], angles[best + 1]
    found = minimize_scalar(
        lambda angle: -explained(profile(fine, angle)),
        bounds=bounds,
        method="bounded",
        options={"xatol": _NARROW},
    )
    here, other = (profile(engine, found.x) for engine in (fine, wide))
    risk = estimate_from(variance - explained(other), variance - explained(here))
    if not risk.error < _LIMIT_ACCURACY:
        return homogeneous_minimum(task, power)
    overlaps = aligned(math.cos(found.x), float(here.label / here.power))
    return Minimum(risk, overlaps, power.with_bias(math.sin(found.x)))


def _searched(sums: _Sums, limit: Minimum | None = None) -> Minimum | None:
    """A scan of lengths and biases, a descent by the coarse rule, and Newton's method by the fine one.

    Where the risk is falling at the longest `k`, the `limit` if that is known, and else a scan of longer ones.
    """
    lengths, biases = sums.problem.lengths, sums.problem.biases
    free = sums.attention.free_bias
    places = [
        (m_kk, bias)[: 1 + free] for m_kk, row in zip(lengths, biases, strict=True) for bias in row
    ]
    loss = partial(sums.loss, sums.coarse)
    losses = np.array([loss(at) for at in places])
    if not np.isfinite(losses.min()):
        return None
    variance = float(sums.task.label_variance)
    if limit is not None and float(limit.risk) <= variance - math.exp(-losses.min()):
        return limit
    lowest = losses.reshape(biases.shape).min(1)
    inner = np.abs(lengths) < 0.99 * np.abs(lengths).max()
    if lowest.min() < lowest[inner].min() - FLAT:
        search, reach = sums.search, sums.search.plan.reach
        if not (isinstance(sums.task, AbstractPlanted) and sums.problem.light):
            return None
        search.sign, search.shorter = float(np.sign(lengths[lowest.argmin()])), reach
        engine: Any = sums.problem.engines[0]
        if reach > _LONGEST / 2 or engine.rule.x.size * engine.rule.nodes > _MOST_TERMS:
            return None if free else _limit(sums)
        search.stage, search.reach = 1, 2.0 * reach
        sums.plan_stage()
        return _searched(sums, limit)
    best = int(np.argmin(losses))
    row = max(1, min(best // biases.shape[1], lengths.size - 2))
    if free:
        across = abs(biases[row, 0] - biases[row, 1])
        start = np.array(places[best])
        simplex = start + np.array([[0.0, 0.0], [0.1 * (0.1 + abs(start[0])), 0.0], [0.0, across]])
        options = {"initial_simplex": simplex, "xatol": _SIMPLEX, "fatol": 1e-10}
        return _settled(sums, minimize(loss, start, method="Nelder-Mead", options=options).x)
    bounds, options = (lengths[row - 1], lengths[row + 1]), {"xatol": _NARROW}
    found = minimize_scalar(
        lambda m_kk: loss((m_kk,)), bounds=bounds, method="bounded", options=options
    )
    return _settled(sums, np.array([found.x]))


def _limit(sums: _Sums) -> Minimum | None:
    """The infimum as `k` grows without bound, from the longest that the sums serve."""
    search, bias = sums.search, float(sums.attention.bias)
    signed = search.sign * search.plan.reach / np.sqrt(2.0) ** np.arange(EXTRAPOLATED)
    profiles = [
        tuple(sums.profile(engine, m_kk, bias) for engine in sums.problem.engines)
        for m_kk in signed
    ]
    found = search.extrapolated(signed, bias, profiles)
    return found if found.risk.error < _LIMIT_ACCURACY else None


def _settled(sums: _Sums, at: np.ndarray) -> Minimum | None:
    """Newton's method by differences of the fine rule, until a step promises less than `ACCURACY`."""
    problem, variance = sums.problem, float(sums.task.label_variance)
    value = 0 if problem.light else 1
    loss = partial(sums.loss, problem.engines[value])
    for _ in range(_MOST_NEWTON_STEPS):
        step = _newton_step(loss, at, np.array(_STEPS[: at.size]) * np.maximum(1.0, np.abs(at)))
        if step is None:
            return None
        move, decrease = step
        at = at + move
        if decrease < ACCURACY / 2:
            break
    else:
        return None
    m_kk, bias = (*at.tolist(), float(sums.attention.bias))[:2]
    profiles = [sums.profile(engine, m_kk, bias) for engine in problem.engines]
    here, other = (explained(profiles[index]) for index in (value, 1 - value))
    risk = estimate_from(variance - other, variance - here)
    risk = Estimate(risk.value, risk.error + 2.0 * decrease * here)
    m_vv = float(profiles[value].label / profiles[value].power)
    if not risk.error < ACCURACY or abs(m_vv) > VANISHING * math.sqrt(LARGEST):
        return None
    return Minimum(risk, aligned(m_kk, m_vv), sums.attention.with_bias(bias), Result.CONVERGED)


def _newton_step(
    function: Callable[[np.ndarray], float], at: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, float] | None:
    """The step by central differences, and the predicted decrease; `None` if there is no minimum near."""
    axes = np.diag(steps)
    middle = function(at)
    ahead, behind = (
        np.array([function(at + sign * axis) for axis in axes]) for sign in (1.0, -1.0)
    )
    hessian = np.diag(ahead - 2.0 * middle + behind)
    if at.size == 2:
        both = function(at + steps) + function(at - steps)
        mixed = (both - np.sum(ahead + behind) + 2.0 * middle) / 2.0
        hessian += mixed * np.array([[0.0, 1.0], [1.0, 0.0]])
    slopes = (ahead - behind) / 2.0
    if not (np.isfinite(hessian).all() and np.linalg.eigvalsh(hessian)[0] > 0):
        return None
    move = -np.linalg.solve(hessian, slopes)  # in steps
    if np.max(np.abs(move)) > _FARTHEST_STEP:
        return None
    return move * steps, float(-slopes @ move) / 2.0
