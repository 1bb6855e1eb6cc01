"""The least risk of an attention with infinite data, over its overlaps and its bias (sections 4 and 4.4).

On the manifold `m_kv = m_vk = q_kv = 0` the best `v` is `v* A/B`, and what is left is `E[y²] − A²/B`, a function of
`k = m_kk k*` and of the bias. A search is one compiled function: it scans lengths of `k` of both signs and biases, then
descends, by Newton's method where the attention is analytic and has a free bias, by Brent's elsewhere.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import LARGEST
from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.batch import map_batch
from ..numerics.brent import Bracket, bracket, minimise_scalar
from ..numerics.newton import minimise_pair
from ..numerics.qmc import across
from ..tasks import AbstractTask
from .closed_forms import floor
from .engines import AbstractEngine, Correlations
from .overlaps import Overlaps, aligned
from .plan import is_exact, reaches, search_plan
from .risk import check_one_head, check_problem, compared, extrapolate

_FLAT = 1e-9  # a longer k that gains less than this gains nothing
_SCALES = 14  # lengths of k in a scan
_BIASES, _MANY_BIASES = (
    25,
    121,
)  # many where a profile costs little: a threshold is one or two units wide
_NESTED_ROUNDS = 4
_TIE = 1e-12  # losses as close are one
_EXTRAPOLATED = 5  # lengths of k through which the limit is drawn
_VANISHING = 0.5  # share of the longest v allowed
_AGREED = 5e-11  # between two light rules: no other is asked
_NEWTON_ROUNDING = (
    1e-14  # of what is explained, where steps whose predicted decrease exceeds rounding are over
)


class Minimum(eqx.Module):
    """The least risk, where it is reached, and whether it is reached at all.

    Where it is not `attained` the risk is the limit as `k` grows without bound, or `v` as weights vanish (`result` says
    which), and the overlaps are those of the longest evaluated. `attention` carries the tuned bias.
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
    result: Result = eqx.field(static=True, default=Result.CONVERGED)

    @property
    def bias(self) -> float:
        """The tuned bias, or the one that is set."""
        return float(self.attention.bias)

    @property
    def attained(self) -> bool:
        """Whether the least risk is that of finite vectors."""
        return self.result not in (Result.K_DIVERGES, Result.WEIGHTS_VANISH)

    @property
    def converged(self) -> bool:
        """Whether the search ended."""
        return self.result.converged


def population_minimum(task: AbstractTask, attention: AbstractAttention, seed: int = 0) -> Minimum:
    """The infimum of the risk over `k` along `k*`, `v` along `v*` and, where it is free, the bias.

    `seed` is that of the Sobol points, for what has no exact engine.
    """
    return population_minima([task], attention, seed)[0]


def population_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int = 0
) -> list[Minimum]:
    """The infimum for each of the tasks, to the last digit what `population_minimum` finds for it alone.

    Tasks of one shape (kind, number of lengths of the law, range of `k`) share compiled code and one call.
    """
    for task in tasks:
        check_problem(task, attention)
        check_one_head(task, attention)
    searches = [_Search(task, attention, seed) for task in tasks]
    unfinished = dict(enumerate(searches))
    while unfinished:
        outcomes = map_batch(_run, [search.problem() for search in unfinished.values()])
        for place, outcome in zip(list(unfinished), outcomes, strict=True):
            if unfinished[place].take(outcome):
                del unfinished[place]
    return [search.minimum() for search in searches]


class _Problem(NamedTuple):
    """What a compiled search takes: how to integrate, where to look, and the method."""

    task: AbstractTask
    attention: AbstractAttention
    engines: tuple[AbstractEngine, AbstractEngine]
    lengths: Float[Any, " m"]
    biases: Float[Any, "m b"]
    method: Callable[["_Problem"], "_Outcome"]

    def profile(self, engine: AbstractEngine, m_kk: Any, bias: Any) -> Correlations:
        """`A` and `B`."""
        return engine.profile(self.task, self.attention.with_bias(bias), m_kk)

    def loss(self, m_kk: Any, bias: Any) -> Array:
        """`−log(A²/B)`."""
        return _loss(self.profile(self.engines[0], m_kk, bias))

    def is_falling(self, losses: Float[Array, " m"]) -> Array:
        """Whether the longest `k` is the best, by more than an attention that ignores scales shows."""
        inner = jnp.abs(self.lengths) < 0.99 * jnp.max(jnp.abs(self.lengths))
        return jnp.min(losses) < jnp.min(jnp.where(inner, losses, jnp.inf)) - _FLAT


class _Outcome(NamedTuple):
    """Where a search ended, and `A` and `B` there by either engine.

    It is a minimum if it `ended`, and the least of all unless the risk is still `falling` at the longest `k`.
    """

    m_kk: Any
    bias: Any
    profiles: tuple[Correlations, ...]
    falling: Any
    ended: Any


