"""The law of the location in max-SLR: closed forms, plain draws, derivatives by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from attnrisk.numerics.noisy_argmax import select, tabulate

THETA = jnp.array([0.5, -1.0, 1.2, 9.0])
PRESENT = jnp.array([True, True, True, False])
_select, _tabulate = jax.jit(select), jax.jit(tabulate)


def test_gumbel_noise_gives_softmax():
    found = _select(THETA, PRESENT, _tabulate(0.0)).probability
    np.testing.assert_allclose(found[:3], jax.nn.softmax(THETA[:3]), atol=1e-6)
    assert found[3] == 0.0


@pytest.mark.parametrize("gap", [0.0, 0.7, 5.0, 30.0, 1e9])
def test_gaussian_noise_on_two_tokens(gap):
    present = jnp.array([True, True])
    found = _select(jnp.array([0.3, 0.3 + gap]), present, _tabulate(1.0))
    np.testing.assert_allclose(found.probability[0], ndtr(-gap / np.sqrt(2)), atol=1e-6)
    density = np.exp(-(gap**2) / 4) / np.sqrt(4 * np.pi)
    np.testing.assert_allclose(found.pull(jnp.array([1.0, 0.0]))[1], -density, atol=1e-5)


@pytest.mark.parametrize("gaussian", [0.3, 0.7, 0.72, 0.95])
def test_mixed_noise_agrees_with_draws(gaussian, rng):
    found = _select(THETA, PRESENT, _tabulate(gaussian)).probability[:3]
    shape, n = (200_000, 3), 200_000
    noise = gaussian * rng.normal(size=shape) + np.sqrt(1 - gaussian**2) * rng.gumbel(size=shape)
    counts = np.bincount(np.argmax(np.asarray(THETA)[:3] + noise, 1), minlength=3)
    error = np.sqrt(found * (1 - found) / n)
    assert np.all(np.abs(counts / n - found) < 4 * error)


@pytest.mark.parametrize("gaussian", [0.0, 0.5, 1.0])
def test_pull_is_the_derivative(gaussian):
    table, step, odds = _tabulate(gaussian), 1e-3, jnp.array([0.3, 2.0, -0.7, 0.0])
    pull = np.asarray(_select(THETA, PRESENT, table).pull(odds))
    for token in range(3):
        ahead, behind = (
            _select(THETA.at[token].add(sign * step), PRESENT, table).probability @ odds
            for sign in (1.0, -1.0)
        )
        np.testing.assert_allclose((ahead - behind) / (2 * step), pull[token], atol=2e-5)
    assert pull[3] == 0.0
