"""Heads that are removed one by one."""

import numpy as np
import pytest

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.engines.base import head_range
from attnrisk.population.heads_minimum import HeadsMinimum, LocalMinimum
from attnrisk.population.plan import heads_engine
from attnrisk.population.risk import compiled_risk

TASK = ar.FeatureSLR(ar.flipped(6.0), 4)


def _heads(*keys, weights="average", bias=0.0):
    """Heads with these keys, as a search returns them."""
    keys = np.array(keys, float)[:, None]
    M = np.zeros((len(keys) + 1, 2))
    M[:-1, :-1], M[-1, -1] = keys, 1.3
    attention = ar.Heads(ar.Softmax(), len(keys), weights, bias=bias)
    kept = ar.Overlaps(M, M @ M.T), attention, "not certified", np.zeros(0), 0.0
    return HeadsMinimum((LocalMinimum(ar.Estimate(0.5, 0.0), *kept, ar.Result.CONVERGED),))


def _best_risk(task, heads, *keys):
    """`E[y²] − A²/B` from the risks at two lengths of `v`, by one rule that is right to 10^-8."""

    def risk(length):
        found = _heads(*keys).overlaps
        M = np.array(found.M)
        M[-1, -1] = length
        overlaps = ar.Overlaps(M, M @ M.T)
        engine = heads_engine(task, heads, head_range(task, heads, overlaps), 1.0)
        return float(compiled_risk(*as_arrays((engine, task, heads, overlaps)))) - 1.0

    once, twice = risk(1.0), risk(2.0)
    a, b = once - twice / 4.0, twice / 2.0 - once
    return 1.0 - a**2 / b


def test_a_blunt_head_goes_first_and_the_risks_are_those_of_fewer_heads():
    found = ar.prune_heads(TASK, _heads(2.0, -1.9, 0.0))
    assert [each.kept for each in found] == [[0, 1, 2], [0, 1], [1]]
    for step, keys in zip(found, [(2.0, -1.9, 0.0), (2.0, -1.9), (-1.9,)], strict=True):
        heads = ar.Heads(ar.Softmax(), len(keys))
        assert float(step.risk) == pytest.approx(_best_risk(TASK, heads, *keys), abs=1e-6)
        assert float(step.risk.error) < 1e-3
    assert float(found[2].risk) > float(found[1].risk)


def test_a_head_without_weight_costs_nothing():
    found = ar.prune_heads(TASK, _heads(2.0, 0.4, weights=[1.0, 0.0]))
    assert found[1].kept == [0]
    assert float(found[1].risk) == pytest.approx(float(found[0].risk), abs=1e-12)


def test_heads_normalised_together_are_refused():
    found = _heads(2.0, -2.0).lowest
    joint = LocalMinimum(
        found.risk,
        found.overlaps,
        ar.BayesSoftmax(2),
        found.kind,
        found.eigenvalues,
        0.0,
        found.result,
    )
    with pytest.raises(ValueError, match="heads of a kernel"):
        ar.prune_heads(TASK, HeadsMinimum((joint,)))
