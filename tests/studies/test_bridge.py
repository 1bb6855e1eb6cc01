"""Functions of NumPy and PyTorch, called from JAX as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.studies.judge import recognise
from attnrisk.studies.judge.bridge import bridged
from attnrisk.studies.judge.verdict import _foreign_notes

SCORES = jnp.array([[0.3, -1.2, 2.0, 0.9], [1.0, 0.5, -0.5, 0.0]])


def numpy_softmax(scores):
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def torch_softmax(scores):
    return scores.softmax(-1)


def check(foreign, tolerance):
    """Values, both kinds of derivative, and batches, against jax."""
    values, expected = (jax.vmap(each)(SCORES) for each in (foreign, jax.nn.softmax))
    np.testing.assert_allclose(values, expected, atol=1e-14)
    for mode in (jax.jacfwd, jax.jacrev):
        found, known = (jax.jit(jax.vmap(mode(each)))(SCORES) for each in (foreign, jax.nn.softmax))
        np.testing.assert_allclose(found, known, atol=tolerance)


def test_numpy():
    check(ar.from_numpy(numpy_softmax), 1e-8)


def test_a_numpy_function_is_detected_and_recognised():
    found = recognise(numpy_softmax, "softmax")
    assert found.family == "kernel"
    assert "NumPy" in _foreign_notes(found)[0]
    task = ar.SpikedSLR(2.0, 3)
    risk = ar.population_minimum(task, found).risk
    assert float(risk) == pytest.approx(float(ar.bayes_risk(task)), abs=1e-10)


def test_what_is_of_neither_library_is_not_bridged():
    assert bridged(lambda scores: scores.softmax(-1)) is None
    assert bridged(lambda scores: None) is None


def test_torch():
    torch = pytest.importorskip("torch")
    check(ar.from_torch(torch_softmax), 1e-12)
    assert recognise(ar.from_torch(torch_softmax), "softmax").family == "kernel"
    assert "PyTorch" in _foreign_notes(recognise(ar.from_torch(torch_softmax), "softmax"))[0]
    del torch


def test_without_torch_the_refusal_says_so(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="where torch is missing"):
        ar.from_torch(torch_softmax)
