"""The original training problem of Marion et al. (2410.01537): projected gradient descent on the sphere (section 1).

The predictor is `erf(λ X k)·(X v)` with unit vectors `k, v`. Its risk depends on them through their products with each
other and with `k*, v*` only, so four coordinates hold both: two along the teacher, two for what is left. The
descent in them is the descent in `R^d`, whatever `d` is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._check import is_traced, real, refuse
from ..tasks import AbstractPlanted, SpikedSLR
from .correlations import ratio, root
from .overlaps import Overlaps
from .risk import as_arrays, stretched

_UNIT = 1e-9  # how far from one a norm may be: rounding, in vectors that a user has normalised
_SPAN = 4  # of k*, v*, k and v

# On [0, 1]. The integrand of Owen's function has its poles at ±i or beyond, so that n nodes leave an error of
# 4.6^(-2n); where its exponential is too steep for them, the integral is below 1e-16.
_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(16) + np.array([[1.0], [0.0]])) / 2


class AbstractTemperature(eqx.Module):
    """The inverse temperature `λ` at each step."""

    @abstractmethod
    def __call__(self, step: Any) -> Any:
        """`λ` at this step."""


class ConstantTemperature(AbstractTemperature):
    """`λ` at every step."""

    inverse_temperature: Any

    def __init__(self, inverse_temperature: Any):
        self.inverse_temperature = real("inverse_temperature", inverse_temperature, above=0.0)

    def __call__(self, step: Any) -> Any:
        return self.inverse_temperature


class DecayingTemperature(AbstractTemperature):
    """`λ/(1 + rate·step)`."""

    inverse_temperature: Any
    rate: Any

    def __init__(self, inverse_temperature: Any, rate: Any = 1e-4):
        self.inverse_temperature = real("inverse_temperature", inverse_temperature, above=0.0)
        self.rate = real("rate", rate, minimum=0.0)

    def __call__(self, step: Any) -> Any:
        return self.inverse_temperature / (1.0 + self.rate * step)


def _as_floats(vectors: Any) -> Array:
    return jnp.asarray(vectors, float)


class UnitPair(eqx.Module):
    """Unit vectors `k` and `v`, one pair per repeat, in coordinates whose first two are `k*` and `v*`."""

    k: Float[Array, "repeats n"] = eqx.field(converter=_as_floats)
    v: Float[Array, "repeats n"] = eqx.field(converter=_as_floats)

    def __check_init__(self) -> None:
        if is_traced(self.k) or is_traced(self.v):
            return
        for name, vectors in (("k", self.k), ("v", self.v)):
            if vectors.ndim != 2 or vectors.shape != self.k.shape or vectors.shape[1] < 2:
                allowed = "of shape (repeats, two coordinates or more), the same for k and v"
                raise refuse(name, f"(shape {vectors.shape})", allowed)
            norms = np.linalg.norm(vectors, axis=-1)
            if not np.all(np.abs(norms - 1.0) <= _UNIT):
                raise refuse(name, f"(norms {norms.min():g} to {norms.max():g})", "unit vectors")

    @property
    def cosines(self) -> Overlaps:
        """The overlaps of `k` and `v`.

        Their norms are numbers, not functions of the vectors: a gradient then lacks only what a projection takes away.
        """
        return Overlaps(
            m_kk=self.k[..., 0],
            m_kv=self.k[..., 1],
            m_vk=self.v[..., 0],
            m_vv=self.v[..., 1],
            q_kk=1.0,
            q_kv=jnp.sum(self.k * self.v, -1),
            q_vv=1.0,
        )


def sphere_starts(key: PRNGKeyArray, dim: int, repeats: int) -> UnitPair:
    """`k` and `v` uniform on the unit sphere of `R^dim`."""
    shape = 2, _whole("repeats", repeats), _whole("dim", dim, _SPAN)
    return _reduced(*_normalised(jax.random.normal(key, shape)))


def manifold_starts(key: PRNGKeyArray, dim: int, repeats: int) -> UnitPair:
    """Uniform with `k ⊥ v*` and then `v ⊥ k*, k`: there `m_kv = m_vk = q_kv = 0`, exactly."""
    repeats, dim = _whole("repeats", repeats), _whole("dim", dim, _SPAN)
    keys = jax.random.split(key)
    k = _normalised(jax.random.normal(keys[0], (repeats, dim - 1)))
    v = _normalised(jax.random.normal(keys[1], (repeats, dim - 2)))
    none = jnp.zeros(repeats)
    k_rest, v_rest = (jnp.linalg.norm(vectors[:, 1:], axis=-1) for vectors in (k, v))
    return UnitPair(
        jnp.stack([k[:, 0], none, k_rest, none], -1), jnp.stack([none, v[:, 0], none, v_rest], -1)
    )


class DescentPath(eqx.Module):
    """What was recorded of a descent, per repeat and step: `cosines` are the overlaps of the unit vectors.

    `excess_risk` is the risk less `Δ²`, the Bayes risk in high dimension; `end` is where the descent may be taken up.
    """

    steps: Int[Array, " records"]
    inverse_temperature: Float[Array, " records"]
    cosines: Overlaps
    risk: Float[Array, "repeats records"]
    excess_risk: Float[Array, "repeats records"]
    end: UnitPair


def projected_descent(
    task: AbstractPlanted,
    start: UnitPair,
    schedule: AbstractTemperature,
    step_size: float,
    steps: int,
    record_every: int = 1,
) -> DescentPath:
    """Gradient descent on the population risk, `k` and `v` moved at once along the sphere and normalised."""
    marks = _marks(steps, record_every)
    _check_task(task)
    size = real("step_size", step_size, above=0.0)
    task, schedule, size = as_arrays((task, schedule, size))
    return _descend(task, schedule, size, _reduced(start.k, start.v), marks)


def stochastic_projected_descent(
    task: AbstractPlanted,
    key: PRNGKeyArray,
    start: UnitPair,
    schedule: AbstractTemperature,
    step_size: float,
    steps: int,
    dim: int,
    batch: int,
    record_every: int = 1,
) -> DescentPath:
    """The same on the mean squared error of `batch` fresh sequences at each step, in `dim` dimensions.

    Nothing of size `dim` is drawn, and the overlaps have the law that they have with whole tokens. The recorded risk
    is the population's.
    """
    marks = _marks(steps, record_every)
    _check_task(task)
    if len(task.length.lengths) > 1:
        raise refuse("length", task.length, "one whole number where sequences are drawn")
    shape = _whole("batch", batch), int(task.length.longest)
    numbers = real("step_size", step_size, above=0.0), _whole("dim", dim, _SPAN + 2)
    task, schedule, (size, dimension) = as_arrays((task, schedule, numbers))
    start = _reduced(start.k, start.v)
    return _wander(task, schedule, size, dimension, start, marks, key, shape)


@eqx.filter_jit
def _descend(
    task: AbstractPlanted,
    schedule: AbstractTemperature,
    step_size: Array,
    start: UnitPair,
    marks: Int[Array, " records"],
) -> DescentPath:
    def total_risk(pair: UnitPair, inverse_temperature: Any) -> Array:
        return jnp.sum(erf_risk(task, stretched(pair.cosines, inverse_temperature)))

    def move(step: Array, pair: UnitPair) -> UnitPair:
        gradient = jax.grad(total_risk)(pair, schedule(step))
        return jax.tree.map(lambda x, g: _slid(x, g, step_size), pair, gradient)

    return _path(task, schedule, move, start, marks)


@eqx.filter_jit
def _wander(
    task: AbstractPlanted,
    schedule: AbstractTemperature,
    step_size: Array,
    dim: Array,
    start: UnitPair,
    marks: Int[Array, " records"],
    key: PRNGKeyArray,
    shape: tuple[int, int],
) -> DescentPath:
    def move(step: Array, pair: UnitPair) -> UnitPair:
        here = jax.random.fold_in(key, step)
        gradient = _batch_gradient(task, pair, schedule(step), dim, shape, here)
        padded = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 2))), pair)
        moved = jax.tree.map(lambda x, g: _slid(x, g, step_size), padded, gradient)
        return _reduced(moved.k, moved.v)

    return _path(task, schedule, move, start, marks)


def _path(
    task: AbstractPlanted,
    schedule: AbstractTemperature,
    move: Callable[[Array, UnitPair], UnitPair],
    start: UnitPair,
    marks: Int[Array, " records"],
) -> DescentPath:
    """The start, and where `move` has led at each mark."""

    def between(pair: UnitPair, ends: tuple[Array, Array]) -> tuple[UnitPair, UnitPair]:
        pair = jax.lax.fori_loop(*ends, move, pair)
        return pair, pair

    end, path = jax.lax.scan(between, start, (marks[:-1], marks[1:]))
    path = jax.tree.map(lambda x, xs: jnp.moveaxis(jnp.append(x[None], xs, 0), 0, 1), start, path)
    temperatures: Any = jnp.broadcast_to(schedule(marks), marks.shape)
    risk = erf_risk(task, stretched(path.cosines, temperatures))
    return DescentPath(marks, temperatures, path.cosines, risk, risk - task.noise**2, end)


def _batch_gradient(
    task: AbstractPlanted,
    pair: UnitPair,
    inverse_temperature: Array,
    dim: Array,
    shape: tuple[int, int],
    key: PRNGKeyArray,
) -> UnitPair:
    """The gradient of the mean squared error of a fresh batch: four coordinates, and two for what lies outside."""
    keys, repeats = jax.random.split(key, 3), pair.k.shape[0]
    # An element-wise attention does not see places: the relevant token comes first.
    spread = jnp.ones((shape[1], 1)).at[0].set(task.spread)
    mean = jnp.zeros((shape[1], _SPAN)).at[0, 0].set(task.shift)
    tokens = mean + spread * jax.random.normal(keys[0], (repeats, *shape, _SPAN))
    label = tokens[:, :, 0, 1] + task.noise * jax.random.normal(keys[1], (repeats, shape[0]))

    score = inverse_temperature * jnp.sum(tokens * pair.k[:, None, None], -1)
    value, weight = jnp.sum(tokens * pair.v[:, None, None], -1), erf(score)
    error = 2.0 / shape[0] * (jnp.sum(weight * value, -1) - label)[..., None]
    by_k = error * inverse_temperature * _erf_slope(score) * value
    by_v = error * weight

    inside_k, inside_v = (jnp.sum(by[..., None] * tokens, (1, 2)) for by in (by_k, by_v))
    outside_k, outside_v = _outside(spread[:, 0] * by_k, spread[:, 0] * by_v, dim, keys[2])
    return UnitPair(jnp.append(inside_k, outside_k, -1), jnp.append(inside_v, outside_v, -1))


def _outside(
    by_k: Float[Array, "repeats batch L"],
    by_v: Float[Array, "repeats batch L"],
    dim: Array,
    key: PRNGKeyArray,
) -> tuple[Float[Array, "repeats 2"], Float[Array, "repeats 2"]]:
    """Sums with these coefficients of what tokens have outside the span of `k*, v*, k, v`, in axes of their own.

    There tokens are Gaussian and independent of all that the coefficients depend on. The two sums are the Cholesky
    factor of the coefficients' Gram matrix times that of a Wishart matrix, which Bartlett's decomposition draws.
    """
    kk, kv, vv = (jnp.sum(x, (1, 2)) for x in (by_k**2, by_k * by_v, by_v**2))
    deviation = root(kk)
    shared = ratio(kv, deviation)
    own = root(vv - shared**2)

    keys, repeats = jax.random.split(key), kk.size
    freedom = jnp.stack([dim - _SPAN, dim - _SPAN - 1.0])
    first, second = jnp.sqrt(jax.random.chisquare(keys[0], freedom, (repeats, 2))).T
    cross = jax.random.normal(keys[1], (repeats,))
    of_k = jnp.stack([deviation * first, jnp.zeros(repeats)], -1)
    of_v = jnp.stack([shared * first + own * cross, own * second], -1)
    return of_k, of_v


def _slid(vectors: Array, gradient: Array, step_size: Any) -> Array:
    """A step along the sphere, `k − step (I − k kᵀ) ∇`, brought back to it."""
    radial = jnp.sum(vectors * gradient, -1, keepdims=True)
    return _normalised(vectors - step_size * (gradient - radial * vectors))


def _normalised(vectors: Array) -> Array:
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def _reduced(k: Float[Array, "repeats n"], v: Float[Array, "repeats n"]) -> UnitPair:
    """The pair in four coordinates: two of the teacher, the rest of `k`, and what `v` has beyond."""
    k_rest, v_rest = k[:, 2:], v[:, 2:]
    length = jnp.linalg.norm(k_rest, axis=-1)
    axis = ratio(k_rest, length[:, None])
    shared = jnp.sum(v_rest * axis, -1)
    own = jnp.linalg.norm(v_rest - shared[:, None] * axis, axis=-1)
    return UnitPair(
        jnp.stack([k[:, 0], k[:, 1], length, jnp.zeros_like(length)], -1),
        jnp.stack([v[:, 0], v[:, 1], shared, own], -1),
    )


class _Smoothed(NamedTuple):
    """`E[F], E[F'], E[F'']` at a Gaussian score."""

    value: Any
    slope: Any
    curvature: Any


def erf_risk(task: AbstractPlanted, overlaps: Overlaps) -> Any:
    """The population risk of `σ = erf` in closed form but for Owen's function; the overlaps may be arrays.

    Section 4.1 with every `z` and `z*` integrated by parts: `E[F(χ) z] = E[z] E[F] + Cov(χ, z) E[F']`.
    """
    m_kv, m_vk, q_kv = overlaps.m_kv, overlaps.m_vk, overlaps.q_kv
    variance, value, crossed = task.spread**2, m_vk * task.shift, task.spread**2 * q_kv
    deviation = root(overlaps.q_kk)
    mean = overlaps.m_kk * task.shift
    h, h2 = _erf(mean, task.spread * deviation), _erf_squared(mean, task.spread * deviation)
    other, other2 = _erf(0.0, deviation), _erf_squared(0.0, deviation)
    beside, between = (task.length.powers(jnp.zeros(()), k, drop=1) for k in (1, 2))

    here, there = value * h.value + crossed * h.slope, q_kv * other.slope
    label = variance * (overlaps.m_vv * h.value + m_kv * (value * h.slope + crossed * h.curvature))
    power = (
        (value**2 + variance * overlaps.q_vv) * h2.value
        + crossed * (2.0 * value * h2.slope + crossed * h2.curvature)
        + beside * (overlaps.q_vv * other2.value + q_kv**2 * other2.curvature)
        + 2.0 * beside * here * there
        + between * there**2
    )
    return task.label_variance - 2.0 * label + power


def _erf(mean: Any, deviation: Any) -> _Smoothed:
    """`F = erf`: smoothing only widens it."""
    width = jnp.sqrt(1.0 + 2.0 * deviation**2)
    u = mean / width
    slope = _erf_slope(u) / width
    return _Smoothed(erf(u), slope, -2.0 * u / width * slope)


def _erf_squared(mean: Any, deviation: Any) -> _Smoothed:
    """`F = erf²`: `1 − 8 T(√2 u, 1/w)` with Owen's `T`."""
    width, w = jnp.sqrt(1.0 + 2.0 * deviation**2), jnp.sqrt(1.0 + 4.0 * deviation**2)
    u = mean / width
    bell = 2.0 * _erf_slope(u) / width
    curvature = bell / width * (_erf_slope(u / w) / w - 2.0 * u * erf(u / w))
    return _Smoothed(1.0 - _owen(u, 1.0 / w), bell * erf(u / w), curvature)


