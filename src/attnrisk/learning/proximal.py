"""The minimisation inside each sample of empirical risk minimisation (sections 6 and 10), global, in one batch.

    (χ, z) = argmin ½(y − a(χ)·z)² + ½Σ_ℓ (χ_ℓ−ω_ℓ)ᵀ V_k⁻¹ (χ_ℓ−ω_ℓ) + |z−ω_z|²/(2V_v)

`z` is eliminated exactly. What is left is smooth in the scores, `L` for each of `H` key vectors, and may have several
minima.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.linalg import solve
from .unknowns import Response

_ROUGH_STEPS, _LAST_STEPS, _WARM_STEPS = 12, 8, 3
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e8
_LONGEST_STEP = 2.0  # of a score: the scale of an attention is one
# Moves of scores that are tried before any descent: with weak ridges the best one is long.
_MOVES = np.array([0.7, 1.5, 3.0, 5.0, 8.0, 13.0, 22.0, 40.0])


class Sample(NamedTuple):
    """The cavity fields of one sequence, and its label."""

    keys: Float[Any, "H L"]
    values: Float[Any, " L"]
    label: Float[Any, ""]


class Fitted(NamedTuple):
    """What a sample pulls with, `f = V⁻¹(χ−ω)` for the scores and the values, and what is left of its label."""

    pull_k: Float[Any, "H L"]
    pull_v: Float[Any, " L"]
    loss: Float[Any, ""]


def _apply(matrix: Float[Array, "H H"], fields: Float[Array, "H L"]) -> Float[Array, "H L"]:
    """Their product, as a sum that is fused with what surrounds it."""
    return jnp.sum(matrix[:, :, None] * fields, 1)


def residual(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """What is left of the label once `z` has given way, of which the sample minimises half the square."""
    weights = attention.attend(chi)
    missed = sample.label - jnp.sum(weights * sample.values)
    return missed / jnp.sqrt(1.0 + response.v * jnp.sum(weights**2))


def energy(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """What the sample minimises, after `z`."""
    return _energy(residual(attention, chi, sample, response), chi, sample, response)


def _energy(left: Array, chi: Array, sample: Sample, response: Response) -> Float[Array, ""]:
    away = chi - sample.keys
    return left**2 / 2.0 + jnp.sum(away * _apply(response.stiffness, away)) / 2.0


def fit(attention: AbstractAttention, chi: Array, sample: Sample, response: Response) -> Fitted:
    """The pulls at scores that minimise the energy."""
    weights = attention.attend(chi)
    left = (sample.label - weights @ sample.values) / (1.0 + response.v * weights @ weights)
    return Fitted(_apply(response.stiffness, chi - sample.keys), weights * left, left**2)


class _Rough(NamedTuple):
    """A place with its residual and energy, the damping, and the place to look at next."""

    chi: Array
    residual: Array
    slope: Array
    energy: Array
    damping: Array
    ahead: Array


def _descend_roughly(
    attention: AbstractAttention, start: Array, sample: Sample, response: Response
) -> tuple[Array, Array]:
    """Gauss–Newton with Levenberg–Marquardt damping, and the energy where it ends.

    There is one residual, so that the matrix of a step is `V_k⁻¹` plus an outer product, with a known inverse.
    """

    def step(_: int, at: _Rough) -> _Rough:
        left, slope = jax.value_and_grad(residual, 1)(attention, at.ahead, sample, response)
        value = _energy(left, at.ahead, sample, response)
        there = at.ahead, left, slope, value, at.damping / 10.0
        here = *at[:4], jnp.maximum(10.0 * at.damping, _FIRST_DAMPING)
        lower = value <= at.energy
        chi, left, slope, value, damping = (
            jnp.where(lower, *each) for each in zip(there, here, strict=True)
        )
        away, loose, kept = chi - sample.keys, _apply(response.k, slope), 1.0 + damping
        curvature = jnp.sum(slope * loose)
        along = (left * curvature + jnp.sum(slope * away)) / (kept + curvature)
        move = ((along - left) * loose - away) / kept
        move *= jnp.minimum(1.0, _LONGEST_STEP / (jnp.max(jnp.abs(move)) + 1e-30))
        return _Rough(chi, left, slope, value, damping, chi + move)

    zero, infinite, damping = map(jnp.asarray, (0.0, jnp.inf, 10.0 * _FIRST_DAMPING))
    first = _Rough(start, zero, jnp.zeros_like(start), infinite, damping, start)
    end = jax.lax.fori_loop(0, 1 + _ROUGH_STEPS, step, first)
    return end.chi, end.energy


class Minimum(NamedTuple):
    """Scores that minimise the energy, and its derivatives there."""

    chi: Float[Array, "H L"]
    gradient: Float[Array, "H L"]
    hessian: Float[Array, "n n"]


class _Descent(NamedTuple):
    """The lowest place, its energy, the damping, and the place to look at next."""

    minimum: Minimum
    energy: Array
    damping: Array
    ahead: Array


def _descend(
    attention: AbstractAttention, start: Array, sample: Sample, response: Response, steps: Any
) -> Minimum:
    """Newton's method with Levenberg–Marquardt damping; the energy never increases."""
    size = start.size
    damped = jnp.kron(response.stiffness, jnp.eye(start.shape[-1]))

    def slope(chi: Array) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(energy, 1)(attention, chi, sample, response)
        return gradient, (value, gradient)

    def step(_: int, at: _Descent) -> _Descent:
        hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(at.ahead)
        there = Minimum(at.ahead, gradient, hessian.reshape(size, size))
        lower = value <= at.energy
        found = jax.tree.map(lambda new, old: jnp.where(lower, new, old), there, at.minimum)
        damping = jnp.where(lower, at.damping / 8.0, jnp.maximum(4.0 * at.damping, _FIRST_DAMPING))
        damping = jnp.clip(damping, _LEAST_DAMPING, _MOST_DAMPING)
        move = solve(found.hessian + damping * damped, found.gradient.ravel())
        ahead = found.chi - move.reshape(start.shape)
        return _Descent(found, jnp.where(lower, value, at.energy), damping, ahead)

    nowhere = Minimum(start, jnp.zeros_like(start), damped)
    damping = jnp.asarray(8.0 * _FIRST_DAMPING)
    first = _Descent(nowhere, jnp.asarray(jnp.inf), damping, start)
    return jax.lax.fori_loop(0, 1 + steps, step, first).minimum


