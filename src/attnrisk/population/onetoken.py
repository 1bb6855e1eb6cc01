"""Nodes and one-token integrals that both kinds of task share."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractElementwise, AbstractKernel
from ..quadrature.gaussian import BULK, REACH, Rule, bulk_edges, feature_edges, normal_rule
from ..quadrature.laplace import PASSAGE, transform_rule


def transform_nodes(
    attention: AbstractKernel,
    tokens: Sequence[tuple[Any, Any]],
    longest: Any,
    rule: Rule,
    bulk: np.ndarray = BULK,
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Nodes and measure in `u` for tokens with these means and deviations of the score."""
    scores = [mean + deviation * bulk for mean, deviation in tokens]
    knees = feature_edges(attention.features, rule.grades)
    if len(knees):
        reach = [REACH * deviation for _, deviation in tokens]
        scores += [jnp.clip(knees, m - r, m + r) for (m, _), r in zip(tokens, reach, strict=True)]
    log_values = attention.log_phi(jnp.concatenate(scores))
    if attention.constant > 0:
        log_values = jnp.append(log_values, jnp.log(attention.constant) + PASSAGE)
    u, du = jax.lax.stop_gradient(transform_rule(log_values, longest, rule.order))
    if attention.constant > 0:
        du = du * jnp.exp(-attention.constant * jnp.exp(-u))
    return u, du


def weight_moments(
    attention: AbstractElementwise, mean: Any, deviation: Any, rule: Rule
) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
    """`E[x^k h]` and `E[x^k h²]`, `k = 0, 1, 2`, of a token whose score is `N(mean, deviation²)`."""
    knees = feature_edges(attention.features, rule.grades) - attention.bias
    edges = bulk_edges(mean, deviation, knees, max(rule.cells, 1))
    x, weights = jax.lax.stop_gradient(normal_rule(edges, rule.order))
    weight = attention(mean + deviation * x)
    powers = jnp.stack([weights, weights * x, weights * x**2])
    return powers @ weight, powers @ weight**2
