"""The lowest risk of an attention with infinite data, and the search for it (sections 4 and 4.4).

On the manifold `m_kv = m_vk = q_kv = 0` the best `v` is `v* A/B`, and the risk is `E[y²] − A²/B`, a function of
`k = m_kk k*` and of the bias. A search is one compiled function: it scans lengths of `k` of both signs and biases, then
descends, by Newton's method where the attention is analytic and has a free bias, by Brent's elsewhere.
"""

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import refuse, shown
from .._results import ErrorKind, Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.minimise import Bracket, bracket, map_batch
from ..numerics.qmc import mean_estimate
from ..numerics.quadrature import estimate_from
from ..tasks import AbstractSelected, AbstractTask
from .bias import biased_minima, explained, unbiased_minimum
from .bias_search import FLAT, Outcome, nested_search, newton_search
from .closed_forms import floor
from .engines import AbstractEngine, Correlations
from .engines.base import STEEPEST
from .heads_minimum import heads_minimum
from .limits import find_limit, profiles_at_infinity
from .minimisers import (
    LONGEST_VALUE,
    Minimum,
    at_one_length,
    at_unit_scale,
    from_unit_scale,
    value_norm,
)
from .overlaps import aligned
from .plan import ORDERS, SearchPlan, check_problem, is_exact, kinks_at, plan, search_plan
from .risk import compiled_profile, population_risk

__all__ = ["Minimum", "population_minima", "population_minimum"]

_LARGE_ERROR = 0.01  # of a risk between 0 and 1, which quadrature has only where something is wrong
_UNKNOWN = 0.5  # error relative to the variance of the labels, above which nothing is known
_SCALES = 14  # lengths of k in a scan
# For an exponential kernel, relative to the longest: it does best below two thirds, about as sharp as the teacher.
_EXPONENTIAL_SCALES = np.array([0.01, 0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.88, 1.0])
# Biases in a scan; many where a profile costs little: a threshold is one or two units wide.
_BIASES, _MANY_BIASES = 25, 121
_TIE = 1e-12  # losses as close are one
_TOWARDS_LIMIT = 8.0  # the length of k from which some show how a known limit is approached
_MISSED = 1e-6  # of a risk, by panels that do not meet at kinks, above which the search is repeated with others
_NARROW = 1e-8  # of a norm by SciPy's bounded method
VANISHING = 0.5  # share of the longest v allowed
_AGREED = 5e-11  # between two light rules: no other is asked
# Of what is explained, where Newton steps whose predicted decrease exceeds rounding are over.
_NEWTON_ROUNDING = 1e-14


def population_minimum(task: AbstractTask, attention: AbstractAttention, seed: int = 0) -> Any:
    """Lowest population risk of an attention over its parameters, with infinite data.

    Minimises over `k` along `k*`, `v` along `v*` and, if it is free, the bias. With several heads (`Heads`,
    `BayesSoftmax`) or features (`FeatureSLR`), minimises from many initialisations over all keys in the span of the
    features, free biases and free head weights (section 10).

    Args:
        task: The task, for example `SpikedSLR(nu=5.0, length=10)`.
        attention: The attention, for example `Softmax()` or `get_attention("relu", bias="free")`.
        seed: Seed of the Sobol points, for combinations without an exact engine, and of random initialisations.

    Returns:
        A `Minimum`, or a `HeadsMinimum` with several heads or features. `risk` is the lowest risk with its error,
        `overlaps` is where it is attained, `attained` is false for an infimum that no finite vectors attain, and
        `result` says how the search ended.

    Examples:
        >>> best = ar.population_minimum(ar.SpikedSLR(nu=5.0, length=10), ar.Erf(free_bias=True))
        >>> print(f"{best.risk:.6f} at k = {best.overlaps.m_kk:.3f} k*, bias {best.bias:.3f}, {best.result}")
        0.457644 at k = 0.916 k*, bias -1.930, converged
    """
    check_problem(task, attention, known=True)
    if attention.family == "heads":
        attention = attention.as_one_head()
    if attention.family == "heads" or task.has_random_shift:
        return heads_minimum(task, attention, seed)
    (found,) = population_minima([task], attention, seed)
    # Where weights vanish the error is the distance to a lower bound.
    exact = found.risk.kind is ErrorKind.BOUND and found.result is not Result.WEIGHTS_VANISH
    if exact and found.risk.error > _LARGE_ERROR:
        why = f"the risk of {attention.name} is {found.risk}: {attention.why_inaccurate()}"
        warnings.warn(why, RuntimeWarning, stacklevel=2)
    return found


