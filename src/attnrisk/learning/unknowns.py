"""The unknowns of the fixed point of empirical risk minimisation: `M`, `Q`, `V` and the biases (sections 6 and 10).

The symmetry `v, y → −v, −y` makes all three block-diagonal: a block of key vectors against features, and one of the
value vector against `v*`. Solvers see one flat vector: of each block `M`, then the lower triangles of `Q` and `V`; and
last the biases that are learned.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

_LEAST = 1e-20  # of an eigenvalue of Q − M Mᵀ, which is zero where an attention does not depend on its scores


class Order(NamedTuple):
    """One block of `M`, `Q` and `V`, or of their conjugates `M̂`, `Q̂` and `V̂`."""

    M: Float[Any, "p t"]
    Q: Float[Any, "p p"]
    V: Float[Any, "p p"]


class Response(NamedTuple):
    """`V_k`, its inverse and `V_v`: the response of the fields of a sample to its label."""

    k: Float[Any, "H H"]
    stiffness: Float[Any, "H H"]
    v: Any


class Unknowns(NamedTuple):
    """The block of the key vectors, that of the value vector, and the biases that are learned."""

    keys: Order
    values: Order
    bias: Float[Any, "*batch B"] = np.zeros(0)

    @property
    def blocks(self) -> tuple[Order, Order]:
        return self.keys, self.values

    @property
    def response(self) -> Response:
        """The parameters of the minimisation inside a sample."""
        return Response(self.keys.V, np.linalg.inv(self.keys.V), self.values.V[..., 0, 0])

    @property
    def correlation(self) -> Float[np.ndarray, "*batch H F"]:
        """`C⁻¹M` of the keys with `Q = C Cᵀ`, zero along zero pivots; for one head `m/√q`."""
        factor = lower_factor(self.keys.Q)
        zero = np.eye(factor.shape[-1]) * (factor == 0)  # pivots, whose columns are zero as well
        found = np.linalg.solve(factor + zero, self.keys.M)
        return np.where(np.any(zero, -1, keepdims=True), 0.0, found)

    def matrices(self) -> Order:
        """The whole matrices, with zeros between the blocks."""
        return Order(*map(block_diagonal, *self.blocks))


def block_diagonal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One matrix with two blocks; that of SciPy would take a tenth of a second to import."""
    (rows, columns), shape = first.shape, np.add(first.shape, second.shape)
    found = np.zeros(shape)
    found[:rows, :columns], found[rows:, columns:] = first, second
    return found


def lower_factor(matrix: Float[np.ndarray, "*batch n n"]) -> Float[np.ndarray, "*batch n n"]:
    """The Cholesky factor of a positive semidefinite matrix; a pivot may be zero."""
    factor = np.zeros(matrix.shape)
    for j in range(matrix.shape[-1]):
        known = np.sum(factor[..., j:, :j] * factor[..., j, None, :j], -1)
        column = matrix[..., j:, j] - known
        pivot = column[..., :1]
        root = np.sqrt(np.where(pivot > 0, pivot, 1.0))
        factor[..., j:, j] = np.where(pivot > 0, column / root, 0.0)
    return factor


def updated(hats: Unknowns, ridges: Any) -> Unknowns:
    """`V = (Γ + V̂)⁻¹`, `M = V M̂`, `Q = V(M̂ M̂ᵀ + Q̂)Vᵀ` for both blocks."""
    blocks = []
    for (M, Q, V_hat), ridge in zip(hats.blocks, ridges, strict=True):
        V = np.linalg.inv(ridge * np.eye(V_hat.shape[-1]) + V_hat)
        blocks.append(Order(V @ M, V @ (M @ M.swapaxes(-1, -2) + Q) @ V.swapaxes(-1, -2), V))
    return Unknowns(*blocks)._replace(bias=hats.bias)


def pack(unknowns: Unknowns) -> Float[np.ndarray, "*batch n"]:
    parts = []
    for M, Q, V in unknowns.blocks:
        rows, columns = np.tril_indices(Q.shape[-1])
        parts += [M.reshape(*M.shape[:-2], -1), Q[..., rows, columns], V[..., rows, columns]]
    return np.concatenate([*parts, unknowns.bias] if unknowns.bias.size else parts, -1)


