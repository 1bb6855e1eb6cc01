"""When ridges count as tuned."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import attnrisk as ar
from attnrisk.attention import CATALOGUE
from attnrisk.learning import tuning

pytestmark = pytest.mark.optimised

TASK = ar.SpikedSLR(nu=5.0, length=3)


@pytest.fixture(scope="module")
def untuned():
    """A fixed point with no other beside it, and ridges near the best."""
    found = ar.erm_asymptotics(TASK, ar.Softmax(), 4.0, ar.Ridge(1.0, 1.0), log2_points=5)
    return replace(found, rivals=())


def test_ridges_are_tuned_where_samples_jump():
    """There the derivative of the risk is rough: the risks around decide."""
    alpha, log2_points = 1.2164, 5
    found = ar.tuned_erm_asymptotics(TASK, ar.Softmax(), alpha, log2_points=log2_points)
    assert found.converged
    assert found.jumps > 0.2
    for factor in (0.6, 1.6):
        ridge = ar.Ridge(factor * found.ridge.k, factor * found.ridge.v)
        near = ar.erm_asymptotics(TASK, ar.Softmax(), alpha, ridge, log2_points=log2_points)
        error = np.hypot(float(near.test_risk.error), float(found.test_risk.error))
        assert float(found.test_risk) < float(near.test_risk) + error


@pytest.mark.parametrize(
    ("ends", "least", "converged"),
    [
        ((1.0, 0.0), (0.0, 0.0), True),
        ((0.5, 0.5), (0.0, 0.0), True),
        ((0.0, 0.0), (5.0, 0.0), False),  # the risk still falls after the last probe
    ],
)
def test_risks_downhill_of_the_descent_decide(untuned, monkeypatch, ends, least, converged):
    """The descent ends too early; the risk is quadratic in the logarithms of the ridges."""

    def solve(task, attention, alpha, ridge, *_):
        logs = np.log([ridge.k, ridge.v])
        away = logs - least
        risk = ar.Estimate(0.5 + 0.02 * float(away @ away), 1e-4)
        return replace(untuned, ridge=ridge, test_risk=risk, slope=0.04 * away / np.exp(logs))

    monkeypatch.setattr(tuning.Descent, "run", lambda self, logs: np.array(ends))
    monkeypatch.setattr(tuning, "solve_erm", solve)
    found = ar.tuned_erm_asymptotics(TASK, ar.Softmax(), 4.0, log2_points=3)
    assert found.converged is converged
    if converged:
        np.testing.assert_allclose(np.log([found.ridge.k, found.ridge.v]), least, atol=0.15)


def test_a_risk_above_that_of_no_prediction_is_not_tuned(monkeypatch):
    """Large ridges would be better; here the descent ends at the smallest ones."""
    monkeypatch.setattr(tuning.Descent, "run", lambda self, logs: np.log([1e-3, 1e-3]))
    task = ar.SpikedSLR(nu=1.0, length=3, noise=2.0)
    found = ar.tuned_erm_asymptotics(task, ar.Softmax(), 1.0, log2_points=5)
    assert float(found.test_risk) > 3.0 + 3.0 * float(found.test_risk.error)
    assert not found.converged


def test_weights_that_vanish_are_not_tuned(untuned, monkeypatch):
    """As where a learned bias switches all of them off: then the risk is that of no prediction with any ridges."""
    sigmoid = ar.get_attention("sigmoid", "free")
    found, dead = (
        replace(untuned, test_risk=ar.Estimate(risk, 1e-10), slope=np.zeros(2))
        for risk in (0.95, 1.0 - 1e-8)
    )
    monkeypatch.setattr(tuning.Descent, "run", lambda self, logs: np.log([9.0, 9.0]))
    for answer in (found, dead):
        monkeypatch.setattr(tuning, "solve_erm", lambda *_, answer=answer: answer)
        tuned = ar.tuned_erm_asymptotics(TASK, sigmoid, 0.5, log2_points=3)
        assert tuned.converged == (answer is found)


def test_tuning_leaves_ridges_that_overfit(monkeypatch):
    """Below a ridge of 0.3 on `v` this risk is flat and above that of no prediction, elsewhere it has a minimum."""

    def risk(self, logs):
        if logs[1] < np.log(0.3):
            return 1.2, np.zeros(2)
        return 0.5 + 0.1 * float(logs @ logs), 0.2 * logs

    monkeypatch.setattr(tuning.Descent, "__call__", risk)
    problem = SimpleNamespace(task=SimpleNamespace(label_variance=1.0))
    best = tuning.Descent(problem, 1.0, *np.log([[1e-3, 1e-3], [1e3, 1e3]])).run(
        np.log([0.02, 0.02])
    )
    np.testing.assert_allclose(best, 0.0, atol=1e-3)


def test_ridges_stay_in_their_range(monkeypatch):
    """A start outside of it is cut, and the smallest ridges are not the best where the risk falls with larger ones."""

    def risk(self, logs):
        return 0.5 + 0.001 * float(np.sum(logs)), np.full(2, 0.001)

    monkeypatch.setattr(tuning.Descent, "__call__", risk)
    problem = SimpleNamespace(task=SimpleNamespace(label_variance=1.0))
    best = tuning.Descent(problem, 1.0, *np.log([[1e-3, 1e-3], [1e3, 1e3]])).run(
        np.log([1e-5, 1e5])
    )
    np.testing.assert_allclose(best, np.log(1e-3))


def test_the_smallest_ridges_are_left_where_larger_ones_are_better(monkeypatch):
    monkeypatch.setattr(tuning.Descent, "run", lambda self, logs: np.log([1e-3, 1e-3]))
    found = ar.tuned_erm_asymptotics(TASK, ar.Softmax(), 4.0, log2_points=5)
    assert float(found.ridge.v) > 1e-3 or not found.converged


def test_tuning_leaves_a_key_of_length_zero(monkeypatch):
    """With a large ridge on `k` nothing is attended to and the risk is flat in it; below there is a minimum."""
    least = np.log([0.05, 15.0])

    def risk(self, logs):
        if logs[0] > np.log(0.5):
            return 0.91, np.array([0.0, 0.01]) * (logs[1] - np.log(24.0))
        return 0.85 + 0.01 * float((logs - least) @ (logs - least)), 0.02 * (logs - least)

    monkeypatch.setattr(tuning.Descent, "__call__", risk)
    problem = SimpleNamespace(task=SimpleNamespace(label_variance=1.0))
    best = tuning.Descent(problem, 1.0, *np.log([[1e-3, 1e-3], [1e3, 1e3]])).run(
        np.log([2.0, 15.0])
    )
    np.testing.assert_allclose(best, least, atol=1e-2)


def test_tuning_starts_from_the_fixed_point_of_a_result(monkeypatch):
    """Then no other is located on the way; the end is the same."""
    given = ar.Softmax(), 4.0, 0, 5
    alone = ar.tuned_erm_asymptotics(TASK, *given)
    before = ar.erm_asymptotics(TASK, ar.Softmax(), 5.0, alone.ridge, 0, 5)
    monkeypatch.delattr(tuning.Descent, "_first_start")
    found = ar.tuned_erm_asymptotics(TASK, *given, start=before)
    assert found.converged
    error = np.hypot(float(alone.test_risk.error), float(found.test_risk.error))
    assert abs(float(found.test_risk) - float(alone.test_risk)) < error
    with pytest.raises(ValueError, match="same task and attention"):
        ar.tuned_erm_asymptotics(TASK, ar.Erf(), 4.0, 0, 5, start=before)


def test_ridges_rise_until_the_fixed_point_that_overfits_is_not_the_lowest():
    """With objectives linear in the ridges, which are `½ r·Q` and a constant."""

    def found(ridge, lengths, rest):
        objective = rest + 0.5 * (ridge.k * lengths[0] + ridge.v * lengths[1])
        return SimpleNamespace(
            ridge=ridge, objective=objective, Q=ar.Estimate(np.diag(lengths), np.zeros((2, 2)))
        )

    def both(ridge):
        return found(ridge, [9.0, 2.0], 0.0), found(ridge, [3.0, 1.0], 0.1)

    ridge = ar.Ridge(0.01, 0.1)
    overfits, other = both(ridge)
    assert overfits.objective < other.objective
    rise = tuning.ridge_increase(overfits, other)
    assert np.all(rise > 0)
    overfits, other = both(ar.Ridge(*(np.exp(rise) * [ridge.k, ridge.v])))
    assert overfits.objective > other.objective


def test_ridges_of_attentions_with_a_large_sum_of_weights_may_be_as_much_larger(
    untuned, monkeypatch
):
    """Weights of linear attention have a sum of about 50; with `r_v = 10³` its risk is above that of no prediction."""
    bounds = []

    def run(self, logs):
        bounds.append(np.exp(self.largest))
        return logs

    monkeypatch.setattr(tuning.Descent, "run", run)
    monkeypatch.setattr(tuning, "solve_erm", lambda *_: untuned)
    task = ar.SpikedSLR(nu=1.0, length=50)
    ar.tuned_erm_asymptotics(task, ar.Linear(), 1.0, log2_points=3)
    np.testing.assert_allclose(bounds, [[1e3, 1e3 * 50**2]])


def test_a_factor_on_the_scores_moves_the_range_of_the_ridge_on_k():
    """Softmax of χ/8 is softmax with longer keys: without it, tuning would end at the smallest ridge."""
    scale = tuning.ridge_scale
    assert scale(TASK, ar.Kernel(lambda score: score / 8)) == pytest.approx((1 / 64, 1.0))
    assert scale(TASK, ar.Heads(ar.Kernel(lambda score: 5 * score), 2)) == pytest.approx(
        (25.0, 1.0)
    )
    assert scale(TASK, ar.Elementwise(lambda score: 1 + score / 8)) == pytest.approx((1 / 64, 9.0))
    task = ar.SpikedSLR(nu=5.0, length=10)
    for name in CATALOGUE:
        assert scale(task, ar.get_attention(name))[0] == 1.0, name
