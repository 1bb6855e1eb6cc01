"""The closed-form risk of erf, against quadrature."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.scipy.special import erf
from scipy.special import owens_t

import attnrisk as ar
from attnrisk.marion.erf_risk import _owen, erf_risk
from attnrisk.marion.sphere import UnitPair
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.overlaps import NAMES
from attnrisk.population.plan import plan

ERF = ar.Elementwise(erf, features=(0.0,))
GAMMA = np.sqrt(0.5)

closed_risk = eqx.filter_jit(erf_risk)


def unit_overlaps(rng, inverse_temperature):
    """Overlaps of `λ k` and `v` for two random unit vectors."""
    k, v = (vector / np.linalg.norm(vector) for vector in rng.normal(size=(2, 4)))
    cosines = UnitPair(k[None], v[None]).cosines
    return jax.tree.map(lambda x: np.asarray(x[0]), cosines.stretched(inverse_temperature))


@pytest.mark.parametrize(
    ("inverse_temperature", "length"),
    [(1e-3, 10), (0.1, 10), (0.9, 10), (30.0, 10), (2.0, ar.uniform(1, 3))],
)
def test_risk_agrees_with_quadrature(rng, inverse_temperature, length):
    for dim in (30, 400):
        task = ar.SpikedSLR(dim / 2, length, noise=0.1, spread=GAMMA)
        overlaps = unit_overlaps(rng, inverse_temperature)
        exact = ar.population_risk(task, ERF, overlaps)
        closed = float(closed_risk(*as_arrays((task, overlaps))))
        assert closed == pytest.approx(exact.value, rel=1e-12, abs=1e-12)


def test_gradient_agrees_with_quadrature(rng):
    task = as_arrays(ar.SpikedSLR(15.0, 10, noise=0.1, spread=GAMMA))
    how = plan(task, ERF, scale=1.0)

    @jax.jit
    def gradients(overlaps):
        functions = (lambda o: erf_risk(task, o)), (lambda o: how.risk(task, ERF, o))
        return [jax.grad(function)(overlaps) for function in functions]

    for inverse_temperature in (0.1, 0.9):
        overlaps = as_arrays(unit_overlaps(rng, inverse_temperature))
        closed, exact = gradients(overlaps)
        for name in NAMES:
            value, expected = getattr(closed, name), getattr(exact, name)
            assert float(value) == pytest.approx(float(expected), rel=1e-9, abs=1e-9), name


def test_owens_function():
    u, a = np.meshgrid(np.linspace(-8.0, 8.0, 161), [1e-3, 0.1, 0.5, 0.9, 1.0])
    expected = 8.0 * owens_t(np.sqrt(2.0) * u, a)
    np.testing.assert_allclose(_owen(u, a), expected, rtol=0, atol=3e-15)
