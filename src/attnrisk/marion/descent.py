"""The original training problem of Marion et al. (2410.01537): projected gradient descent on the sphere (section 1).

The predictor is `erf(λ X k)·(X v)` with unit vectors `k, v`. The descent in the four coordinates of a `UnitPair` is
the descent in `R^d`, whatever `d` is.
"""

from abc import abstractmethod
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import erf
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._check import of_type, prng_key, real, refuse, whole
from ..numerics.arrays import as_arrays
from ..numerics.linalg import ratio, root
from ..population.overlaps import Overlaps
from ..tasks import AbstractPlanted
from .erf_risk import erf_risk, erf_slope
from .sphere import SPAN, UnitPair, in_four_coordinates, step_on_sphere


class AbstractTemperature(eqx.Module):
    """The inverse temperature `λ` at each step."""

    @abstractmethod
    def __call__(self, step: Any) -> Any:
        """`λ` at this step."""


_positive: Any = eqx.field(converter=partial(real, "inverse_temperature", above=0.0))


class ConstantTemperature(AbstractTemperature):
    """`λ` at every step."""

    inverse_temperature: Any = _positive

    def __call__(self, step: Any) -> Any:
        return self.inverse_temperature


class DecayingTemperature(AbstractTemperature):
    """`λ/(1 + rate·step)`."""

    inverse_temperature: Any = _positive
    rate: Any = eqx.field(converter=partial(real, "rate", minimum=0.0), default=1e-4)

    def __call__(self, step: Any) -> Any:
        return self.inverse_temperature / (1.0 + self.rate * step)