def _loss(profile: Correlations) -> Array:
    """`−log(A²/B)`; infinite where the best `v` would be longer than any that is allowed."""
    a, b = jnp.abs(jnp.mean(profile.label)), jnp.mean(profile.power)
    sound = (a > 0) & (a < np.sqrt(LARGEST) * b) & jnp.isfinite(b)
    a, b = (jnp.where(sound, each, 1.0) for each in (a, b))
    return jnp.where(sound, jnp.log(b) - 2.0 * jnp.log(a), jnp.inf)


def _run(problem: _Problem) -> _Outcome:
    return problem.method(problem)


class _Scan(NamedTuple):
    """A scan of lengths that turns into Brent's method after the last, and then asks the other engine."""

    at: Any
    losses: Float[Array, " m"]
    brent: Bracket
    profiles: tuple[Correlations, ...]


def _search_length(problem: _Problem) -> _Outcome:
    """Over the length of `k`, at a fixed bias: a scan, then Brent's method from the best.

    The integral stands once in the compiled program, which takes most of the time of a first answer; so the scan, the
    descent and the last call, with the second engine where it has the shape of the first, are one loop.
    """
    lengths, bias, (first, second) = problem.lengths, problem.biases[0, 0], problem.engines
    alike = len({jax.tree.structure(each) for each in (first, second)}) == 1 and all(
        jnp.shape(a) == jnp.shape(b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )

    def begun(losses: Float[Array, " m"]) -> Bracket:
        ties = losses <= jnp.min(losses) + _TIE
        row = jnp.argmax(jnp.where(ties, jnp.where(lengths < 0, 1.0, 2.0), 0.0))
        low, high = (
            lengths[jnp.maximum(row - 1, 0)],
            lengths[jnp.minimum(row + 1, lengths.size - 1)],
        )
        return bracket(low, lengths[row], high, losses[row])

    def step(now: _Scan) -> _Scan:
        scanning, descending = now.at < lengths.size, now.brent.unfinished
        proposed = now.brent.proposed()
        ahead = jnp.where(descending, proposed.x + proposed.step, now.brent.x)
        m_kk = jnp.where(scanning, lengths[jnp.minimum(now.at, lengths.size - 1)], ahead)
        last = ~scanning & ~descending
        engine = first
        if alike:
            engine = jax.tree.map(lambda a, b: jnp.where(last, b, a), first, second)
        profile = problem.profile(engine, m_kk, bias)
        loss = _loss(profile)
        losses = jnp.where(scanning, now.losses.at[now.at].set(loss), now.losses)
        updated = proposed.updated(loss)
        moved = descending & (updated.x == ahead)
        brent = jax.tree.map(
            lambda begin, go_on, stay: jnp.where(
                scanning, begin, jnp.where(descending, go_on, stay)
            ),
            begun(losses),
            updated,
            now.brent,
        )
        here = jnp.where(scanning, brent.x == m_kk, moved)
        return _Scan(
            jnp.where(scanning, now.at + 1, now.at + last),
            losses,
            brent,
            (jax.tree.map(partial(jnp.where, here), profile, now.profiles[0]), profile),
        )

    empty = jax.eval_shape(lambda: problem.profile(first, lengths[0], bias))
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), empty)
    losses = jnp.full(lengths.size, jnp.inf)
    start = _Scan(jnp.asarray(0), losses, begun(losses), (none, none))
    end = jax.lax.while_loop(lambda now: now.at <= lengths.size, step, start)
    m_kk, profiles = end.brent.x, end.profiles
    if not alike:
        profiles = profiles[0], problem.profile(second, m_kk, bias)
    return _Outcome(m_kk, bias, profiles, problem.is_falling(end.losses), jnp.asarray(True))


def _search_pair(problem: _Problem) -> _Outcome:
    """Over the length of `k` and the bias: a scan of both, then Newton's method."""
    losses, start = _scan_pairs(problem)
    reach = jnp.stack([jnp.max(jnp.abs(problem.lengths)), jnp.inf])
    (m_kk, bias), ended = minimise_pair(lambda at: problem.loss(*at), start, reach)
    inside = jnp.abs(m_kk) < 0.999 * reach[0]  # else it left the basin of the scan
    return _outcome(problem, m_kk, bias, losses, ended & inside)