def _owen(u: Any, a: Any) -> Array:
    """`8 T(√2 u, a) = (4/π) ∫_0^a exp(−u² (1 + x²))/(1 + x²) dx` for `a ≤ 1`."""
    a, u = jnp.asarray(a)[..., None], jnp.asarray(u)[..., None]
    stretch = 1.0 + (a * _NODES) ** 2
    return 4.0 / math.pi * jnp.sum(_WEIGHTS * a * jnp.exp(-(u**2) * stretch) / stretch, -1)


def _erf_slope(x: Any) -> Any:
    return 2.0 / math.sqrt(math.pi) * jnp.exp(-(x**2))


def _marks(steps: int, record_every: int) -> Int[Array, " records"]:
    """The steps to record."""
    if _whole("steps", steps) % _whole("record_every", record_every):
        raise refuse("record_every", record_every, f"a divisor of steps = {steps}")
    return jnp.arange(0, steps + 1, record_every)


def _whole(name: str, value: Any, minimum: int = 1) -> int:
    if not isinstance(value, int | np.integer) or value < minimum:
        raise refuse(name, value, f"a whole number ≥ {minimum}")
    return int(value)


def _check_task(task: Any) -> None:
    if not isinstance(task, AbstractPlanted):
        raise refuse("task", task, "a planted task, such as SpikedSLR")


