"""The search for a least risk over the length of `k` and the bias, compiled whole (sections 4 and 4.4).

On the manifold `m_kv = m_vk = q_kv = 0` the best `v` is `v* A/B`, and what is left is `E[y²] − A²/B`, a function of
`k = m_kk k*` and of the bias. A search is one compiled function: it scans lengths of `k` of both signs and biases, then
descends, by Newton's method where the attention is analytic and has a free bias, by Brent's elsewhere.
"""

import math
import operator
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import LARGEST
from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.minimise import Bracket, bracket, map_batch, minimise_pair, minimise_scalar
from ..numerics.qmc import mean_estimate
from ..numerics.quadrature import estimate_from
from ..tasks import AbstractTask
from .closed_forms import floor
from .engines import AbstractEngine, Correlations
from .minimisers import Minimum
from .overlaps import aligned
from .plan import LONGEST, SearchPlan, search_plan
from .risk import extrapolate, profiles_at_infinity

FLAT = 1e-9  # a longer k that gains less than this gains nothing
_SCALES = 14  # lengths of k in a scan
# For an exponential kernel, relative to the longest: it does best below two thirds, about as sharp as the teacher.
_EXPONENTIAL_SCALES = np.array([0.01, 0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.88, 1.0])
# Biases in a scan; many where a profile costs little: a threshold is one or two units wide.
_BIASES, _MANY_BIASES = 25, 121
_AT_A_TIME = 32  # profiles of a scan that are small arrays
_NESTED_ROUNDS = 4
_TIE = 1e-12  # losses as close are one
EXTRAPOLATED = 5  # lengths of k through which the limit is drawn
_TOWARDS_LIMIT = 8.0  # the length of k from which these show how a known limit is approached
VANISHING = 0.5  # share of the longest v allowed
_AGREED = 5e-11  # between two light rules: no other is asked
# Of what is explained, where Newton steps whose predicted decrease exceeds rounding are over.
_NEWTON_ROUNDING = 1e-14


def search_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int, nearest: bool = False
) -> list[Minimum]:
    """The same by one search over `k` and, where it is free, the bias; `nearest`: only the first range of lengths."""
    searches = unfinished = [Search(task, attention, seed, nearest) for task in tasks]
    while unfinished:
        outcomes = map_batch(operator.call, [search.problem() for search in unfinished])
        pairs = zip(unfinished, outcomes, strict=True)
        unfinished = [search for search, outcome in pairs if not search.update(outcome)]
    return [search.minimum() for search in searches]


class _Outcome(NamedTuple):
    """Where a search ended, and `A` and `B` there by either engine.

    It is a minimum if it `ended`, and the least of all unless the risk is still `falling` at the longest `k`.
    """

    m_kk: Any
    bias: Any
    profiles: tuple[Correlations, ...]
    falling: Any
    ended: Any


class _AbstractProblem(eqx.Module):
    """What a compiled search takes: how to integrate, and where to look; `light` engines have one shape."""

    task: AbstractTask
    attention: AbstractAttention
    engines: tuple[AbstractEngine, AbstractEngine]
    lengths: Float[Any, " m"]
    biases: Float[Any, "m b"]
    light: bool = eqx.field(static=True)

    @abstractmethod
    def __call__(self) -> _Outcome:
        """Search."""

    def loss(self, m_kk: Any, bias: Any) -> Array:
        """`−log(A²/B)`."""
        return _loss(self.engines[0].profile(self.task, self.attention.with_bias(bias), m_kk))

    def profiles(self, m_kk: Any, bias: Any) -> tuple[Correlations, ...]:
        """`A` and `B` by either engine."""
        attention = self.attention.with_bias(bias)
        if not self.light:
            return tuple(engine.profile(self.task, attention, m_kk) for engine in self.engines)
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.engines)
        found = jax.lax.map(lambda engine: engine.profile(self.task, attention, m_kk), both)
        return tuple(jax.tree.map(lambda leaf: leaf[at], found) for at in range(2))  # noqa: B023

    def scan(self) -> tuple[Array, Float[Array, " 2"]]:
        """Whether the loss is falling at the longest `k`, and the length and bias of the least loss.

        Of equal ones the least bias, along `k*`.
        """
        pairs = jnp.repeat(self.lengths, self.biases.shape[1]), self.biases.ravel()
        together = None if self.attention.compares_tokens else _AT_A_TIME
        losses = jax.lax.map(lambda pair: self.loss(*pair), pairs, batch_size=together)
        ties = losses <= jnp.min(losses) + _TIE
        against = jnp.abs(pairs[1]) + 1e-6 * (pairs[0] < 0)
        best = jnp.argmin(jnp.where(ties, against, jnp.inf))
        lowest = jnp.min(losses.reshape(self.biases.shape), 1)
        return _is_falling(self.lengths, lowest), jnp.stack([pairs[0][best], pairs[1][best]])


