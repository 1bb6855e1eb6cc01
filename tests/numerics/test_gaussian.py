import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadax import quadgk
from scipy.special import ndtr

from attnrisk.numerics.panels import bulk, panels


def _expect(function, mean, deviation, features=(0.0,), order=10):
    x, weights = panels(deviation, 1, order).for_function(features, mean, deviation)
    return float(weights @ function(mean + deviation * x))


@jax.jit
def _adaptive(mean, deviation):
    """`E[tanh]` and its error, by another method."""
    knee = jnp.where(jnp.abs(mean) < 9 * deviation, -mean / deviation, 0.0)
    found, info = quadgk(
        lambda x: jnp.tanh(mean + deviation * x) * jnp.exp(-0.5 * x**2) / jnp.sqrt(2 * jnp.pi),
        jnp.stack([-9.5, knee, 9.5]),
        epsabs=1e-13,
        epsrel=0.0,
        max_ninter=200,
    )
    return found, info.err


@pytest.mark.parametrize("deviation", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize(
    "mean",
    [-1.3, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(5.0, marks=pytest.mark.slow)],
)
def test_knees_and_kinks_at_any_scale(mean, deviation):
    relu = mean * ndtr(mean / deviation) + deviation * np.exp(
        -0.5 * (mean / deviation) ** 2
    ) / np.sqrt(2 * np.pi)
    found = _expect(lambda s: jnp.maximum(s, 0.0), mean, deviation)
    assert abs(found - relu) < 1e-13 * (abs(mean) + deviation)
    step = _expect(lambda s: jnp.tanh(s), mean, deviation)
    oracle, error = map(float, _adaptive(mean, deviation))
    assert abs(step - oracle) < 1e-11 + error


def test_without_features_a_kink_is_not_resolved():
    """The negative control: panels have to meet at the kink."""
    exact = 1 / np.sqrt(2 * np.pi)
    shifted = _expect(lambda s: jnp.maximum(s - 0.37, 0.0), 0.37, 1.0, features=())
    assert abs(shifted - exact) < 1e-13  # the bulk happens to meet at the mean
    missed = _expect(lambda s: jnp.maximum(s, 0.0), 0.37, 1.0, features=())
    met = _expect(lambda s: jnp.maximum(s, 0.0), 0.37, 1.0)
    relu = 0.37 * ndtr(0.37) + np.exp(-0.5 * 0.37**2) / np.sqrt(2 * np.pi)
    assert abs(missed - relu) > 1e-6
    assert abs(met - relu) < 1e-14


def test_cells_keep_the_edges_of_the_bulk():
    np.testing.assert_array_equal(bulk(10, 2)[::2], bulk(10))
    assert bulk(10)[-1] < bulk(10**9)[-1]
