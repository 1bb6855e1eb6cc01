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


class Unknowns(NamedTuple):
    """The block of the key vectors, and that of the value vector."""

    keys: Order
    values: Order

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

    def penalty(self, ridges: Float[np.ndarray, "2"]) -> Float[np.ndarray, " n"]:
        """The derivative of `½ Σ r_p Q_pp`, the ridges' part of the objective."""
        return self._marked(*((0.0, ridge / 2, 0.0) for ridge in ridges))

    @property
    def value_overlap(self) -> Float[np.ndarray, " n"]:
        """The unit vector of the overlap `m_v`."""
        return self._marked((0.0, 0.0, 0.0), (1.0, 0.0, 0.0))

    def sizes(self, free: np.ndarray) -> np.ndarray:
        """What is a large step of each free number."""
        overlap = self._marked((1.0, 0.0, 0.0), (1.0, 0.0, 0.0))
        return np.where(overlap > 0, 0.1 + np.abs(free), 1.0)

    def matters(self, free: np.ndarray, least: float) -> np.ndarray:
        """Which free numbers are not the logarithm of a pivot of `Q − M Mᵀ` below `least`."""
        pivot = self._marked((0.0, 1.0, 0.0), (0.0, 1.0, 0.0)) > 0
        return ~pivot | (np.where(pivot, free, 0.0) > np.log(least))

    def _marked(self, *blocks: tuple[float, float, float]) -> np.ndarray:
        """A flat vector with one number for all of `M`, and for the diagonals of `Q` and of `V`, in each block."""
        shapes = (self.heads, self.features), (1, 1)
        return pack(
            Unknowns(
                *(
                    Order(np.full((p, t), m), q * np.eye(p), v * np.eye(p))
                    for (p, t), (m, q, v) in zip(shapes, blocks, strict=True)
                )
            )
        )

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