def population_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int = 0
) -> list[Minimum]:
    """Lowest population risk of one attention on several tasks, in one call.

    Results are bitwise equal to those of `population_minimum` for each task. Tasks of one shape (class, number of
    lengths, range of `k`) share compiled code.

    Args:
        tasks: A list of `n` tasks with one feature.
        attention: An attention with one head.
        seed: Seed of the Sobol points, for combinations without an exact engine.

    Returns:
        A list of `n` `Minimum`, in the order of the tasks.

    Examples:
        >>> tasks = [ar.SpikedSLR(nu=nu, length=10) for nu in (2.0, 5.0)]
        >>> [f"{best.risk:.4f}" for best in ar.population_minima(tasks, ar.Linear())]
        ['0.7627', '0.6207']
    """
    if not isinstance(tasks, Sequence):
        raise refuse("tasks", shown(tasks), "a list of tasks")
    if not isinstance(attention, AbstractAttention):
        raise refuse("attention", shown(attention), "an attention, such as Softmax()")
    if attention.family == "heads":
        attention = attention.as_one_head()
    for task in tasks:
        check_problem(task, attention, one_head=True, known=True)
    found = _minima(tasks, attention, seed)
    return [
        replace(each, result=Result.TOO_FEW_POINTS)
        if each.result in (Result.CONVERGED, Result.ON_MANIFOLD)
        and each.risk.error > _UNKNOWN * float(task.label_variance)
        else each
        for task, each in zip(tasks, found, strict=True)
    ]


def _minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int
) -> list[Minimum]:
    """The minima as they were found, whatever their errors are."""
    if attention.knows_length:
        return [_length_minimum(task, attention, seed) for task in tasks]
    unit = None if attention.analytic else at_unit_scale(attention)
    if unit is not None:
        return [from_unit_scale(attention, each) for each in _minima(tasks, unit, seed)]
    if attention.free_bias or attention.bias != 0.0:
        return biased_minima(tasks, attention, partial(search_minima, seed=seed))
    scale_free = not attention.analytic and attention.is_homogeneous
    if scale_free and all(is_exact(task, attention) for task in tasks):
        return [unbiased_minimum(task, attention) for task in tasks]
    return search_minima(tasks, attention, seed)


def _length_minimum(task: AbstractTask, attention: AbstractAttention, seed: int) -> Minimum:
    """The minimum of an attention whose formula contains the length, at several lengths."""
    if len(task.length.lengths) > 1:
        return search_minima([task], attention, seed)[0]
    known, _ = attention.at_length(task.length.longest)
    return at_one_length(task, attention, population_minima([task], known, seed)[0])


def search_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int, nearest: bool = False
) -> list[Minimum]:
    """The same by one search over `k` and, if it is free, the bias; `nearest`: only the first range of norms."""
    searches = [Search(task, attention, seed, nearest) for task in tasks]
    found: dict[int, Minimum | None] = dict.fromkeys(range(len(tasks)))
    while unfinished := [at for at, minimum in found.items() if minimum is None]:
        problems = [searches[at].problem() for at in unfinished]
        calls = [jax.tree_util.Partial(problem.method, problem) for problem in problems]
        outcomes = zip(unfinished, map_batch(operator.call, calls), strict=True)
        found |= {at: searches[at].update(outcome) for at, outcome in outcomes}
    return [minimum for minimum in found.values() if minimum is not None]


