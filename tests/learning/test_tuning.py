"""When ridges count as tuned."""

from types import SimpleNamespace

import numpy as np

import attnrisk as ar
from attnrisk.learning import tuning

TASK = ar.SpikedSLR(nu=5.0, length=3)


def test_ridges_are_tuned_where_samples_jump():
    """There the derivative of the risk is rough: the risks around decide."""
    alpha, log2_points = 1.2164, 6
    found = ar.tuned_erm_asymptotics(TASK, ar.Softmax(), alpha, log2_points=log2_points)
    assert found.converged
    assert found.jumps > 0.2
    for factor in (0.6, 1.6):
        ridge = ar.Ridge(factor * found.ridge.k, factor * found.ridge.v)
        near = ar.erm_asymptotics(TASK, ar.Softmax(), alpha, ridge, log2_points=log2_points)
        error = np.hypot(float(near.test_risk.error), float(found.test_risk.error))
        assert float(found.test_risk) < float(near.test_risk) + error


def test_a_risk_above_that_of_no_prediction_is_not_tuned(monkeypatch):
    """Large ridges would be better; here the descent ends at the smallest ones."""
    monkeypatch.setattr(tuning.Descent, "run", lambda self, logs: np.log([1e-3, 1e-3]))
    task = ar.SpikedSLR(nu=1.0, length=3, noise=2.0)
    found = ar.tuned_erm_asymptotics(task, ar.Softmax(), 1.0, log2_points=5)
    assert float(found.test_risk) > 3.0 + 3.0 * float(found.test_risk.error)
    assert not found.converged


def test_tuning_leaves_ridges_that_overfit(monkeypatch):
    """Below a ridge of 0.3 on `v` this risk is flat and above that of no prediction, elsewhere it has a minimum."""

    def risk(self, logs):
        if logs[1] < np.log(0.3):
            return 1.2, np.zeros(2)
        return 0.5 + 0.1 * float(logs @ logs), 0.2 * logs

    monkeypatch.setattr(tuning.Descent, "__call__", risk)
    problem = SimpleNamespace(task=SimpleNamespace(label_variance=1.0))
    best = tuning.Descent(problem, alpha=1.0).run(np.log([0.02, 0.02]))
    np.testing.assert_allclose(best, 0.0, atol=1e-3)
