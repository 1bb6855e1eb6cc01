"""The minimisation inside each sample of empirical risk minimisation (section 6), global, in one batch.

    (χ, z) = argmin ½(y − σ(χ)·z)² + |χ−ω_χ|²/(2V_k) + |z−ω_z|²/(2V_v)

`z` is eliminated exactly. What is left is smooth in the `L` scores and may have several minima.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..attention import AbstractAttention, AbstractElementwise

_COLD_STEPS, _LAST_STEPS, _WARM_STEPS = 8, 5, 3
_STATIONARY = 1e-4  # a gradient, in units of one over √V_k
_PUSH = 2.0  # in units of √V_k, which is how far a score moves for a label of order one
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e8


class Sample(NamedTuple):
    """The cavity fields of one sequence, and its label."""

    scores: Float[Array, " L"]
    values: Float[Array, " L"]
    label: Float[Array, ""]


class Response(NamedTuple):
    """`V_k` and `V_v`: how far the fields of a sample give way to its label."""

    k: Any
    v: Any


class Fitted(NamedTuple):
    """What a sample pulls with, `f = (χ−ω)/V` for the scores and the values, and what is left of its label."""

    pull_k: Float[Array, " L"]
    pull_v: Float[Array, " L"]
    loss: Float[Array, ""]


def energy(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """What the sample minimises, after `z`."""
    weights = attention(chi)
    missed = sample.label - weights @ sample.values
    bend = jnp.sum((chi - sample.scores) ** 2) / (2.0 * response.k)
    return missed**2 / (2.0 * (1.0 + response.v * weights @ weights)) + bend


def fit(attention: AbstractAttention, chi: Array, sample: Sample, response: Response) -> Fitted:
    """The pulls at scores that minimise the energy."""
    weights = attention(chi)
    left = (sample.label - weights @ sample.values) / (1.0 + response.v * weights @ weights)
    return Fitted((chi - sample.scores) / response.k, weights * left, left**2)


class _Descent(NamedTuple):
    """A place, the energy around it, and how much Newton's step is damped."""

    chi: Array
    energy: Array
    gradient: Array
    hessian: Array
    damping: Array


def _descend(
    attention: AbstractAttention, start: Array, sample: Sample, response: Response, steps: int
) -> _Descent:
    """Newton's method with the damping of Levenberg and Marquardt: never uphill."""

    def look(chi: Array) -> tuple[Array, Array, Array]:
        def slope(chi: Array) -> tuple[Array, tuple[Array, Array]]:
            value, gradient = jax.value_and_grad(energy, 1)(attention, chi, sample, response)
            return gradient, (value, gradient)

        hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(chi)
        return value, gradient, hessian

    def step(_: int, at: _Descent) -> _Descent:
        curvature = at.hessian + at.damping / response.k * jnp.eye(at.chi.size)
        ahead = at.chi - solve(curvature, at.gradient)
        value, gradient, hessian = look(ahead)
        lower = value <= at.energy
        damping = jnp.where(lower, at.damping / 8.0, jnp.maximum(4.0 * at.damping, _FIRST_DAMPING))
        damping = jnp.clip(damping, _LEAST_DAMPING, _MOST_DAMPING)
        there = _Descent(ahead, value, gradient, hessian, damping)
        here = at._replace(damping=damping)
        return jax.tree.map(lambda new, old: jnp.where(lower, new, old), there, here)

    first = _Descent(start, *look(start), jnp.asarray(_FIRST_DAMPING))
    return jax.lax.fori_loop(0, steps, step, first)


def solve(matrix: Float[Array, "n n"], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    """Elimination without pivots, unrolled: a batch of small symmetric matrices is no work for LAPACK."""
    size = vector.size
    if size > 6:
        return jnp.linalg.solve(matrix, vector)
    rows = [[matrix[i, j] for j in range(size)] + [vector[i]] for i in range(size)]
    for i in range(size):
        for below in range(i + 1, size):
            factor = rows[below][i] / rows[i][i]
            rows[below] = [b - factor * a for a, b in zip(rows[i], rows[below], strict=True)]
    found: list[Any] = [None] * size
    for i in reversed(range(size)):
        known = sum((rows[i][j] * found[j] for j in range(i + 1, size)), start=jnp.zeros(()))
        found[i] = (rows[i][size] - known) / rows[i][i]
    return jnp.stack(found)


def search(attention: AbstractAttention, last: Array, sample: Sample, response: Response) -> Array:
    """The lowest minimum from several starts: where it was last, at rest, and with each score pushed up or down."""
    one, steps = jnp.eye(last.size), _COLD_STEPS
    pushes = [one, -one]
    if isinstance(attention, AbstractElementwise):
        # It tells a push of one score from a pull of the rest, and where it saturates the way back is long.
        pushes, steps = [*pushes, 2.0 * one - 1.0, 1.0 - 2.0 * one], 2 * _COLD_STEPS
    apart = _PUSH * jnp.sqrt(response.k) * jnp.concatenate(pushes)
    starts = jnp.concatenate([last[None], sample.scores[None], sample.scores + apart])
    ends = jax.vmap(lambda start: _descend(attention, start, sample, response, steps))(starts)
    best = ends.chi[jnp.argmin(jnp.where(jnp.isnan(ends.energy), jnp.inf, ends.energy))]
    return _descend(attention, best, sample, response, _LAST_STEPS).chi


def follow(attention: AbstractAttention, last: Array, sample: Sample, response: Response) -> Array:
    """The minimum near the last one, with its derivatives in the sample and the response (implicit ones)."""
    fixed, fixed_response = jax.lax.stop_gradient((sample, response))
    end = _descend(attention, jax.lax.stop_gradient(last), fixed, fixed_response, _WARM_STEPS)
    chi, hessian = jax.lax.stop_gradient((end.chi, end.hessian))
    gradient = jax.grad(energy, 1)(attention, chi, sample, response)
    return chi - solve(hessian, gradient - jax.lax.stop_gradient(gradient))


def stiffness(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, "2 2"]:
    """`Σ_{ℓℓ'} (∂f_a,ℓ/∂ω_b,ℓ')²`: how the pulls of a sample on `k` and `v` answer to its fields."""

    def pulls(scores: Array, values: Array) -> tuple[Array, Array]:
        moved = sample._replace(scores=scores, values=values)
        fitted = fit(attention, follow(attention, chi, moved, response), moved, response)
        return fitted.pull_k, fitted.pull_v

    slopes = jax.jacfwd(pulls, (0, 1))(sample.scores, sample.values)
    return jnp.array([[jnp.sum(slope**2) for slope in row] for row in slopes])


def is_stationary(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Array:
    """Whether the gradient vanishes, as it does at a minimum of a smooth attention, and at a kink does not."""
    gradient = jax.grad(energy, 1)(attention, chi, sample, response)
    return jnp.linalg.norm(gradient) * jnp.sqrt(response.k) < _STATIONARY