def explained(profile: Correlations) -> float:
    """`A²/B`: by how much the best `v` lowers the risk from `E[y²]`."""
    label, power = float(profile.label), float(profile.power)
    return label**2 / power if power > 0 else 0.0


def _loss(profile: Correlations) -> Array:
    """`−log(A²/B)`; infinite where the best `v` would be longer than any that is allowed."""
    a, b = jnp.abs(jnp.mean(profile.label)), jnp.mean(profile.power)
    sound = (a > 0) & (a < np.sqrt(LARGEST) * b) & jnp.isfinite(b)
    a, b = (jnp.where(sound, each, 1.0) for each in (a, b))
    return jnp.where(sound, jnp.log(b) - 2.0 * jnp.log(a), jnp.inf)


def _is_falling(lengths: Float[Array, " m"], losses: Float[Array, " m"]) -> Array:
    """Whether the longest `k` is the best, by more than an attention that ignores scales shows."""
    inner = jnp.abs(lengths) < 0.99 * jnp.max(jnp.abs(lengths))
    return jnp.min(losses) < jnp.min(jnp.where(inner, losses, jnp.inf)) - FLAT


class _Scan(NamedTuple):
    """A scan of lengths that turns into Brent's method after the last, and then asks the other engine."""

    at: Any
    losses: Float[Array, " m"]
    brent: Bracket
    profiles: tuple[Correlations, ...]


class _LengthSearch(_AbstractProblem):
    """Over the length of `k`, at a fixed bias: a scan, then Brent's method from the best.

    The integral stands once in the compiled program, which takes most of the time of a first answer; so the scan, the
    descent and the last call, with the second engine where it has the shape of the first, are one loop.
    """

    def __call__(self) -> _Outcome:
        lengths, (first, second) = self.lengths, self.engines

        def step(now: _Scan) -> _Scan:
            scanning, descending = now.at < lengths.size, now.brent.unfinished
            ahead = now.brent.x + jnp.where(descending, now.brent.step, 0.0)
            m_kk = jnp.where(scanning, lengths[jnp.minimum(now.at, lengths.size - 1)], ahead)
            last = ~scanning & ~descending
            engine = first
            if self.light:
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
        profile_of = jax.jit(lambda engine, m_kk: engine.profile(self.task, self.attention, m_kk))
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
        if not self.light:
            profiles = profiles[0], profile_of(second, m_kk)
        falling = _is_falling(lengths, ended.losses)
        return _Outcome(m_kk, self.attention.bias, profiles, falling, jnp.asarray(True))


class _NewtonSearch(_AbstractProblem):
    """Over the length of `k` and the bias: a scan of both, then Newton's method."""

    def __call__(self) -> _Outcome:
        falling, start = self.scan()
        reach = jnp.stack([jnp.max(jnp.abs(self.lengths)), jnp.inf])
        (m_kk, bias), ended = minimise_pair(lambda at: self.loss(*at), start, reach, skip=falling)
        inside = jnp.abs(m_kk) < 0.999 * reach[0]  # else it left the basin of the scan
        return _Outcome(m_kk, bias, self.profiles(m_kk, bias), falling, ended & inside)


class _NestedSearch(_AbstractProblem):
    """The same by Brent's method, with the best bias at each length of `k`: slower, but without derivatives."""

    def __call__(self) -> _Outcome:
        falling, start = self.scan()
        lengths, biases = self.lengths, self.biases

        def descend(turn: int, at: Float[Array, " 2"]) -> Float[Array, " 2"]:
            """Between the neighbours of the nearest length and bias of the scan, which may not be those of the best."""
            row = jnp.argmin(jnp.abs(lengths - at[0]))
            spacing = 1.5 * jnp.abs(biases[row, 0] - biases[row, -1]) / (biases.shape[1] - 1)
            best = partial(_best_bias, self, at[1], spacing)
            low, high = (lengths[jnp.clip(row + side, 0, lengths.size - 1)] for side in (-1, 1))
            m_kk, _ = minimise_scalar(lambda m_kk: best(m_kk)[1], low, at[0], high, best(at[0])[1])
            return jnp.stack([m_kk, best(m_kk)[0]])

        m_kk, bias = jax.lax.fori_loop(0, _NESTED_ROUNDS, descend, start)
        return _Outcome(m_kk, bias, self.profiles(m_kk, bias), falling, jnp.asarray(True))


