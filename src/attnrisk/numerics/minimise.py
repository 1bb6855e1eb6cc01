"""Minimisers as compiled code: Brent's and Newton's methods, and several problems of one shape in one call."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_GOLDEN = 0.3819660112501051
# Relative: a minimum is flat, so that a place known to half of the digits gives all of the value. The absolute
# tolerance serves a minimum at zero only, since places of any size occur.
_RELATIVE, _ABSOLUTE = 1e-8, 1e-100
_EQUAL = 1e-15  # values as close, relative to one or more, are equal
_MOST_BRENT_STEPS = 60  # golden sections alone reach the tolerance within these

_MOST_NEWTON_STEPS = 400
_LONGEST_STEP = 2.0
_DAMPING, _LEAST_DAMPING = 1e-3, 1e-15  # at first, and after many steps that lowered the value
_FACTOR = 8.0  # by which the damping falls after each of them, and rises after any other
_ROUNDING = 1e-16  # stop when the predicted decrease is below this
_LAST_DECREASE = 2e-15  # a predicted decrease as small may be lost in rounding

_ARMIJO, _SHRINK, _SHORTEST = 1e-4, 0.4, 1e-9  # of backtracking

BATCH = 8
# Bytes in all problems of a call: copies of large tables would cost more than they save.
_MOST_BYTES = 2**25


def bisect(
    holds: Callable[[float], bool], low: float, high: float, ratio: float
) -> tuple[float, float]:
    """The ends, of at most this `ratio`, of where `holds` becomes true; it is false at `low` and true at `high`."""
    while high > ratio * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


class Bracket(NamedTuple):
    """The state of Brent's method: ends, the three lowest points with their values, and the next step from `x`."""

    low: Any
    high: Any
    x: Any
    w: Any
    v: Any
    f_x: Any
    f_w: Any
    f_v: Any
    step: Any
    previous_step: Any
    count: Any
    unfinished: Any

    def updated(self, f_u: Array) -> "Bracket":
        """With the value at `u = x + step`; the next step goes to the minimum of a parabola where that helps, else it
        is a golden section."""
        at, u = self, self.x + self.step
        better = f_u <= at.f_x
        second = ~better & ((f_u <= at.f_w) | (at.w == at.x))
        third = (f_u <= at.f_v) | (at.v == at.x) | (at.v == at.w)
        low = jnp.where(jnp.where(better, u >= at.x, u < at.x), jnp.where(better, at.x, u), at.low)
        high = jnp.where(
            jnp.where(better, u >= at.x, u < at.x), at.high, jnp.where(better, at.x, u)
        )
        v, f_v = (
            jnp.where(better | second, old, jnp.where(third, new, last))
            for old, new, last in ((at.w, u, at.v), (at.f_w, f_u, at.f_v))
        )
        w, f_w = (
            jnp.where(better, old, jnp.where(second, new, last))
            for old, new, last in ((at.x, u, at.w), (at.f_x, f_u, at.f_w))
        )
        x, f_x = (jnp.where(better, new, old) for new, old in ((u, at.x), (f_u, at.f_x)))

        count, middle, tol = at.count + 1, (low + high) / 2, _RELATIVE * jnp.abs(x) + _ABSOLUTE
        wide = jnp.abs(x - middle) > 2 * tol - (high - low) / 2
        flat = (count > 3) & (f_v - f_x <= _EQUAL * (1.0 + jnp.abs(f_x)))
        r, q = (x - w) * (f_x - f_v), (x - v) * (f_x - f_w)
        p = (x - v) * q - (x - w) * r
        q = 2.0 * (q - r)
        p, q = jnp.where(q > 0, -p, p), jnp.abs(q)
        inside = (p > q * (low - x)) & (p < q * (high - x)) & jnp.isfinite(p) & (q > 0)
        fits = inside & (jnp.abs(p) < jnp.abs(0.5 * q * at.previous_step))
        parabolic = p / jnp.where(q > 0, q, 1.0)
        near_end = (x + parabolic - low < 2 * tol) | (high - x - parabolic < 2 * tol)
        parabolic = jnp.where(near_end, jnp.copysign(tol, middle - x), parabolic)
        longer = jnp.where(x >= middle, low - x, high - x)
        step = jnp.where(fits, parabolic, _GOLDEN * longer)
        step = jnp.where(jnp.abs(step) >= tol, step, jnp.copysign(tol, step))
        previous = jnp.where(fits, at.step, longer)
        unfinished = wide & ~flat & (count < _MOST_BRENT_STEPS)
        return Bracket(low, high, x, w, v, f_x, f_w, f_v, step, previous, count, unfinished)


