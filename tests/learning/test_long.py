"""The minimisation inside a sample in linear time, against whole matrices and a search of all moves (section 6.1)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning import moves, problem, proximal, stability
from attnrisk.learning.energy import Sample, energy
from attnrisk.learning.proximal import Minimum
from attnrisk.learning.unknowns import Response
from attnrisk.numerics.linalg import LowRank

RESPONSE = Response(jnp.array([[1.5]]), jnp.array([[1 / 1.5]]), jnp.array(0.6))
NAMES = ("softmax", "softmax-1", "softplus", "relu", "softpick", "erf", "linear")


def _samples(rng, count, length):
    draw = 1.5 * rng.normal(size=(count, 2 * length + 1))
    variance = np.ones((count, length))
    variance[:, 0] = 0.49
    fields = draw[:, None, :length], draw[:, length:-1], draw[:, -1], variance
    return Sample(*map(jnp.asarray, fields))


def _attention(name):
    return ar.get_attention(name, -0.3 if name == "relu" else 0.2)


def _dense(matrix):
    return jnp.diag(matrix.diagonal) + matrix.rows.T @ matrix.core @ matrix.rows


def test_a_diagonal_plus_few_rows_is_inverted(rng):
    rows, half = rng.normal(size=(3, 9)), rng.normal(size=(3, 3))
    matrix = LowRank(
        jnp.asarray(rng.uniform(1, 2, 9)), jnp.asarray(rows), jnp.asarray(half + half.T)
    )
    vector = rng.normal(size=9)
    np.testing.assert_allclose(
        matrix.solve(vector), np.linalg.solve(_dense(matrix), vector), rtol=1e-9
    )


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_from_sums_are_those_of_the_energy(name, rng):
    attention, samples = _attention(name), _samples(rng, 5, 4)

    @jax.jit
    @jax.vmap
    def both(sample):
        chi = sample.keys + 0.1
        value, gradient, hessian = proximal._expand(attention, chi, sample, RESPONSE)
        at = partial(energy, attention, sample=sample, response=RESPONSE)
        exact = at(chi), jax.grad(at)(chi), jax.hessian(at)(chi)[0, :, 0]
        return (value, gradient, _dense(hessian)), exact

    for ours, exact in zip(*both(samples), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["softmax-1", "relu", "softpick", "erf"])
def test_stability_from_sums_is_that_of_whole_matrices(name, rng):
    """At any scores, of which the minima are some."""
    attention, samples = _attention(name), _samples(rng, 5, 4)

    @jax.jit
    @jax.vmap
    def expand(sample):
        _, gradient, hessian = proximal._expand(attention, sample.keys, sample, RESPONSE)
        stiffer = hessian._replace(diagonal=hessian.diagonal + 3.0)
        return Minimum(sample.keys, gradient, stiffer)

    minima = expand(samples)
    whole = minima._replace(hessian=jax.vmap(_dense)(minima.hessian))
    ours = stability._growths_by_sums(attention, minima, samples, RESPONSE)
    given = jax.tree.map(np.asarray, (samples, RESPONSE))
    np.testing.assert_allclose(
        ours, stability._growths(attention, whole, *given), rtol=1e-8, atol=1e-12
    )


@pytest.mark.parametrize("name", ["softmax", "erf"])
def test_few_starts_find_what_all_do(name, rng):
    """At twelve tokens; on average they miss less than a thousandth of the energy."""
    attention, samples = _attention(name), _samples(rng, 60, 12)

    @jax.jit
    def lowest(samples):
        found = [jax.vmap(lambda it: energy(attention, it.keys, it, RESPONSE))(samples)]
        for find in (moves.best_moves, moves.all_moves):
            starts = jnp.concatenate(
                [samples.keys[None], samples.keys + find(attention, samples, RESPONSE)]
            )
            ends = jax.lax.map(
                lambda at: proximal._descend_roughly(attention, at, samples, RESPONSE), starts
            )
            found.append(jnp.min(ends[1], 0))
        return found

    still, few, every = map(np.asarray, lowest(samples))
    assert np.mean(few) < np.mean(every) * 1.001
    assert np.mean(still) > np.mean(every) * 1.1


@pytest.mark.slow
@pytest.mark.parametrize("length", [100, 1000])
def test_long_sequences(length):
    task = ar.SpikedSLR(4 * np.log(length), length)
    found = ar.erm_asymptotics(task, ar.Softmax(), 8.0, ar.Ridge(0.03, 0.3), log2_points=4)
    assert found.converged
    assert float(ar.bayes_risk(task)) < float(found.test_risk) < 0.3
    assert np.max(np.abs(found.identities)) < 1e-6
    best = ar.optimal_asymptotics(task, 8.0)
    assert best.converged
    assert float(best.risk) < float(found.test_risk)


@pytest.mark.optimised
def test_erf_of_many_tokens_is_known_from_few_points():
    """The sum over tokens in `V_v` had an error above its value before its noise was controlled."""
    task = ar.SpikedSLR(4 * np.log(24), 24)
    found = ar.erm_asymptotics(task, ar.Erf(), 32.0, ar.Ridge(0.3, 1.0), log2_points=5)
    assert found.converged
    assert found.test_risk.error < 0.03
    assert found.V_v.error < 0.1 * found.V_v.value


def test_errors_as_large_as_the_values_are_no_answer(monkeypatch):
    monkeypatch.setattr(problem, "_LARGEST_ERROR", 1e-4)
    found = ar.erm_asymptotics(
        ar.SpikedSLR(2.0, 3), ar.Softmax(), 4.0, ar.Ridge(1.0, 1.0), log2_points=5
    )
    assert found.result is ar.Result.TOO_FEW_POINTS


@pytest.mark.slow
@pytest.mark.parametrize("length", [100, 1000])
def test_long_sequences_of_the_max_task(length):
    task = ar.MaxSLR(np.inf, length, noise=0.2)
    found = ar.erm_asymptotics(task, ar.Softmax(), 16.0, ar.Ridge(0.5, 1.0), log2_points=5)
    assert found.converged
    assert np.max(np.abs(found.identities)) < 1e-6
    best = ar.optimal_asymptotics(task, 16.0)
    assert best.converged
    assert 0.04 < float(best.risk) < float(found.test_risk) < 1.0