@dataclass(frozen=True, kw_only=True)
class AbstractSetting(ABC):
    """An experiment: ten tokens, `ν = d/2` and `γ² = 1/2`, where to start from, and how to descend."""

    dim: int
    noise: float = 0.0
    starts: Callable[[PRNGKeyArray, int, int], UnitPair]
    schedule: AbstractTemperature
    step_size: float
    steps: int
    record_every: int
    repeats: int = 30

    @property
    def task(self) -> SpikedSLR:
        """The task of the experiment."""
        return SpikedSLR(self.dim / 2, length=10, noise=self.noise, spread=math.sqrt(0.5))

    @abstractmethod
    def descend(self, key: PRNGKeyArray, start: UnitPair) -> DescentPath:
        """The path from this start; a deterministic descent has no use for the key."""


class Setting(AbstractSetting):
    """Descent on the population risk."""

    def descend(self, key: PRNGKeyArray, start: UnitPair) -> DescentPath:
        how = self.step_size, self.steps, self.record_every
        return projected_descent(self.task, start, self.schedule, *how)


@dataclass(frozen=True, kw_only=True)
class StochasticSetting(AbstractSetting):
    """Descent on fresh batches."""

    batch: int

    def descend(self, key: PRNGKeyArray, start: UnitPair) -> DescentPath:
        return stochastic_projected_descent(
            self.task,
            key,
            start,
            self.schedule,
            self.step_size,
            self.steps,
            self.dim,
            self.batch,
            self.record_every,
        )


