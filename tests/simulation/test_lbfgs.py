"""L-BFGS on functions whose minima are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from attnrisk import Result
from attnrisk.simulation.lbfgs import Trial, minimise, new_search


def batched(function):
    """Value and gradient of many points at once."""
    return jax.jit(jax.vmap(jax.value_and_grad(function)))


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def test_several_starts_and_as_few_steps_as_scipy(rng):
    starts = jnp.asarray(rng.normal(size=(3, 6)))
    descent = minimise(batched(rosenbrock), starts, 1e-8, 1e-15, 1000)
    assert descent.results == [Result.CONVERGED] * 3
    assert np.all(descent.gradient_norms <= 1e-8)
    with_slope = jax.jit(jax.value_and_grad(rosenbrock))
    for start, point, value in zip(starts, descent.points, descent.values, strict=True):
        theirs = minimize(with_slope, start, jac=True, method="L-BFGS-B")
        if np.allclose(theirs.x, point, atol=1e-3):  # there is a second minimum, near x_1 = -1
            assert value <= theirs.fun + 1e-12
        else:
            assert min(value, theirs.fun) < 1e-8
    assert descent.evaluations < 200


def test_a_quadratic_in_a_few_steps(rng):
    basis = rng.normal(size=(8, 8))
    curvature, centre = jnp.asarray(basis @ basis.T + np.eye(8)), jnp.asarray(rng.normal(size=8))

    def bowl(x):
        return 0.5 * (x - centre) @ curvature @ (x - centre)

    descent = minimise(batched(bowl), jnp.zeros((1, 8)), 1e-9, 1e-15, 100)
    assert descent.results == [Result.CONVERGED]
    np.testing.assert_allclose(descent.points[0], centre, atol=1e-8)
    assert descent.iterations[0] < 40


def test_a_start_that_is_a_minimum_stays():
    starts = jnp.array([[1.0, 1.0], [3.0, -1.0]])
    descent = minimise(batched(rosenbrock), starts, 1e-6, 1e-15, 500)
    np.testing.assert_array_equal(descent.points[0], starts[0])
    assert descent.iterations[0] == 0
    np.testing.assert_allclose(descent.points[1], 1.0, atol=1e-5)


def test_the_largest_number_of_steps():
    descent = minimise(batched(rosenbrock), jnp.array([[-1.2, 1.0]]), 1e-9, 1e-15, 3)
    assert descent.results == [Result.MAX_STEPS]
    assert descent.iterations[0] == 3
    assert descent.values[0] < rosenbrock(jnp.array([-1.2, 1.0]))


def test_what_is_not_a_number_is_too_far():
    """`x − log x`: a step beyond zero has no value."""
    descent = minimise(
        batched(lambda x: jnp.sum(x - jnp.log(x))), jnp.full((1, 3), 9.0), 1e-8, 0.0, 99
    )
    assert descent.results == [Result.CONVERGED]
    np.testing.assert_allclose(descent.points, 1.0, atol=1e-7)


def test_a_gradient_that_is_wrong_stalls():
    """It cannot go down, and says so; the point is still the start."""

    def lying(points):
        values, gradients = batched(rosenbrock)(points)
        return values, -gradients

    descent = minimise(lying, jnp.array([[-1.2, 1.0]]), 1e-9, 1e-15, 100)
    assert descent.results == [Result.STALLED]
    np.testing.assert_array_equal(descent.points[0], [-1.2, 1.0])


def test_rounding_of_the_value_does_not_stop_it(rng):
    """Values known to 1e-8 and gradients to more: the gradient still falls far below what values can tell."""

    def noisy(points):
        values, gradients = batched(lambda x: 1.0 + jnp.sum(x**2) + jnp.sum(x**4))(points)
        return values * (1 + 1e-8 * rng.normal(size=values.shape)), gradients

    descent = minimise(noisy, jnp.asarray(rng.normal(size=(4, 5))), 1e-7, 1e-7, 200)
    assert descent.results == [Result.CONVERGED] * 4


def test_an_interrupt_keeps_the_best_so_far():
    calls = []

    def interrupted(points):
        calls.append(points)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return batched(rosenbrock)(points)

    starts = jnp.array([[-1.2, 1.0], [1.0, 1.0]])
    descent = minimise(interrupted, starts, 1e-9, 1e-15, 100)
    assert descent.results == [Result.INTERRUPTED, Result.CONVERGED]
    assert descent.values[0] < rosenbrock(starts[0])
    assert descent.values[0] == pytest.approx(float(rosenbrock(descent.points[0])), rel=1e-12)


def test_the_line_search_brackets():
    search = new_search(*map(jnp.asarray, (1.0, -1.0, 1.0)))

    def trial(*numbers):
        return Trial(*map(jnp.asarray, numbers))

    assert not search.accepts(trial(1.0, 0.1, -0.95), 0.0)  # too steep still
    assert search.accepts(trial(1.0, 0.5, 0.1), 0.0)
    assert not search.accepts(trial(1.0, 1.0 + 1e-7, 0.1), 0.0)  # not lower
    assert search.accepts(trial(1.0, 1.0 + 1e-7, 0.1), 1e-6)  # up to rounding
    farther = search.narrowed(trial(1.0, 0.1, -0.95), 0.0)
    assert farther.step == 4.0
    between = farther.narrowed(trial(4.0, 2.0, 0.95), 0.0)
    assert between.step == pytest.approx(2.5)
    assert between.trials == 2
