"""Compiled searches over the norm of `k` and a free bias (section 12)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..numerics.minimise import minimise_pair, minimise_scalar
from .engines import Correlations

FLAT = 1e-9  # a longer k that gains less than this gains nothing
_AT_A_TIME = 32  # profiles of a scan that are small arrays
_NESTED_ROUNDS = 4
_TIE = 1e-12  # losses as close are one


class Outcome(NamedTuple):
    """The end point of a search, and `A` and `B` there with both engines.

    It is a minimum if the search `ended`, and the lowest one unless the risk is still `falling` at the largest norm.
    """

    m_kk: Any
    bias: Any
    profiles: tuple[Correlations, ...]
    falling: Any
    ended: Any


def _scan(problem: Any) -> tuple[Array, Float[Array, " 2"]]:
    """Whether the loss decreases at the largest norm, and the norm and bias of the lowest loss.

    Of equal losses, the one of smallest bias, along `k*`.
    """
    pairs = jnp.repeat(problem.lengths, problem.biases.shape[1]), problem.biases.ravel()
    together = None if problem.attention.compares_tokens else _AT_A_TIME
    losses = jax.lax.map(lambda pair: problem.loss(*pair), pairs, batch_size=together)
    ties = losses <= jnp.min(losses) + _TIE
    against = jnp.abs(pairs[1]) + 1e-6 * (pairs[0] < 0)
    best = jnp.argmin(jnp.where(ties, against, jnp.inf))
    inner = jnp.abs(pairs[0]) < 0.99 * jnp.max(jnp.abs(pairs[0]))
    falling = jnp.min(losses) < jnp.min(jnp.where(inner, losses, jnp.inf)) - FLAT
    return falling, jnp.stack([pairs[0][best], pairs[1][best]])


def profiles_at(problem: Any, m_kk: Any, bias: Any) -> tuple[Correlations, ...]:
    """`A` and `B` with both engines."""
    attention = problem.attention.with_bias(bias)
    if not problem.light:
        return tuple(engine.profile(problem.task, attention, m_kk) for engine in problem.engines)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problem.engines)
    found = jax.lax.map(lambda engine: engine.profile(problem.task, attention, m_kk), both)
    return tuple(jax.tree.map(lambda leaf: leaf[at], found) for at in range(2))  # noqa: B023


def newton_search(problem: Any) -> Outcome:
    """A scan of norms of `k` and biases, then Newton's method."""
    falling, start = _scan(problem)
    reach = jnp.stack([jnp.max(jnp.abs(problem.lengths)), jnp.inf])
    (m_kk, bias), ended = minimise_pair(lambda at: problem.loss(*at), start, reach, skip=falling)
    inside = jnp.abs(m_kk) < 0.999 * reach[0]  # else it left the basin of the scan
    return Outcome(m_kk, bias, profiles_at(problem, m_kk, bias), falling, ended & inside)


def nested_search(problem: Any) -> Outcome:
    """The same with Brent's method and the best bias at each norm of `k`: slower, but without derivatives."""
    falling, start = _scan(problem)
    lengths, biases = problem.lengths, problem.biases

    def descend(turn: int, at: Float[Array, " 2"]) -> Float[Array, " 2"]:
        """Search between the neighbours of the nearest norm and bias of the scan."""
        row = jnp.argmin(jnp.abs(lengths - at[0]))
        spacing = 1.5 * jnp.abs(biases[row, 0] - biases[row, -1]) / (biases.shape[1] - 1)
        best = partial(_best_bias, problem, at[1], spacing)
        low, high = (lengths[jnp.clip(row + side, 0, lengths.size - 1)] for side in (-1, 1))
        m_kk, _ = minimise_scalar(lambda m_kk: best(m_kk)[1], low, at[0], high, best(at[0])[1])
        return jnp.stack([m_kk, best(m_kk)[0]])

    m_kk, bias = jax.lax.fori_loop(0, _NESTED_ROUNDS, descend, start)
    return Outcome(m_kk, bias, profiles_at(problem, m_kk, bias), falling, jnp.asarray(True))


def _best_bias(problem: Any, bias: Any, radius: Any, m_kk: Any) -> tuple[Array, Array]:
    """The bias of lowest loss within a radius, at one norm of `k`, and that loss."""
    loss = partial(problem.loss, m_kk)
    return minimise_scalar(loss, bias - radius, bias, bias + radius, loss(bias))


def best_biases(problem: Any) -> tuple[Array, tuple[Correlations, ...]]:
    """The best bias at each norm of `k`, each search starting from the last, and the profiles there."""

    def at(bias: Array, m_kk: Array) -> tuple[Array, Any]:
        if problem.attention.free_bias:
            radius = jnp.maximum(1.0, jnp.abs(bias) / 3.0)
            bias, _ = _best_bias(problem, bias, radius, m_kk)
        return bias, (bias, profiles_at(problem, m_kk, bias))

    return jax.lax.scan(at, problem.biases[0, 0], problem.lengths)[1]
