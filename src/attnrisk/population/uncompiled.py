"""Lowest risks without a compiled search, for an attention that has not been compiled before.

Compiling the search of `minimum.py` for a new attention takes seconds, evaluating an analytic one milliseconds. Here
the same integrals are NumPy sums: a coarse rule for the search, and at the minimum the two rules of `minimum.py`,
whose difference is the error; for a kernel with kinks, panels that are made anew for each `k`. All other cases use
`population_minima`: flat valleys, and errors above `1e-7` of a minimum (`1e-6` with kinks) or `1e-4` of a limit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.quadrature import estimate_from
from ..tasks import AbstractTask
from .bias import (
    explained,
    homogeneous_minimum,
    power_minimum,
    shifted_power_minimum,
    softmax_limit,
    threshold_angles,
    two_sided_power,
)
from .bias_search import FLAT
from .engines import AbstractEngine, Correlations
from .engines.base import Range
from .engines.per_length import each_length
from .functions import in_numpy
from .limits import EXTRAPOLATED, extrapolated
from .minimisers import (
    LONGEST_VALUE,
    Minimum,
    at_one_length,
    at_unit_scale,
    from_unit_scale,
    softmax_minimum,
)
from .minimum import VANISHING, Search, population_minima
from .overlaps import Overlaps, aligned
from .plan import LONGEST, ORDERS, SEARCH_FINENESS, WIDENED, find_method, is_exact, light_plan

# Of a risk that is attained, also of a kernel with kinks, and of a limit, which a compiled search knows no better.
ACCURACY, _KINKED_ACCURACY, _LIMIT_ACCURACY = 1e-7, 1e-6, 1e-4
_COARSE = 0.5  # fineness of the rule of a search: right to 10^-4 or so, which places a minimum well enough
_FINE = 3.0  # fineness for powers, which vanish somewhere
_LONGEST, _MOST_TERMS = 64.0, 4e5  # `k`, and the terms of a sum, up to which a rule is doubled
_NARROW = 1e-6  # of a length by Brent's method
_SIMPLEX = 1e-4  # of a length and a bias
_MOST_SIMPLEX_STEPS = 400
_ROUGH, _FARTHEST_SCALE = 1e-4, 3.0  # of the logarithm of a length, a long step from a minimum
_UNSEEN = 1e-8  # share of what is explained by which such a step may be better unnoticed
_MOST_SCANNED = 1e6  # terms of a sum up to which lengths and biases are scanned
# Of differences in the length and in the bias, relative, and the least sizes that they are relative to.
_STEPS, _LEAST_UNITS = np.array([2e-4, 2e-3]), np.array([0.1, 1.0])
# Two large scores, the growth of `log φ` between them by which an exponential is known, and the norm of `k` up to which
# panels that do not follow its transition serve it.
_FAR_SCORES, _STEEP, _LONGEST_EXPONENTIAL = (100.0, 200.0), 20.0, 12.0
_KINKED_STEPS = np.array([2e-3, 2e-3])  # where panels move with them
_KINKED_RULES = ((3, 2), *((order, 8) for order in ORDERS))  # order and most cells of panels
_MOST_NEWTON_STEPS, _FARTHEST_STEP = 6, 500.0  # the latter in those of differences


def uncompiled_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, tolerance: float = 0.0
) -> list[Minimum]:
    """Lowest population risk of an attention on several tasks, as `population_minima`.

    Errors are up to `1e-7` where the risk is attained, `1e-6` if the kernel has kinks, and `1e-4` where it is a limit;
    in the last two cases up to the `tolerance`, if that is larger.
    """
    if attention.free_bias and attention.bias_is_void:
        attention = attention.with_bias(0.0).with_free_bias(False)
    # SciPy subtracts losses that are infinite, and squares of large weights are.
    with np.errstate(invalid="ignore", over="ignore"):
        found = [_minimum(task, attention, tolerance) for task in tasks]
    missing = [task for task, each in zip(tasks, found, strict=True) if each is None]
    rest = iter(population_minima(missing, attention) if missing else [])
    return [each or next(rest) for each in found]


def _minimum(task: AbstractTask, attention: Any, tolerance: float = 0.0) -> Minimum | None:
    """The minimum, or `None` if a compiled search is needed."""
    if not is_exact(task, attention) or task.spread != 1.0 or task.strength == 0:
        return None
    unit = None if attention.analytic else at_unit_scale(attention)
    if unit is not None:
        found = _minimum(task, unit, tolerance)
        return found and from_unit_scale(attention, found)
    if task.length.longest == 1 or attention.score_scale < 1.0:
        return None
    kinked = attention.compares_tokens and not attention.analytic
    biased = attention.free_bias or attention.bias != 0.0
    if (biased or kinked) and not attention.analytic and attention.is_homogeneous:
        return None
    if attention.knows_length and len(task.length.lengths) == 1:
        known, _ = attention.at_length(task.length.longest)
        found = _minimum(task, known.with_bias(float(known.bias)), tolerance)
        return found and at_one_length(task, attention, found)
    if kinked and not attention.knows_length:
        found = shifted_power_minimum(task, attention)
        if found is not None:
            return found
    sums = (_KinkedSums if kinked else _Sums)(task, attention, tolerance)
    if not (attention.free_bias and attention.compares_tokens):
        return _searched(sums)
    if attention.knows_length:
        return None
    limit = softmax_limit(task, attention, softmax_minimum(task), _risk)
    if limit is not None:
        return limit
    slow = math.isfinite(sums.method.slow_beyond) if kinked else _terms(sums.coarse) > _MOST_SCANNED
    if slow:
        return None
    power = two_sided_power(attention)
    if power is None:
        return _searched(sums)
    found = shifted_power_minimum(task, attention, _homogeneous_minimum)
    if found is not None:
        return found
    return _searched(sums, power_minimum(task, attention, power, _risk, _homogeneous_minimum))


class _Sums:
    """`A` and `B` of one attention on one task, with NumPy."""

    accuracy, steps = ACCURACY, _STEPS
    farthest: float | None = None  # norm of `k`, if the first range has all of them

    def __init__(self, task: AbstractTask, attention: AbstractAttention, tolerance: float = 0.0):
        self.task, self.attention = task, attention
        self.limit_accuracy = max(_LIMIT_ACCURACY, tolerance)
        self.functions = None if attention.knows_length else in_numpy(attention)
        self.at_lengths = list(_each_length(task, attention)) if attention.knows_length else []
        self.method: Any = find_method(task, attention)
        self.search = Search(task, attention, 0, reach=self.farthest)
        self.plan_stage()

    def plan_stage(self) -> None:
        """Quadrature rules for the present range of norms of `k`."""
        self.problem = self.search.problem()
        reach = self.search.plan.reach
        self.coarse = light_plan(self.task, self.attention, reach, 0.0, reach, _COARSE)

    def profile(self, engine: Any, m_kk: float, bias: Any) -> Correlations:
        """`A` and `B` at `k = m_kk k*`, `v = v*`."""
        if self.functions is not None:
            return engine.profile(self.task, self.functions._replace(bias=bias), m_kk)
        label = power = 0.0
        for part, (chance, alone, known, slope, by) in zip(
            engine.engines, self.at_lengths, strict=True
        ):
            found = part.profile(alone, known._replace(bias=known.bias + slope * bias), by * m_kk)
            label, power = label + chance * found.label, power + chance * found.power
        return Correlations(label, power)

    @property
    def value(self) -> int:
        """Which of the two rules is that of the value."""
        return 0 if self.problem.light else 1

    def whole(self, at: Sequence[float]) -> tuple[float, float]:
        """A length of `k` with a bias, free or not."""
        m_kk, bias = (*at, float(self.attention.bias))[:2]
        return float(m_kk), float(bias)

    def rule(self, which: int, m_kk: float, bias: float) -> Any:
        """The coarse rule, or one of the two others."""
        return (self.coarse, *self.problem.engines)[which]

    def loss(self, at: Sequence[float], which: int = 0) -> float:
        """`−log(A²/B)`, by default by the coarse rule."""
        m_kk, bias = self.whole(at)
        return float(_loss(*self.profile(self.rule(which, m_kk, bias), m_kk, bias)))

    def profiles(self, at: Sequence[float]) -> tuple[Correlations, ...]:
        """By the two rules whose difference is the error."""
        m_kk, bias = self.whole(at)
        return tuple(self.profile(self.rule(which, m_kk, bias), m_kk, bias) for which in (1, 2))

    def scan(self) -> np.ndarray:
        """The losses of all lengths of `k` and biases of the search, by the coarse rule."""
        pairs = list(zip(self.problem.lengths.tolist(), self.problem.biases, strict=True))
        one_rule = self.attention.analytic and not self.attention.compares_tokens
        if one_rule:  # for all biases
            rows = [self.profile(self.coarse, m_kk, row[:, None]) for m_kk, row in pairs]
            return np.array([_loss(*each) for each in rows])
        return np.array([[self.loss((m, b)) for b in row] for m, row in pairs])

    def risk(self, at: Sequence[float]) -> float:
        """The risk by the rule of the value."""
        return float(self.task.label_variance) - math.exp(-self.loss(at, 1 + self.value))


class _KinkedSums(_Sums):
    """The same with panels for each `k`, which meet where its scores pass a kink: they serve any norm, of a kernel that
    grows exponentially a few."""

    steps = _KINKED_STEPS

    def __init__(self, task: AbstractTask, attention: Any, tolerance: float = 0.0):
        known = in_numpy(attention, float(task.length.longest))
        near, far = known.log_phi(np.array(_FAR_SCORES)).tolist()
        self.farthest = _LONGEST_EXPONENTIAL if far - near > _STEEP else LONGEST
        self.accuracy = max(_KINKED_ACCURACY, tolerance)
        self.panels: dict[tuple[int, float], AbstractEngine] = {}
        super().__init__(task, attention, tolerance)

    def rule(self, which: int, m_kk: float, bias: float) -> Any:
        """Kept for the next bias: panels depend on it for a selected task only, where it is not free."""
        if (which, m_kk) not in self.panels:
            self.panels = {(which, m_kk): _panels_at(self.task, self.attention, m_kk, which)}
        return self.panels[which, m_kk]


def _panels_at(task: AbstractTask, attention: Any, m_kk: float, which: int) -> AbstractEngine:
    method: Any = find_method(task, attention)
    return method.panels_at(task, attention, Range(abs(m_kk), 0.0, m_kk), *_KINKED_RULES[which])


def _each_length(task: AbstractTask, attention: Any) -> Iterator[tuple[Any, ...]]:
    """For each length its probability, the task, the attention at bias 0, by how much its own bias grows with that of
    the attention, which is linear, and the factor that stretches its scores."""
    for chance, alone, _, by in each_length(task, attention):
        length = float(alone.length.longest)
        at_zero, at_one = (in_numpy(attention.with_bias(bias), length) for bias in (0.0, 1.0))
        yield chance, alone, at_zero, at_one.bias - at_zero.bias, float(by)


def _terms(engine: Any) -> int:
    """Terms of a sum by this engine; of several lengths, the most."""
    parts = getattr(engine, "engines", (engine,))
    return max(part.rule.x.size * part.rule.nodes for part in parts)


def _loss(a: Any, b: Any) -> np.ndarray:
    sound = (np.abs(a) > 0) & (np.abs(a) < LONGEST_VALUE * b) & np.isfinite(b)
    size, power = (np.where(sound, each, 1.0) for each in (np.abs(a), b))
    return np.where(sound, np.log(power) - 2.0 * np.log(size), np.inf)


def _risk(task: AbstractTask, attention: Any, overlaps: Overlaps) -> float:
    """The risk at aligned overlaps."""
    m_kk, m_vv = float(overlaps.m_kk), float(overlaps.m_vv)
    fixed, scale = attention.with_free_bias(False), abs(m_kk)
    if fixed.analytic:
        engine = light_plan(task, fixed, scale, 0.0, scale, SEARCH_FINENESS)
    else:
        engine = _panels_at(task, fixed, m_kk, 2)
    a, b = engine.profile(task, in_numpy(fixed), m_kk)
    return float(task.label_variance - 2.0 * m_vv * a + m_vv**2 * b)


def _homogeneous_minimum(task: AbstractTask, power: Any) -> Minimum:
    """The minimum of a power kernel over the angle of `(k, bias)`; compiled if equal steps are not accurate enough."""
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
    if not risk.error < _KINKED_ACCURACY:
        return homogeneous_minimum(task, power)
    overlaps = aligned(math.cos(found.x), float(here.label / here.power))
    return Minimum(risk, overlaps, power.with_bias(math.sin(found.x)))


def _searched(sums: _Sums, limit: Minimum | None = None) -> Minimum | None:
    """A scan of norms and biases, a descent with the coarse rule, and Newton's method with the first of the two others.

    If the risk decreases at the largest norm, the `limit` if that is lower, otherwise a scan of larger norms.
    """
    lengths, biases = sums.problem.lengths, sums.problem.biases
    places = [
        (m_kk, bias)[: 1 + sums.attention.free_bias]
        for m_kk, row in zip(lengths, biases, strict=True)
        for bias in row
    ]
    losses = sums.scan()
    if not np.isfinite(losses.min()):
        return None
    inner = np.abs(lengths) < 0.99 * sums.search.plan.reach
    # The coarse rule of panels is too rough to tell whether a risk still falls.
    end, inside = (
        places[int(np.where(within[:, None], losses, np.inf).argmin())]
        for within in (~inner, inner)
    )
    falling = sums.loss(end, 1) < sums.loss(inside, 1) - FLAT
    if falling and (limit is None or sums.risk(places[int(losses.argmin())]) < float(limit.risk)):
        return _searched_beyond(sums, float(lengths[losses.min(1).argmin()]), limit)
    best = int(np.argmin(np.where(inner[:, None], losses, np.inf)))
    at = _descended(sums, np.array(places[best]), best // biases.shape[1])
    if abs(at[0]) > 0.99 * sums.search.plan.reach:  # it falls on the way to the limit
        return limit if limit is not None and sums.risk(at.tolist()) > float(limit.risk) else None
    found = _settled(sums, at)
    if found is None or limit is None:
        return found
    difference = abs(float(found.risk) - float(limit.risk))
    if difference <= float(found.risk.error) + float(limit.risk.error):
        return None
    return min(found, limit, key=lambda each: float(each.risk))


def _searched_beyond(sums: _Sums, longest: float, limit: Minimum | None) -> Minimum | None:
    """A scan of norms of `k` beyond the `longest`, or the infimum if the sums cannot reach them."""
    search, reach = sums.search, sums.search.plan.reach
    search.sign, search.shorter = math.copysign(1.0, longest), reach
    if sums.farthest is not None:
        return None if sums.attention.free_bias else _limit(sums)
    if not (sums.problem.light and sums.method.light_beyond):
        return None
    if reach > _LONGEST / 2 or _terms(sums.problem.engines[0]) > _MOST_TERMS:
        return None if sums.attention.free_bias else _limit(sums)
    search.stage, search.reach = 1, 2.0 * reach
    sums.plan_stage()
    return _searched(sums, limit)


def _descended(sums: _Sums, start: np.ndarray, row: int) -> np.ndarray:
    """The minimum of the coarse rule near a point of the scan, up to the largest norm of `k`."""
    loss, reach = sums.loss, sums.search.plan.reach
    lengths, biases = sums.problem.lengths, sums.problem.biases
    if start.size == 1:
        row = max(1, min(row, lengths.size - 2))
        bounds, options = (lengths[row - 1], lengths[row + 1]), {"xatol": _NARROW}
        found = minimize_scalar(
            lambda m_kk: loss((m_kk,)), bounds=bounds, method="bounded", options=options
        )
        return np.array([found.x])
    across = biases[row, 1] - biases[row, 0]
    inward = -0.1 * math.copysign(0.1 + abs(start[0]), start[0])
    simplex = start + np.array([[0.0, 0.0], [inward, 0.0], [0.0, across]])
    found = minimize(
        loss,
        start,
        method="Nelder-Mead",
        bounds=[(-reach, reach), (None, None)],
        options={
            "initial_simplex": simplex,
            "xatol": _SIMPLEX,
            "fatol": 1e-10,
            "maxfev": _MOST_SIMPLEX_STEPS,
        },
    )
    return found.x


def _limit(sums: _Sums) -> Minimum | None:
    """The infimum as the norm of `k` diverges, extrapolated from the largest norms of the sums."""
    search, bias = sums.search, float(sums.attention.bias)
    signed = search.sign * search.plan.reach / np.sqrt(2.0) ** np.arange(EXTRAPOLATED)
    found = extrapolated(search, signed, bias, [sums.profiles((m_kk,)) for m_kk in signed])
    return found if found.risk.error < sums.limit_accuracy else None


def _settled(sums: _Sums, at: np.ndarray) -> Minimum | None:
    """Newton's method with finite differences of the first rule, until the predicted decrease is below the accuracy."""
    value, variance = sums.value, float(sums.task.label_variance)
    loss = partial(sums.loss, which=1)
    for _ in range(_MOST_NEWTON_STEPS):
        units = np.maximum(_LEAST_UNITS[: at.size], np.abs(at))
        step = _newton_step(loss, at, sums.steps[: at.size] * units)
        if step is None:
            return None
        move, decrease = step
        at = at + move
        if abs(at[0]) > sums.search.plan.reach:
            return None
        if decrease < ACCURACY / 2:
            break
    else:
        return None
    m_kk, bias = sums.whole(at.tolist())
    profiles = sums.profiles(at.tolist())
    here, other = (explained(profiles[index]) for index in (value, 1 - value))
    risk = estimate_from(variance - other, variance - here)
    unseen = _UNSEEN if at.size > 1 else 0.0
    risk = Estimate(risk.value, risk.error + (2.0 * decrease + unseen) * here)
    m_vv = float(profiles[value].label / profiles[value].power)
    if not risk.error < sums.accuracy or abs(m_vv) > VANISHING * LONGEST_VALUE:
        return None
    elsewhere = variance - math.exp(-_least_elsewhere(sums, loss, at))
    if elsewhere < float(risk) - risk.error:
        return None
    return Minimum(risk, aligned(m_kk, m_vv), sums.attention.with_bias(bias), Result.CONVERGED)


def _least_elsewhere(
    sums: _Sums, loss: Callable[[Sequence[float]], float], at: np.ndarray
) -> float:
    """The lowest loss far from a minimum: at the largest norm of `k`, or at other biases with the best `k`.

    In a flat valley the decrease predicted by a quadratic model is too small.
    """
    longest = math.copysign(sums.search.plan.reach, at[0])
    if at.size == 1:
        return min(loss((longest,)), loss((-longest,)))
    m_kk, bias = at
    if m_kk == 0.0:
        return -math.inf
    size, found = max(1.0, abs(bias)), []
    for other in (bias - size, bias + size):
        scale = minimize_scalar(
            lambda scale: sums.loss((m_kk * math.exp(scale), other)),  # noqa: B023
            bounds=(-_FARTHEST_SCALE, min(_FARTHEST_SCALE, math.log(longest / m_kk))),
            method="bounded",
            options={"xatol": _ROUGH},
        ).x
        found.append(loss((m_kk * math.exp(scale), other)))
    return min(found)


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
