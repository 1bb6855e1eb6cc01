"""Quadrature against sequences drawn token by token, for every task × attention, on and off the manifold."""

import equinox as eqx
import numpy as np
import pytest
from problems import OVERLAPS, TASKS, monte_carlo_risk

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.qmc import mean_estimate
from attnrisk.population.plan import plan
from attnrisk.population.risk import compiled_risk

_SAMPLES = 100_000


def _risk(task, attention, overlaps):
    """One rule only, to compile half as much as `population_risk`."""
    engine = plan(task, attention, scale=1.2, noise=1.0, slope=1.2)
    value = compiled_risk(*as_arrays((engine, task, attention, overlaps)))
    return mean_estimate(value) if np.ndim(value) else ar.Estimate(value, 0.0)


def _distance(found, task, attention, overlaps, rng):
    """In standard errors."""
    mean, error = monte_carlo_risk(task, attention, overlaps, _SAMPLES, rng)
    return abs(float(found) - mean) / np.hypot(error, float(getattr(found, "error", 0.0)))


@pytest.mark.optimised
@pytest.mark.parametrize("name", ar.CATALOGUE)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_risk_agrees_with_monte_carlo(task, name, rng):
    attention = ar.get_attention(name)
    if name in ("erf", "sigmoid"):
        attention = type(attention)(bias=-0.4)
    for overlaps in OVERLAPS.values():
        found = _risk(task, attention, overlaps)
        assert _distance(found, task, attention, overlaps, rng) < 4


@pytest.mark.parametrize("task", [TASKS["spiked"], TASKS["max-hard"]], ids=["spiked", "max-hard"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda m, q: (m * np.array([[1, -1], [1, 1]]), q),
        lambda m, q: (m * np.array([[1, 1], [0, 1]]), q),
        lambda m, q: (m, q * np.eye(2)),
        lambda m, q: (m, np.array([[np.sum(m[0] ** 2), 0], [q[1, 0], q[1, 1]]])),
    ],
    ids=["sign of m_kv", "no m_vk", "no q_kv", "no residual"],
)
def test_the_same_test_rejects_a_wrong_formula(task, wrong, rng):
    """The negative control: a risk that misreads one overlap."""
    attention, overlaps = ar.Softmax(), OVERLAPS["off"]
    misread = eqx.tree_at(lambda o: (o.M, o.Q), overlaps, wrong(overlaps.M, overlaps.Q))
    found = _risk(task, attention, misread)
    assert _distance(found, task, attention, overlaps, rng) > 4
