"""Equal steps that cluster at kinks, against adaptive quadrature between them."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from attnrisk.numerics.clusters import clusters

KINKS = {
    "apart": (0.3, -1.2),
    "close": (0.3, 0.3001),
    "one outside": (9.0, 0.7),
    "none": (40.0, -50.0),
}


def _function(x, kinks, t, numpy=jnp):
    """Kinks on scales of `1/t`, in opposite directions."""
    first, second = kinks
    return numpy.exp(-t * numpy.maximum(x - first, 0.0) - 0.3 * t * numpy.maximum(second - x, 0.0))


@eqx.filter_jit
def _around(rule, kinks):
    return rule.around(kinks)


def _mean(rule, kinks, t):
    x, mass = _around(rule, jnp.asarray(kinks))
    return mass @ _function(x, kinks, t)


@pytest.mark.parametrize("name", KINKS)
@pytest.mark.parametrize("t", [0.5, 30.0, 1e4])
def test_between_kinks_of_any_scale(name, t):
    kinks = KINKS[name]
    rule = clusters(1.0, 6.5, 1.0)

    def integrand(x):
        return _function(x, kinks, t, np) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    cuts = np.clip(
        [side + sign * k / t for side in kinks for sign in (-1, 1) for k in (0, 3, 30, 100)], -9, 9
    )
    edges = np.unique([-9.0, 9.0, *cuts])
    exact = sum(quad(integrand, *pair, epsabs=1e-13)[0] for pair in pairwise(edges))
    assert float(_mean(rule, kinks, t)) == pytest.approx(exact, abs=3e-9)
    x, mass = _around(rule, jnp.asarray(kinks))
    assert float(jnp.sum(mass)) == pytest.approx(1.0, abs=3e-9)
    assert np.all(np.diff(x) >= 0)


def test_nodes_that_do_not_know_the_kinks_are_far_off():
    """The negative control."""
    rule, kinks, t = clusters(1.0, 6.5, 1.0), KINKS["apart"], 30.0
    x, mass = _around(rule, jnp.zeros(0))
    assert abs(float(mass @ _function(x, kinks, t) - _mean(rule, kinks, t))) > 1e-4


@pytest.mark.parametrize("t", [2.0, 1e5])
def test_derivatives_see_what_passes_a_kink(t):
    rule = clusters(1.0, 6.5, 1.0)

    def mean(first):
        return _mean(rule, jnp.stack([first, jnp.asarray(-1.2)]), t)

    slope = float(jax.grad(mean)(0.3))
    ends = [float(mean(0.3 + side * 1e-5)) for side in (1, -1)]
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7)
    assert slope > 0.1
