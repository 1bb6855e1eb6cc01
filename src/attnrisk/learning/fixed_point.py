"""The fixed point that a monotone map of two numbers ≥ 0 reaches from a given start."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MOST_STEPS = 400
TOLERANCE = 1e-9  # of a step; the points are fixed, so that only rounding is in the way
# The longest step in plain ones, and in all where it is longer than a plain one: enough to pass a bottleneck, too
# little to pass a pair of fixed points unseen.
_LONGEST_RATIO, _LONGEST_STEP = 10.0, 0.25
_LEAST_PROGRESS = 0.5  # of a step along the plain one


class Iteration(NamedTuple):
    """A point, the plain step `T(x) − x` from it, and an estimate of `(1 − T')⁻¹`."""

    point: Float[Array, "2"]
    step: Float[Array, "2"]
    inverse: Float[Array, "2 2"]
    steps: Int[Array, ""]

    @property
    def residual(self) -> Float[Array, ""]:
        """The larger component of the plain step."""
        return jnp.max(jnp.abs(self.step))

    @property
    def converged(self) -> Bool[Array, ""]:
        """Whether the point is a fixed point."""
        return self.residual <= TOLERANCE


def find_fixed_point(function: Callable[[Array], Array], start: Float[Array, "2"]) -> Iteration:
    """Iterate `x → function(x)` with Broyden's method, restricted to stay close to the plain iteration.

    Not a library's root finder: from below a monotone map climbs to its lowest fixed point, from above it descends to
    its highest, and the answer has to be that one. Hence a step has to agree in direction with the plain one, and may
    not be much longer.
    """

    def advance(state: Iteration) -> Iteration:
        point = jnp.maximum(state.point + _restricted(state), 0.0)
        step = function(point) - point
        return Iteration(point, step, _update(state, point - state.point, step), state.steps + 1)

    def unfinished(state: Iteration) -> Array:
        return (state.residual > TOLERANCE) & (state.steps < MOST_STEPS)

    first = Iteration(start, function(start) - start, jnp.eye(2), jnp.asarray(0))
    return jax.lax.while_loop(unfinished, advance, first)


def _restricted(state: Iteration) -> Float[Array, "2"]:
    """Broyden's step where it agrees with the plain one, shortened to the longest allowed."""
    ahead, plain = state.inverse @ state.step, state.step
    agrees = ahead @ plain >= _LEAST_PROGRESS * plain @ plain
    longest = jnp.minimum(_LONGEST_RATIO * state.residual, _LONGEST_STEP)
    excess = jnp.max(jnp.abs(ahead)) / jnp.maximum(state.residual, longest)
    return jnp.where(agrees, ahead / jnp.maximum(excess, 1.0), plain)


def _update(state: Iteration, ahead: Array, step: Array) -> Float[Array, "2 2"]:
    """Broyden's update; where the plain steps do not shrink, twice the last ratio of step to plain step instead."""
    change = state.inverse @ (state.step - step)
    scale = ahead @ change
    updated = state.inverse + jnp.outer(ahead - change, ahead @ state.inverse) / scale
    stride = 2.0 * jnp.max(jnp.abs(ahead)) / state.residual
    return jnp.where(scale > 0, updated, stride * jnp.eye(2))