def _search_nested(problem: _Problem) -> _Outcome:
    """The same by Brent's method, with the best bias at each length of `k`: slower, but without derivatives."""
    losses, start = _scan_pairs(problem)
    lengths, biases = problem.lengths, problem.biases

    def descend(turn: int, at: Float[Array, " 2"]) -> Float[Array, " 2"]:
        """Between the neighbours of the nearest length and bias of the scan, which may not be those of the best."""
        row = jnp.argmin(jnp.abs(lengths - at[0]))
        spacing = 1.5 * jnp.abs(biases[row, 0] - biases[row, -1]) / (biases.shape[1] - 1)
        best = partial(_best_bias, problem, at[1], spacing)
        low, high = (lengths[jnp.clip(row + side, 0, lengths.size - 1)] for side in (-1, 1))
        m_kk, _ = minimise_scalar(lambda m_kk: best(m_kk)[1], low, at[0], high, best(at[0])[1])
        return jnp.stack([m_kk, best(m_kk)[0]])

    m_kk, bias = jax.lax.fori_loop(0, _NESTED_ROUNDS, descend, start)
    return _outcome(problem, m_kk, bias, losses, jnp.asarray(True))


def _scan_pairs(problem: _Problem) -> tuple[Float[Array, " m"], Float[Array, " 2"]]:
    """The least loss at each length, and the length and bias of the least: of equal ones the least bias, along `k*`."""
    lengths, biases = problem.lengths, problem.biases
    pairs = jnp.repeat(lengths, biases.shape[1]), biases.ravel()
    losses = jax.lax.map(lambda pair: problem.loss(*pair), pairs)
    ties = losses <= jnp.min(losses) + _TIE
    against = jnp.abs(pairs[1]) + 1e-6 * (pairs[0] < 0)
    best = jnp.argmin(jnp.where(ties, against, jnp.inf))
    place = jnp.stack([pairs[0][best], pairs[1][best]])
    return jnp.min(losses.reshape(biases.shape), 1), place


def _outcome(problem: _Problem, m_kk: Any, bias: Any, losses: Array, ended: Array) -> _Outcome:
    profiles = tuple(problem.profile(engine, m_kk, bias) for engine in problem.engines)
    return _Outcome(m_kk, bias, profiles, problem.is_falling(losses), ended)


def _best_bias(problem: _Problem, bias: Any, radius: Any, m_kk: Any) -> tuple[Array, Array]:
    """The bias of least loss within a radius, at one length of `k`, and that loss."""
    loss = partial(problem.loss, m_kk)
    return minimise_scalar(loss, bias - radius, bias, bias + radius, loss(bias))


def _along(problem: _Problem) -> tuple[Array, tuple[Correlations, ...]]:
    """The best bias at each length of `k`, each search starting from the last, and the profiles there."""

    def at(bias: Array, m_kk: Array) -> tuple[Array, Any]:
        if problem.attention.free_bias:
            radius = jnp.maximum(1.0, jnp.abs(bias) / 3.0)
            bias, _ = _best_bias(problem, bias, radius, m_kk)
        profiles = tuple(problem.profile(engine, m_kk, bias) for engine in problem.engines)
        return bias, (bias, profiles)

    return jax.lax.scan(at, problem.biases[0, 0], problem.lengths)[1]


