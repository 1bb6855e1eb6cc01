"""The least risk of an attention with infinite data, over its overlaps and its bias (sections 4 and 4.4).

On the manifold `m_kv = m_vk = q_kv = 0` the best `v` is `v* A/B`, and what is left is `E[y²] − A²/B`, a function of
`k = m_kk k*` and of the bias. It is scanned over lengths of `k` of both signs, from nothing to the longest that can
be integrated, then polished without derivatives, since an attention may have kinks.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from .._check import LARGEST
from ..attention import AbstractAttention, AbstractElementwise, AbstractKernel
from ..estimate import Estimate
from ..quadrature.qmc import across
from ..tasks import AbstractSelected, AbstractTask
from .correlations import Correlations
from .overlaps import Overlaps, aligned
from .polish import polish
from .risk import (
    ORDERS,
    SHARPEST,
    STEEPEST,
    Plan,
    as_arrays,
    compared,
    compiled_profile,
    extrapolate,
    is_exact,
    light_plan,
    plan,
)

# Lengths of k that are cheap to integrate. The scale of an attention is one, so that beyond them the risk only
# approaches its limit, and longer ones are tried where it is still falling.
_CHEAP, _CHEAP_TABLE = 8.0, 4.0
# A light rule serves the search up to this length of k, where the attention is analytic and the table not too deep;
# with a table, as far as that reaches.
_LIGHT, _LIGHT_TOKENS = 16.0, 1000
_LONGEST = 1e3
_FLAT = 1e-9  # a longer k that gains less than this gains nothing
_SEARCHING, _REPORTING = 4, 16  # randomisations where points are random
_ROUGH = 5  # order of a search where an integral takes seconds
_SCALES, _BIASES = 14, 25  # of a scan
_EXTRAPOLATED = 5  # lengths of k through which the limit is drawn
_AGREED = 5e-11  # between two light rules: no other is asked
_FINENESS, _FINER = 1.25, 1.6  # of light rules that agree so well, the second right to 10^-13 or so


class Minimum(eqx.Module):
    """The least risk, where it is reached, and whether it is reached at all.

    Where `attained` is false the risk is the limit as `k` grows without bound, and the overlaps are those of the
    longest `k` evaluated. `attention` carries the tuned bias.
    """

    risk: Estimate
    overlaps: Overlaps
    attention: AbstractAttention
    attained: bool = eqx.field(static=True)


def population_minimum(task: AbstractTask, attention: AbstractAttention, seed: int = 0) -> Minimum:
    """The infimum of the risk over `k` along `k*`, `v` along `v*` and, where it is free, the bias."""
    shortest, *longer = _searched(task, attention)
    problem = _Problem(task, attention, shortest, seed)
    if _is_light(task, attention):
        with ThreadPoolExecutor(1) as threads:
            # Most of a first call is compilation, which leaves the interpreter to others.
            threads.submit(problem.light_profile, attention, 1.0)
            return _found(problem, longer)
    return _found(problem, longer)


def _found(problem: "_Problem", longer: Sequence[float]) -> Minimum:
    """The infimum over lengths of `k` that are scanned first, and over `longer` ones while the risk is falling."""
    shortest = problem.longest
    negative, positive = -np.geomspace(shortest, 0.1, 4), np.geomspace(0.02, shortest, _SCALES)
    places = problem.scan(np.concatenate([negative, [0.0], positive]))
    for reach in longer:
        if not _is_falling(places):
            break
        outward = np.geomspace(problem.longest, reach, 7)[1:]
        problem = problem._replace(longest=reach)
        places += problem.scan(np.copysign(outward, min(places, key=_loss).m_kk))
        places.sort(key=lambda place: place.m_kk)
    if _is_falling(places):
        return problem.limit(min(places, key=_loss))
    return problem.polish(places)


def _reaches(task: AbstractTask, attention: AbstractAttention) -> tuple[float, ...]:
    """Lengths of `k` up to which it is integrated, each range at a higher price than the one before."""
    if not is_exact(task, attention):
        return (_LONGEST,)
    if not isinstance(task, AbstractSelected):
        return _CHEAP, 2 * _CHEAP, _LONGEST
    if not isinstance(attention, AbstractKernel):
        return _CHEAP_TABLE, SHARPEST
    return _CHEAP_TABLE, SHARPEST, STEEPEST, _LONGEST


def _searched(task: AbstractTask, attention: AbstractAttention) -> tuple[float, ...]:
    """Those of the lengths that a search visits: the shorter ones cost a light rule little more than no time."""
    reaches = _reaches(task, attention)
    if not _is_light(task, attention):
        return reaches
    return tuple(reach for reach in reaches if reach >= _LIGHT)


def _is_light(task: AbstractTask, attention: AbstractAttention) -> bool:
    deep = isinstance(task, AbstractSelected) and task.length.longest > _LIGHT_TOKENS
    return is_exact(task, attention) and attention.analytic and not deep


class _Place(NamedTuple):
    """One `k = m_kk k*` and bias, and `−log(A²/B)` there."""

    m_kk: float
    bias: float
    loss: float


def _loss(place: _Place) -> float:
    return place.loss


def _least(variance: Any, profile: Correlations) -> Any:
    """The risk at the best `v`."""
    return variance - profile.label**2 / profile.power


def _best_v(profile: Correlations) -> float:
    """Its share in `v*`."""
    return float(np.mean(profile.label) / np.mean(profile.power))


def _is_falling(places: list[_Place]) -> bool:
    """Whether the longest `k` is the best, by more than an attention that ignores the scale of its scores shows."""
    longest = max(abs(place.m_kk) for place in places)
    inner = min(place.loss for place in places if abs(place.m_kk) < 0.99 * longest)
    return min(place.loss for place in places) < inner - _FLAT


class _Problem(NamedTuple):
    """One attention on one task, for lengths of `k` up to `longest`."""

    task: AbstractTask
    attention: AbstractAttention
    longest: float
    seed: int

    def search_plan(self) -> Plan:
        """How to integrate it many times: a smooth error moves the place of a minimum, but hardly its risk."""
        if self.is_light:
            return self.light_plan(self.longest, _FINENESS)
        return self.plan(self.longest, _ROUGH if self.is_slow else ORDERS[0], _SEARCHING)

    def light_plan(self, longest: float, fineness: float) -> Plan:
        """How to integrate it by equal steps, up to this length of `k`."""
        return light_plan(self.task, self.attention, longest, 0.0, longest, fineness)

    def plan(self, longest: float, order: int, randomisations: int) -> Plan:
        """How to integrate it once, up to this length of `k`."""
        return plan(
            self.task,
            self.attention,
            longest,
            order=order,
            seed=self.seed,
            randomisations=randomisations,
        )

    @property
    def is_light(self) -> bool:
        """Whether a light rule serves lengths up to the longest."""
        reach = STEEPEST if isinstance(self.task, AbstractSelected) else _LIGHT
        return _is_light(self.task, self.attention) and self.longest <= reach

    @property
    def is_slow(self) -> bool:
        """Whether an integral takes seconds, as without a table of fields."""
        return isinstance(self.task, AbstractSelected) and self.longest > STEEPEST

    @property
    def free_bias(self) -> bool:
        return isinstance(self.attention, AbstractElementwise) and self.attention.free_bias

    def biased(self, bias: Any) -> AbstractAttention:
        """The attention with its bias set, if it has a free one."""
        if not self.free_bias:
            return self.attention
        return eqx.tree_at(lambda attention: attention.bias, self.attention, bias)

    def loss(self) -> Callable[[float, float], float]:
        """`−log(A²/B)` as a function of the length of `k` and the bias."""
        task, how = as_arrays((self.task, self.search_plan()))

        def loss(m_kk: float, bias: float) -> float:
            attention, length = as_arrays((self.biased(float(bias)), float(m_kk)))
            values = compiled_profile(task, attention, length, how)
            a, b = (float(np.mean(np.asarray(value))) for value in values)
            drowned = (
                not 0 < abs(a) < np.sqrt(LARGEST) * b
            )  # by a v longer than any that is allowed
            return math.inf if drowned else math.log(b) - 2 * math.log(abs(a))

        return loss

    def scan(self, lengths: np.ndarray) -> list[_Place]:
        """The best bias of a grid at each length of `k`."""
        loss = self.loss()
        places = []
        for m_kk in lengths:
            biases = self.thresholds(m_kk)
            tried = [_Place(m_kk, bias, loss(m_kk, bias)) for bias in biases]
            places.append(min(tried, key=lambda place: (round(place.loss, 12), abs(place.bias))))
        return places

    def thresholds(self, m_kk: float) -> np.ndarray:
        """Biases that put the threshold of an attention anywhere between below all tokens and above them."""
        if not self.free_bias:
            return np.zeros(1)
        field = float(getattr(self.task, "shift", 0.0)) + 6.0
        highest = abs(m_kk) * field + np.log(float(self.task.length.longest)) + 6.0
        return np.linspace(6.0, -highest, _BIASES)

    def polish(self, places: list[_Place]) -> Minimum:
        """The local minimum around the best place of a scan."""
        start = min(places, key=_loss)
        lengths = [place.m_kk for place in places]
        at = lengths.index(start.m_kk)
        spacing = lengths[min(at + 1, len(lengths) - 1)] - lengths[max(at - 1, 0)]
        best_bias = self.best_bias(start.bias)

        def loss(m_kk: float) -> float:
            return best_bias(max(-self.longest, min(self.longest, m_kk))).loss

        m_kk, _ = polish(loss, start.m_kk, spacing / 4)
        best = best_bias(max(-self.longest, min(self.longest, m_kk)))
        attention = self.biased(best.bias)
        risk, m_vv = self.risk(attention, best.m_kk)
        return Minimum(risk, aligned(best.m_kk, m_vv), attention, True)

    def best_bias(self, bias: float) -> Callable[[float], _Place]:
        """The place of the best bias as a function of the length of `k`, each search starting from the last."""
        loss = self.loss()

        def place(m_kk: float) -> _Place:
            nonlocal bias
            if not self.free_bias:
                return _Place(m_kk, bias, loss(m_kk, bias))
            bias, lowest = polish(lambda bias: loss(m_kk, bias), bias, max(1.0, abs(bias) / 10))
            return _Place(m_kk, bias, lowest)

        return place

    def profile(self, attention: AbstractAttention, m_kk: float, order: int) -> Correlations:
        """`A` and `B` by a rule of this order."""
        reaches = _searched(self.task, self.attention)
        reach = next((reach for reach in reaches if reach >= abs(m_kk)), self.longest)
        return self.integrated(attention, m_kk, self.plan(reach, order, _REPORTING))

    def light_profile(self, attention: AbstractAttention, m_kk: float) -> Correlations:
        """`A` and `B` by the finer light rule: of one reach for all but the longest, to be compiled meanwhile."""
        reach = _LIGHT if abs(m_kk) <= _LIGHT else self.longest
        return self.integrated(attention, m_kk, self.light_plan(reach, _FINER))

    def integrated(self, attention: AbstractAttention, m_kk: float, how: Plan) -> Correlations:
        """`A` and `B`."""
        values = compiled_profile(*as_arrays((self.task, attention, m_kk, how)))
        return Correlations(*map(np.asarray, values))

    def risk(self, attention: AbstractAttention, m_kk: float) -> tuple[Estimate, float]:
        """`E[y²] − A²/B` with its error, and the best `v`, `A/B` times `v*`."""
        variance = self.task.label_variance
        if not is_exact(self.task, attention):
            points = self.profile(attention, m_kk, ORDERS[-1])
            m_vv = _best_v(points)
            # At fixed v the risk is linear in A and B, so that its mean over randomisations is unbiased.
            return across(variance - 2 * m_vv * points.label + m_vv**2 * points.power), m_vv
        coarse, fine = self.by_two_rules(attention, m_kk)
        return compared(_least(variance, coarse), _least(variance, fine)), _best_v(fine)

    def by_two_rules(
        self, attention: AbstractAttention, m_kk: float
    ) -> tuple[Correlations, Correlations]:
        """`A` and `B` by two rules, the better one last: by light ones where they agree."""
        if self.is_light and abs(m_kk) <= self.longest:
            light = self.integrated(attention, m_kk, self.search_plan())
            finer = self.light_profile(attention, m_kk)
            if abs(_least(0.0, light) - _least(0.0, finer)) < _AGREED:
                return light, finer
        hard = isinstance(self.task, AbstractSelected) and np.isinf(self.task.sharpness)
        coarse, fine = (_ROUGH, ORDERS[0]) if self.is_slow and not hard else ORDERS
        return self.profile(attention, m_kk, coarse), self.profile(attention, m_kk, fine)

    def limit(self, end: _Place) -> Minimum:
        """The risk at longer `k` than can be integrated: its minimum there, or its limit.

        From a polynomial in `1/|k|`; with random points, whose noise that would magnify, from the longest `k` alone.
        """
        lengths = self.longest / np.sqrt(2.0) ** np.arange(_EXTRAPOLATED)
        signed = np.copysign(lengths, end.m_kk)
        places = [*map(self.best_bias(end.bias), map(float, signed))]
        attentions = [self.biased(place.bias) for place in places]
        risks = [self.risk(*pair) for pair in zip(attentions, map(float, signed), strict=True)]
        estimates, m_vv = [risk for risk, _ in risks], risks[0][1]
        overlaps = aligned(float(signed[0]), m_vv)
        if not is_exact(self.task, self.attention):
            step = abs(float(estimates[0].value - estimates[2].value))  # from half the length
            value = Estimate(estimates[0].value, estimates[0].error + step)
            return Minimum(value, overlaps, attentions[0], False)
        inverses = np.linspace(0.0, 1.0 / lengths[0], 101)
        curve = [extrapolate(lengths, estimates, 1.0 / x if x else np.inf) for x in inverses]
        best = int(np.argmin([point.value for point in curve]))
        if curve[best].value > curve[0].value - curve[0].error - curve[best].error:
            return Minimum(curve[0], overlaps, attentions[0], False)
        m_kk = float(np.copysign(1.0 / inverses[best], end.m_kk))
        return Minimum(curve[best], aligned(m_kk, m_vv), attentions[0], True)
