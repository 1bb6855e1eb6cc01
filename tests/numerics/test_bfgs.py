"""The BFGS method on functions whose minimum is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnrisk.numerics.minimise import minimise_bfgs


def _rosenbrock(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def _barrier(x):
    """Infinite beyond one."""
    inside = x[0] < 1.0
    return jnp.where(inside, -jnp.log(jnp.where(inside, 1.0 - x[0], 1.0)) - 3.0 * x[0], jnp.inf)


PROBLEMS = {
    "quadratic": (lambda x: x @ (jnp.arange(1.0, 4.0) * x), [3.0, -2.0, 1.0], [0.0, 0.0, 0.0]),
    "rosenbrock": (_rosenbrock, [-1.2, 1.0, 0.5], [1.0, 1.0, 1.0]),
    "barrier": (_barrier, [-3.0], [2.0 / 3.0]),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_finds_the_minimum(name):
    function, start, minimum = PROBLEMS[name]
    found = jax.jit(lambda at: minimise_bfgs(function, at, 1e-8, 400))(jnp.array(start))
    assert found.converged
    np.testing.assert_allclose(found.at, minimum, atol=1e-7)


def test_says_that_it_did_not_converge():
    found = minimise_bfgs(_rosenbrock, jnp.array([-1.2, 1.0]), 1e-8, 5)
    assert not found.converged
    assert float(found.value) < float(_rosenbrock(jnp.array([-1.2, 1.0])))


def test_one_step_gives_the_gradient_at_the_start():
    start = jnp.array([-1.2, 1.0])
    found = minimise_bfgs(_rosenbrock, start, 0.0, 1)
    np.testing.assert_array_equal(found.at, start)
    np.testing.assert_allclose(found.gradient, jax.grad(_rosenbrock)(start))
