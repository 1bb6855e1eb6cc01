"""Nodes and one-token integrals that both kinds of task share."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractElementwise, AbstractKernel
from ..numerics.gaussian import (
    BULK,
    REACH,
    AnyRule,
    Rule,
    Trapezoid,
    bulk_edges,
    equal_steps,
    feature_edges,
    moments_by_parts,
    normal_rule,
    runaway_steps,
)
from ..numerics.laplace import NARROWEST, PASSAGE, transform_rule


def transform_nodes(
    attention: AbstractKernel,
    tokens: Sequence[tuple[Any, Any]],
    longest: Any,
    rule: AnyRule,
    bulk: np.ndarray = BULK,
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Nodes and measure in `u` for tokens with these means and deviations of the score."""
    if isinstance(rule, Trapezoid):
        nodes = _equal_nodes(attention, tokens, longest, rule)
    else:
        nodes = _panel_nodes(attention, tokens, longest, rule, bulk)
    u, du = jax.lax.stop_gradient(nodes)
    if attention.constant > 0:
        du = du * jnp.exp(-attention.constant * jnp.exp(-u))
    return u, du


def _equal_nodes(
    attention: AbstractKernel,
    tokens: Sequence[tuple[Any, Any]],
    longest: Any,
    rule: Trapezoid,
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Equal steps from where no token is passed to where all are."""
    within = np.linspace(-rule.window, rule.window, 49)
    scores = jnp.concatenate([mean + deviation * within for mean, deviation in tokens])
    log_values = attention.log_phi(scores)
    low, top = jnp.min(log_values), jnp.max(log_values) + jnp.log(longest)
    if attention.constant > 0:
        level = jnp.log(attention.constant)
        low, top = jnp.minimum(low, level), jnp.maximum(top, level)
    return runaway_steps(low - rule.before, top, rule)


def _panel_nodes(
    attention: AbstractKernel,
    tokens: Sequence[tuple[Any, Any]],
    longest: Any,
    rule: Rule,
    bulk: np.ndarray,
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Panels that meet where tokens are passed."""
    scores = [mean + deviation * bulk for mean, deviation in tokens]
    knees = feature_edges(attention.features, rule.grades)
    if len(knees):
        reach = [REACH * deviation for _, deviation in tokens]
        scores += [jnp.clip(knees, m - r, m + r) for (m, _), r in zip(tokens, reach, strict=True)]
    log_values = attention.log_phi(jnp.concatenate(scores))
    if attention.constant > 0:
        log_values = jnp.append(log_values, jnp.log(attention.constant) + PASSAGE)
    return transform_rule(log_values, longest, rule.order)


def weight_moments(
    attention: AbstractElementwise, mean: Any, deviation: Any, rule: AnyRule
) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
    """`E[x^k h]` and `E[x^k h²]`, `k = 0, 1, 2`, of a token whose score is `N(mean, deviation²)`."""

    def integrate(degree: int, mean: Array, deviation: Array, *_: Array) -> tuple[Array, ...]:
        x, weights = jax.lax.stop_gradient(_weight_nodes(attention, mean, deviation, rule))
        weight = attention.weight(mean + deviation * x)
        powers = jnp.stack([weights * x**k for k in range(degree + 1)])
        return powers @ weight, powers @ weight**2

    wide = jnp.maximum(deviation, NARROWEST)
    first, second = moments_by_parts(integrate, 2, mean + attention.bias, wide)
    return first, second


def _weight_nodes(
    attention: AbstractElementwise, argument: Array, deviation: Array, rule: AnyRule
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Nodes in `x` for a weight at `argument + deviation·x`."""
    if isinstance(rule, Trapezoid):
        x, weights = equal_steps(rule.step)
        return jnp.asarray(x), jnp.asarray(weights)
    knees = feature_edges(attention.features, rule.grades)
    edges = bulk_edges(argument, deviation, knees, max(rule.cells, 1))
    return normal_rule(edges, rule.order)
