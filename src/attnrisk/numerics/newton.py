"""The local minimum of a smooth function of two numbers, as compiled code."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_MOST_STEPS = 400
_LONGEST_STEP = 2.0
_DAMPING, _LEAST_DAMPING = 1e-3, 1e-15  # at first, and after many steps that helped
_FACTOR = (
    8.0  # by which the damping falls after each of them, and rises after one that did not help
)
_ROUNDING = 1e-16  # stop when the predicted decrease is below this
_LAST_DECREASE = 2e-15  # a predicted decrease as small may be lost in rounding


class _State(NamedTuple):
    """The best place so far with the function around it, and the place to try next with the predicted decrease."""

    at: Float[Array, " 2"]
    value: Array
    slope: Float[Array, " 2"]
    bend: Float[Array, "2 2"]
    ahead: Float[Array, " 2"]
    predicted: Array
    damping: Any
    steps: Any
    ended: Any


def minimise_pair(
    function: Callable[[Float[Array, " 2"]], Array],
    start: Float[Array, " 2"],
    reach: Float[Array, " 2"],
) -> tuple[Float[Array, " 2"], Array]:
    """Newton's method with Levenberg–Marquardt damping from `start`, within `±reach`; and whether it converged.

    The function may be infinite; the damping then rises until a step is back where it is not.
    """

    def expand(at: Array) -> tuple[Array, Array, Array]:
        def slope(at: Array) -> tuple[Array, tuple[Array, Array]]:
            value, gradient = jax.value_and_grad(function)(at)
            return gradient, (value, gradient)

        bend, (value, gradient) = jax.jacfwd(slope, has_aux=True)(at)
        return value, gradient, bend

    def step(now: _State) -> _State:
        tried = now.ahead, *expand(now.ahead)
        helped = tried[1] < now.value
        lost = ~helped & (jnp.abs(now.predicted) < _LAST_DECREASE)
        at, value, slope, bend = (
            jnp.where(helped, *pair) for pair in zip(tried, now, strict=False)
        )
        factor = jnp.where(helped, 1.0 / _FACTOR, _FACTOR)
        damping = jnp.maximum(now.damping * factor, _LEAST_DAMPING)
        ahead = jnp.clip(at + _damped(slope, bend, damping), -reach, reach)
        move = ahead - at
        predicted = -(slope @ move + move @ bend @ move / 2.0)
        ended = lost | (jnp.abs(predicted) < _ROUNDING)
        return _State(at, value, slope, bend, ahead, predicted, damping, now.steps + 1, ended)

    def goes_on(now: _State) -> Array:
        return ~now.ended & (now.steps < _MOST_STEPS)

    nowhere = jnp.asarray(jnp.inf)
    first = _State(
        start, nowhere, jnp.zeros(2), jnp.zeros((2, 2)), start, nowhere, _DAMPING, 0, False
    )
    last = jax.lax.while_loop(goes_on, step, first)
    return last.at, last.ended & jnp.isfinite(last.value)


def _damped(slope: Float[Array, " 2"], bend: Float[Array, "2 2"], damping: Any) -> Array:
    """`−(bend + shift)⁻¹ slope`, where the shift makes the matrix positive definite; not too long."""
    mean, apart = (bend[0, 0] + bend[1, 1]) / 2.0, (bend[0, 0] - bend[1, 1]) / 2.0
    spread = jnp.sqrt(apart**2 + bend[0, 1] ** 2)
    lowest, largest = mean - spread, jnp.abs(mean) + spread
    shift = jnp.maximum(-2.0 * lowest, 0.0) + damping * largest + 1e-100
    a, b, c = bend[0, 0] + shift, bend[0, 1], bend[1, 1] + shift
    move = jnp.stack([b * slope[1] - c * slope[0], b * slope[0] - a * slope[1]]) / (a * c - b * b)
    return move / jnp.maximum(1.0, jnp.sqrt(move @ move) / _LONGEST_STEP)
