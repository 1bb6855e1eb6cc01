"""Functions of NumPy and PyTorch, called from JAX as they are."""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.studies.judge import recognise
from attnrisk.studies.judge.bridge import bridged
from attnrisk.studies.judge.traits import traits
from attnrisk.studies.judge.verdict import _foreign_notes

SCORES = jnp.array([[0.3, -1.2, 2.0, 0.9], [1.0, 0.5, -0.5, 0.0]])


def numpy_softmax(scores):
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def torch_softmax(scores):
    return scores.softmax(-1)


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def check(foreign, tolerance, known=jax.nn.softmax):
    """Values, both kinds of derivative, and batches, against jax."""
    values, expected = (jax.vmap(each)(SCORES) for each in (foreign, known))
    np.testing.assert_allclose(values, expected, atol=1e-14)
    for mode in (jax.jacfwd, jax.jacrev):
        found, slopes = (jax.jit(jax.vmap(mode(each)))(SCORES) for each in (foreign, known))
        np.testing.assert_allclose(found, slopes, atol=tolerance)


def test_numpy():
    check(ar.from_numpy(numpy_softmax), 1e-8)


def test_a_numpy_function_is_detected_and_recognised():
    found = recognise(numpy_softmax, "softmax")
    assert found.family == "kernel"
    assert "NumPy" in _foreign_notes(found)[0]
    assert traits(found).slope == "missing"  # learning takes second derivatives
    task = ar.SpikedSLR(2.0, 3)
    risk = ar.population_minimum(task, found).risk
    assert float(risk) == pytest.approx(float(ar.bayes_risk(task)), abs=1e-10)


def test_what_is_of_neither_library_is_not_bridged(without_torch):
    assert bridged(lambda scores: scores.softmax(-1), "mine") is None


def divided_by_sums(scores):
    weights = np.exp(scores)
    return weights / weights.sum() * np.log(scores)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda scores: np.outer(scores, scores), r"shape \(1, 1\) for one score"),
        (lambda scores: np.sqrt(scores + 0j), "its weights are complex128"),
        (divided_by_sums, "it gives nan for the scores"),
    ],
)
def test_numpy_functions_are_refused_for_what_is_wrong_with_them(function, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=reason) as refused:
            recognise(function, "mine")
    assert "calls NumPy" not in str(refused.value)


def test_weights_in_single_precision_are_refused():
    with pytest.raises(ValueError, match="its weights are float32"):
        recognise(ar.from_numpy(lambda scores: numpy_softmax(scores).astype("float32")), "single")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "relu", "softplus"])
def test_torch_against_jax(torch, name):
    def in_torch(scores):
        function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
        if name in ("softmax", "sigmoid"):
            return function(scores, -1) if name == "softmax" else function(scores)
        return function(scores) / function(scores).sum()

    def in_jax(scores):
        function = getattr(jax.nn, name)
        return function(scores) / (
            1.0 if name in ("softmax", "sigmoid") else function(scores).sum()
        )

    check(ar.from_torch(in_torch), 1e-12, in_jax)


def test_a_torch_function_is_detected_and_recognised(torch):
    found = recognise(torch_softmax, "softmax")
    assert found.family == "kernel"
    assert "PyTorch" in _foreign_notes(found)[0]
    assert "PyTorch" in _foreign_notes(recognise(ar.from_torch(torch_softmax), "softmax"))[0]
    task = ar.SpikedSLR(2.0, 3)
    risk = ar.population_minimum(task, found).risk
    assert float(risk) == pytest.approx(float(ar.bayes_risk(task)), abs=1e-10)
    with pytest.raises(ValueError, match=r"its weights are .*float32"):
        recognise(lambda scores: scores.float().softmax(-1), "single")


def test_without_torch_the_refusal_shows_the_translation(without_torch):
    with pytest.raises(ValueError, match="torch is not installed") as refused:
        ar.from_torch(torch_softmax)
    lines = str(refused.value).splitlines()
    assert lines[1] == "import jax.numpy as jnp"
    assert "    return weights / jnp.sum(weights)            # weights / weights.sum()" in lines
