"""Limits of the fixed point of empirical risk minimisation in closed form (section 6)."""

import numpy as np
import pytest

import attnrisk as ar

TASK, NOISE, LENGTH = ar.SpikedSLR(2.0, 3, noise=0.5), 0.5, 3


def test_large_ridges_leave_the_first_order():
    """`r → ∞`: `V_k = 1/r`, `V_v = 1/(r + α/L)`, uniform weights, `m_v = α/(L r)`, `q_v = α E[y²]/(L r²) + m_v²`."""
    r, alpha = 1e5, 2.0
    found = ar.erm_asymptotics(TASK, ar.Softmax(), alpha, ar.Ridge(r, r), log2_points=7)
    assert found.converged
    assert 0 < float(found.V_k.error) < 0.02 / r
    assert float(found.V_k) == pytest.approx(1 / r, abs=3 * float(found.V_k.error))
    assert float(found.V_v) == pytest.approx(1 / (r + alpha / LENGTH), rel=1e-8)
    assert float(found.m_v) == pytest.approx(alpha / LENGTH / r, rel=5e-3)
    second = alpha * (1 + NOISE**2) / LENGTH / r**2
    assert float(found.q_v) == pytest.approx(second + float(found.m_v) ** 2, rel=5e-3)
    # The keys learn from a product of two small numbers.
    assert abs(float(found.m_k)) < 1e-3 * float(found.m_v)
    gain = 1 + NOISE**2 - float(found.test_risk)
    assert gain == pytest.approx(2 * alpha / LENGTH**2 / r, rel=5e-3)


def test_few_data_are_one_sample_at_a_time():
    """`α → 0` with keys held by their ridge: `m_v = α/(L r) / (1 + 1/(L r))`."""
    alpha, r = 1e-4, 0.5
    found = ar.erm_asymptotics(TASK, ar.Softmax(), alpha, ar.Ridge(1e6, r), log2_points=7)
    assert found.converged
    expected = alpha / (LENGTH * r) / (1 + 1 / (LENGTH * r))
    assert float(found.m_v) == pytest.approx(expected, rel=5e-3)
    assert float(found.V_v) == pytest.approx(1 / r, rel=1e-3)


@pytest.mark.parametrize("attention", [ar.Softmax(), ar.Linear()], ids=str)
def test_much_data_reach_the_population_like_one_over_alpha(attention):
    """`α → ∞` at a fixed ridge: the excess over the least population risk, times `α`, tends to a constant."""
    task, excess = ar.SpikedSLR(2.0, 3), []
    least = float(ar.population_minimum(task, attention).risk)
    for alpha in (100.0, 400.0):
        found = ar.erm_asymptotics(task, attention, alpha, ar.Ridge(0.1, 0.1), log2_points=6)
        assert found.converged
        excess.append(alpha * (float(found.test_risk) - least))
    assert excess[0] > 0.1
    assert excess[1] == pytest.approx(excess[0], rel=0.15)


def test_one_token_has_no_key_to_learn():
    """`L = 1`: softmax has weight one, `m_k = 0`, and the risk is that of ridge regression, whatever `r_k` is."""
    task, ridges = ar.SpikedSLR(2.0, 1, noise=0.3), (ar.Ridge(0.1, 0.7), ar.Ridge(10.0, 0.7))
    one, two = (ar.erm_asymptotics(task, ar.Softmax(), 2.0, it, log2_points=6) for it in ridges)
    assert float(one.test_risk) == pytest.approx(float(two.test_risk), abs=1e-8)
    assert abs(float(one.m_k)) < 1e-8
    V = float(np.max(np.roots([0.7, 0.7 + 1.0, -1.0])))  # V = 1/(r + α/(1+V))
    m, gain = 2.0 * V / (1 + V), 2.0 * V**2 / (1 + V) ** 2
    q = (m**2 + gain * (1 + 0.3**2 - 2 * m)) / (1 - gain)
    risk = 1 + 0.3**2 - 2 * m + q
    for ours, exact in ((one.V_v, V), (one.m_v, m), (one.q_v, q), (one.test_risk, risk)):
        assert float(ours) == pytest.approx(exact, abs=4 * float(ours.error) + 1e-6)


def test_a_map_that_bends_is_not_more_certain_than_a_straight_one():
    """`L = 1` without noise: `1 − m_v` is small, and no sample jumps between minima."""
    r, alpha, task = 1.0, 1000.0, ar.SpikedSLR(2.0, 1)
    found = ar.erm_asymptotics(task, ar.Softmax(), alpha, ar.Ridge(1.0, r), seed=2, log2_points=6)
    V = 2.0 / (np.sqrt((r + alpha - 1.0) ** 2 + 4.0 * r) + r + alpha - 1.0)
    m, gain = alpha * V / (1 + V), alpha * V**2 / (1 + V) ** 2
    risk = (1.0 - m) ** 2 / (1.0 - gain)
    assert abs(float(found.test_risk) - risk) < 4 * float(found.test_risk.error) < 2e-7