SETTINGS: dict[str, AbstractSetting] = {
    "manifold": Setting(
        dim=400,
        starts=manifold_starts,
        schedule=ConstantTemperature(0.1),
        step_size=4e-3,
        steps=20_000,
        record_every=200,
    ),
    "small": Setting(
        dim=400,
        starts=sphere_starts,
        schedule=ConstantTemperature(0.1),
        step_size=4e-3,
        steps=20_000,
        record_every=200,
    ),
    "large": Setting(
        dim=400,
        starts=sphere_starts,
        schedule=ConstantTemperature(0.9),
        step_size=1e-3,
        steps=120_000,
        record_every=600,
    ),
    "decaying": Setting(
        dim=400,
        starts=sphere_starts,
        schedule=DecayingTemperature(1.0),
        step_size=4e-3,
        steps=120_000,
        record_every=600,
    ),
    "stochastic": StochasticSetting(
        dim=80,
        noise=0.1,
        starts=sphere_starts,
        schedule=DecayingTemperature(2.0),
        step_size=1e-3,
        steps=200_000,
        record_every=1000,
        batch=5,
    ),
}


def run_setting(setting: AbstractSetting, seed: int = 0) -> DescentPath:
    """All repeats of the setting, from `seed`."""
    starts, path = jax.random.split(jax.random.key(_whole("seed", seed, 0)))
    return setting.descend(path, setting.starts(starts, setting.dim, setting.repeats))