class _Problem(eqx.Module):
    """Input of a compiled search: engines, norms and biases to scan, and the method; `light` engines have one
    shape."""

    task: AbstractTask
    attention: AbstractAttention
    engines: tuple[AbstractEngine, AbstractEngine]
    lengths: Float[Any, " m"]
    biases: Float[Any, "m b"]
    light: bool = eqx.field(static=True)
    method: Callable[[Any], Outcome] = eqx.field(static=True)

    def loss(self, m_kk: Any, bias: Any) -> Array:
        """`−log(A²/B)`."""
        return _loss(self.engines[0].profile(self.task, self.attention.with_bias(bias), m_kk))


def _loss(profile: Correlations) -> Array:
    """`−log(A²/B)`; infinite if the norm of the best `v` exceeds its limit."""
    a, b = jnp.abs(jnp.mean(profile.label)), jnp.mean(profile.power)
    sound = (a > 0) & (a < LONGEST_VALUE * b) & jnp.isfinite(b)
    a, b = (jnp.where(sound, each, 1.0) for each in (a, b))
    return jnp.where(sound, jnp.log(b) - 2.0 * jnp.log(a), jnp.inf)


class _Scan(NamedTuple):
    """State of a loop that scans norms of `k`, then applies Brent's method, then evaluates the second engine."""

    at: Any
    losses: Float[Array, " m"]
    brent: Bracket
    profiles: tuple[Correlations, ...]


def _length_search(problem: _Problem) -> Outcome:
    """Search over the norm of `k` at a fixed bias: a scan, then Brent's method from the best point.

    The integral occurs once in the compiled program, because compiling it takes most of the time: the scan, the
    descent and the last call, with the second engine where it has the shape of the first, are one loop.
    """
    lengths, (first, second) = problem.lengths, problem.engines

    def step(now: _Scan) -> _Scan:
        scanning, descending = now.at < lengths.size, now.brent.unfinished
        ahead = now.brent.x + jnp.where(descending, now.brent.step, 0.0)
        m_kk = jnp.where(scanning, lengths[jnp.minimum(now.at, lengths.size - 1)], ahead)
        last = ~scanning & ~descending
        engine = first
        if problem.light:
            engine = jax.tree.map(lambda a, b: jnp.where(last, b, a), first, second)
        profile = profile_of(engine, m_kk)
        loss = _loss(profile)
        losses = jnp.where(scanning, now.losses.at[now.at].set(loss), now.losses)
        ties = losses <= jnp.min(losses) + _TIE
        row = jnp.argmax(jnp.where(ties, jnp.where(lengths < 0, 1.0, 2.0), 0.0))
        low, high = lengths[jnp.maximum(row - 1, 0)], lengths[jnp.minimum(row + 1, end)]
        first_bracket = bracket(low, lengths[row], high, losses[row])
        updated = now.brent.updated(loss)
        brent = jax.tree.map(
            lambda new, next_, old: jnp.where(scanning, new, jnp.where(descending, next_, old)),
            first_bracket,
            updated,
            now.brent,
        )
        here = jnp.where(scanning, first_bracket.x == m_kk, descending & (updated.x == ahead))
        best = jax.tree.map(partial(jnp.where, here), profile, now.profiles[0])
        return _Scan(now.at + (scanning | last), losses, brent, (best, profile))

    end = lengths.size - 1
    # Traced once for its shapes and its code.
    profile_of = jax.jit(lambda engine, m_kk: engine.profile(problem.task, problem.attention, m_kk))
    empty = jax.eval_shape(profile_of, first, lengths[0])
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), empty)
    start = _Scan(
        jnp.asarray(0),
        jnp.full(lengths.size, jnp.inf),
        bracket(lengths[0], lengths[0], lengths[0], jnp.inf),
        (none, none),
    )
    ended = jax.lax.while_loop(lambda now: now.at <= lengths.size, step, start)
    m_kk, profiles = ended.brent.x, ended.profiles
    if not problem.light:
        profiles = profiles[0], profile_of(second, m_kk)
    inner = jnp.abs(lengths) < 0.99 * jnp.max(jnp.abs(lengths))
    falling = jnp.min(ended.losses) < jnp.min(jnp.where(inner, ended.losses, jnp.inf)) - FLAT
    return Outcome(m_kk, problem.attention.bias, profiles, falling, jnp.asarray(True))


