"""Small dense linear algebra written out, for batches of matrices of a few rows.

LAPACK is not used: if two threads call the batched LAPACK of jaxlib 0.10 on a machine with two cores, both can
deadlock.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_UNROLLED = 6  # rows of an elimination that is written out; larger ones would take long to compile


def root(variance: Any) -> Any:
    """The square root, with derivative 0 at 0."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def ratio(numerator: Any, denominator: Any) -> Any:
    """The quotient, and 0 where the denominator vanishes (the numerator vanishes there too)."""
    vanishes = denominator <= 1e-150
    return jnp.where(vanishes, 0.0, numerator / jnp.where(vanishes, 1.0, denominator))


def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The lower Cholesky factor of a positive semidefinite matrix, from its lower triangle; pivots may be zero."""
    size = matrix.shape[-1]
    rows: list[list[Any]] = [[jnp.zeros(())] * size for _ in range(size)]
    for j in range(size):
        pivot = root(matrix[j, j] - sum((rows[j][k] ** 2 for k in range(j)), start=jnp.zeros(())))
        rows[j][j] = pivot
        for i in range(j + 1, size):
            shared = sum((rows[i][k] * rows[j][k] for k in range(j)), start=jnp.zeros(()))
            rows[i][j] = ratio(matrix[i, j] - shared, pivot)
    return jnp.stack([jnp.stack(row) for row in rows])


def solve_lower(factor: Float[Array, "n n"], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    """`factor⁻¹ vector` of a lower triangular matrix, 0 along its zero pivots."""
    found: list[Any] = []
    for i in range(vector.shape[0]):
        known = sum((factor[i, k] * found[k] for k in range(i)), start=jnp.zeros(()))
        found.append(ratio(vector[i] - known, factor[i, i]))
    return jnp.stack(found)


def solve(matrix: Float[Array, "n n"], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    """Elimination without pivoting, for symmetric matrices."""
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
    rows = jnp.concatenate([matrix, vector[:, None]], 1)

    def clear(column: Array, rows: Array) -> Array:
        pivot = rows[column] / rows[column, column]
        factors = rows[:, column].at[column].set(0.0)
        return (rows - factors[:, None] * pivot).at[column].set(pivot)

    return jax.lax.fori_loop(0, vector.size, clear, rows)[:, -1]


class LowRank(NamedTuple):
    """The symmetric matrix `diag(d) + rowsᵀ core rows`, with few rows."""

    diagonal: Float[Array, " n"]
    rows: Float[Array, "r n"]
    core: Float[Array, "r r"]

    def solve(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """The inverse applied to a vector, in a time that grows like `n`, by Woodbury.

        It is `d⁻¹ − d⁻¹ rowsᵀ (1 + core rows d⁻¹ rowsᵀ)⁻¹ core rows d⁻¹`.
        """
        first = vector / self.diagonal
        gram = jnp.sum(self.rows[:, None] * (self.rows / self.diagonal), -1)
        matrix = jnp.eye(len(self.rows)) + jnp.sum(self.core[:, :, None] * gram, 1)
        small = solve(matrix, jnp.sum(self.core * jnp.sum(self.rows * first, -1), -1))
        return first - jnp.sum(small[:, None] * self.rows, 0) / self.diagonal