class DescentPath(eqx.Module):
    """Recorded path of a descent, per repetition and step; `cosines` are the overlaps of the unit vectors.

    `excess_risk` is the risk minus `Δ²`, the Bayes risk in high dimension. A descent can be continued from `end`.
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
    """Projected gradient descent of Marion et al. on the population risk: `k` and `v` stay on the unit sphere.

    Args:
        task: A planted task, such as `SpikedSLR`.
        start: Initial unit vectors, `R` repetitions.
        schedule: Inverse temperature `λ` at each step: `ConstantTemperature` or `DecayingTemperature`.
        step_size: Step size.
        steps: Number of steps.
        record_every: Interval between recorded steps.

    Returns:
        A `DescentPath`; `risk` has shape `(R, T)` for `T` recorded steps.

    Examples:
        >>> task = ar.SpikedSLR(nu=5.0, length=3, spread=0.5**0.5)
        >>> start = ar.manifold_starts(jax.random.key(0), dim=50, repeats=2)
        >>> path = ar.projected_descent(task, start, ar.ConstantTemperature(1.0), 0.1, steps=10)
        >>> path.risk.shape
        (2, 11)
    """
    recorded = _recorded_steps(task, start, schedule, steps, record_every)
    size = real("step_size", step_size, above=0.0)
    task, schedule, size = as_arrays((task, schedule, size))
    return _descend(task, schedule, size, in_four_coordinates(start.k, start.v), recorded)


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
    """Projected stochastic gradient descent of Marion et al., with fresh sequences at each step.

    No vector of size `dim` is drawn; the overlaps have the same distribution as with full tokens. The recorded risk is
    the population risk.

    Args:
        task: A planted task, such as `SpikedSLR`.
        key: JAX random key.
        start: Initial unit vectors, `R` repetitions.
        schedule: Inverse temperature `λ` at each step.
        step_size: Step size.
        steps: Number of steps.
        dim: Dimension `D` of a token.
        batch: Number of sequences per step.
        record_every: Interval between recorded steps.

    Returns:
        A `DescentPath`; `risk` has shape `(R, T)` for `T` recorded steps.

    Examples:
        >>> task = ar.SpikedSLR(nu=5.0, length=3, spread=0.5**0.5)
        >>> start = ar.sphere_starts(jax.random.key(0), dim=50, repeats=2)
        >>> path = ar.stochastic_projected_descent(
        ...     task, jax.random.key(1), start, ar.ConstantTemperature(1.0), 0.1, steps=10, dim=50, batch=5
        ... )
        >>> path.risk.shape
        (2, 11)
    """
    recorded = _recorded_steps(task, start, schedule, steps, record_every)
    key = prng_key("key", key)
    if len(task.length.lengths) > 1:
        raise refuse("length", task.length, "one whole number where sequences are drawn")
    shape = whole("batch", batch, 1, 10**8), int(task.length.longest)
    numbers = real("step_size", step_size, above=0.0), whole("dim", dim, SPAN + 2, 10**12)
    task, schedule, (size, dimension) = as_arrays((task, schedule, numbers))
    start = in_four_coordinates(start.k, start.v)
    return _descend(task, schedule, size, start, recorded, (dimension, key), shape)


@eqx.filter_jit
def _descend(
    task: AbstractPlanted,
    schedule: AbstractTemperature,
    step_size: Array,
    start: UnitPair,
    recorded: Int[Array, " records"],
    drawn: tuple[Array, PRNGKeyArray] | None = None,
    shape: tuple[int, int] = (0, 0),
) -> DescentPath:
    """The path on the population risk or, given dimension and key, on batches of this shape."""

    def total_risk(pair: UnitPair, inverse_temperature: Any) -> Array:
        return jnp.sum(erf_risk(task, pair.cosines.stretched(inverse_temperature)))

    def move(step: Array, pair: UnitPair) -> UnitPair:
        if drawn is None:
            gradient = jax.grad(total_risk)(pair, schedule(step))
            return jax.tree.map(lambda x, g: step_on_sphere(x, g, step_size), pair, gradient)
        dim, key = drawn
        here = jax.random.fold_in(key, step)
        gradient = _batch_gradient(task, pair, schedule(step), dim, shape, here)
        padded = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 2))), pair)
        moved = jax.tree.map(lambda x, g: step_on_sphere(x, g, step_size), padded, gradient)
        return in_four_coordinates(moved.k, moved.v)

    def between(pair: UnitPair, ends: tuple[Array, Array]) -> tuple[UnitPair, UnitPair]:
        pair = jax.lax.fori_loop(*ends, move, pair)
        return pair, pair

    end, path = jax.lax.scan(between, start, (recorded[:-1], recorded[1:]))
    path = jax.tree.map(lambda x, xs: jnp.moveaxis(jnp.append(x[None], xs, 0), 0, 1), start, path)
    temperatures: Any = jnp.broadcast_to(schedule(recorded), recorded.shape)
    risk = erf_risk(task, path.cosines.stretched(temperatures))
    return DescentPath(recorded, temperatures, path.cosines, risk, risk - task.noise**2, end)


def _batch_gradient(
    task: AbstractPlanted,
    pair: UnitPair,
    inverse_temperature: Array,
    dim: Array,
    shape: tuple[int, int],
    key: PRNGKeyArray,
) -> UnitPair:
    """The gradient of the mean squared error of a fresh batch: four coordinates, and two outside their span."""
    keys, repeats = jax.random.split(key, 3), pair.k.shape[0]
    # An element-wise attention does not see places: the relevant token comes first.
    spread = jnp.ones((shape[1], 1)).at[0].set(task.spread)
    mean = jnp.zeros((shape[1], SPAN)).at[0, 0].set(task.shift)
    tokens = mean + spread * jax.random.normal(keys[0], (repeats, *shape, SPAN))
    label = tokens[:, :, 0, 1] + task.noise * jax.random.normal(keys[1], (repeats, shape[0]))

    score = inverse_temperature * jnp.sum(tokens * pair.k[:, None, None], -1)
    value, weight = jnp.sum(tokens * pair.v[:, None, None], -1), erf(score)
    error = 2.0 / shape[0] * (jnp.sum(weight * value, -1) - label)[..., None]
    by_k = error * inverse_temperature * erf_slope(score) * value
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
    freedom = jnp.stack([dim - SPAN, dim - SPAN - 1.0])
    first, second = jnp.sqrt(jax.random.chisquare(keys[0], freedom, (repeats, 2))).T
    cross = jax.random.normal(keys[1], (repeats,))
    of_k = jnp.stack([deviation * first, jnp.zeros(repeats)], -1)
    of_v = jnp.stack([shared * first + own * cross, own * second], -1)
    return of_k, of_v


def _recorded_steps(
    task: Any, start: Any, schedule: Any, steps: int, record_every: int
) -> Int[Array, " records"]:
    """The steps to record, of a planted task."""
    of_type("task", task, AbstractPlanted, "a planted task, such as SpikedSLR")
    of_type("start", start, UnitPair, "what sphere_starts returns")
    of_type("schedule", schedule, AbstractTemperature, "such as ConstantTemperature(1.0)")
    if whole("steps", steps, 1, 10**9) % whole("record_every", record_every):
        raise refuse("record_every", record_every, f"a divisor of steps = {steps}")
    return jnp.arange(0, steps + 1, record_every)