def search(attention: AbstractAttention, last: Array, sample: Sample, response: Response) -> Array:
    """Near the lowest minimum, from several starts: where it was last, at rest, and moved."""
    moves = _moves(attention, sample, response)
    starts = jnp.concatenate([last[None], sample.keys[None], sample.keys + moves])
    # One after another: arrays of all starts would be spread over threads, which costs more than they gain.
    ends, energies = jax.lax.map(
        lambda start: _descend_roughly(attention, start, sample, response), starts
    )
    return ends[jnp.argmin(energies)]


@eqx.filter_jit
def minimise(
    attention: AbstractAttention,
    last: Float[Array, "n H L"],
    samples: Sample,
    response: Response,
    anew: Any,
) -> Minimum:
    """The minima of some samples: the lowest if they are searched for `anew`, else those near the last ones.

    Newton's method, which takes most of the time to compile, serves both.
    """
    near = jax.lax.cond(
        anew,
        lambda: jax.vmap(lambda chi, it: search(attention, chi, it, response))(last, samples),
        lambda: last,
    )
    steps = jnp.where(anew, _LAST_STEPS, _WARM_STEPS)
    return jax.vmap(lambda chi, it: _descend(attention, chi, it, response, steps))(near, samples)


@eqx.filter_jit
def respond(
    attention: AbstractAttention, minima: Minimum, samples: Sample, responses: Response
) -> Fitted:
    """The pulls of some samples, also at others nearby: along the first axis of `samples` and `responses`.

    To first order in the distance: one Newton step from the given minima, of the change of the gradient.
    """

    def one(at: Minimum, sample: Sample, response: Response) -> Fitted:
        change = jax.grad(energy, 1)(attention, at.chi, sample, response) - at.gradient
        moved = solve(at.hessian, change.ravel()).reshape(at.chi.shape)
        return fit(attention, at.chi - moved, sample, response)

    over_samples = jax.vmap(one, (0, 0, None))
    return jax.lax.map(lambda each: over_samples(minima, *each), (samples, responses))


@eqx.filter_jit
def weight_slopes(
    attention: AbstractAttention, chi: Float[Array, "n H L"]
) -> tuple[Float[Array, "n L"], Float[Array, "n L H L"]]:
    """The weights at some scores, and their derivatives."""
    return jax.vmap(attention.attend)(chi), jax.vmap(jax.jacfwd(attention.attend))(chi)


def _moves(
    attention: AbstractAttention, sample: Sample, response: Response
) -> Float[Array, "moves H L"]:
    """Displacements of the scores from which the lowest minimum may be reached."""
    lengths = jnp.asarray(_MOVES)

    def best(directions: Float[Array, "directions H L"]) -> Float[Array, "H L"]:
        """Of several directions, the one that leads lowest, with its length."""
        moves = (lengths[:, None, None, None] * directions).reshape(-1, *sample.keys.shape)
        energies = jax.lax.map(
            lambda move: energy(attention, sample.keys + move, sample, response), moves
        )
        return moves[jnp.argmin(energies)]

    groups = (_comparing if attention.compares_tokens else _separate)(attention, sample)
    heads = jnp.eye(len(sample.keys))[:, None, None, :, None]
    directions = heads * groups[:, :, None]  # those of each head alone
    return jax.lax.map(best, directions.reshape(-1, groups.shape[1], *sample.keys.shape))


Directions = Float[Array, "groups directions L"]  # of each group one direction is enough


def _separate(attention: AbstractAttention, sample: Sample) -> Directions:
    """An element-wise attention distinguishes a push of one score from a pull of the rest."""
    one = jnp.eye(sample.values.size)
    return jnp.concatenate([one, -one, 2.0 * one - 1.0, 1.0 - 2.0 * one])[:, None]


def _comparing(attention: AbstractAttention, sample: Sample) -> Directions:
    """A token gains weight alone, or as the heaviest of the others loses it, which takes half the move."""
    one = jnp.eye(sample.values.size)
    others = jnp.where(one > 0, -jnp.inf, attention.attend(sample.keys))
    heaviest = jax.nn.one_hot(jnp.argmax(others, 1), len(one))
    up = jnp.concatenate([one, (one - heaviest) / 2.0])
    return jnp.stack([up, -up], 1)
