"""The Laplace transform that undoes a normalisation, `1/S = ∫ e^{-tS} dt` with `t = e^{-u}` (section 4.2).

It turns an expectation over many tokens that share a denominator into one integral over `u` of products of
one-token integrals. This module places the nodes: those of `u`, and those of the one-token integrals at each `u`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .gaussian import (
    REACH,
    AnyRule,
    Trapezoid,
    bulk_edges,
    equal_steps,
    feature_edges,
    moments_by_parts,
    normal_rule,
    standardise,
)
from .panels import composite, merge

# Below the smallest log φ the integrand dies like exp(-e^|u|), or like e^{-|u|} where φ can vanish (ReLU);
# above the largest, once all L tokens are passed, like e^{-u}. e^{-40} is below double precision.
_BELOW = -np.array([40.0, 26.0, 14.0, 7.5, 4.2, 2.4, 1.1])
_PAST = np.array([2.0, 4.5, 8.0, 13.0, 20.0, 28.0, 38.0])
_CROSSING = 9  # panels from one token to L: under 2 units each up to L = 10^6

# Around a constant c in the denominator: e^{-tc} passes from 0 to 1 like a Gumbel law.
PASSAGE = np.array([-4.5, -3, -2, -1, 0, 1, 2, 3.5, 6, 10, 16, 25, 38])

# Around the score where tφ = 1, in units of the width over which it passes: 1 - e^{-tφ} vanishes like e^y to the
# left, e^{-tφ} faster than e^{-y} to the right.
TRANSITION = np.array([-40.0, -24, -14, -8, -4.5, -2.5, -1, 0, 1, 2, 3, 4.5, 9, 20, 45])

# A score without variance is integrated as if it had this much, at an error of order 1e-14.
NARROWEST = 1e-7

LARGEST_LOG = 60.0  # e^{-e^60} is zero, and so are its products with any power of e^60


class SupportsLogPhi(Protocol):
    """A positive function of a score, and the scores where it bends."""

    @property
    def features(self) -> tuple[float, ...]: ...

    def log_phi(self, score: Array) -> Array: ...


def transform_rule(log_values: Any, longest: Any, order: int) -> tuple[Any, Any]:
    """Nodes and weights in `u`, given `log φ` at a grid of scores that covers the law of each token.

    Of NumPy's arrays, where nothing depends on a traced number: then there is nothing to compile.
    """
    xp = log_values.__array_namespace__()
    top = xp.max(log_values)
    finite = xp.isfinite(log_values)
    low = xp.min(xp.where(finite, log_values, top))
    crossing = (xp.log(longest) + 3.0) / _CROSSING * np.arange(1, _CROSSING + 1)
    edges = [low + _BELOW, xp.where(finite, log_values, low), top + crossing]
    return composite(xp.sort(xp.concatenate([*edges, top + crossing[-1] + _PAST])), order)


class OneToken(NamedTuple):
    """`E[x^k F(tφ)]` of one token for `F(w) = 1 - e^{-w}`, `w e^{-w}`, `w² e^{-w}`; row `k`, column `u`."""

    lost: Float[Array, "k u"]
    first: Float[Array, "k u"]
    second: Float[Array, "k u"]

    @property
    def log_kept(self) -> Float[Array, " u"]:
        """`log E[e^{-tφ}]`, accurate where the expectation is near one, as a power of it needs."""
        return log_complement(self.lost[0])


def log_complement(lost: Any) -> Any:
    """`log(1 - lost)`, finite also where rounding makes `lost` one."""
    xp = lost.__array_namespace__()
    return xp.log1p(-xp.minimum(lost, 1.0 - 1e-16))


def one_token(
    kernel: SupportsLogPhi,
    mean: Any,
    deviation: Any,
    u: Float[Array, " u"],
    rule: AnyRule,
    degree: int,
) -> OneToken:
    """The transforms of a token whose score is `N(mean, deviation²)`, with powers of `x` up to `degree`."""
    rows = partial(integrate, kernel, rule)
    wide = jnp.maximum(deviation, NARROWEST)
    return OneToken(*moments_by_parts(rows, degree, mean, wide, u))


def transforms_at(kernel: SupportsLogPhi, scores: Any, u: Any) -> tuple[Any, Any, Any]:
    """`1 - e^{-tφ}`, `tφ e^{-tφ}` and `(tφ)² e^{-tφ}` at given scores; of NumPy's arrays nothing is compiled."""
    xp = u.__array_namespace__()
    w = xp.exp(xp.minimum(kernel.log_phi(scores) - u, LARGEST_LOG))
    lost = -xp.expm1(-w)
    first = w * (1.0 - lost)
    return lost, first, w * first


def integrate(
    kernel: SupportsLogPhi,
    rule: AnyRule,
    degree: int,
    mean: Array,
    deviation: Array,
    u: Array,
) -> tuple[Float[Array, "k u"], ...]:
    """The sums themselves: one matrix product where all `u` share their nodes."""
    x, weights = jax.lax.stop_gradient(_score_nodes(kernel, mean, deviation, u, rule))
    powers = jnp.stack([weights * x**k for k in range(degree + 1)], -1)
    product = "un,nk->ku" if x.ndim == 1 else "un,unk->ku"
    values = transforms_at(kernel, mean + deviation * x, u[:, None])
    return tuple(jnp.einsum(product, part, powers) for part in values)


def _score_nodes(
    kernel: SupportsLogPhi, mean: Array, deviation: Array, u: Array, rule: AnyRule
) -> tuple[Float[Array, "*u n"], Float[Array, "*u n"]]:
    """Nodes in `x`: the bulk and the features of the kernel, and, for a rule that follows the transition at each
    `u`, the score where `tφ` passes one."""
    if isinstance(rule, Trapezoid):
        x, weights = equal_steps(rule.step)
        return jnp.asarray(x), jnp.asarray(weights)
    knees = feature_edges(kernel.features, rule.grades, rule.pinch)
    bulk = bulk_edges(mean, deviation, knees, rule.cells or 1)
    if rule.cells:
        return normal_rule(bulk, rule.order)
    crossing, width = crossing_of(
        kernel.log_phi, mean - REACH * deviation, mean + REACH * deviation, u
    )
    transition = standardise(crossing[:, None] + width[:, None] * TRANSITION, mean, deviation)
    return normal_rule(merge(jnp.broadcast_to(bulk, (u.size, bulk.size)), transition), rule.order)


def crossing_of(
    log_phi: Callable[[Array], Array], low: Any, high: Any, u: Float[Array, " u"]
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Where `log φ` passes `u` between two scores, and over which width, `1/|d log φ|`.

    Bisection along the trend of `φ`; a kernel that is not monotone gets one of its crossings, and its features
    have to do the rest.
    """
    rising = log_phi(jnp.asarray(high, u.dtype)) >= log_phi(jnp.asarray(low, u.dtype))

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bracket
        middle = (left + right) / 2
        below = (log_phi(middle) < u) == rising
        return jnp.where(below, middle, left), jnp.where(below, right, middle)

    start = jnp.broadcast_to(low, u.shape), jnp.broadcast_to(high, u.shape)
    left, right = jax.lax.fori_loop(0, 50, halve, start)
    middle = (left + right) / 2
    slope = jax.jvp(log_phi, (right,), (jnp.ones_like(right),))[1]
    return middle, 1.0 / jnp.maximum(jnp.abs(slope), 1e-8)
