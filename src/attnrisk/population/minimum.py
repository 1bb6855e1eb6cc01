"""The least risk of an attention with infinite data, over its overlaps and its bias (sections 4 and 4.4).

On the manifold `m_kv = m_vk = q_kv = 0` the best `v` is `v* A/B`, and what is left is `E[y²] − A²/B`, a function of
`k = m_kk k*` and of the bias. It is scanned over lengths of `k` of both signs, from nothing to the longest that can
be integrated, then polished without derivatives, since an attention may have kinks.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np

from .._check import LARGEST
from .._results import Estimate, Result
from ..attention import (
    AbstractAttention,
    AbstractElementwise,
    AbstractKernel,
)
from ..numerics.qmc import across
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask
from .bayes import bayes_risk
from .closed_forms import elementwise_floor
from .correlations import Correlations
from .elementwise import SHORT, Descent, Terrain, descents, fields_of
from .integrals import (
    BIASES,
    Integrals,
    Search,
    followed,
    integrated,
    known_of,
)
from .lanes import LANES
from .overlaps import Overlaps, aligned
from .polish import polish
from .risk import (
    ORDERS,
    SHARPEST,
    STEEPEST,
    Plan,
    compared,
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
_SCALES = 14  # of a scan
_EXTRAPOLATED = 5  # lengths of k through which the limit is drawn
_VANISHING = 0.5  # share of the longest v allowed
_AGREED = 5e-11  # between two light rules: no other is asked
_FINENESS, _FINER = 1.25, 1.6  # of light rules that agree so well, the second right to 10^-13 or so


class Minimum(eqx.Module):
    """The least risk, where it is reached, and whether it is reached at all.

    Where `attained` is false the risk is the limit as `k` grows without bound, or `v` as weights vanish, and the
    overlaps are those of the longest evaluated. `attention` carries the tuned bias.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        "risk",
        "overlaps",
        "bias",
        "attained",
        "result",
        "converged",
    )
    risk: Estimate
    overlaps: Overlaps
    attention: AbstractAttention
    attained: bool = eqx.field(static=True)

    @property
    def bias(self) -> float:
        """The tuned bias."""
        return float(self.attention.bias)

    @property
    def result(self) -> Result:
        """Whether and why the infimum is not attained."""
        if self.attained:
            return Result.CONVERGED
        vanishing = float(self.overlaps.q_vv) > LARGEST / 10
        return Result.WEIGHTS_VANISH if vanishing else Result.K_DIVERGES

    @property
    def converged(self) -> bool:
        """Whether the minimum or infimum was found."""
        return self.result.converged


def population_minimum(task: AbstractTask, attention: AbstractAttention, seed: int = 0) -> Minimum:
    """The infimum of the risk over `k` along `k*`, `v` along `v*` and, where it is free, the bias."""
    return population_minima([task], attention, seed)[0]


def population_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int = 0
) -> list[Minimum]:
    """The infimum for each of the tasks, to the last digit what `population_minimum` finds for it alone.

    Each is a lane of compiled code (`vmap`). Eight take little longer than one where the attention is element-wise and
    analytic, or where there is an accelerator.
    """
    some = (tasks[start : start + LANES] for start in range(0, len(tasks), LANES))
    return [found for each in some for found in _side_by_side(each, attention, seed)]


def _side_by_side(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int
) -> list[Minimum]:
    problems = [_Problem(task, attention, _searched(task, attention)[0], seed) for task in tasks]
    ends = _quick_ends(problems, attention) if isinstance(attention, AbstractElementwise) else {}
    others = [each for index, each in enumerate(problems) if index not in ends]
    with ThreadPoolExecutor(1) as threads:
        # Most of a first call is compilation, which leaves the interpreter to others.
        threads.submit(integrated, [each.finer() for each in others if each.is_light], {})
        return followed(
            [
                each.at_end(ends[index]) if index in ends else each.search()
                for index, each in enumerate(problems)
            ]
        )


def _quick_ends(
    problems: Sequence["_Problem"], attention: AbstractElementwise
) -> dict[int, Descent]:
    """The minima that a search compiled whole can find, by their places in the list."""
    quick = {index: each for index, each in enumerate(problems) if each.is_quick}
    ends = descents(attention, [each.terrain() for each in quick.values()], _FLAT)
    found = zip(quick, ends, strict=True)
    return {index: end for index, end in found if end.ended and not end.falling}


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


def _loss_of(profile: Correlations) -> float:
    a, b = map(float, map(np.mean, profile))
    drowned = not 0 < abs(a) < np.sqrt(LARGEST) * b  # by a v longer than any that is allowed
    return math.inf if drowned else math.log(b) - 2 * math.log(abs(a))


def _least(variance: Any, profile: Correlations) -> Any:
    """The risk at the best `v`."""
    return variance - profile.label**2 / profile.power


def _best_v(profile: Correlations) -> float:
    """Its share in `v*`."""
    return float(np.mean(profile.label) / np.mean(profile.power))


