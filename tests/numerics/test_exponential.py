"""The exponential solver on problems whose solution is known."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from attnrisk import Result
from attnrisk.numerics.exponential import Linearised, integrate, phi

STIFF = np.array([[300.0, 20.0], [20.0, 2.0]])
START = np.array([[1.0, -2.0], [0.3, 0.7]])


def _potential(y):
    return jnp.sum(jnp.cosh(y)) + 0.5 * (y[0] * y[1]) ** 2


_slopes = jax.jit(jax.vmap(lambda y: (jax.grad(_potential)(y), jax.hessian(_potential)(y))))


def _solve(times, accuracy, tolerance=1e-12, starts=START, is_inside=None):
    def derivatives(points):
        return [np.asarray(part) for part in _slopes(points)]

    anywhere = is_inside or (lambda points: np.ones(len(points), bool))
    return integrate(derivatives, starts, np.asarray(times), tolerance, accuracy, anywhere)


def test_phi_functions():
    z = np.array([-700.0, -3.0, -0.5, -1e-3, 0.0, 0.3, 2.0])
    safe = np.where(z == 0, 1.0, z)
    np.testing.assert_allclose(phi(0, z), np.exp(z), rtol=1e-14)
    exact = np.where(z == 0, 1.0, np.expm1(safe) / safe)
    np.testing.assert_allclose(phi(1, z), exact, rtol=1e-13)
    small = np.array([-1e-3, 0.0, 1e-3])
    np.testing.assert_allclose(phi(3, small), 1 / 6 + small / 24 + small**2 / 120, rtol=1e-10)


def test_linear_flows_are_exact_at_any_step_and_inside_it():
    times = np.linspace(0.0, 5.0, 11)
    paths = integrate(
        lambda points: (points @ STIFF, np.broadcast_to(STIFF, (len(points), 2, 2))),
        START,
        times,
        1e-12,
        1e-2,
        lambda points: np.ones(len(points), bool),
    )
    exact = np.array([START @ expm(-STIFF * t) for t in times]).swapaxes(0, 1)
    np.testing.assert_allclose(paths.points, exact, atol=1e-12)
    assert paths.result.tolist() == [Result.TIME_OVER] * 2


def test_error_falls_with_the_accuracy_as_order_three_says():
    """Per unit of time the error of steps of order three is the 2/3 power or so of that estimated for a step."""
    times = np.linspace(0.0, 1.0, 7)
    controller = diffrax.PIDController(rtol=1e-12, atol=1e-12)
    term = diffrax.ODETerm(lambda t, y, args: -jax.grad(_potential)(y))
    exact = np.array(
        [
            diffrax.diffeqsolve(
                *(term, diffrax.Dopri8(), 0.0, 1.0, 1e-3, start),
                saveat=diffrax.SaveAt(ts=times),
                stepsize_controller=controller,
            ).ys
            for start in jnp.asarray(START)
        ]
    )
    errors = [np.abs(_solve(times, accuracy).points - exact).max() for accuracy in (1e-4, 1e-7)]
    assert errors[0] < 1e-3
    assert errors[1] < 1e-6
    assert errors[0] / errors[1] > 1000 ** (2 / 3)


def test_runs_stop_for_their_own_reasons():
    def is_inside(points):
        return points[:, 0] < 1.5

    starts = np.array([[1.0, -2.0], [2.0, 0.0]])
    paths = _solve([0.5, 1e6], 1e-4, 1e-8, starts, is_inside)
    assert paths.result.tolist() == [Result.CONVERGED, Result.LEFT_DOMAIN]
    np.testing.assert_allclose(paths.end[0], 0.0, atol=1e-8)
    np.testing.assert_allclose(paths.points[1], starts[[1, 1]])
    np.testing.assert_allclose(paths.points[0, 1], paths.end[0])
    alone = _solve([0.5, 1e6], 1e-4, 1e-8, starts[:1], is_inside)
    np.testing.assert_array_equal(alone.points[0], paths.points[0])


def test_the_frame_carries_a_function_of_the_jacobian():
    rates, frame = np.linalg.eigh(-STIFF)
    linearised = Linearised(np.ones(2), rates, frame)
    found = linearised.phi(0, 0.1, np.ones(2))
    np.testing.assert_allclose(found, 0.1 * expm(-0.1 * STIFF) @ np.ones(2), atol=1e-13)


def test_no_gradient_is_divergence():
    def derivatives(points):
        return np.full_like(points, np.nan), np.full((*points.shape, 2), np.nan)

    paths = integrate(
        derivatives, START, np.array([1.0]), 1e-6, 1e-3, lambda points: np.ones(len(points), bool)
    )
    assert paths.result.tolist() == [Result.DIVERGED] * 2
    np.testing.assert_array_equal(paths.end, START)


@pytest.mark.parametrize("time", [0.0, 1e-9])
def test_short_times(time):
    paths = _solve([time], 1e-3)
    np.testing.assert_allclose(paths.end, START, atol=1e-7)
    assert paths.result.tolist() == [Result.TIME_OVER] * 2