class Layout(NamedTuple):
    """How many key vectors, features and learned biases there are: the shape of a flat vector of unknowns."""

    heads: int
    features: int
    biases: int = 0

    def unpack(self, x: Float[np.ndarray, "*batch n"]) -> Unknowns:
        places = self.places
        blocks = (Order(*(x[..., each] for each in block)) for block in places.blocks)
        return Unknowns(*blocks)._replace(bias=x[..., places.bias])

    @property
    def places(self) -> Unknowns:
        """The index of each number in the flat vector."""
        return _places(self)

    def penalty(
        self, ridge: Any, x: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        """`½ Σ r_p Q_pp + ½ r_b b²`, the ridges' part of the objective, and its derivative."""
        slope, bias = np.zeros(x.size), self.places.bias
        for (_, Q, _), each in zip(self.places.blocks, (ridge.k, ridge.v), strict=True):
            slope[np.diag(Q)] = float(each) / 2
        value = slope @ x + float(ridge.b) * x[bias] @ x[bias] / 2
        slope[bias] = float(ridge.b) * x[bias]
        return float(value), slope

    def scales(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Natural units: `√Q_pp` of `M`, `√(Q_pp Q_qq)` of `Q`, `√(V_pp V_qq)` of `V`, one of biases."""
        units = np.ones(x.size)
        for M, *squares in self.places.blocks:
            roots = [np.sqrt(np.maximum(x[np.diag(each)], _LEAST)) for each in squares]
            units[M] = roots[0][:, None]
            for place, root in zip(squares, roots, strict=True):
                units[place] = np.outer(root, root)
        return units

    def sizes(self, free: np.ndarray) -> np.ndarray:
        """The size of a large step for each free number."""
        size = np.ones(free.size)
        for M, _, _ in self.places.blocks:
            size[M] = 0.1 + np.abs(free[M])
        size[self.places.bias] += np.abs(free[self.places.bias])
        return size

    def matters(self, free: np.ndarray, least: float) -> np.ndarray:
        """Which free numbers are not the logarithm of a pivot of `Q − M Mᵀ` below `least`."""
        kept = np.ones(free.size, bool)
        for _, Q, _ in self.places.blocks:
            kept[np.diag(Q)] = free[np.diag(Q)] > np.log(least)
        return kept

    def to_free(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """`M` and the Cholesky factors of `Q − M Mᵀ` and `V`, the diagonals as `log C_ii²`: any numbers are valid."""
        given = self.unpack(x)
        blocks = [
            Order(M, _log_cholesky(Q - M @ M.T), _log_cholesky(V)) for M, Q, V in given.blocks
        ]
        return pack(Unknowns(*blocks)._replace(bias=given.bias))

    def from_free(self, free: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n"]:
        blocks, given = [], self.unpack(free)
        for M, *factors in given.blocks:
            eye = np.eye(M.shape[-2])
            lower = [np.tril(it, -1) + eye * np.exp(eye * it / 2) for it in factors]
            R, V = (it @ it.swapaxes(-1, -2) for it in lower)
            blocks.append(Order(M, M @ M.swapaxes(-1, -2) + R, V))
        return pack(Unknowns(*blocks)._replace(bias=given.bias))

    def free_slope(self, free: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
        """The derivative of `from_free`, by complex steps: exact, also where a pivot is 10⁻²⁰."""
        return self.from_free(free + 1e-30j * np.eye(free.size)).imag.T / 1e-30

    def tamed(self, x: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, bool]:
        """The target, and whether it is valid: if a `V` is not positive, twice the last value is used instead.

        Its `M` and `Q` follow from the conjugates of the target.
        """
        blocks, valid, there = [], True, self.unpack(target)
        for now, ahead in zip(self.unpack(x).blocks, there.blocks, strict=True):
            if np.all(np.linalg.eigvalsh(ahead.V) > 0):
                blocks.append(ahead)
                continue
            ratio = 2.0 * now.V @ np.linalg.inv(ahead.V)
            blocks.append(Order(ratio @ ahead.M, ratio @ ahead.Q @ ratio.T, 2.0 * now.V))
            valid = False
        return pack(Unknowns(*blocks)._replace(bias=there.bias)), valid


@cache
def _places(layout: Layout) -> Unknowns:
    blocks, at = [], 0
    for p, t in ((layout.heads, layout.features), (1, 1)):
        M = at + np.arange(p * t).reshape(p, t)
        lower = np.tril_indices(p)
        square = np.zeros((p, p), int)
        square[lower] = square.T[lower] = np.arange(len(lower[0]))
        Q = at + M.size + square
        V = Q + len(lower[0])
        blocks.append(Order(M, Q, V))
        at = int(V[-1, -1]) + 1
    return Unknowns(*blocks)._replace(bias=at + np.arange(layout.biases))


def _log_cholesky(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    least = max(_LEAST, 1e-14 * values[-1]) if values.size > 1 else _LEAST
    factor = np.linalg.cholesky(vectors * np.maximum(values, least) @ vectors.T)
    return np.tril(factor, -1) + np.diag(2.0 * np.log(np.diag(factor)))