class _Search:
    """The search for one task: ranges of `k` one after another while the risk is falling at the longest."""

    def __init__(self, task: AbstractTask, attention: AbstractAttention, seed: int):
        self.task, self.attention, self.seed = task, attention, seed
        self.reach, *self.longer = reaches(task, attention)
        # With a bias to tune, weak signals do best at tiny lengths and a bias that these show.
        tiny = [1e-6, 1e-4, 2e-3] if attention.free_bias else []
        scales = _SCALES if attention.compares_tokens else 2 * _SCALES
        outward = np.geomspace(0.02, self.reach, scales)
        self.lengths = np.concatenate([-np.geomspace(self.reach, 0.1, 4), [0.0], tiny, outward])
        self.light, self.method = True, _search_length
        if attention.free_bias:
            newton = attention.analytic and is_exact(task, attention)
            self.method = _search_pair if newton else _search_nested

    def problem(self) -> _Problem:
        """What to compute next."""
        self.plan = search_plan(self.task, self.attention, self.reach, self.seed, self.light)
        return self._arrays(self.lengths, np.array([self._biases(m) for m in self.lengths]))

    def _arrays(self, lengths: np.ndarray, biases: np.ndarray) -> _Problem:
        problem = _Problem(
            self.task, self.attention, self.plan.engines, lengths, biases, self.method
        )
        return jax.tree.map(
            lambda leaf: np.asarray(leaf, float) if eqx.is_array_like(leaf) else leaf, problem
        )

    def _biases(self, m_kk: float) -> np.ndarray:
        """Biases that put the threshold of an attention anywhere between below all tokens and above them."""
        if not self.attention.free_bias:
            return np.array([float(self.attention.bias)])
        log_length = math.log(float(self.task.length.longest))
        field = float(self.task.relevant_field) + max(6.0, math.sqrt(2.0 * log_length) + 1.0)
        lowest = -(abs(m_kk) * field + log_length + 6.0)
        return np.linspace(6.0, lowest, _BIASES if self.attention.compares_tokens else _MANY_BIASES)

    def take(self, outcome: _Outcome) -> bool:
        """Whether the search is over; else it goes on with a longer `k`, or by a slower method."""
        self.outcome = outcome
        if outcome.falling and self.longer:
            before, (self.reach, *self.longer) = self.reach, self.longer
            outward = np.append([0.5 * before], np.geomspace(before, self.reach, 7))
            self.lengths = np.sort(np.copysign(outward, outcome.m_kk))
            return False
        if not outcome.falling and not outcome.ended:
            self.method = _search_nested
            return False
        if not outcome.falling and self.plan.value == 0:
            coarse, fine = (_explained(profile) for profile in outcome.profiles)
            self.light = abs(coarse - fine) < _AGREED
            return self.light
        return True

    def minimum(self) -> Minimum:
        """The minimum, or the infimum."""
        if self.outcome.falling:
            return self._limit()
        m_kk, bias = float(self.outcome.m_kk), float(self.outcome.bias)
        risk, m_vv = self._risk(self.outcome.profiles)
        result = Result.CONVERGED if self.task.spread == 1.0 else Result.ON_MANIFOLD
        if abs(m_vv) > _VANISHING * math.sqrt(LARGEST):
            # Only the limit to v is in the way: the infimum lies between this risk and what no attention can beat.
            result = Result.WEIGHTS_VANISH
            lowest = float(floor(self.task, self.attention))
            risk = Estimate(risk.value, risk.error + max(0.0, float(risk) - lowest), risk.kind)
        return Minimum(risk, aligned(m_kk, m_vv), self.attention.with_bias(bias), result)

    def _risk(self, profiles: tuple[Correlations, ...]) -> tuple[Estimate, float]:
        """`E[y²] − A²/B` with its error, and the best `v`, `A/B` times `v*`."""
        variance, (a, b) = float(self.task.label_variance), profiles[self.plan.value]
        m_vv = float(np.mean(a) / np.mean(b))
        if not is_exact(self.task, self.attention):
            # At fixed v the risk is linear in A and B. That v is tuned on the same points biases it to second order.
            return across(variance - 2.0 * m_vv * a + m_vv**2 * b), m_vv
        other = variance - _explained(profiles[1 - self.plan.value])
        risk = compared(other, variance - float(a**2 / b))
        rounding = _NEWTON_ROUNDING * float(a**2 / b) if self.method is _search_pair else 0.0
        return Estimate(risk.value, risk.error + rounding, risk.kind), m_vv

    def _limit(self) -> Minimum:
        """The risk at longer `k` than can be integrated: its minimum there, or its limit.

        From a polynomial in `1/|k|`; with random points, whose noise that would magnify, from the longest `k` alone.
        """
        lengths = self.reach / np.sqrt(2.0) ** np.arange(_EXTRAPOLATED)
        signed = np.copysign(lengths, self.outcome.m_kk)
        problem = self._arrays(signed, np.full((_EXTRAPOLATED, 1), float(self.outcome.bias)))
        (found,) = map_batch(_along, [problem])
        biases, profiles = found
        risks = [
            self._risk(jax.tree.map(lambda leaf: leaf[at], profiles))  # noqa: B023
            for at in range(_EXTRAPOLATED)
        ]
        estimates, m_vv = [risk for risk, _ in risks], risks[0][1]
        overlaps, attention = aligned(signed[0], m_vv), self.attention.with_bias(float(biases[0]))
        if not is_exact(self.task, self.attention):
            step = abs(float(estimates[0].value - estimates[2].value))  # from half the length
            last = estimates[0]
            limit = Estimate(last.value, last.error + step, last.kind)
            return Minimum(limit, overlaps, attention, Result.K_DIVERGES)
        inverses = np.linspace(0.0, 1.0 / lengths[0], 101)
        curve = [extrapolate(lengths, estimates, 1.0 / x if x else np.inf) for x in inverses]
        least = int(np.argmin([point.value for point in curve]))
        if curve[least].value > curve[0].value - curve[0].error - curve[least].error:
            return Minimum(curve[0], overlaps, attention, Result.K_DIVERGES)
        m_kk = float(np.copysign(1.0 / inverses[least], signed[0]))
        return Minimum(curve[least], aligned(m_kk, m_vv), attention)


def _explained(profile: Correlations) -> float:
    """`A²/B`."""
    return float(np.mean(profile.label) ** 2 / np.mean(profile.power))
