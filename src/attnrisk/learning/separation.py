"""Heads that are copies of one head: whether they stay copies (section 10.1).

`H` copies with the ridge `r_k` are one head with `H r_k`. In an orthonormal basis of the heads, `s` for their mean and
`d` for a difference, this fixed point has `M_d = Q_sd = V_sd = Q_dd = 0`. The loss of a sample is quadratic in the
differences of its scores, with a curvature `K`, the difference of two blocks of its Hessian. Hence to first order

    g_d = −B(ω_d + V_sd g_s) ,   B = K(1 + V_d K)⁻¹ ,   1/V_d = r_k + α E[tr B] .

Copies separate where the map of `(M_d, Q_sd, V_sd)`, which is linear there, or that of `Q_dd` has an eigenvalue above
one.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq

from .._check import of_type, refuse
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from .energy import Sample, residual
from .equations import Averages, Displacements, in_groups, samples_at
from .unknowns import Response, Unknowns

# A sample with a stiffness `1 + V_d K` below the first number separates by itself and is left out. Where more than the
# second share of the samples do, the copies are no fixed point.
_SOFT, _RARE = 0.05, 1e-3
# Values of V_d among which the first root is bracketed, up to the second number over r_k.
_TRIED, _LARGEST = 600, 1e6
# Imaginary part, relative, of an eigenvalue that noise may have split from a real pair.
_REAL = 1e-6


def head_separation(overlaps: Overlaps) -> float:
    """Mean of `1 − Q_hh'/√(Q_hh Q_h'h')` over pairs of keys.

    Args:
        overlaps: Overlaps of two or more heads.

    Returns:
        0 for identical directions, 1 for orthogonal keys, 2 for a pair of opposite keys.
    """
    Q = np.asarray(of_type("overlaps", overlaps, Overlaps, "of type Overlaps").Q)[:-1, :-1]
    if len(Q) < 2:
        raise refuse("overlaps", f"(of {len(Q)} key vector)", "those of two heads or more")
    sizes = np.sqrt(np.maximum(np.diag(Q), 1e-300))
    rows, columns = np.triu_indices(len(Q), 1)
    return float(np.mean(1.0 - Q[rows, columns] / (sizes[rows] * sizes[columns])))


class Separation(NamedTuple):
    """`V_d`, the map of `(M_d, Q_sd, V_sd)`, the growth of `Q_dd`, and the share of samples that separate alone."""

    V: float
    map: Float[np.ndarray, "u u"]
    spread: float
    share: float

    @property
    def growth(self) -> float:
        """The largest eigenvalue of both maps."""
        values = np.linalg.eigvals(self.map)
        is_real = np.abs(values.imag) <= _REAL * (1.0 + np.abs(values))
        return float(max([self.spread, *values.real[is_real]]))

    @property
    def is_stable(self) -> bool:
        """Whether the heads stay copies."""
        return self.growth < 1.0 and self.share <= _RARE


class _Curved(NamedTuple):
    """The weight of each sample, the eigenvalues of its `K`, and fields along its eigenvectors.

    These are the mean of those of the teacher given `ω`, then `ω_s` and `g_s`.
    """

    weight: Float[np.ndarray, " n"]
    values: Float[np.ndarray, "n L"]
    fields: Float[np.ndarray, "n L u"]

    def bends(self, V: float) -> tuple[Float[np.ndarray, "n L"], Float[np.ndarray, " n"]]:
        """The eigenvalues of `B`, and which samples separate alone."""
        stiffness = 1.0 + V * self.values
        is_soft = np.any(stiffness <= _SOFT, 1)
        return np.where(is_soft[:, None], 0.0, self.values) / np.maximum(stiffness, _SOFT), is_soft


def separation(
    one: Averages,
    heads: AbstractAttention,
    x: Float[np.ndarray, " n"],
    last: Displacements,
    alpha: float,
    ridge_k: float,
) -> Separation:
    """Of copies of one head with these unknowns, learned with this ridge on each."""
    unknowns, count = one.layout.unpack(x), heads.keys
    parts = in_groups(one, last, partial(_curved, as_arrays(heads), unknowns))
    groups = [group for part in parts for group in part]

    def mean(term: Any) -> Any:
        return sum(np.tensordot(it.weight, term(it), 1) for it in groups) / len(parts)

    def excess(V: float) -> float:
        return float(1.0 / V - ridge_k - alpha * mean(lambda it: it.bends(V)[0].sum(1)))

    # At the least V the first term of the excess is twice all others, and at the largest −r_k is left.
    least = 0.5 / (ridge_k + alpha * mean(lambda it: np.abs(it.values).sum(1)))
    tried = np.geomspace(least, _LARGEST / ridge_k, _TRIED)
    above = next((at for at, V in enumerate(tried) if excess(V) <= 0.0), None)
    if not above:
        raise FloatingPointError("no response of the differences of heads was found")
    V = float(brentq(excess, tried[above - 1], tried[above], xtol=1e-12 * tried[above]))
    trace = float(alpha * mean(lambda it: it.bends(V)[0].sum(1)))
    M, features = np.sqrt(count) * unknowns.keys.M[0], one.layout.features
    Q, V_s = (count * float(each[0, 0]) for each in unknowns.keys[1:])
    products = mean(lambda it: np.einsum("nl,nlu,nlw->nuw", it.bends(V)[0], it.fields, it.fields))
    pairs = alpha * products
    pairs[:features, :features] += trace * (np.eye(features) - np.outer(M, M) / Q)
    columns = []
    for unit in np.eye(features + 2):
        M_d, Q_sd, V_sd = unit[:-2], unit[-2], unit[-1]
        slope = (Q_sd - M @ M_d) / (Q - M @ M)  # ω_d = (M_d − slope M)·h* + slope ω_s + noise
        pulls = -pairs @ [*(M_d - slope * M), slope, V_sd]  # α E[Σ g_d ·] with h*, ω_s and g_s
        known = pulls[:-2] + trace * M_d
        V_hat = (known @ M - pulls[-2] - trace * Q_sd) / (Q - M @ M)
        M_hat = known + V_hat * M
        V_next = -V_s * V_hat * V
        M_next = V * M_hat + V_next * M / V_s
        Q_next = V * (M @ M_hat + V_s * pulls[-1]) + V_next * Q / V_s
        columns.append([*M_next, Q_next, V_next])
    spread = alpha * V**2 * mean(lambda it: np.sum(it.bends(V)[0] ** 2, 1))
    share = mean(lambda it: it.bends(V)[1])
    return Separation(V, np.array(columns).T, float(spread), float(share))


def _curved(heads: Any, unknowns: Unknowns, averages: Averages, last: Any) -> list[_Curved]:
    """The samples of one group of randomisations, by length."""
    root, (m,), ((q,),), found = np.sqrt(heads.keys), unknowns.keys.M, unknowns.keys.Q, []
    for group, weights, sample, at in samples_at(averages, unknowns, last):
        chi = np.asarray(at.chi)
        copies = jnp.repeat(chi, heads.keys, 1)
        curvature = np.asarray(_curvatures(heads, copies, sample, unknowns.response))
        chi, omega = chi[:, 0], sample.keys[:, 0]
        teacher = omega[..., None] * m / q
        teacher[:, 0] += group.shift - (group.shift @ m)[:, None] * m / q
        pull = (chi - omega) / unknowns.keys.V[0, 0]
        fields = np.concatenate([teacher, (root * omega)[..., None], (pull / root)[..., None]], -1)
        values, vectors = np.linalg.eigh(curvature)
        found.append(_Curved(weights, values, vectors.swapaxes(1, 2) @ fields))
    return found


@eqx.filter_jit
def _curvatures(
    heads: AbstractAttention, chi: Float[Array, "n H L"], samples: Sample, response: Response
) -> Float[Array, "n L L"]:
    """The Hessian of the loss along differences of heads, at equal scores: of one head, less that of two."""

    def one(chi: Array, sample: Sample) -> Array:
        hessian = jax.hessian(lambda it: residual(heads, it, sample, response) ** 2 / 2.0)(chi)
        return hessian[0, :, 0] - hessian[0, :, 1]

    return jax.vmap(one)(chi, samples)