@dataclass
class Search:
    """The search for one task: increasing ranges of the norm of `k` while the risk decreases at the largest."""

    task: AbstractTask
    attention: AbstractAttention
    seed: int
    nearest: bool = False  # whether only the first range is searched
    stage: int = 0
    shorter: float = 0.0  # the longest `k` of the range before
    sign: float = 1.0  # of `k` beyond the first range
    light: bool = True  # whether light rules have not failed
    newton: bool = True  # nor has Newton's method
    reach: float | None = None  # of the range, if not one of those by `stage`
    plan: SearchPlan = field(init=False)
    last: _Problem = field(init=False)
    outcome: Outcome = field(init=False)

    def problem(self) -> _Problem:
        """The next computation."""
        task, attention = self.task, self.attention
        self.plan = search_plan(task, attention, self.stage, self.seed, self.light, self.reach)
        reach = self.plan.reach
        if self.stage == 0:
            # With a bias to tune, weak signals do best at tiny lengths and a bias that these show.
            tiny = [1e-6, 1e-4, 2e-3] if attention.free_bias else []
            count = _SCALES if attention.compares_tokens else 2 * _SCALES
            outward = np.geomspace(0.02, reach, count)
            if attention.exponential:
                outward = reach * _EXPONENTIAL_SCALES
            if self.nearest:  # no limit is among them
                tiny, outward = [], np.geomspace(0.1, reach, count // 2)
            lengths = np.concatenate([-np.geomspace(reach, 0.1, 4), [0.0], tiny, outward])
        else:
            lengths = np.append([0.5 * self.shorter], np.geomspace(self.shorter, reach, 7))
            lengths = np.sort(self.sign * lengths)
        scales = np.ones(lengths.size)
        if self.stage == 0 and attention.score_scale < 1.0:  # the same norms on this scale too
            own = attention.score_scale * lengths[lengths != 0.0]
            order = np.argsort(np.append(lengths, own))
            scales = np.append(scales, np.full(own.size, attention.score_scale))[order]
            lengths = np.append(lengths, own)[order]
        method: Callable[[Any], Outcome] = _length_search
        biases = np.full((lengths.size, 1), float(attention.bias))
        if attention.free_bias:
            newton = self.newton and self.plan.exact and self.plan.differentiable
            method = newton_search if newton else nested_search
            # These put the threshold of an attention anywhere between below all tokens and above them.
            log_length = math.log(float(task.length.longest))
            highest = float(task.relevant_field) + max(6.0, math.sqrt(2.0 * log_length) + 1.0)
            lowest = -(np.abs(lengths) * highest + scales * (log_length + 6.0))
            count = _BIASES if attention.compares_tokens else _MANY_BIASES
            biases = np.linspace(6.0 * scales, lowest, count, axis=1)
        light = self.plan.value == 0
        problem = _Problem(task, attention, self.plan.engines, lengths, biases, light, method)
        self.last = jax.tree.map(lambda leaf: np.asarray(leaf, float), problem)
        return self.last

    def update(self, outcome: Outcome) -> Minimum | None:
        """The minimum or the infimum, if the search is over.

        Otherwise it continues with a larger norm of `k`, with a slower method, or without light rules.
        """
        self.outcome, plan = outcome, self.plan
        if outcome.falling and not self.nearest:
            self.sign = float(np.copysign(1.0, outcome.m_kk))
            if plan.last:
                return find_limit(self)
            self.stage, self.shorter = self.stage + 1, plan.reach
            if plan.reach >= _TOWARDS_LIMIT and not self.attention.free_bias:
                infinite = profiles_at_infinity(self.task, self.attention, self.sign)
                if infinite is not None:
                    found = find_limit(self, infinite if plan.value else infinite[::-1])
                    return None if found.attained else found
            return None
        if not outcome.falling and not outcome.ended:
            self.newton = False
            return None
        if not outcome.falling and plan.value == 0:
            coarse, fine = map(explained, outcome.profiles)
            self.light = coarse > 0 and abs(coarse - fine) < _AGREED
            if not self.light:
                return None
        m_kk, attention = float(outcome.m_kk), self.attention
        if attention.free_bias:
            attention = attention.with_bias(float(outcome.bias))
        risk, m_vv = self.risk(outcome.profiles)
        selected = self.plan.exact and isinstance(self.task, AbstractSelected)
        if selected and kinks_at(attention, m_kk) != (0.0,):
            m_kk, m_vv, risk = self.at_kinks(risk, attention, m_kk, m_vv)
        result = Result.CONVERGED if self.task.spread == 1.0 else Result.ON_MANIFOLD
        if outcome.falling:
            result = Result.NOT_STATIONARY  # a longer k may be better
        if abs(m_vv) > VANISHING * LONGEST_VALUE:
            # Only the limit to v is in the way: the infimum lies between this risk and what no attention can beat.
            result = Result.WEIGHTS_VANISH
            lowest = float(floor(self.task, self.attention))
            risk = Estimate(risk.value, risk.error + max(0.0, float(risk) - lowest), risk.kind)
        return Minimum(risk, aligned(m_kk, m_vv), attention, result)

    def at_kinks(
        self, searched: Estimate, attention: AbstractAttention, m_kk: float, m_vv: float
    ) -> tuple[float, float, Estimate]:
        """The minimum by panels that meet where the score passes a kink; those of a search meet at the field 0 only,
        and may miss a narrow bump.

        What the search has missed at its minimum is also what the lowest risk may be below that. Where it is much, the
        search is repeated, unless the bias is free or an integral takes seconds.
        """
        task, reach = self.task, self.plan.reach
        risk = population_risk(task, attention, aligned(m_kk, m_vv))
        missed = max(2.0 * abs(risk.value - searched.value), float(searched.error))
        if missed < _MISSED or attention.free_bias or reach > STEEPEST:
            return m_kk, m_vv, Estimate(risk.value, risk.error + missed)
        from scipy.optimize import minimize_scalar

        def profile(m_kk: float, order: int) -> Correlations:
            engine = plan(task, attention, reach, order=order, kinks=kinks_at(attention, m_kk))
            return compiled_profile(*as_arrays((engine, task, attention, m_kk)))

        def loss(m_kk: float) -> float:
            return -explained(profile(m_kk, ORDERS[0]))

        lengths = np.sort(np.append(self.last.lengths[self.last.lengths != 0.0], m_kk))
        losses = [loss(each) for each in lengths.tolist()]
        best = int(np.argmin(losses))
        if best in (0, lengths.size - 1):  # it may fall on beyond the range
            missed = max(missed, float(risk) - float(task.label_variance) - losses[best])
            return m_kk, m_vv, Estimate(risk.value, risk.error + missed)
        bounds = lengths[best - 1], lengths[best + 1]
        found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": _NARROW})
        m_kk = float(found.x if found.fun < losses[best] else lengths[best])
        profiles = tuple(profile(m_kk, order) for order in ORDERS)
        risk, m_vv = self.risk(profiles)
        return m_kk, m_vv, risk

    def risk(self, profiles: tuple[Correlations, ...]) -> tuple[Estimate, float]:
        """`E[y²] − A²/B` with its error, and the best `v`, `A/B` times `v*`."""
        variance, (a, b) = float(self.task.label_variance), profiles[self.plan.value]
        m_vv = value_norm(self.attention, a, b)
        if not self.plan.exact:
            # At fixed v the risk is linear in A and B. That v is tuned on the same points biases it to second order.
            return mean_estimate(variance - 2.0 * m_vv * a + m_vv**2 * b), m_vv
        coarse, fine = (float(a) ** 2 / float(b) if b > 0 else 0.0 for a, b in profiles)
        here, other = (fine, coarse) if self.plan.value else (coarse, fine)
        risk = estimate_from(variance - other, variance - here)
        rounding = _NEWTON_ROUNDING * here if self.attention.free_bias else 0.0
        return Estimate(risk.value, risk.error + rounding), m_vv
