"""Stability of replica symmetry, from the derivatives of the responses in the cavity fields (section 6)."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from .energy import Sample, apply, fit
from .equations import Averages, Displacements, in_groups, samples_at
from .proximal import Minimum
from .unknowns import Response, Unknowns, block_diagonal

_STATIONARY = 1e-4  # a gradient, in units of one over √V_k
_PROBES = 32  # up to so many tokens derivatives are taken one by one, beyond in as many groups


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
        signs = np.random.default_rng(0).choice([-1.0, 1.0], sample.values.shape)
        products = products_of(averages.attention, at, sample, response, signs)
        total += np.tensordot(weights, np.asarray(products), 1)
        gradient = np.asarray(at.gradient)
        squares = np.einsum("nal,ab,nbl->n", gradient, response.k, gradient)
        unresolved += float(np.sum(weights * ~(squares < _STATIONARY**2)))
    if not np.all(np.isfinite(total)):
        raise FloatingPointError("a Hessian is singular")
    pairs = np.arange(rows**2).reshape(rows, rows)
    kept = np.append(pairs[:-1, :-1], pairs[-1, -1])  # of two keys, or of the value vector twice
    growth = total.transpose(1, 3, 0, 2).reshape(rows**2, rows**2)
    return growth[kept][:, kept], unresolved


@eqx.filter_jit
def products_of(
    attention: AbstractAttention,
    minima: Minimum,
    samples: Sample,
    response: Response,
    signs: Float[Array, "n L"],
) -> Float[Array, "n b a d c"]:
    """`Σ_lm J_al,bm J_cl,dm` of each sample, fields and responses of the relevant token in units of its spread.

    Columns `m` of `J` are added with random signs in groups of tokens: the products of different ones have mean zero.
    """
    length, rows = signs.shape[1], samples.keys.shape[1] + 1

    def one(at: Minimum, sample: Sample, probe: Array) -> Float[Array, "b a d c"]:
        root = jnp.sqrt(sample.variance)

        def pulls(chi: Array, keys: Array, values: Array) -> tuple[Array, Array]:
            fitted = fit(attention, chi, sample._replace(keys=keys, values=values), response)
            return fitted.pull_k, fitted.pull_v

        def column(unit: Float[Array, " b"]) -> Float[Array, "a L"]:
            *keys, value = unit[:, None] * probe * root
            moved = jnp.stack(keys), value
            # Of the gradient of the energy, which has `−V_k⁻¹` and `−∂f_v/∂χ` as derivatives in the fields.
            by_value = jax.vjp(lambda chi: pulls(chi, sample.keys, sample.values)[1], at.chi)[1]
            change = apply(response.stiffness, moved[0]) / sample.variance + by_value(value)[0]
            tangents = at.solve(change), *moved
            of_k, of_v = jax.jvp(pulls, (at.chi, sample.keys, sample.values), tangents)[1]
            return root * jnp.concatenate([of_k, of_v[None]])

        columns = jax.vmap(column)(jnp.eye(rows)).reshape(rows**2, length)
        return (columns @ columns.T).reshape((rows,) * 4)

    groups = min(length, _PROBES)
    products = jax.lax.map(
        lambda group: jax.vmap(one)(minima, samples, signs * (np.arange(length) % groups == group)),
        jnp.arange(groups),
    )
    return jnp.sum(products, 0)
