"""The exponential solver on problems whose solution is known."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnrisk.numerics.exponential import ExponentialRosenbrock, Linearised, Moving, _phi

STIFF = jnp.array([[300.0, 20.0], [20.0, 2.0]])


def _solve(slope, start, times, steps=None, **control):
    def field(t, y, args):
        return Moving(slope(y.point), jnp.zeros(()))

    controller = diffrax.PIDController(**control) if control else diffrax.ConstantStepSize()
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        ExponentialRosenbrock(),
        times[0],
        times[-1],
        0.01 if steps is None else (times[-1] - times[0]) / steps,
        Moving(jnp.asarray(start), jnp.asarray(jnp.inf)),
        saveat=diffrax.SaveAt(ts=jnp.asarray(times)),
        stepsize_controller=controller,
    )


def test_phi_functions():
    z = jnp.array([-700.0, -3.0, -0.5, -1e-3, 0.0, 0.3, 2.0])
    safe = jnp.where(z == 0, 1.0, z)
    np.testing.assert_allclose(_phi(0, z), jnp.exp(z), rtol=1e-14)
    exact = jnp.where(z == 0, 1.0, jnp.expm1(safe) / safe)
    np.testing.assert_allclose(_phi(1, z), exact, rtol=1e-13)
    small = jnp.array([-1e-3, 0.0, 1e-3])
    np.testing.assert_allclose(_phi(3, small), 1 / 6 + small / 24 + small**2 / 120, rtol=1e-10)


def test_linear_flows_are_exact_in_one_step_and_inside_it():
    times = np.linspace(0.0, 5.0, 11)
    solution = _solve(lambda y: -STIFF @ y, [1.0, -2.0], times, steps=1)
    exact = [jax.scipy.linalg.expm(-STIFF * t) @ jnp.array([1.0, -2.0]) for t in times]
    np.testing.assert_allclose(solution.ys.point, np.array(exact), atol=1e-12)


@pytest.mark.slow
def test_order_three_and_dense_output():
    def slope(y):
        return -jax.grad(lambda y: jnp.sum(jnp.cosh(y)) + 0.5 * (y[0] * y[1]) ** 2)(y)

    times = np.linspace(0.0, 1.0, 7)
    best = _solve(slope, [1.0, -0.7], times, steps=2000).ys.point
    coarse, fine = (
        np.abs(_solve(slope, [1.0, -0.7], times, steps=n).ys.point - best).max() for n in (16, 32)
    )
    assert 6.0 < coarse / fine < 11.0
    adaptive = _solve(slope, [1.0, -0.7], times, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(adaptive.ys.point, best, atol=1e-5)


def test_the_frame_carries_a_function_of_the_jacobian():
    rates, frame = jnp.linalg.eigh(-STIFF)
    linearised = Linearised(jnp.ones(2), rates, frame)
    np.testing.assert_allclose(
        linearised.phi(0, 0.1, jnp.ones(2)),
        jax.scipy.linalg.expm(-0.1 * STIFF) @ jnp.ones(2),
        atol=1e-13,
    )
