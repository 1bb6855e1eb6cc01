"""Stability of replica symmetry, from the derivatives of the responses in the cavity fields (section 6).

With `B = ∂f_v/∂χ = −(∂²E/∂χ∂ω_z)ᵀ`, the Hessian `H` of the energy and `K = V_k⁻¹`, the minimum moves by `H⁻¹K` and
`H⁻¹Bᵀ` per unit of `ω_χ` and `ω_z`, so that `J = ∂f/∂ω` has the blocks `K H⁻¹K − K`, `K H⁻¹Bᵀ`, `B H⁻¹K` and
`B H⁻¹Bᵀ + ∂f_v/∂ω_z`. Fields and responses of the relevant token are in units of its spread.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.linalg import LowRank
from .energy import Sample
from .equations import Averages, Displacements, in_groups, samples_at
from .proximal import Minimum
from .unknowns import Response, Unknowns, block_diagonal

_STATIONARY = 1e-4  # a gradient, in units of one over √V_k


def stability(
    averages: Averages, x: Float[np.ndarray, " n"], last: Displacements, alpha: float
) -> tuple[Float[np.ndarray, "n n"], float]:
    """The matrix of `δ → α V E[Σ (∂g/∂ω) δ (∂g/∂ω)ᵀ] V` on block-diagonal `δ`, and the share of unresolved samples.

    Replica symmetry is unstable where an eigenvalue of the first exceeds one; a sample is unresolved if it is not at a
    stationary minimum.
    """
    unknowns = averages.layout.unpack(x)
    found = in_groups(averages, last, partial(_growth_of, unknowns))
    growth, unresolved = (np.mean(np.stack(each), 0) for each in zip(*found, strict=True))
    V = unknowns.keys.V
    both = block_diagonal(np.kron(V, V), unknowns.values.V**2)
    return alpha * both @ growth, float(unresolved)


def _growth_of(unknowns: Unknowns, averages: Averages, last: Any) -> tuple[np.ndarray, float]:
    """Over the samples of one group of randomisations, the mean of `J ⊗ J` contracted on tokens."""
    attention, response = averages.attention, unknowns.response
    size = averages.layout.heads**2 + 1
    growth, unresolved = np.zeros((size, size)), 0.0
    for _, weights, sample, at in samples_at(averages, unknowns, last):
        growths = (_growths_by_sums if attention.has_sums else _growths)(
            attention, at, sample, response
        )
        growth += np.einsum("n,nij->ij", weights, np.asarray(growths))
        gradient = np.asarray(at.gradient)
        squares = np.einsum("nal,ab,nbl->n", gradient, response.k, gradient)
        unresolved += float(np.sum(weights * ~(squares < _STATIONARY**2)))
    return growth, unresolved


@eqx.filter_jit
def _slopes(
    attention: AbstractAttention, chi: Float[Array, "n H L"]
) -> tuple[Float[Array, "n L"], Float[Array, "n L H L"]]:
    """The weights at some scores, and their derivatives."""
    return jax.vmap(attention.attend)(chi), jax.vmap(jax.jacfwd(attention.attend))(chi)


def _growths(
    attention: AbstractAttention, minima: Minimum, sample: Sample, response: Response
) -> Float[np.ndarray, "n h h"]:
    """`J ⊗ J` of each sample, from whole matrices."""
    at = jax.tree.map(np.asarray, minima)
    heads, length = at.chi.shape[1:]
    root = np.sqrt(sample.variance)
    attended, by_chi = map(np.asarray, _slopes(attention, at.chi))
    by_chi = by_chi.reshape(*attended.shape, -1)
    width = 1.0 + response.v * np.sum(sample.variance * attended**2, -1)
    left = (sample.label - np.sum(attended * sample.values, -1)) / width
    by_left = sample.values + 2.0 * response.v * left[:, None] * sample.variance * attended
    by_left /= -width[:, None]
    B = (
        left[:, None, None] * by_chi
        + attended[:, :, None] * np.einsum("nl,nlx->nx", by_left, by_chi)[:, None]
    )
    tokens = np.eye(length) / sample.variance[:, :, None]
    K = np.einsum("ab,nlm->nalbm", response.stiffness, tokens).reshape(at.hessian.shape)
    try:
        moved_k, moved_v = (np.linalg.solve(at.hessian, it) for it in (K, B.swapaxes(1, 2)))
    except np.linalg.LinAlgError as error:
        raise FloatingPointError("a Hessian is singular") from error
    kk = (K @ moved_k - K).reshape(-1, heads, length, heads, length)
    kk *= root[:, None, :, None, None] * root[:, None, None, None]
    kv = (K @ moved_v).reshape(-1, heads, length, length)
    vk = (B @ moved_k).reshape(-1, length, heads, length)
    vv = B @ moved_v - attended[:, :, None] * attended[:, None, :] / width[:, None, None]
    kv, vk = kv * root[:, None, :, None] * root[:, None, None], vk * root[:, :, None, None]
    vk, vv = vk * root[:, None, None], vv * root[:, :, None] * root[:, None]
    square, count = heads**2, len(root)
    by_k = np.einsum("nalbm,ncldm->nacbd", kk, kk).reshape(count, square, square)
    by_v = np.einsum("nalm,nclm->nac", kv, kv).reshape(count, square, 1)
    of_k = np.einsum("nlbm,nldm->nbd", vk, vk).reshape(count, 1, square)
    of_v = np.einsum("nlm,nlm->n", vv, vv).reshape(count, 1, 1)
    return np.concatenate([np.concatenate([by_k, by_v], 2), np.concatenate([of_k, of_v], 2)], 1)


@eqx.filter_jit
def _strengths(
    attention: Any, scores: Float[Array, "n L"]
) -> tuple[Float[Array, "n 2 L"], Float[Array, "n 2 L"]]:
    """`s/S` and `c/S` of each token, and their derivatives in its own score with `S` fixed."""

    def parts(scores: Array, top: Array) -> Array:
        own, counted = attention.strengths(scores, top)
        return jnp.stack([own, jnp.zeros_like(own) if counted is None else counted])

    def one(scores: Array) -> tuple[Array, Array]:
        top = attention.log_scale(scores)
        found, slopes = jax.jvp(lambda it: parts(it, top), (scores,), (jnp.ones_like(scores),))
        total = attention.total(jnp.sum(found[1]), top)
        return found / total, slopes / total

    return jax.vmap(one)(scores)


def _growths_by_sums(
    attention: Any,
    minima: Minimum,
    samples: Sample,
    response: Response,
) -> Float[np.ndarray, "n 2 2"]:
    """The same where all blocks of `J` are diagonals plus matrices of low rank, in a time that grows like `L`.

    Then `B = diag(d) + a rᵀ`: with `σ_ℓ = s_ℓ/S` a weight depends on the other scores through the sum `S = Σ_m c_m`
    alone, `∂σ_ℓ/∂χ_m = s'_ℓ δ_ℓm/S − σ_ℓ c'_m/S`.
    """
    at, sample = (jax.tree.map(np.asarray, each) for each in (minima, samples))
    hessian, root = at.hessian, np.sqrt(sample.variance)
    assert isinstance(hessian, LowRank)
    strengths, slopes = map(np.asarray, _strengths(attention, at.chi[:, 0]))
    weights, own, shared = strengths[:, 0], slopes[:, 0], slopes[:, 1]
    width = 1.0 + response.v * np.sum(sample.variance * weights**2, -1)
    left = (sample.label - np.sum(weights * sample.values, -1)) / width
    by_left = sample.values + 2.0 * response.v * left[:, None] * sample.variance * weights
    by_left = -by_left / width[:, None]
    diagonal = left[:, None] * own
    r = by_left * own - (np.sum(by_left * weights, -1) + left)[:, None] * shared
    K, d, rows = response.stiffness[0, 0] / sample.variance, hessian.diagonal, hessian.rows
    # `W` of the inverse `d⁻¹ − d⁻¹ rowsᵀ W rows d⁻¹` of the Hessian, by Woodbury.
    scaled = rows / d[:, None]
    gram = rows @ scaled.swapaxes(1, 2)
    try:
        W = np.linalg.solve(np.eye(rows.shape[1]) + hessian.core @ gram, hessian.core)
    except np.linalg.LinAlgError as error:
        raise FloatingPointError("a Hessian is singular") from error
    P, R = K[:, None] * scaled, diagonal[:, None] * scaled  # of K H⁻¹ and of diag·H⁻¹
    answer = r / d - np.sum((W @ (scaled @ r[..., None])) * scaled, 1)
    moved, bend = diagonal * answer, np.sum(r * answer, -1) - 1.0 / width
    rights = [-W @ each for each in (P, R)]
    kk = _square(root, K**2 / d - K, [(P, rights[0])])
    a = weights[:, None]
    vk = _square(root, diagonal * K / d, [(R, rights[0]), (a, (K * answer)[:, None])])
    symmetric = (
        np.stack([weights, moved, weights], 1),
        np.stack([moved, weights, bend[:, None] * weights], 1),
    )
    vv = _square(root, diagonal**2 / d, [(R, rights[1]), symmetric])
    return np.stack([np.stack([kk, vk], -1), np.stack([vk, vv], -1)], -1)


def _square(
    root: Float[np.ndarray, "n L"],
    diagonal: Float[np.ndarray, "n L"],
    pairs: list[tuple[np.ndarray, np.ndarray]],
) -> Float[np.ndarray, " n"]:
    """The sum of the squares of `diag + Σ left rightᵀ`, rows and columns times `root`."""
    left, right = (root[:, None] * np.concatenate(each, 1) for each in zip(*pairs, strict=True))
    diagonal = diagonal * root**2
    lefts, rights = (each @ each.swapaxes(1, 2) for each in (left, right))
    cross = np.sum(diagonal * np.sum(left * right, 1), -1)
    return np.sum(diagonal**2, -1) + 2.0 * cross + np.sum(lefts * rights, (1, 2))
