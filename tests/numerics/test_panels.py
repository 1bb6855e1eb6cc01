import jax.numpy as jnp
import numpy as np
import pytest

from attnrisk.numerics.panels import composite, merge


@pytest.mark.parametrize(("a", "b"), [(1, 1), (5, 3), (19, 15), (32, 32)])
def test_merge_sorts(a, b, rng):
    left, right = np.sort(rng.normal(size=(7, a))), np.sort(rng.normal(size=(7, b)))
    merged = merge(jnp.asarray(left), jnp.asarray(right))
    np.testing.assert_array_equal(merged, np.sort(np.concatenate([left, right], -1)))


@pytest.mark.parametrize("order", [3, 8])
def test_composite_is_exact_for_polynomials(order):
    edges = np.array([-1.0, 0.3, 0.3, 2.0])
    nodes, weights = composite(edges, order)
    degree = 2 * order - 1
    exact = (2.0 ** (degree + 1) - 1.0) / (degree + 1)
    assert abs(weights @ nodes**degree - exact) < 1e-12 * exact


def test_composite_converges_at_its_order():
    """Fitted: halving the panels of a rule of order 3 gains a factor 2^6."""
    errors = []
    for panels in (4, 8, 16):
        nodes, weights = composite(np.linspace(0.0, 3.0, panels + 1), 3)
        errors.append(abs(weights @ np.exp(nodes) - (np.exp(3.0) - 1)))
    rates = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(rates, 6, atol=0.2)