def bracket(low: Any, start: Any, high: Any, value: Any) -> Bracket:
    """The state before the first step, a golden section, given the value at `start`."""
    low, x, high, f = (jnp.asarray(each, float) for each in (low, start, high, value))
    longer = jnp.where(x >= (low + high) / 2, low - x, high - x)
    return Bracket(
        low, high, x, x, x, f, f, f, _GOLDEN * longer, longer, jnp.asarray(0), jnp.asarray(True)
    )


def minimise_scalar(
    function: Callable[[Array], Array], low: Any, start: Any, high: Any, value: Any
) -> tuple[Array, Array]:
    """Brent's method (Algorithms for Minimization Without Derivatives, chapter 5) from `start` between two ends.

    Parabolas where they help, golden sections where they do not, as at a kink; never worse than `start`.
    """
    last = jax.lax.while_loop(
        lambda at: at.unfinished,
        lambda at: at.updated(function(at.x + at.step)),
        bracket(low, start, high, value),
    )
    return last.x, last.f_x


class _Newton(NamedTuple):
    """The best point so far with its derivatives, and the next trial point with the predicted decrease."""

    at: Float[Array, " 2"]
    value: Array
    gradient: Float[Array, " 2"]
    hessian: Float[Array, "2 2"]
    ahead: Float[Array, " 2"]
    predicted: Array
    damping: Any
    steps: Any
    ended: Any


def minimise_pair(
    function: Callable[[Float[Array, " 2"]], Array],
    start: Float[Array, " 2"],
    reach: Float[Array, " 2"],
    skip: Any = False,
) -> tuple[Float[Array, " 2"], Array]:
    """Newton's method with Levenberg–Marquardt damping from `start`, within `±reach`; and whether it converged.

    Nothing is done where `skip` is true.

    The function may be infinite; the damping then increases until a step is finite. Both derivatives use
    forward mode: with two variables it is as fast as reverse mode, with half the code to compile.
    """

    def gradient(at: Array) -> tuple[Array, tuple[Array, Array]]:
        value, slopes = jax.vmap(lambda axis: jax.jvp(function, (at,), (axis,)))(jnp.eye(2))
        return slopes, (value[0], slopes)

    def step(now: _Newton) -> _Newton:
        hessian, (value, slopes) = jax.jacfwd(gradient, has_aux=True)(now.ahead)
        lower = value < now.value
        lost = ~lower & (jnp.abs(now.predicted) < _LAST_DECREASE)
        tried = now.ahead, value, slopes, hessian
        at, value, slopes, hessian = (
            jnp.where(lower, *pair) for pair in zip(tried, now, strict=False)
        )
        factor = jnp.where(lower, 1.0 / _FACTOR, _FACTOR)
        damping = jnp.maximum(now.damping * factor, _LEAST_DAMPING)
        ahead = jnp.clip(at + _damped(slopes, hessian, damping), -reach, reach)
        move = ahead - at
        predicted = -(slopes @ move + move @ hessian @ move / 2.0)
        ended = lost | (jnp.abs(predicted) < _ROUNDING)
        return _Newton(at, value, slopes, hessian, ahead, predicted, damping, now.steps + 1, ended)

    infinite = jnp.asarray(jnp.inf)
    first = _Newton(
        start, infinite, jnp.zeros(2), jnp.zeros((2, 2)), start, infinite, _DAMPING, 0, skip
    )
    last = jax.lax.while_loop(
        lambda now: ~now.ended & (now.steps < _MOST_NEWTON_STEPS), step, first
    )
    return last.at, last.ended & jnp.isfinite(last.value)


def _damped(gradient: Float[Array, " 2"], hessian: Float[Array, "2 2"], damping: Any) -> Array:
    """`−(hessian + shift)⁻¹ gradient`, where the shift makes the matrix positive definite; not too long.

    The damping is relative to each curvature (Marquardt's scaling): with a weak signal that of the norm is 10⁹ times
    that of the bias.
    """
    mean, apart = (hessian[0, 0] + hessian[1, 1]) / 2.0, (hessian[0, 0] - hessian[1, 1]) / 2.0
    spread = jnp.sqrt(apart**2 + hessian[0, 1] ** 2)
    lowest, largest = mean - spread, jnp.abs(mean) + spread
    shift = jnp.maximum(-2.0 * lowest, 0.0) + _LEAST_DAMPING * largest + 1e-100
    a, c = (each + shift + damping * jnp.abs(each) for each in (hessian[0, 0], hessian[1, 1]))
    b = hessian[0, 1]
    move = jnp.stack([b * gradient[1] - c * gradient[0], b * gradient[0] - a * gradient[1]])
    move = move / (a * c - b * b)
    return move / jnp.maximum(1.0, jnp.sqrt(move @ move) / _LONGEST_STEP)