def _best_bias(problem: _AbstractProblem, bias: Any, radius: Any, m_kk: Any) -> tuple[Array, Array]:
    """The bias of least loss within a radius, at one length of `k`, and that loss."""
    loss = partial(problem.loss, m_kk)
    return minimise_scalar(loss, bias - radius, bias, bias + radius, loss(bias))


def _along(problem: _AbstractProblem) -> tuple[Array, tuple[Correlations, ...]]:
    """The best bias at each length of `k`, each search starting from the last, and the profiles there."""

    def at(bias: Array, m_kk: Array) -> tuple[Array, Any]:
        if problem.attention.free_bias:
            radius = jnp.maximum(1.0, jnp.abs(bias) / 3.0)
            bias, _ = _best_bias(problem, bias, radius, m_kk)
        return bias, (bias, problem.profiles(m_kk, bias))

    return jax.lax.scan(at, problem.biases[0, 0], problem.lengths)[1]


@dataclass
class Search:
    """The search for one task: ranges of `k` one after another while the risk is falling at the longest."""

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
    limit: Minimum | None = (
        None  # the infimum as `k` grows without bound, if that is what was found
    )
    plan: SearchPlan = field(init=False)
    outcome: _Outcome = field(init=False)

    def problem(self) -> _AbstractProblem:
        """What to compute next."""
        task, attention = self.task, self.attention
        self.plan = search_plan(task, attention, self.stage, self.seed, self.light, self.reach)
        reach = self.plan.reach
        if self.stage == 0:
            # With a bias to tune, weak signals do best at tiny lengths and a bias that these show.
            tiny = [1e-6, 1e-4, 2e-3] if attention.free_bias else []
            scales = _SCALES if attention.compares_tokens else 2 * _SCALES
            outward = np.geomspace(0.02, reach, scales)
            if attention.exponential:
                outward = reach * _EXPONENTIAL_SCALES
            if self.nearest:  # no limit is among them
                tiny, outward = [], np.geomspace(0.1, reach, scales // 2)
            lengths = np.concatenate([-np.geomspace(reach, 0.1, 4), [0.0], tiny, outward])
        else:
            lengths = np.append([0.5 * self.shorter], np.geomspace(self.shorter, reach, 7))
            lengths = np.sort(self.sign * lengths)
        kind: type[_AbstractProblem] = _LengthSearch
        biases = np.full((lengths.size, 1), float(attention.bias))
        if attention.free_bias:
            newton = self.newton and self.plan.exact and self.plan.differentiable
            kind = _NewtonSearch if newton else _NestedSearch
            # These put the threshold of an attention anywhere between below all tokens and above them.
            log_length = math.log(float(task.length.longest))
            highest = float(task.relevant_field) + max(6.0, math.sqrt(2.0 * log_length) + 1.0)
            lowest = -(np.abs(lengths) * highest + log_length + 6.0)
            count = _BIASES if attention.compares_tokens else _MANY_BIASES
            biases = np.linspace(6.0, lowest, count, axis=1)
        light = self.plan.value == 0
        problem = kind(task, attention, self.plan.engines, lengths, biases, light)
        return jax.tree.map(lambda leaf: np.asarray(leaf, float), problem)

    def update(self, outcome: _Outcome) -> bool:
        """Whether the search is over; else it goes on with a longer `k`, by a slower method, or without light rules."""
        self.outcome, plan = outcome, self.plan
        if outcome.falling:
            if plan.last or self.nearest:
                return True
            self.sign = float(np.copysign(1.0, outcome.m_kk))
            if plan.reach >= _TOWARDS_LIMIT and not self.attention.free_bias:
                infinite = profiles_at_infinity(self.task, self.attention, self.sign)
                if infinite is not None:
                    found = self._limit(infinite if plan.value else infinite[::-1])
                    self.limit = None if found.attained else found
            self.stage, self.shorter = self.stage + 1, plan.reach
            return self.limit is not None
        if not outcome.ended:
            self.newton = False
            return False
        if plan.value == 0:
            coarse, fine = (float(a**2 / b) for a, b in outcome.profiles)
            self.light = abs(coarse - fine) < _AGREED
            return self.light
        return True

    def minimum(self) -> Minimum:
        """The minimum, or the infimum."""
        if self.outcome.falling and not self.nearest:
            return self.limit or self._limit()
        m_kk, attention = float(self.outcome.m_kk), self.attention
        if attention.free_bias:
            attention = attention.with_bias(float(self.outcome.bias))
        risk, m_vv = self._risk(self.outcome.profiles)
        result = Result.CONVERGED if self.task.spread == 1.0 else Result.ON_MANIFOLD
        if self.outcome.falling:
            result = Result.NOT_STATIONARY  # a longer k may be better
        if abs(m_vv) > VANISHING * math.sqrt(LARGEST):
            # Only the limit to v is in the way: the infimum lies between this risk and what no attention can beat.
            result = Result.WEIGHTS_VANISH
            lowest = float(floor(self.task, self.attention))
            risk = Estimate(risk.value, risk.error + max(0.0, float(risk) - lowest), risk.kind)
        return Minimum(risk, aligned(m_kk, m_vv), attention, result)

    def _risk(self, profiles: tuple[Correlations, ...]) -> tuple[Estimate, float]:
        """`E[y²] − A²/B` with its error, and the best `v`, `A/B` times `v*`."""
        variance, (a, b) = float(self.task.label_variance), profiles[self.plan.value]
        m_vv = float(np.mean(a) / np.mean(b)) if np.mean(b) > 0 else 0.0
        if not self.plan.exact:
            # At fixed v the risk is linear in A and B. That v is tuned on the same points biases it to second order.
            return mean_estimate(variance - 2.0 * m_vv * a + m_vv**2 * b), m_vv
        other, here = explained(profiles[1 - self.plan.value]), explained(Correlations(a, b))
        risk = estimate_from(variance - other, variance - here)
        rounding = _NEWTON_ROUNDING * here if self.attention.free_bias else 0.0
        return Estimate(risk.value, risk.error + rounding), m_vv

    def _limit(self, infinite: tuple[Correlations, ...] | None = None) -> Minimum:
        """The risk at longer `k` than can be integrated: its minimum there, or its limit.

        From a polynomial in `1/|k|`, through the profiles of an `infinite` `k` where they are known; with random
        points, whose noise that would magnify, from the longest `k` alone.
        """
        known = None if infinite is None else self._risk(infinite)
        if known is not None and float(known[0]) <= float(floor(self.task, self.attention)):
            overlaps = aligned(self.sign * LONGEST, known[1])
            return Minimum(known[0], overlaps, self.attention, Result.K_DIVERGES)
        lengths = self.plan.reach / np.sqrt(2.0) ** np.arange(EXTRAPOLATED)
        signed = np.copysign(lengths, self.outcome.m_kk)
        biases = np.full((EXTRAPOLATED, 1), float(self.outcome.bias))
        light = self.plan.value == 0
        problem = _NestedSearch(self.task, self.attention, self.plan.engines, signed, biases, light)
        arrays = jax.tree.map(lambda leaf: np.asarray(leaf, float), problem)
        ((tuned, found),) = map_batch(_along, [arrays])
        profiles = [
            jax.tree.map(lambda leaf: leaf[at], found)  # noqa: B023
            for at in range(EXTRAPOLATED)
        ]
        return self.extrapolated(signed, float(tuned[0]), profiles, known)

    def extrapolated(
        self,
        signed: np.ndarray,
        bias: float,
        profiles: Sequence[tuple[Correlations, ...]],
        known: tuple[Estimate, float] | None = None,
    ) -> Minimum:
        """The same from the profiles at some lengths of `k`, the longest first, and the risk of an infinite one."""
        risks = [self._risk(each) for each in profiles]
        lengths = np.abs(signed)
        estimates, m_vv = [risk for risk, _ in risks], risks[0][1]
        overlaps, attention = aligned(signed[0], m_vv), self.attention.with_bias(bias)
        if not self.plan.exact:
            step = abs(float(estimates[0].value - estimates[2].value))  # from half the length
            last = estimates[0]
            limit = Estimate(last.value, last.error + step, last.kind)
            return Minimum(limit, overlaps, attention, Result.K_DIVERGES)
        inverses = np.linspace(0.0, 1.0 / lengths[0], 101)
        if known is not None:
            lengths, estimates = np.append(np.inf, lengths), [known[0], *estimates]
            overlaps = aligned(self.sign * LONGEST, known[1])
        curve = [extrapolate(lengths, estimates, 1.0 / x if x else np.inf) for x in inverses]
        least = int(np.argmin([point.value for point in curve]))
        if curve[least].value > curve[0].value - curve[0].error - curve[least].error:
            return Minimum(curve[0], overlaps, attention, Result.K_DIVERGES)
        m_kk = float(np.copysign(1.0 / inverses[least], signed[0]))
        return Minimum(curve[least], aligned(m_kk, m_vv), attention)
