"""Attentions that know the length: exact at each length and for any law of lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import OVERLAPS, monte_carlo_risk

import attnrisk as ar

MIXED = ar.SpikedSLR(5.0, ar.LengthLaw([2, 7], [0.4, 0.6]))
SCORES = np.array([0.3, -1.2, 2.0, 0.9, 0.31])


def test_formulas():
    five = np.log(5.0)
    raised = np.exp(five * SCORES)
    np.testing.assert_allclose(ar.ScalableSoftmax()(SCORES), raised / raised.sum(), rtol=1e-12)
    sigmoid = 1.0 / (1.0 + np.exp(five - SCORES))
    np.testing.assert_allclose(ar.SigmoidLogLength()(SCORES), sigmoid, rtol=1e-12)
    lifted = np.exp(SCORES) - 1.0
    expected = np.maximum(lifted, 0.0) / np.abs(lifted).sum()
    np.testing.assert_allclose(ar.Softpick()(SCORES), expected, rtol=1e-12)
    softmax = np.exp(SCORES) / np.exp(SCORES).sum()
    expected = np.clip(1.03 * softmax - 0.03, 0.0, 1.0)
    np.testing.assert_allclose(ar.ClippedSoftmax()(SCORES), expected, rtol=1e-12)
    raised = np.exp(np.log2(20.0) * SCORES / np.sqrt(np.mean(SCORES**2)))
    np.testing.assert_allclose(ar.Cosine()(SCORES), raised / raised.sum(), rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["ssmax", "sigmoid-logL", "softpick", "clipped-softmax", "cosine", "softmax"]
)
def test_a_mask_gives_the_weights_of_the_tokens_there(name):
    attention, mask = ar.get_attention(name), np.array([True, False, True, True, False])
    weights = np.asarray(attention(jnp.asarray(SCORES), jnp.asarray(mask)))
    np.testing.assert_allclose(weights[mask], attention(jnp.asarray(SCORES[mask])), atol=1e-12)
    assert not weights[~mask].any()


@pytest.mark.parametrize("length", [2, 1000])
def test_scalable_softmax_has_the_bayes_risk_at_each_length(length):
    task = ar.SpikedSLR(5.0, length)
    found = ar.population_minimum(task, ar.ScalableSoftmax())
    assert float(found.risk) == pytest.approx(float(ar.bayes_risk(task)), abs=1e-12)
    assert float(found.overlaps.m_kk) * np.log(length) == pytest.approx(np.sqrt(5.0), abs=1e-6)


@pytest.mark.parametrize("task", [MIXED, ar.MaxSLR(2.5, MIXED.length)], ids=str)
def test_but_not_where_lengths_vary(task):
    """The control; and the risk at the overlaps found is the least."""
    found = ar.population_minimum(task, ar.ScalableSoftmax())
    assert float(found.risk) > float(ar.bayes_risk(task)) + 0.005
    here = ar.population_risk(task, ar.ScalableSoftmax(), found.overlaps)
    assert float(here) == pytest.approx(float(found.risk), abs=1e-10)
    for factor in (0.97, 1.03):
        beside = found.overlaps.stretched(factor)
        assert float(ar.population_risk(task, ar.ScalableSoftmax(), beside)) > float(here)


def test_a_free_bias_undoes_the_logarithm():
    task = ar.SpikedSLR(5.0, 10)
    own, known = (
        ar.population_minimum(task, each)
        for each in (ar.SigmoidLogLength(free_bias=True), ar.Sigmoid())
    )
    assert float(own.risk) == pytest.approx(float(known.risk), abs=1e-12)
    assert own.bias - np.log(10.0) == pytest.approx(known.bias, abs=1e-5)


def test_softpick_with_a_large_bias_is_softmax():
    found = ar.population_minimum(ar.SpikedSLR(2.0, 3), ar.Softpick(free_bias=True))
    assert found.result is ar.Result.BECOMES_SOFTMAX


KERNEL = ar.Kernel(lambda score, length: score * jnp.log(length), features=(), analytic=True)
WEIGHT = ar.Elementwise(lambda score, length: jax.nn.sigmoid(score - jnp.log(length)))


@pytest.mark.parametrize(
    ("task", "own", "known"),
    [
        (MIXED, KERNEL, ar.ScalableSoftmax()),
        (MIXED, WEIGHT, ar.SigmoidLogLength()),
        pytest.param(ar.MaxSLR(1.0, 4), WEIGHT, ar.SigmoidLogLength(), marks=pytest.mark.optimised),
    ],
    ids=["kernel on spiked", "weight on spiked", "weight on max"],
)
def test_functions_of_score_and_length(task, own, known):
    assert own.knows_length
    np.testing.assert_allclose(own(SCORES), known(SCORES), rtol=1e-12)
    overlaps = OVERLAPS["off"]
    found, expected = (ar.population_risk(task, each, overlaps) for each in (own, known))
    assert found.kind is ar.ErrorKind.BOUND
    assert float(found) == pytest.approx(float(expected), abs=1e-9)


def test_monte_carlo_where_lengths_vary(rng):
    for attention in (ar.ScalableSoftmax(), WEIGHT):
        found = ar.population_risk(MIXED, attention, OVERLAPS["off"])
        mean, error = monte_carlo_risk(MIXED, attention, OVERLAPS["off"], 100_000, rng)
        assert abs(float(found) - mean) < 4 * error


def test_a_kernel_without_a_length_is_as_it_was():
    plain = ar.Kernel(lambda score: score)
    assert not plain.knows_length
    assert plain.at_length(7) == (plain, 1.0)


def test_a_forgotten_logarithm_is_told():
    with pytest.warns(RuntimeWarning, match="whose logarithm is wanted"):
        ar.population_minimum(ar.SpikedSLR(2.0, 3), ar.Kernel(jnp.exp))
    with pytest.raises(ValueError, match="whose logarithm is wanted"):
        ar.judge(ar.Kernel(jnp.exp), "forgotten")


def test_number_of_tokens_is_known_while_tracing():
    seen = []

    def log_phi(score, length):
        seen.append(float(length))  # fails for a number that is traced
        return score * jnp.log(length)

    jax.jit(ar.Kernel(log_phi, features=()))(jnp.zeros(4))
    assert seen == [4.0]
