"""The transform undoes a normalisation: `∫ e^{-tS} t^{p-1} dt = (p-1)!/S^p`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.numerics.panels import bulk, panels, transform_panels
from attnrisk.numerics.quadrature import (
    integrate_token,
    log_complement,
    moments_by_parts,
    transforms_at,
    trapezoid,
)
from attnrisk.population.functions import in_numpy


@pytest.mark.parametrize("scale", [0.01, 0.5, 1.0])
def test_inverse_of_a_sum(scale, rng):
    phi = np.exp(scale * rng.normal(size=5))
    u, du = transform_panels(jnp.asarray(scale * bulk()), 5, 10)
    t = np.exp(-np.asarray(u))
    for power, factorial in ((1, 1.0), (2, 1.0), (3, 2.0)):
        found = np.sum(np.asarray(du) * t**power * np.exp(-t * phi.sum()))
        assert abs(found * phi.sum() ** power / factorial - 1) < 1e-9


@pytest.mark.parametrize("name", ["softmax", "softplus", "relu", "taylor-2"])
@pytest.mark.parametrize("deviation", [0.1, 1.0, 20.0])
def test_one_token_against_samples(name, deviation, rng):
    kernel, u = ar.get_attention(name), jnp.array([-3.0, 0.0, 2.0])
    rule = panels(deviation, 1, 10, pinch=16)
    found = jax.jit(partial(integrate_token, kernel, 1))(0.4, deviation, u, rule)
    x = rng.normal(size=400_000)
    w = np.exp(
        np.minimum(
            np.asarray(kernel.log_phi(jnp.asarray(0.4 + deviation * x))) - np.asarray(u)[:, None],
            60,
        )
    )
    for k in range(2):
        for part, values in zip(
            found, (-np.expm1(-w), w * np.exp(-w), w**2 * np.exp(-w)), strict=True
        ):
            sample = x**k * values
            error = sample.std(-1) / np.sqrt(x.size) + 1e-12
            assert np.all(np.abs(np.asarray(part[k]) - sample.mean(-1)) < 4.5 * error)


@pytest.mark.parametrize("name", ["softplus", "softpick"])
def test_sums_by_numpy_in_blocks_are_those_of_jax(name):
    """Several blocks of rows, the last one short, with a share of the numerator and where weights underflow."""
    kernel, rule, u = ar.get_attention(name), trapezoid(5.0), np.linspace(-800.0, 9.0, 301)
    arguments = 0.4 + 5.0 * rule.x
    pairs = [
        (integrate_token(each, 1, 0.4, 5.0, nodes, rule), transforms_at(each, at, other))
        for each, nodes, at, other in (
            (in_numpy(kernel), u, arguments[:, None], u),
            (kernel, jnp.asarray(u), jnp.asarray(arguments)[:, None], jnp.asarray(u)),
        )
    ]
    for found, known in zip(*pairs, strict=True):
        for part, whole in zip(found, known, strict=True):
            np.testing.assert_allclose(part, whole, rtol=1e-12, atol=1e-250)
    # Written out, where one of them may be as small as one over any number of tokens.
    log_phi = np.asarray(kernel.log_phi(jnp.asarray(arguments)))
    w = np.exp(np.minimum(log_phi[:, None] - u, 60.0))
    own = np.asarray(kernel.share(jnp.asarray(arguments))).reshape(-1, 1) * w
    written = -np.expm1(-w), own * np.exp(-w), own**2 * np.exp(-w)
    for part, whole in zip(pairs[0][1], written, strict=True):
        np.testing.assert_allclose(part[w < 1], whole[w < 1], rtol=1e-12, atol=1e-250)
        np.testing.assert_allclose(part[w < 40], whole[w < 40], atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_derivatives_by_parts(name):
    """Against finite differences, in the mean and in the deviation, at two scales with two different rules."""
    kernel, u = ar.get_attention(name), jnp.linspace(-3.0, 4.0, 5)
    for deviation in (1.0, 30.0):
        rule = panels(deviation, 1, 12, pinch=16)
        integrate = partial(integrate_token, kernel)

        @jax.jit
        def lost(mean, deviation):
            return moments_by_parts(integrate, 1, mean, deviation, u, rule)[0]  # noqa: B023

        at = (jnp.asarray(0.3), jnp.asarray(deviation))
        for argument in (0, 1):
            exact = jax.jacfwd(lost, argument)(*at)
            h = 1e-4 * deviation
            ends = [tuple(v + s * h * (i == argument) for i, v in enumerate(at)) for s in (1, -1)]
            central = (lost(*ends[0]) - lost(*ends[1])) / (2 * h)
            np.testing.assert_allclose(exact, central, atol=1e-8)


def test_log_complement_keeps_digits():
    assert float(log_complement(np.float64(1e-17))) == -1e-17
    assert np.isfinite(float(log_complement(np.float64(1.0))))
