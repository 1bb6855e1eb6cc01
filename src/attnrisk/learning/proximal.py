"""The minimisation inside each sample of empirical risk minimisation (sections 6 and 10), global, in one batch.

    (χ, z) = argmin ½(y − a(χ)·z)² + ½Σ_ℓ (χ_ℓ−ω_ℓ)ᵀ V_k⁻¹ (χ_ℓ−ω_ℓ) + |z−ω_z|²/(2V_v)

`z` is eliminated exactly. What is left is smooth in the scores, `L` for each of `H` key vectors, and may have several
minima.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.linalg import solve
from .unknowns import Response

_ROUGH_STEPS, _LAST_STEPS, _WARM_STEPS = 12, 5, 3
_STATIONARY = 1e-4  # a gradient, in units of one over √V_k
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e8
_LONGEST_STEP = 2.0  # of a score: the scale of an attention is one
# Moves of scores that are tried before any descent: with weak ridges the best one is long.
_MOVES = np.array([0.7, 1.5, 3.0, 5.0, 8.0, 13.0, 22.0, 40.0])


class Sample(NamedTuple):
    """The cavity fields of one sequence, and its label."""

    keys: Float[Array, "H L"]
    values: Float[Array, " L"]
    label: Float[Array, ""]


class Fitted(NamedTuple):
    """What a sample pulls with, `f = V⁻¹(χ−ω)` for the scores and the values, and what is left of its label."""

    pull_k: Float[Array, "H L"]
    pull_v: Float[Array, " L"]
    loss: Float[Array, ""]


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
    """A place, the residual around it, and how much the step is damped."""

    chi: Array
    residual: Array
    slope: Array
    damping: Array


def _descend_roughly(
    attention: AbstractAttention, start: Array, sample: Sample, response: Response
) -> tuple[Array, Array]:
    """Gauss–Newton with Levenberg–Marquardt damping, and the energy where it ends.

    There is one residual, so that the matrix of a step is `V_k⁻¹` plus an outer product, with a known inverse.
    """

    def look(chi: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(residual, 1)(attention, chi, sample, response)

    def step(_: int, at: _Rough) -> _Rough:
        away, loose = at.chi - sample.keys, _apply(response.k, at.slope)
        bend = jnp.sum(at.slope * loose)
        kept = 1.0 + at.damping
        across = (at.residual * bend + jnp.sum(at.slope * away)) / (kept + bend)
        move = ((across - at.residual) * loose - away) / kept
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
    """Newton's method with Levenberg–Marquardt damping; the energy never increases."""
    size = start.size
    damped = jnp.kron(response.stiffness, jnp.eye(start.shape[-1]))

    def look(chi: Array) -> tuple[Array, Array, Array]:
        def slope(chi: Array) -> tuple[Array, tuple[Array, Array]]:
            value, gradient = jax.value_and_grad(energy, 1)(attention, chi, sample, response)
            return gradient, (value, gradient)

        hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(chi)
        return value, gradient, hessian.reshape(size, size)

    def step(_: int, at: _Descent) -> _Descent:
        move = solve(at.hessian + at.damping * damped, at.gradient.ravel())
        ahead = at.chi - move.reshape(at.chi.shape)
        value, gradient, hessian = look(ahead)
        lower = value <= at.energy
        damping = jnp.where(lower, at.damping / 8.0, jnp.maximum(4.0 * at.damping, _FIRST_DAMPING))
        damping = jnp.clip(damping, _LEAST_DAMPING, _MOST_DAMPING)
        there = _Descent(ahead, value, gradient, hessian, damping)
        here = at._replace(damping=damping)
        return jax.tree.map(lambda new, old: jnp.where(lower, new, old), there, here)

    first = _Descent(start, *look(start), jnp.asarray(_FIRST_DAMPING))
    return jax.lax.fori_loop(0, steps, step, first)


def search(attention: AbstractAttention, last: Array, sample: Sample, response: Response) -> Array:
    """The lowest minimum from several starts: where it was last, at rest, and moved."""
    moves = _moves(attention, sample, response)
    starts = jnp.concatenate([last[None], sample.keys[None], sample.keys + moves])
    ends, energies = jax.vmap(lambda start: _descend_roughly(attention, start, sample, response))(
        starts
    )
    best = ends[jnp.argmin(jnp.where(jnp.isnan(energies), jnp.inf, energies))]
    return _descend(attention, best, sample, response, _LAST_STEPS).chi


def _moves(
    attention: AbstractAttention, sample: Sample, response: Response
) -> Float[Array, "moves H L"]:
    """Displacements of the scores from which the lowest minimum may be reached."""
    lengths = jnp.asarray(_MOVES)

    def best(directions: Float[Array, "directions H L"]) -> Float[Array, "H L"]:
        """Of several directions, the one that leads lowest, with its length."""
        moves = (lengths[:, None, None, None] * directions).reshape(-1, *sample.keys.shape)
        at = jax.vmap(lambda move: energy(attention, sample.keys + move, sample, response))
        return moves[jnp.argmin(at(moves))]

    groups = (_comparing if attention.compares_tokens else _separate)(attention, sample)
    heads = jnp.eye(len(sample.keys))[:, None, None, :, None]
    directions = heads * groups[:, :, None]  # those of each head alone
    return jax.vmap(best)(directions.reshape(-1, groups.shape[1], *sample.keys.shape))


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


def follow(attention: AbstractAttention, last: Array, sample: Sample, response: Response) -> Array:
    """The minimum near the last one, with its derivatives in the sample and the response (implicit ones)."""
    fixed, fixed_response = jax.lax.stop_gradient((sample, response))
    end = _descend(attention, jax.lax.stop_gradient(last), fixed, fixed_response, _WARM_STEPS)
    chi, hessian = jax.lax.stop_gradient((end.chi, end.hessian))
    gradient = jax.grad(energy, 1)(attention, chi, sample, response)
    moved = solve(hessian, (gradient - jax.lax.stop_gradient(gradient)).ravel())
    return chi - moved.reshape(chi.shape)


def stiffness(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, "n n"]:
    """The matrix of `δ → Σ_{ℓℓ'} J δ Jᵀ`, `J = ∂f_ℓ/∂ω_ℓ'`, on block-diagonal `δ`: pairs of keys, then `v`."""

    def pulls(keys: Array, values: Array) -> tuple[Array, Array]:
        moved = sample._replace(keys=keys, values=values)
        fitted = fit(attention, follow(attention, chi, moved, response), moved, response)
        return fitted.pull_k, fitted.pull_v

    (kk, kv), (vk, vv) = jax.jacfwd(pulls, (0, 1))(sample.keys, sample.values)
    pairs = len(sample.keys) ** 2
    return jnp.block(
        [
            [
                jnp.einsum("albm,cldm->acbd", kk, kk).reshape(pairs, pairs),
                jnp.einsum("alm,clm->ac", kv, kv).reshape(pairs, 1),
            ],
            [jnp.einsum("lbm,ldm->bd", vk, vk).reshape(1, pairs), jnp.sum(vv**2)[None, None]],
        ]
    )


def is_stationary(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Array:
    """Whether the gradient vanishes, as it does at a minimum of a smooth attention, and at a kink does not."""
    gradient = jax.grad(energy, 1)(attention, chi, sample, response)
    return jnp.sqrt(jnp.sum(gradient * _apply(response.k, gradient))) < _STATIONARY
