"""The unknowns of the fixed point of empirical risk minimisation, `M`, `Q` and `V` (sections 6 and 10).

The symmetry `v, y → −v, −y` makes all three block-diagonal: a block of key vectors against features, and one of the
value vector against `v*`. Solvers see one flat vector: of each block `M`, then the lower triangles of `Q` and `V`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import block_diag

from ..numerics.linalg import cholesky, solve, solve_lower

_LEAST = 1e-20  # of an eigenvalue of Q − M Mᵀ, which is zero where an attention does not depend on its scores


class Order(NamedTuple):
    """One block of `M`, `Q` and `V`, or of their conjugates `M̂`, `Q̂` and `V̂`."""

    M: Float[Any, "p t"]
    Q: Float[Any, "p p"]
    V: Float[Any, "p p"]


class Response(NamedTuple):
    """`V_k`, its inverse and `V_v`: how far the fields of a sample give way to its label."""

    k: Float[Array, "H H"]
    stiffness: Float[Array, "H H"]
    v: Any


class Unknowns(NamedTuple):
    """The block of the key vectors, and that of the value vector."""

    keys: Order
    values: Order

    @property
    def response(self) -> Response:
        """What the minimisation inside a sample depends on."""
        return Response(self.keys.V, inverse(self.keys.V), self.values.V[0, 0])

    @property
    def correlation(self) -> Float[Array, "H F"]:
        """`C⁻¹M` of the keys with `Q = C Cᵀ`; for one head `m/√q`."""
        factor = cholesky(self.keys.Q)
        return jax.vmap(partial(solve_lower, factor), 1, 1)(self.keys.M)

    def matrices(self) -> Order:
        """The whole matrices, with zeros between the blocks."""
        return Order(*(block_diag(*parts) for parts in zip(self.keys, self.values, strict=True)))


def inverse(matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Of a small symmetric matrix."""
    return jax.vmap(partial(solve, matrix), 0, 1)(jnp.eye(len(matrix)))


def updated(hats: Unknowns, ridges: Float[Array, "2"]) -> Unknowns:
    """`V = (Γ + V̂)⁻¹`, `M = V M̂`, `Q = V(M̂ M̂ᵀ + Q̂)Vᵀ` for both blocks."""

    def block(hat: Order, ridge: Array) -> Order:
        V = inverse(ridge * jnp.eye(len(hat.V)) + hat.V)
        return Order(V @ hat.M, V @ (hat.M @ hat.M.T + hat.Q) @ V.T, V)

    return Unknowns(*(block(*each) for each in zip(hats, ridges, strict=True)))


def pack(unknowns: Unknowns) -> Float[Any, " n"]:
    """The flat vector."""
    xp = unknowns.keys.M.__array_namespace__()
    parts = []
    for M, Q, V in unknowns:
        lower = np.tril_indices(len(Q))
        parts += [M.reshape(-1), Q[lower], V[lower]]
    return xp.concatenate(parts)


class Layout(NamedTuple):
    """How many key vectors and features there are: the shape of a flat vector of unknowns."""

    heads: int
    features: int

    def unpack(self, x: Float[Any, " n"]) -> Unknowns:
        """The blocks of a flat vector."""
        blocks, at = [], 0
        for p, t in ((self.heads, self.features), (1, 1)):
            lower = np.tril_indices(p)
            place = np.zeros((p, p), int)
            place[lower] = place.T[lower] = np.arange(len(lower[0]))
            ends = at + np.cumsum([p * t, len(lower[0]), len(lower[0])])
            M = x[at : ends[0]].reshape(p, t)
            blocks.append(Order(M, x[ends[0] : ends[1]][place], x[ends[1] : ends[2]][place]))
            at = int(ends[2])
        return Unknowns(*blocks)

    @property
    def places(self) -> Unknowns:
        """The index of each number in the flat vector."""
        return self.unpack(np.arange(self.heads * (self.features + self.heads + 1) + 3))

    def penalty(self, ridges: tuple[Any, Any]) -> Float[np.ndarray, " n"]:
        """The derivative of `½ Σ r_p Q_pp`, the ridges' part of the objective."""
        slope = np.zeros(self.places.values.V[0, 0] + 1)
        for (_, Q, _), ridge in zip(self.places, ridges, strict=True):
            slope[np.diag(Q)] = float(ridge) / 2
        return slope

    def sizes(self, free: np.ndarray) -> np.ndarray:
        """What is a large step of each free number."""
        size = np.ones(free.size)
        for M, _, _ in self.places:
            size[M] = 0.1 + np.abs(free[M])
        return size

    def matters(self, free: np.ndarray, least: float) -> np.ndarray:
        """Which free numbers are not the logarithm of a pivot of `Q − M Mᵀ` below `least`."""
        kept = np.ones(free.size, bool)
        for _, Q, _ in self.places:
            kept[np.diag(Q)] = free[np.diag(Q)] > np.log(least)
        return kept

    def to_free(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """`M` and the Cholesky factors of `Q − M Mᵀ` and `V`, the diagonals as `log C_ii²`: any numbers are valid."""
        return pack(
            Unknowns(
                *(
                    Order(M, _log_cholesky(Q - M @ M.T), _log_cholesky(V))
                    for M, Q, V in self.unpack(x)
                )
            )
        )

    def from_free(self, free: Float[Array, " n"]) -> Float[Array, " n"]:
        """The unknowns of free numbers."""

        def square(log_factor: Array) -> Array:
            factor = jnp.tril(log_factor, -1) + jnp.diag(jnp.exp(jnp.diag(log_factor) / 2))
            return factor @ factor.T

        return pack(
            Unknowns(*(Order(M, M @ M.T + square(R), square(V)) for M, R, V in self.unpack(free)))
        )

    def tamed(self, x: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, bool]:
        """The target, and whether it is valid: where a `V` is not positive, which no fixed point has, twice the last.

        Its `M` and `Q` follow from the conjugates that the target was made of.
        """
        blocks, valid = [], True
        for now, ahead in zip(self.unpack(x), self.unpack(target), strict=True):
            if np.all(np.linalg.eigvalsh(ahead.V) > 0):
                blocks.append(ahead)
                continue
            ratio = 2.0 * now.V @ np.linalg.inv(ahead.V)
            blocks.append(Order(ratio @ ahead.M, ratio @ ahead.Q @ ratio.T, 2.0 * now.V))
            valid = False
        return pack(Unknowns(*blocks)), valid


def _log_cholesky(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    factor = np.linalg.cholesky(vectors * np.maximum(values, _LEAST) @ vectors.T)
    return np.tril(factor, -1) + np.diag(2.0 * np.log(np.diag(factor)))


@partial(jax.jit, static_argnums=0)
def unknowns_of(layout: Layout, free: Array) -> tuple[Array, Float[Array, "n n"]]:
    """The unknowns of free numbers, and their derivatives."""
    return layout.from_free(free), jax.jacfwd(layout.from_free)(free)
