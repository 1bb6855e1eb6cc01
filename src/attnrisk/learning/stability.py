"""Stability of replica symmetry, from the derivatives of the responses in the cavity fields (section 6)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .controls import ValueLaw
from .energy import Sample
from .equations import Averages, Displacements, in_groups, pulls, samples_at
from .proximal import Minimum
from .unknowns import Unknowns, block_diagonal, pack

_STATIONARY = 1e-4  # a gradient, in units of one over √V_k
_PROBES = 32  # up to so many tokens derivatives are taken one by one, beyond in as many groups
_STEP = 1e-6  # of a field


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
    rows, response = averages.layout.heads + 1, unknowns.response
    total, unresolved = np.zeros((rows,) * 4), 0.0
    for _, weights, sample, at in samples_at(averages, unknowns, last):
        for columns in _columns(averages, unknowns, sample, at):
            total += np.einsum("n,bnal,dncl->acbd", weights, columns, columns, optimize=True)
        gradient = np.asarray(at.gradient)
        squares = np.einsum("nal,ab,nbl->n", gradient, response.k, gradient)
        unresolved += float(np.sum(weights * ~(squares < _STATIONARY**2)))
    if not np.all(np.isfinite(total)):
        raise FloatingPointError("a Hessian is singular")
    pairs = np.arange(rows**2).reshape(rows, rows)
    kept = np.append(pairs[:-1, :-1], pairs[-1, -1])  # of two keys, or of the value vector twice
    return total.reshape(rows**2, rows**2)[kept][:, kept], unresolved


def _columns(
    averages: Averages, unknowns: Unknowns, sample: Sample, minima: Minimum
) -> Iterator[Float[np.ndarray, "b n a L"]]:
    """`J = ∂f/∂ω` by differences, fields and responses of the relevant token in units of its spread.

    Columns are added with random signs in groups of tokens: the products of different ones have mean zero. The program
    is that of the equations, for as many unknowns as they have probes.
    """
    fields = np.concatenate([sample.keys, sample.values[:, None]], 1)
    (count, rows, length), most = fields.shape, 1 + pack(unknowns).size
    root = np.sqrt(sample.variance)[:, None]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (count, length))
    # Those of controls, which are not asked for.
    laws, anywhere = ValueLaw(*np.zeros((3, most))), jnp.asarray(signs)
    others = jax.tree.map(
        lambda leaf: np.resize(leaf, (most, *np.shape(leaf))), (sample, unknowns.response)
    )

    def pulls_at(moves: Float[np.ndarray, "m n a L"]) -> Float[np.ndarray, "m n a L"]:
        moved = np.resize(fields + moves * root, (most, *fields.shape))
        samples = others[0]._replace(keys=moved[:, :, :-1], values=moved[:, :, -1])
        given = samples, others[1], laws
        found, _ = pulls(averages.attention, minima, anywhere, given, np.asarray(len(moves)))
        parts = np.asarray(found.pull_k), np.asarray(found.pull_v)[:, :, None]
        return np.concatenate(parts, 2)[: len(moves)] * root

    here, groups = pulls_at(np.zeros((1, 1, 1, 1))), min(length, _PROBES)
    for group in range(groups):
        probe = _STEP * signs * (np.arange(length) % groups == group)
        moves = np.eye(rows)[:, None, :, None] * probe[:, None]
        yield (pulls_at(moves) - here) / _STEP
