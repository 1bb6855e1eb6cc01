"""Derivatives of the risk with respect to the overlaps: exact ones against finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import OVERLAPS, TASKS

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.risk import plan, risk

CASES = [
    ("spiked", "softmax"),
    ("spiked", "relu"),
    ("spiked", "erf"),
    ("spiked-spread", "softplus"),
    ("max", "softmax"),
    ("max-hard", "linear"),
    pytest.param("max-hard", "elu+1", marks=pytest.mark.slow),
]
STEP = 1e-4


def _function(task, attention):
    """The risk as a function of the seven overlaps in one vector."""
    how = plan(task, attention, scale=1.5, sharpness=1.5)
    arrays = as_arrays((task, attention, how))

    @eqx.filter_jit
    def compiled(arrays, vector):
        task, attention, how = arrays
        return risk(task, attention, ar.Overlaps(*vector), how)

    return lambda vector: compiled(arrays, vector)


@pytest.mark.parametrize(("task", "name"), CASES)
def test_gradient(task, name):
    function = _function(TASKS[task], ar.get_attention(name))
    at = jnp.array(list(OVERLAPS["off"].as_dict().values()))
    steps = STEP * jnp.eye(7)
    central = [(function(at + step) - function(at - step)) / (2 * STEP) for step in steps]
    np.testing.assert_allclose(jax.grad(function)(at), central, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_second_derivatives():
    """The rule for derivatives is itself differentiable."""
    function = _function(TASKS["spiked"], ar.Softmax())
    at = jnp.array(list(OVERLAPS["off"].as_dict().values()))
    gradient = jax.jit(jax.grad(function))
    steps = STEP * jnp.eye(7)
    central = [(gradient(at + step) - gradient(at - step)) / (2 * STEP) for step in steps]
    hessian = jax.jacfwd(gradient)(at)
    np.testing.assert_allclose(hessian, central, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)


def test_population_risk_can_be_differentiated_by_its_user():
    task = ar.SpikedSLR(2.0, 3)

    def value(m_kk):
        return ar.population_risk(task, ar.Softmax(), ar.aligned(m_kk)).value

    assert abs(float(jax.grad(value)(jnp.sqrt(2.0)))) < 1e-9
    assert float(jax.grad(value)(1.0)) < -1e-2
    assert float(jax.grad(value)(2.0)) > 1e-2
