"""Quadrature against sequences drawn token by token, for every task × attention, on and off the manifold."""

from functools import lru_cache

import equinox as eqx
import numpy as np
import pytest
from problems import OVERLAPS, TASKS, draw_sequences, mean_loss

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.qmc import mean_estimate
from attnrisk.population.plan import is_exact, plan
from attnrisk.population.risk import compiled_risk

_SAMPLES = 100_000
_ORDER = (
    4  # of panels: right to 10^-4, a tenth of a standard error; other tests compare higher orders
)


def _engine(task, attention):
    """One rule only, to compile half as much as `population_risk`."""
    return plan(task, attention, scale=1.2, noise=1.0, slope=1.2, order=_ORDER)


def _risk(engine, task, attention, overlaps):
    value = compiled_risk(*as_arrays((engine, task, attention, overlaps)))
    return mean_estimate(value) if np.ndim(value) else ar.Estimate(value, 0.0)


@lru_cache(maxsize=len(OVERLAPS))
def _sequences(task, overlaps):
    """Of a task and overlaps in the tables, the same for all attentions."""
    rng = np.random.default_rng([list(TASKS).index(task), list(OVERLAPS).index(overlaps)])
    return draw_sequences(TASKS[task], OVERLAPS[overlaps], _SAMPLES, rng)


def _distance(found, task, attention, overlaps):
    """In standard errors."""
    mean, error = mean_loss(attention, _sequences(task, overlaps))
    return abs(float(found) - mean) / np.hypot(error, float(getattr(found, "error", 0.0)))


# Where random points are used, an engine calls the attention as the reference does: some of each family will do, with
# those that know the length, and one that jumps. So they will where the same engine serves another task with all exact
# attentions: of the spiked tasks that with a spread, noise and several lengths, of the max tasks that with a soft
# maximum.
_DRAWN = ("softmax", "relu", "erf", "ssmax", "sparsemax", "hardmax")


def _cases():
    return [
        (task, name)
        for task in TASKS
        for name in ar.CATALOGUE
        if name in _DRAWN
        or (task in ("spiked-spread", "max") and is_exact(TASKS[task], ar.get_attention(name)))
    ]


@pytest.mark.parametrize(("task", "name"), _cases())
def test_risk_agrees_with_monte_carlo(task, name):
    attention = ar.get_attention(name)
    if name in ("erf", "sigmoid"):
        attention = type(attention)(bias=-0.4)
    engine = _engine(TASKS[task], attention)
    # One compiled function serves both, so that some attentions of each family will do on the manifold.
    for overlaps in OVERLAPS if name in _DRAWN else ["off"]:
        found = _risk(engine, TASKS[task], attention, OVERLAPS[overlaps])
        assert _distance(found, task, attention, overlaps) < 4


@pytest.mark.parametrize("task", ["spiked", "max-hard"])
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
def test_the_same_test_rejects_a_wrong_formula(task, wrong):
    """The negative control: a risk that misreads one overlap."""
    attention, overlaps = ar.Softmax(), OVERLAPS["off"]
    misread = eqx.tree_at(lambda o: (o.M, o.Q), overlaps, wrong(overlaps.M, overlaps.Q))
    found = _risk(_engine(TASKS[task], attention), TASKS[task], attention, misread)
    assert _distance(found, task, attention, "off") > 4
