"""The Laplace transform that undoes a normalisation, `1/S = ∫ e^{-tS} dt` with `t = e^{-u}` (section 4.2).

It turns an expectation over many tokens that share a denominator into one integral over `u` of products of
one-token integrals, which are here; `rules` places their nodes.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .gaussian import moments_by_parts
from .rules import AbstractRule, SupportsLogPhi, Tokens

# An argument without variance is integrated as if it had this much, at an error of order 1e-14.
NARROWEST = 1e-7

LARGEST_LOG = 60.0  # e^{-e^60} is zero, and so are its products with any power of e^60


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


def transform_nodes(
    kernel: SupportsLogPhi, tokens: Tokens, longest: Any, rule: AbstractRule
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Nodes and measure in `u`; a constant in the denominator multiplies the measure by `e^{-t·constant}`."""
    u, du = jax.lax.stop_gradient(rule.for_transform(kernel, tokens, longest))
    if kernel.constant > 0:
        du = du * jnp.exp(-kernel.constant * jnp.exp(-u))
    return u, du


def one_token(
    kernel: SupportsLogPhi,
    mean: Any,
    deviation: Any,
    u: Float[Array, " u"],
    rule: AbstractRule,
    degree: int,
) -> OneToken:
    """The transforms of a token whose argument is `N(mean, deviation²)`, with powers of `x` up to `degree`."""
    wide = jnp.maximum(deviation, NARROWEST)
    return OneToken(*moments_by_parts(partial(integrate, kernel), degree, mean, wide, u, rule))


def transforms_at(kernel: SupportsLogPhi, arguments: Any, u: Any) -> tuple[Any, Any, Any]:
    """`1 - e^{-tφ}`, `tφ e^{-tφ}` and `(tφ)² e^{-tφ}` at given arguments; of NumPy's arrays nothing is compiled."""
    xp = u.__array_namespace__()
    w = xp.exp(xp.minimum(kernel.log_phi(arguments) - u, LARGEST_LOG))
    lost = -xp.expm1(-w)
    first = w * (1.0 - lost)
    return lost, first, w * first


def integrate(
    kernel: SupportsLogPhi,
    degree: int,
    mean: Array,
    deviation: Array,
    u: Array,
    rule: AbstractRule,
) -> tuple[Float[Array, "k u"], ...]:
    """The sums themselves: one matrix product where all `u` share their nodes."""
    x, weights = jax.lax.stop_gradient(rule.for_token(kernel, mean, deviation, u))
    powers = jnp.stack([weights * x**k for k in range(degree + 1)], -1)
    product = "un,nk->ku" if x.ndim == 1 else "un,unk->ku"
    values = transforms_at(kernel, mean + deviation * x, u[:, None])
    return tuple(jnp.einsum(product, part, powers) for part in values)