class _Pair(NamedTuple):
    """`A` and `B` by two rules."""

    light: Correlations
    finer: Correlations

    @property
    def agree(self) -> bool:
        """Whether no third rule is needed."""
        return abs(_least(0.0, self.light) - _least(0.0, self.finer)) < _AGREED


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

    def search(self) -> Search[Minimum]:
        """The infimum over lengths of `k` that are scanned first, and over longer ones while the risk is falling."""
        problem, places = self, (yield from self.scan(self.lengths))
        for reach in _searched(self.task, self.attention)[1:]:
            if not _is_falling(places):
                break
            outward = np.geomspace(problem.longest, reach, 7)[1:]
            problem = problem._replace(longest=reach)
            places += yield from problem.scan(np.copysign(outward, min(places, key=_loss).m_kk))
            places.sort(key=lambda place: place.m_kk)
        if _is_falling(places):
            return (yield from problem.limit(min(places, key=_loss)))
        return (yield from problem.polish(places))

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

    def finer(self) -> Integrals:
        """Such as a risk up to a moderate length is reported with, nowhere yet."""
        return self.wanted(self.light_plan(_LIGHT, _FINER), [])

    def wanted(self, how: Plan, places: Sequence[tuple[float, float]]) -> Integrals:
        """`A` and `B` by this rule, at these places."""
        return Integrals(known_of(self.task, self.attention, how), places)

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
    def is_quick(self) -> bool:
        """Whether a search for an element-wise attention can be compiled whole: not where a selection is too sharp."""
        sharpness = float(getattr(self.task, "sharpness", 0.0))
        return self.is_light and (sharpness <= self.longest or np.isinf(sharpness))

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of `k` that are scanned first."""
        negative = -np.geomspace(self.longest, 0.1, 4)
        return np.concatenate([negative, [0.0], np.geomspace(0.02, self.longest, _SCALES)])

    def terrain(self) -> Terrain:
        """What a search takes that is compiled whole."""
        biases = [self.thresholds(m_kk) for m_kk in self.lengths.tolist()]
        grids = (fields_of(self.task, self.longest, fine) for fine in (_FINENESS, _FINER))
        return Terrain(self.lengths, np.array(biases), *grids)

    def at_end(self, end: Descent) -> Search[Minimum]:
        """The minimum to which such a search came."""
        pair = _Pair(end.light, end.finer)
        if not pair.agree:
            pair = yield from self.panels(_Place(end.m_kk, end.bias, math.nan))
        risk, m_vv = self.by_two_rules(pair)
        short = SHORT * (float(self.task.label_variance) - float(risk))
        risk = Estimate(risk.value, risk.error + short)
        return self.minimum(end.m_kk, end.bias, risk, m_vv)

    def scan(self, lengths: np.ndarray) -> Search[list[_Place]]:
        """The best bias of a grid at each length of `k`."""
        grid = [(m_kk, bias) for m_kk in lengths.tolist() for bias in self.thresholds(m_kk)]
        profiles = yield self.wanted(self.search_plan(), grid)
        tried = [_Place(*at, _loss_of(here)) for at, here in zip(grid, profiles, strict=True)]
        return [
            min(same_length, key=lambda place: (round(place.loss, 12), abs(place.bias)))
            for _, same_length in groupby(tried, key=lambda place: place.m_kk)
        ]

    def thresholds(self, m_kk: float) -> list[float]:
        """Biases that put the threshold of an attention anywhere between below all tokens and above them."""
        if not self.attention.free_bias:
            return [float(getattr(self.attention, "bias", 0.0))]
        field = float(getattr(self.task, "shift", 0.0)) + 6.0
        highest = abs(m_kk) * field + np.log(float(self.task.length.longest)) + 6.0
        return np.linspace(6.0, -highest, BIASES).tolist()

    def polish(self, places: list[_Place]) -> Search[Minimum]:
        """The local minimum around the best place of a scan."""
        start = min(places, key=_loss)
        lengths = [place.m_kk for place in places]
        at = lengths.index(start.m_kk)
        spacing = lengths[min(at + 1, len(lengths) - 1)] - lengths[max(at - 1, 0)]
        best_bias = self.best_bias(start.bias)

        def best(m_kk: float) -> Search[_Place]:
            return best_bias(max(-self.longest, min(self.longest, m_kk)))

        def loss(m_kk: float) -> Search[float]:
            return (yield from best(m_kk)).loss

        m_kk, _ = yield from polish(loss, start.m_kk, spacing / 4)
        place = yield from best(m_kk)
        return self.minimum(place.m_kk, place.bias, *(yield from self.risk(place)))

    def minimum(self, m_kk: float, bias: float, risk: Estimate, m_vv: float) -> Minimum:
        """A minimum at this place, unless weights vanish there and only the limit to `v` is in the way.

        Then the infimum is not attained, and lies between this risk and what no attention of its kind can beat.
        """
        vanishing = abs(m_vv) > _VANISHING * math.sqrt(LARGEST)
        if vanishing:
            risk = Estimate(risk.value, risk.error + max(0.0, float(risk) - self.floor()))
        return Minimum(risk, aligned(m_kk, m_vv), self.attention.with_bias(bias), not vanishing)

    def floor(self) -> float:
        """What no attention of this kind can beat."""
        task = self.task
        alone = isinstance(self.attention, AbstractElementwise)
        if alone and isinstance(task, AbstractPlanted | AbstractSelected):
            return elementwise_floor(task)
        return float(bayes_risk(task))

    def best_bias(self, bias: float) -> Callable[[float], Search[_Place]]:
        """The place of the best bias as a function of the length of `k`, each search starting from the last."""
        nowhere = self.wanted(self.search_plan(), [])

        def loss(m_kk: float, bias: float) -> Search[float]:
            return _loss_of(*(yield nowhere._replace(places=[(m_kk, bias)])))

        def place(m_kk: float) -> Search[_Place]:
            nonlocal bias
            if not self.attention.free_bias:
                return _Place(m_kk, bias, (yield from loss(m_kk, bias)))
            radius = max(1.0, abs(bias) / 10)
            bias, lowest = yield from polish(partial(loss, m_kk), bias, radius)
            return _Place(m_kk, bias, lowest)

        return place

    def risk(self, place: _Place) -> Search[tuple[Estimate, float]]:
        """`E[y²] − A²/B` with its error, and the best `v`, `A/B` times `v*`."""
        variance = self.task.label_variance
        if not is_exact(self.task, self.attention):
            points = yield from self.profile(place, ORDERS[-1])
            m_vv = _best_v(points)
            # At fixed v the risk is linear in A and B, so that its mean over randomisations is unbiased.
            return across(variance - 2 * m_vv * points.label + m_vv**2 * points.power), m_vv
        if self.is_light and abs(place.m_kk) <= self.longest:
            # One reach for all but the longest, since it was compiled meanwhile.
            reach = _LIGHT if abs(place.m_kk) <= _LIGHT else self.longest
            light = yield from self.integrated(place, self.search_plan())
            finer = yield from self.integrated(place, self.light_plan(reach, _FINER))
            pair = _Pair(light, finer)
            if pair.agree:
                return self.by_two_rules(pair)
        return self.by_two_rules((yield from self.panels(place)))

    def by_two_rules(self, pair: _Pair) -> tuple[Estimate, float]:
        """The same from `A` and `B` by two rules."""
        variance = self.task.label_variance
        coarse, fine = (_least(variance, each) for each in pair)
        return compared(coarse, fine), _best_v(pair.finer)

    def panels(self, place: _Place) -> Search[_Pair]:
        """`A` and `B` by rules that serve at any length of `k`."""
        hard = isinstance(self.task, AbstractSelected) and np.isinf(self.task.sharpness)
        orders = (_ROUGH, ORDERS[0]) if self.is_slow and not hard else ORDERS
        light = yield from self.profile(place, orders[0])
        return _Pair(light, (yield from self.profile(place, orders[1])))

    def profile(self, place: _Place, order: int) -> Search[Correlations]:
        """`A` and `B` by a rule of this order."""
        reaches = _searched(self.task, self.attention)
        reach = next((reach for reach in reaches if reach >= abs(place.m_kk)), self.longest)
        return (yield from self.integrated(place, self.plan(reach, order, _REPORTING)))

    def integrated(self, place: _Place, how: Plan) -> Search[Correlations]:
        """`A` and `B` at one place."""
        return (yield self.wanted(how, [place[:2]]))[0]

    def limit(self, end: _Place) -> Search[Minimum]:
        """The risk at longer `k` than can be integrated: its minimum there, or its limit.

        From a polynomial in `1/|k|`; with random points, whose noise that would magnify, from the longest `k` alone.
        """
        lengths = self.longest / np.sqrt(2.0) ** np.arange(_EXTRAPOLATED)
        signed = np.copysign(lengths, end.m_kk).tolist()
        best, places, risks = self.best_bias(end.bias), [], []
        for m_kk in signed:
            places.append((yield from best(m_kk)))
            risks.append((yield from self.risk(places[-1])))
        estimates, m_vv = [risk for risk, _ in risks], risks[0][1]
        overlaps, attention = aligned(signed[0], m_vv), self.attention.with_bias(places[0].bias)
        if not is_exact(self.task, self.attention):
            step = abs(float(estimates[0].value - estimates[2].value))  # from half the length
            value = Estimate(estimates[0].value, estimates[0].error + step)
            return Minimum(value, overlaps, attention, False)
        inverses = np.linspace(0.0, 1.0 / lengths[0], 101)
        curve = [extrapolate(lengths, estimates, 1.0 / x if x else np.inf) for x in inverses]
        least = int(np.argmin([point.value for point in curve]))
        if curve[least].value > curve[0].value - curve[0].error - curve[least].error:
            return Minimum(curve[0], overlaps, attention, False)
        m_kk = float(np.copysign(1.0 / inverses[least], end.m_kk))
        return Minimum(curve[least], aligned(m_kk, m_vv), attention, True)
