"""Minima of several tasks in one call: the same digits in any batch, compiled once."""

import numpy as np
import pytest
from problems import compilations, some_slow

import attnrisk as ar
from attnrisk.numerics.minimise import BATCH

NAMES = ["softmax", "elementwise-relu", "erf", "softplus", "relu", "top-k"]
SPIKED = [ar.SpikedSLR(nu, 3) for nu in (0.0, 1.0, 1.1, 9.0)] + [
    ar.SpikedSLR(1.5, ar.uniform(1, 3), noise=0.2),
    ar.SpikedSLR(1.2, 3, spread=0.7),
]
MAX = [ar.MaxSLR(nu, 3) for nu in (0.0, 1.0, 1.1, np.inf)]


@pytest.mark.parametrize("name", some_slow(NAMES, "softplus", "relu", "top-k"))
@pytest.mark.parametrize("tasks", some_slow([SPIKED, MAX], MAX), ids=["spiked", "max"])
def test_results_are_bitwise_independent_of_the_batch(name, tasks, rng):
    attention = ar.get_attention(name)
    alone = [ar.population_minimum(task, attention) for task in tasks]
    order = rng.permutation(len(tasks)).tolist()
    together = ar.population_minima([tasks[i] for i in order], attention)
    for index, found in zip(order, together, strict=True):
        assert found.risk == alone[index].risk
        assert found.overlaps == alone[index].overlaps
        assert found.bias == alone[index].bias
        assert found.result == alone[index].result
    assert ar.population_minima([], attention) == []


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_tasks_of_one_shape_are_compiled_once(name):
    attention, compiled = ar.get_attention(name), compilations()
    ar.population_minimum(ar.SpikedSLR(1.0, 5), attention)
    before = len(compiled)
    ar.population_minima(
        [ar.SpikedSLR(nu, 6) for nu in np.linspace(1.0, 1.4, BATCH + 1)], attention
    )
    assert len(compiled) == before
