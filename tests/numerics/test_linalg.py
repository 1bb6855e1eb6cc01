"""Small linear algebra, written out or in a loop, against LAPACK."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnrisk.numerics.linalg import cholesky, solve, solve_lower


@pytest.mark.parametrize("size", [1, 2, 6, 7, 12])
def test_against_lapack(size, rng):
    root = rng.normal(size=(size, size))
    matrix, vector = jnp.asarray(root @ root.T + np.eye(size)), jnp.asarray(rng.normal(size=size))
    factor = cholesky(matrix)
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), atol=1e-11)
    np.testing.assert_allclose(
        solve_lower(factor, vector), np.linalg.solve(factor, vector), atol=1e-11
    )
    np.testing.assert_allclose(solve(matrix, vector), np.linalg.solve(matrix, vector), atol=1e-10)


def test_a_zero_pivot_gives_zeros():
    factor = cholesky(jnp.zeros((2, 2)))
    np.testing.assert_array_equal(factor, np.zeros((2, 2)))
    np.testing.assert_array_equal(solve_lower(factor, jnp.zeros(2)), np.zeros(2))
