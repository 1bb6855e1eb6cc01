"""Least risks by NumPy against the compiled search: within their errors, and left to it where they are not settled."""

import jax.numpy as jnp
import pytest

import attnrisk as ar
from attnrisk.population import uncompiled

EIGHTH = ar.Kernel(lambda x: 8.0 * jnp.log(jnp.abs(1.0 + x / 8.0)), features=(), analytic=True)
CASES = {
    "kernel": (ar.Softplus(), ar.SpikedSLR(5.0, 10)),
    "max": (ar.Taylor2(), ar.MaxSLR(2.0, 3)),
    "longer k": (EIGHTH, ar.SpikedSLR(27.63, 1000)),
    "limit": (ar.Softplus(), ar.SpikedSLR(27.63, 1000)),
    "becomes softmax": (ar.Softplus(free_bias=True), ar.SpikedSLR(5.0, 10)),
    "power": (EIGHTH.with_free_bias(), ar.SpikedSLR(5.0, 10)),
    "free bias": (ar.Sigmoid(free_bias=True), ar.SpikedSLR(5.0, 3)),
    "element-wise": (ar.Elementwise(jnp.exp), ar.MaxSLR(1.0, 10)),
    "two lengths": (ar.ScalableSoftmax(), ar.SpikedSLR(5.0, ar.parse_lengths("2:0.5,18:0.5"))),
    "one length": (ar.SigmoidLogLength(free_bias=True), ar.SpikedSLR(5.0, 10)),
}


@pytest.mark.parametrize("case", CASES)
def test_it_agrees_with_the_compiled_search(case):
    attention, task = CASES[case]
    found, known = uncompiled._minimum(task, attention), ar.population_minimum(task, attention)
    if case != "power":  # of which all stretched copies are as good
        assert found.result == known.result
    assert float(found.risk.error) < 1e-6
    difference = abs(float(found.risk) - float(known.risk))
    assert difference <= float(found.risk.error) + float(known.risk.error)
    if found.attained:
        at_found = ar.population_risk(task, found.attention, found.overlaps)
        assert float(at_found) == pytest.approx(float(known.risk), abs=1e-7)


@pytest.mark.parametrize(
    "attention", [ar.Relu(), ar.ElementwiseRelu(free_bias=True), ar.Sparsemax()]
)
def test_what_it_cannot_settle_is_left_to_the_compiled_search(attention):
    task = ar.SpikedSLR(2.0, 3)
    assert uncompiled._minimum(task, attention) is None


def test_the_order_of_tasks_is_kept():
    tasks = [ar.SpikedSLR(2.0, 3), ar.SpikedSLR(0.0, 3), ar.SpikedSLR(5.0, 3)]
    found = uncompiled.uncompiled_minima(tasks, ar.Softmax())
    for task, each in zip(tasks, found, strict=True):
        assert float(each.risk) == pytest.approx(float(ar.bayes_risk(task)), abs=1e-9)
