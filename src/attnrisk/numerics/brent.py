"""The minimum of a function of one number inside a bracket, without derivatives, as compiled code."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

_GOLDEN = 0.3819660112501051
# Relative and absolute: a minimum is flat, so that a place known to half of the digits gives all of the value.
_RELATIVE, _ABSOLUTE = 1e-8, 1e-10
_ROUNDING = 1e-15  # values as close, relative to one or more, are equal
_MOST_STEPS = 60  # golden sections alone reach the tolerance within these


class Bracket(NamedTuple):
    """Ends, the three lowest places with their values, and the last two steps: the state of Brent's method."""

    low: Any
    high: Any
    x: Any
    w: Any
    v: Any
    f_x: Any
    f_w: Any
    f_v: Any
    step: Any
    previous: Any
    count: Any

    @property
    def unfinished(self) -> Array:
        """Whether the place of the minimum is not known well enough."""
        middle, tolerance = (self.low + self.high) / 2, _RELATIVE * jnp.abs(self.x) + _ABSOLUTE
        wide = jnp.abs(self.x - middle) > 2 * tolerance - (self.high - self.low) / 2
        flat = (self.count > 3) & (self.f_v - self.f_x <= _ROUNDING * (1.0 + jnp.abs(self.f_x)))
        return wide & ~flat & (self.count < _MOST_STEPS)

    def proposed(self) -> "Bracket":
        """With the next step: to the minimum of a parabola where that helps, else a golden section."""
        at, middle = self, (self.low + self.high) / 2
        tol = _RELATIVE * jnp.abs(at.x) + _ABSOLUTE
        r, q = (at.x - at.w) * (at.f_x - at.f_v), (at.x - at.v) * (at.f_x - at.f_w)
        p = (at.x - at.v) * q - (at.x - at.w) * r
        q = 2.0 * (q - r)
        p, q = jnp.where(q > 0, -p, p), jnp.abs(q)
        inside = (p > q * (at.low - at.x)) & (p < q * (at.high - at.x))
        fits = inside & (jnp.abs(p) < jnp.abs(0.5 * q * at.previous)) & jnp.isfinite(p) & (q > 0)
        parabolic = p / jnp.where(q > 0, q, 1.0)
        ahead = at.x + parabolic
        near_end = (ahead - at.low < 2 * tol) | (at.high - ahead < 2 * tol)
        parabolic = jnp.where(near_end, jnp.copysign(tol, middle - at.x), parabolic)
        longer = jnp.where(at.x >= middle, at.low - at.x, at.high - at.x)
        step = jnp.where(fits, parabolic, _GOLDEN * longer)
        previous = jnp.where(fits, at.step, longer)
        step = jnp.where(jnp.abs(step) >= tol, step, jnp.copysign(tol, step))
        return at._replace(step=step, previous=previous, count=at.count + 1)

    def updated(self, f_u: Array) -> "Bracket":
        """With the value at the proposed place, `x + step`."""
        at, u = self, self.x + self.step
        better = f_u <= at.f_x
        low = jnp.where(better, jnp.where(u >= at.x, at.x, at.low), jnp.where(u < at.x, u, at.low))
        high = jnp.where(
            better, jnp.where(u >= at.x, at.high, at.x), jnp.where(u < at.x, at.high, u)
        )
        second = (f_u <= at.f_w) | (at.w == at.x)
        third = (f_u <= at.f_v) | (at.v == at.x) | (at.v == at.w)
        w, f_w = (
            jnp.where(better, old, jnp.where(second, new, last))
            for old, new, last in ((at.x, u, at.w), (at.f_x, f_u, at.f_w))
        )
        v, f_v = (
            jnp.where(better | second, old, jnp.where(third, new, last))
            for old, new, last in ((at.w, u, at.v), (at.f_w, f_u, at.f_v))
        )
        x, f_x = (jnp.where(better, new, old) for new, old in ((u, at.x), (f_u, at.f_x)))
        return at._replace(low=low, high=high, x=x, w=w, v=v, f_x=f_x, f_w=f_w, f_v=f_v)


def bracket(low: Any, start: Any, high: Any, value: Any) -> Bracket:
    """The state before the first step, given the value at `start`."""
    low, x, high, f = (jnp.asarray(each, float) for each in (low, start, high, value))
    still = jnp.zeros(())
    return Bracket(low, high, x, x, x, f, f, f, still, still, jnp.asarray(0))


def minimise_scalar(
    function: Callable[[Array], Array], low: Any, start: Any, high: Any, value: Any
) -> tuple[Array, Array]:
    """Brent's method (Algorithms for Minimization Without Derivatives, chapter 5) from `start` between two ends.

    Parabolas where they help, golden sections where they do not, as at a kink; never worse than `start`.
    """

    def advance(at: Bracket) -> Bracket:
        at = at.proposed()
        return at.updated(function(at.x + at.step))

    last = jax.lax.while_loop(lambda at: at.unfinished, advance, bracket(low, start, high, value))
    return last.x, last.f_x
