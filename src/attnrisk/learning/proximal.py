"""The minimisation inside each sample of empirical risk minimisation (section 6), global, in one batch.

    (χ, z) = argmin ½(y − σ(χ)·z)² + |χ−ω_χ|²/(2V_k) + |z−ω_z|²/(2V_v)

`z` is eliminated exactly. What is left is smooth in the `L` scores and may have several minima.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention, AbstractElementwise

_ROUGH_STEPS, _LAST_STEPS, _WARM_STEPS = 12, 5, 3
_STATIONARY = 1e-4  # a gradient, in units of one over √V_k
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e8
_UNROLLED = 6  # rows of an elimination that is written out
_LONGEST_STEP = 2.0  # of a score: the scale of an attention is one
# Moves of scores that are tried before any descent: with weak ridges the best one is long.
_MOVES = np.array([0.7, 1.5, 3.0, 5.0, 8.0, 13.0, 22.0, 40.0])


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


def residual(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """What is left of the label once `z` has given way, of which the sample minimises half the square."""
    weights = attention(chi)
    missed = sample.label - jnp.sum(weights * sample.values)
    return missed / jnp.sqrt(1.0 + response.v * jnp.sum(weights**2))


def energy(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """What the sample minimises, after `z`."""
    return _energy(residual(attention, chi, sample, response), chi, sample, response)


def _energy(left: Array, chi: Array, sample: Sample, response: Response) -> Float[Array, ""]:
    return left**2 / 2.0 + jnp.sum((chi - sample.scores) ** 2) / (2.0 * response.k)


def fit(attention: AbstractAttention, chi: Array, sample: Sample, response: Response) -> Fitted:
    """The pulls at scores that minimise the energy."""
    weights = attention(chi)
    left = (sample.label - weights @ sample.values) / (1.0 + response.v * weights @ weights)
    return Fitted((chi - sample.scores) / response.k, weights * left, left**2)


class _Rough(NamedTuple):
    """A place, the residual around it, and how much the step is damped."""

    chi: Array
    residual: Array
    slope: Array
    damping: Array


def _descend_roughly(
    attention: AbstractAttention, start: Array, sample: Sample, response: Response
) -> tuple[Array, Array]:
    """Gauss and Newton's method with the damping of Levenberg and Marquardt, and the energy where it ends.

    There is one residual, so that the matrix of a step is a multiple of one plus a square, with a known inverse.
    """

    def look(chi: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(residual, 1)(attention, chi, sample, response)

    def step(_: int, at: _Rough) -> _Rough:
        downhill = -(at.residual * at.slope + (at.chi - sample.scores) / response.k)
        stiff = (1.0 + at.damping) / response.k
        across = jnp.sum(at.slope * downhill) / (stiff + jnp.sum(at.slope**2))
        move = (downhill - across * at.slope) / stiff
        move *= jnp.minimum(1.0, _LONGEST_STEP / (jnp.max(jnp.abs(move)) + 1e-30))
        ahead = at.chi + move
        there = _Rough(ahead, *look(ahead), at.damping / 10.0)
        here = at._replace(damping=jnp.maximum(10.0 * at.damping, _FIRST_DAMPING))
        energies = [_energy(it.residual, it.chi, sample, response) for it in (there, here)]
        return jax.tree.map(
            lambda new, old: jnp.where(energies[0] <= energies[1], new, old), there, here
        )

    first = _Rough(start, *look(start), jnp.asarray(_FIRST_DAMPING))
    end = jax.lax.fori_loop(0, _ROUGH_STEPS, step, first)
    return end.chi, _energy(end.residual, end.chi, sample, response)


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
    """Elimination without pivots: a batch of small symmetric matrices is no work for LAPACK.

    Nor may it be. Where two threads call jaxlib's batched LAPACK at a time, and the machine has two cores, both wait
    for ever (jaxlib 0.10).
    """
    size = vector.size
    if size > _UNROLLED:
        return _solve_in_a_loop(matrix, vector)
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


def _solve_in_a_loop(matrix: Float[Array, "n n"], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    """The same for larger ones, which would take long to compile; every row is rid of a column at once."""
    rows = jnp.concatenate([matrix, vector[:, None]], 1)

    def clear(column: Array, rows: Array) -> Array:
        pivot = rows[column] / rows[column, column]
        factors = rows[:, column].at[column].set(0.0)
        return (rows - factors[:, None] * pivot).at[column].set(pivot)

    return jax.lax.fori_loop(0, vector.size, clear, rows)[:, -1]


def search(attention: AbstractAttention, last: Array, sample: Sample, response: Response) -> Array:
    """The lowest minimum from several starts: where it was last, at rest, and moved."""
    moves = _moves(attention, sample, response)
    starts = jnp.concatenate([last[None], sample.scores[None], sample.scores + moves])
    ends, energies = jax.vmap(lambda start: _descend_roughly(attention, start, sample, response))(
        starts
    )
    best = ends[jnp.argmin(jnp.where(jnp.isnan(energies), jnp.inf, energies))]
    return _descend(attention, best, sample, response, _LAST_STEPS).chi


def _moves(
    attention: AbstractAttention, sample: Sample, response: Response
) -> Float[Array, "moves L"]:
    """Displacements of the scores from which the lowest minimum may be reached."""
    lengths = jnp.asarray(_MOVES)

    def best(directions: Array) -> Array:
        """Of several directions, the one that leads lowest, with its length."""
        moves = (lengths[:, None, None] * directions).reshape(-1, sample.scores.size)
        at = jax.vmap(lambda move: energy(attention, sample.scores + move, sample, response))
        return moves[jnp.argmin(at(moves))]

    return jax.vmap(best)(_directions(attention, sample))


def _directions(
    attention: AbstractAttention, sample: Sample
) -> Float[Array, "groups directions L"]:
    """Groups of directions, of each of which one is enough."""
    one = jnp.eye(sample.scores.size)
    if isinstance(attention, AbstractElementwise):
        # It tells a push of one score from a pull of the rest.
        return jnp.concatenate([one, -one, 2.0 * one - 1.0, 1.0 - 2.0 * one])[:, None]
    # A token gains weight alone, or as the heaviest of the others loses it, which takes half the move.
    others = jnp.where(one > 0, -jnp.inf, attention(sample.scores))
    heaviest = jax.nn.one_hot(jnp.argmax(others, 1), len(one))
    up = jnp.concatenate([one, (one - heaviest) / 2.0])
    return jnp.stack([up, -up], 1)


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
