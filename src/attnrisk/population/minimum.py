"""The least risk of an attention with infinite data, over its overlaps and its bias (sections 4 and 4.4).

On the manifold `m_kv = m_vk = q_kv = 0` the best `v` is `v* A/B`, and what is left is `E[y²] − A²/B`, a function of
`k = m_kk k*` and of the bias. It is scanned over lengths of `k` of both signs, from nothing to the longest that can
be integrated, then polished without derivatives, since an attention may have kinks.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._check import LARGEST
from ..attention import AbstractAttention, AbstractElementwise, AbstractKernel
from ..estimate import Estimate
from ..quadrature.qmc import across
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask
from .bayes import bayes_risk
from .closed_forms import elementwise_floor
from .correlations import Correlations
from .elementwise import SHORT, Descent, Search, descents, fields_of
from .overlaps import Overlaps, aligned
from .polish import polish
from .risk import (
    ORDERS,
    SHARPEST,
    STEEPEST,
    Plan,
    as_arrays,
    compared,
    extrapolate,
    is_exact,
    light_plan,
    plan,
    profile,
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
_ROOM = 20  # lengths of k in one call
_EXTRAPOLATED = 5  # lengths of k through which the limit is drawn
_VANISHING = 0.5  # share of the longest v allowed
_AGREED = 5e-11  # between two light rules: no other is asked
_FINENESS, _FINER = 1.25, 1.6  # of light rules that agree so well, the second right to 10^-13 or so


class Minimum(eqx.Module):
    """The least risk, where it is reached, and whether it is reached at all.

    Where `attained` is false the risk is the limit as `k` grows without bound, or `v` as weights vanish, and the
    overlaps are those of the longest evaluated. `attention` carries the tuned bias.
    """

    risk: Estimate
    overlaps: Overlaps
    attention: AbstractAttention
    attained: bool = eqx.field(static=True)


def population_minimum(task: AbstractTask, attention: AbstractAttention, seed: int = 0) -> Minimum:
    """The infimum of the risk over `k` along `k*`, `v` along `v*` and, where it is free, the bias."""
    return population_minima([task], attention, seed)[0]


def population_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int = 0
) -> list[Minimum]:
    """The infimum for each of the tasks, to the last digit what `population_minimum` finds for it alone.

    Eight tasks take little longer than one where the attention is element-wise and analytic.
    """
    problems = [_Problem(task, attention, _searched(task, attention)[0], seed) for task in tasks]
    quick = _quickly(problems, attention) if isinstance(attention, AbstractElementwise) else {}
    return [quick.get(index) or _alone(problem) for index, problem in enumerate(problems)]


def _quickly(problems: Sequence["_Problem"], attention: AbstractElementwise) -> dict[int, Minimum]:
    """The minima that a search compiled whole can find, by their places in the list."""
    quick = {i: each for i, each in enumerate(problems) if each.is_quick}
    if not quick:
        return {}
    searches = [each.elementwise_search() for each in quick.values()]
    ends = descents(attention, searches, _FLAT)
    found = zip(quick.items(), ends, strict=True)
    return {i: each.at_end(end) for (i, each), end in found if end.ended and not end.falling}


def _alone(problem: "_Problem") -> Minimum:
    """The infimum by a search that takes one problem at a time, of any kind."""
    longer = _searched(problem.task, problem.attention)[1:]
    if problem.is_light:
        with ThreadPoolExecutor(1) as threads:
            # Most of a first call is compilation, which leaves the interpreter to others.
            threads.submit(problem.compile_finer)
            return _found(problem, longer)
    return _found(problem, longer)


def _found(problem: "_Problem", longer: Sequence[float]) -> Minimum:
    """The infimum over lengths of `k` that are scanned first, and over `longer` ones while the risk is falling."""
    places = problem.scan(problem.lengths)
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


class _Profiles(NamedTuple):
    """`A` and `B` of one problem by one rule, at any number of places in one call."""

    task: AbstractTask
    attention: AbstractAttention
    plan: Plan
    free_bias: bool

    def __call__(self, places: Sequence[tuple[float, float]]) -> list[Correlations]:
        """At pairs of a length of `k` and a bias; the first call compiles, even for none."""
        found: list[Correlations] = []
        room = _ROOM * (_BIASES if self.free_bias else 1)
        for start in range(0, max(1, len(places)), room):
            some = places[start : start + room]
            padded = np.zeros((room, 2))
            padded[: len(some)] = np.reshape(some, (-1, 2))
            values = np.asarray(_integrated(self, padded, np.asarray(len(some))))
            found += [Correlations(*pair) for pair in values[: len(some)]]
        return found


@eqx.filter_jit
def _integrated(profiles: _Profiles, places: Any, count: Any) -> Any:
    """The first `count` of `places`, one after another in one loop.

    From Python each would be a call that can take longer than its integral. Under `vmap` the arrays of many places
    leave the cache, which takes four times as long, and the last digits at one place depend on the others.
    """
    task, attention, plan, free_bias = profiles

    def at(place: Any) -> Any:
        chosen = with_bias(attention, place[1]) if free_bias else attention
        return jnp.stack(profile(task, chosen, place[0], plan))

    def step(i: Any, found: Any) -> Any:
        return found.at[i].set(at(places[i]))

    one = jax.eval_shape(at, places[0])
    return jax.lax.fori_loop(0, count, step, jnp.zeros((places.shape[0], *one.shape)))


def with_bias(attention: AbstractAttention, bias: Any) -> AbstractAttention:
    """The attention with its bias set."""
    return eqx.tree_at(lambda attention: attention.bias, attention, bias)


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

    def compile_finer(self) -> None:
        """What a risk up to a moderate length is reported with."""
        self.profiles(self.light_plan(_LIGHT, _FINER))([])

    def profiles(self, how: Plan) -> _Profiles:
        """`A` and `B` by this rule."""
        task, attention, how = as_arrays((self.task, self.attention, how))
        return _Profiles(task, attention, how, self.free_bias)

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

    def elementwise_search(self) -> Search:
        """What a search takes that is compiled whole."""
        biases = [self.thresholds(m_kk) for m_kk in self.lengths.tolist()]
        grids = (fields_of(self.task, self.longest, fine) for fine in (_FINENESS, _FINER))
        return Search(self.lengths, np.array(biases), *grids)

    def at_end(self, end: Descent) -> Minimum:
        """The minimum to which such a search came."""
        pair = _Pair(end.light, end.finer)
        if not pair.agree:
            pair = self.panels(_Place(end.m_kk, end.bias, math.nan))
        risk, m_vv = self.by_two_rules(pair)
        short = SHORT * (float(self.task.label_variance) - float(risk))
        risk = Estimate(risk.value, risk.error + short)
        return self.minimum(end.m_kk, end.bias, risk, m_vv)

    @property
    def free_bias(self) -> bool:
        return isinstance(self.attention, AbstractElementwise) and self.attention.free_bias

    def scan(self, lengths: np.ndarray) -> list[_Place]:
        """The best bias of a grid at each length of `k`."""
        grid = [(m_kk, bias) for m_kk in lengths.tolist() for bias in self.thresholds(m_kk)]
        profiles = self.profiles(self.search_plan())(grid)
        tried = [_Place(*at, _loss_of(here)) for at, here in zip(grid, profiles, strict=True)]
        return [
            min(same_length, key=lambda place: (round(place.loss, 12), abs(place.bias)))
            for _, same_length in groupby(tried, key=lambda place: place.m_kk)
        ]

    def thresholds(self, m_kk: float) -> list[float]:
        """Biases that put the threshold of an attention anywhere between below all tokens and above them."""
        if not self.free_bias:
            return [float(getattr(self.attention, "bias", 0.0))]
        field = float(getattr(self.task, "shift", 0.0)) + 6.0
        highest = abs(m_kk) * field + np.log(float(self.task.length.longest)) + 6.0
        return np.linspace(6.0, -highest, _BIASES).tolist()

    def polish(self, places: list[_Place]) -> Minimum:
        """The local minimum around the best place of a scan."""
        start = min(places, key=_loss)
        lengths = [place.m_kk for place in places]
        at = lengths.index(start.m_kk)
        spacing = lengths[min(at + 1, len(lengths) - 1)] - lengths[max(at - 1, 0)]
        best_bias = self.best_bias(start.bias)

        def best(m_kk: float) -> _Place:
            return best_bias(max(-self.longest, min(self.longest, m_kk)))

        m_kk, _ = polish(lambda m_kk: best(m_kk).loss, start.m_kk, spacing / 4)
        place = best(m_kk)
        return self.minimum(place.m_kk, place.bias, *self.risk(place))

    def minimum(self, m_kk: float, bias: float, risk: Estimate, m_vv: float) -> Minimum:
        """A minimum at this place, unless weights vanish there and only the limit to `v` is in the way.

        Then the infimum is not attained, and lies between this risk and what no attention of its kind can beat.
        """
        vanishing = abs(m_vv) > _VANISHING * math.sqrt(LARGEST)
        if vanishing:
            risk = Estimate(risk.value, risk.error + max(0.0, float(risk) - self.floor()))
        return Minimum(risk, aligned(m_kk, m_vv), self.biased(bias), not vanishing)

    def floor(self) -> float:
        """What no attention of this kind can beat."""
        task = self.task
        alone = isinstance(self.attention, AbstractElementwise)
        if alone and isinstance(task, AbstractPlanted | AbstractSelected):
            return elementwise_floor(task)
        return float(bayes_risk(task))

    def best_bias(self, bias: float) -> Callable[[float], _Place]:
        """The place of the best bias as a function of the length of `k`, each search starting from the last."""
        profiles = self.profiles(self.search_plan())

        def loss(m_kk: float, bias: float) -> float:
            return _loss_of(*profiles([(m_kk, bias)]))

        def place(m_kk: float) -> _Place:
            nonlocal bias
            if not self.free_bias:
                return _Place(m_kk, bias, loss(m_kk, bias))
            bias, lowest = polish(lambda bias: loss(m_kk, bias), bias, max(1.0, abs(bias) / 10))
            return _Place(m_kk, bias, lowest)

        return place

    def biased(self, bias: float) -> AbstractAttention:
        """The attention with its bias set, if it has a free one."""
        return with_bias(self.attention, bias) if self.free_bias else self.attention

    def risk(self, place: _Place) -> tuple[Estimate, float]:
        """`E[y²] − A²/B` with its error, and the best `v`, `A/B` times `v*`."""
        variance = self.task.label_variance
        if not is_exact(self.task, self.attention):
            points = self.profile(place, ORDERS[-1])
            m_vv = _best_v(points)
            # At fixed v the risk is linear in A and B, so that its mean over randomisations is unbiased.
            return across(variance - 2 * m_vv * points.label + m_vv**2 * points.power), m_vv
        if self.is_light and abs(place.m_kk) <= self.longest:
            # One reach for all but the longest, since it was compiled meanwhile.
            reach = _LIGHT if abs(place.m_kk) <= _LIGHT else self.longest
            plans = self.search_plan(), self.light_plan(reach, _FINER)
            pair = _Pair(*(self.integrated(place, how) for how in plans))
            if pair.agree:
                return self.by_two_rules(pair)
        return self.by_two_rules(self.panels(place))

    def by_two_rules(self, pair: _Pair) -> tuple[Estimate, float]:
        """The same from `A` and `B` by two rules."""
        variance = self.task.label_variance
        coarse, fine = (_least(variance, each) for each in pair)
        return compared(coarse, fine), _best_v(pair.finer)

    def panels(self, place: _Place) -> _Pair:
        """`A` and `B` by rules that serve at any length of `k`."""
        hard = isinstance(self.task, AbstractSelected) and np.isinf(self.task.sharpness)
        orders = (_ROUGH, ORDERS[0]) if self.is_slow and not hard else ORDERS
        return _Pair(*(self.profile(place, order) for order in orders))

    def profile(self, place: _Place, order: int) -> Correlations:
        """`A` and `B` by a rule of this order."""
        reaches = _searched(self.task, self.attention)
        reach = next((reach for reach in reaches if reach >= abs(place.m_kk)), self.longest)
        return self.integrated(place, self.plan(reach, order, _REPORTING))

    def integrated(self, place: _Place, how: Plan) -> Correlations:
        """`A` and `B` at one place."""
        return self.profiles(how)([place[:2]])[0]

    def limit(self, end: _Place) -> Minimum:
        """The risk at longer `k` than can be integrated: its minimum there, or its limit.

        From a polynomial in `1/|k|`; with random points, whose noise that would magnify, from the longest `k` alone.
        """
        lengths = self.longest / np.sqrt(2.0) ** np.arange(_EXTRAPOLATED)
        signed = np.copysign(lengths, end.m_kk).tolist()
        places = [*map(self.best_bias(end.bias), signed)]
        risks = [*map(self.risk, places)]
        estimates, m_vv = [risk for risk, _ in risks], risks[0][1]
        overlaps, attention = aligned(signed[0], m_vv), self.biased(places[0].bias)
        if not is_exact(self.task, self.attention):
            step = abs(float(estimates[0].value - estimates[2].value))  # from half the length
            value = Estimate(estimates[0].value, estimates[0].error + step)
            return Minimum(value, overlaps, attention, False)
        inverses = np.linspace(0.0, 1.0 / lengths[0], 101)
        curve = [extrapolate(lengths, estimates, 1.0 / x if x else np.inf) for x in inverses]
        best = int(np.argmin([point.value for point in curve]))
        if curve[best].value > curve[0].value - curve[0].error - curve[best].error:
            return Minimum(curve[0], overlaps, attention, False)
        m_kk = float(np.copysign(1.0 / inverses[best], end.m_kk))
        return Minimum(curve[best], aligned(m_kk, m_vv), attention, True)