class _BFGS(NamedTuple):
    """The best point so far with the function and an approximate inverse Hessian, and the next trial step."""

    at: Float[Array, " n"]
    value: Array
    gradient: Float[Array, " n"]
    inverse: Float[Array, "n n"]
    move: Float[Array, " n"]
    length: Any
    steps: Any
    stalled: Any


class Descent(NamedTuple):
    """Where a descent ended, the value and the gradient there, and whether the gradient is below the tolerance."""

    at: Float[Array, " n"]
    value: Array
    gradient: Float[Array, " n"]
    converged: Array


def minimise_bfgs(
    function: Callable[[Float[Array, " n"]], Array],
    start: Float[Array, " n"],
    tolerance: Any,
    most_steps: Any,
) -> Descent:
    """The BFGS method with backtracking (Nocedal and Wright, Numerical Optimization, chapter 6), until the norm of the
    gradient is below `tolerance`.

    Each step, accepted or not, is one evaluation of the function and its gradient, which occurs once in the compiled
    program; the first is at `start`.
    """
    identity = jnp.eye(start.size)

    def limited(move: Array) -> Array:
        return move / jnp.maximum(1.0, jnp.sqrt(move @ move) / _LONGEST_STEP)

    def step(now: _BFGS) -> _BFGS:
        ahead = now.at + now.length * now.move
        value, gradient = jax.value_and_grad(function)(ahead)
        slope = now.gradient @ now.move
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        enough = sound & (value <= now.value + _ARMIJO * now.length * slope)
        moved, change = ahead - now.at, gradient - now.gradient
        curved = moved @ change
        usable = curved > 1e-14 * jnp.sqrt((moved @ moved) * (change @ change))
        scale = jnp.where(usable, curved, 1.0)
        turned = identity - jnp.outer(moved, change) / scale
        updated = turned @ now.inverse @ turned.T + jnp.outer(moved, moved) / scale
        inverse = jnp.where(enough & usable, updated, now.inverse)
        down = -inverse @ gradient
        down = jnp.where(down @ gradient < 0, down, -gradient)
        shorter = _SHRINK * now.length
        return _BFGS(
            jnp.where(enough, ahead, now.at),
            jnp.where(enough, value, now.value),
            jnp.where(enough, gradient, now.gradient),
            inverse,
            jnp.where(enough, limited(down), now.move),
            jnp.where(enough, 1.0, shorter),
            now.steps + 1,
            ~enough & (shorter < _SHORTEST),
        )

    first = _BFGS(
        start,
        jnp.asarray(jnp.inf),
        jnp.zeros_like(start),
        identity,
        jnp.zeros_like(start),
        1.0,
        0,
        False,
    )

    def unfinished(now: _BFGS) -> Array:
        resting = (jnp.sqrt(now.gradient @ now.gradient) < tolerance) & jnp.isfinite(now.value)
        return ~resting & ~now.stalled & (now.steps < most_steps)

    last = jax.lax.while_loop(unfinished, step, first)
    resting = jnp.sqrt(last.gradient @ last.gradient) < tolerance
    return Descent(last.at, last.value, last.gradient, resting & jnp.isfinite(last.value))


def map_batch(function: Callable[[Any], Any], problems: Sequence[Any]) -> list[Any]:
    """Apply a function to several problems (trees of arrays); problems of one shape share one compiled call.

    A call always has the same batch size, so that results are bitwise independent of the batch.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, problem in enumerate(problems):
        leaves, structure = jax.tree.flatten(problem)
        groups.setdefault((structure, tuple(map(np.shape, leaves))), []).append(index)
    found: dict[int, Any] = {}
    for group in groups.values():
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(problems[group[0]]))
        size = max(1, min(BATCH, _MOST_BYTES // max(1, needed)))
        for start in range(0, len(group), size):
            some = group[start : start + size]
            padded = [problems[at] for at in some] + [problems[some[-1]]] * (size - len(some))
            stacked = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *padded)
            present = jax.device_put(np.arange(size) < len(some))
            values = jax.tree.map(np.asarray, compiled_map(function, stacked, present))
            for place, index in enumerate(some):
                found[index] = jax.tree.map(lambda leaf: leaf[place], values)  # noqa: B023
    return [found[index] for index in range(len(problems))]


@eqx.filter_jit
def compiled_map(function: Callable[[Any], Any], problems: Any, present: Array) -> Any:
    """A loop on a CPU, where the arrays of one problem fill the cache; otherwise `vmap`."""
    if jax.default_backend() != "cpu":
        return jax.vmap(function)(problems)
    once = jax.jit(function)  # traced once for its shapes and its code
    shapes = jax.eval_shape(once, jax.tree.map(lambda leaf: leaf[0], problems))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.map(
        lambda each: jax.lax.cond(each[0], once, lambda _: zeros, each[1]), (present, problems)
    )
