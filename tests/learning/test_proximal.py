"""The minimisation inside a sample, against a search of all scores."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning.energy import Sample, energy, fit
from attnrisk.learning.proximal import minimise, respond
from attnrisk.learning.unknowns import Response
from attnrisk.numerics.linalg import solve

RESPONSE = Response(jnp.array([[1.5]]), jnp.array([[1 / 1.5]]), jnp.array(0.6))


def _samples(rng, count, length):
    draw = rng.normal(size=(count, 2 * length + 1)) * 1.5
    fields = (
        jnp.array(draw[:, None, :length]),
        jnp.array(draw[:, length:-1]),
        jnp.array(draw[:, -1]),
    )
    return Sample(*fields, jnp.ones((count, length)))


@pytest.mark.parametrize("name", ["softmax", "linear", "erf", "softplus", "sigmoid"])
def test_finds_the_lowest_minimum(name, rng):
    attention = ar.get_attention(name)
    samples = _samples(rng, 40, 2)
    offsets = jnp.array(list(itertools.product(np.linspace(-8, 8, 161), repeat=2)))

    def on_grid(sample):
        at = jax.vmap(lambda offset: energy(attention, sample.keys + offset, sample, RESPONSE))
        return jnp.min(at(offsets[:, None]))

    @jax.jit
    def lowest_and_grid(samples):
        found = minimise(attention, samples.keys, samples, RESPONSE, jnp.asarray(True))
        lowest = jax.vmap(lambda c, s: energy(attention, c, s, RESPONSE))(found.chi, samples)
        return lowest, jax.lax.map(on_grid, samples)

    lowest, grid = lowest_and_grid(samples)
    assert np.all(lowest <= grid + 1e-9)
    assert np.all(lowest >= grid - 0.05)  # a grid of step 0.1 comes as near as this


def test_values_are_eliminated_exactly(rng):
    """At the minimum over `z` as well, the gradient of the full energy vanishes."""
    attention, samples = ar.Softmax(), _samples(rng, 20, 3)

    def full(chi, z, sample):
        missed = sample.label - attention.attend(chi) @ z
        bend = jnp.sum((chi - sample.keys) ** 2) / (2 * RESPONSE.k[0, 0])
        return missed**2 / 2 + bend + jnp.sum((z - sample.values) ** 2) / (2 * RESPONSE.v)

    def slopes(chi, sample):
        fitted = fit(attention, chi, sample, RESPONSE)
        z = sample.values + RESPONSE.v * fitted.pull_v
        missed = sample.label - attention.attend(chi) @ z
        return jax.grad(full, (0, 1))(chi, z, sample), missed**2 - fitted.loss

    found = minimise(attention, samples.keys, samples, RESPONSE, jnp.asarray(True))
    (by_chi, by_z), loss = jax.jit(jax.vmap(slopes))(found.chi, samples)
    np.testing.assert_allclose(by_chi, 0.0, atol=1e-8)
    np.testing.assert_allclose(by_z, 0.0, atol=1e-10)
    np.testing.assert_allclose(loss, 0.0, atol=1e-10)


def test_pulls_nearby_are_those_of_minima_nearby(rng):
    """To first order: an error that falls with the square of the distance, in every number of the problem."""
    attention, samples = ar.Softmax(), _samples(rng, 30, 3)
    found = minimise(attention, samples.keys, samples, RESPONSE, jnp.asarray(True))
    moves = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=jnp.shape(leaf))), samples)

    @jax.jit
    def worst(step):
        near = jax.tree.map(lambda leaf, move: leaf + step * move, samples, moves)
        V = RESPONSE.k * (1 + step)
        response = Response(V, 1 / V, RESPONSE.v * (1 - step))
        first = jax.vmap(lambda at, s: respond(attention, at, s, response))(found, near)
        exact = minimise(attention, found.chi, near, response, jnp.asarray(False))
        pulls = jax.vmap(lambda c, s: fit(attention, c, s, response))(exact.chi, near)
        return [jnp.max(jnp.abs(a - b)) for a, b in zip(first, pulls, strict=True)]

    for far, close in zip(worst(1e-3), worst(1e-4), strict=True):
        assert close < 0.03 * far
    assert max(worst(1e-3)) > 1e-8


@pytest.mark.parametrize("size", [3, 7, 12])
def test_elimination(rng, size):
    """Written out and in a loop; and never by LAPACK, on which two threads have been seen to wait for ever."""
    half = rng.normal(size=(size, size))
    matrix, vector = half @ half.T + np.eye(size), rng.normal(size=size)
    compiled = jax.jit(solve).lower(matrix, vector).compile()
    found, slope = compiled(matrix, vector), jax.jit(jax.jacfwd(solve, 1))(matrix, vector)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, vector), rtol=1e-9)
    np.testing.assert_allclose(slope, np.linalg.inv(matrix), rtol=1e-9, atol=1e-12)
    assert "lapack" not in compiled.as_text()
