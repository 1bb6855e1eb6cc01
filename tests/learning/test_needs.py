"""How much data is needed: bisection on curves whose answer is known, and once on the theory itself."""

import math

import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning.needs import MOST, Difference, crossing


def curve(rate, end, error=1e-3, seen=None):
    """A risk that falls from one to `end` like `1/(1 + rate·α)`, less 0.5."""

    def value(alpha):
        if seen is not None:
            seen.append(alpha)
        risk = end + (1.0 - end) / (1.0 + rate * alpha)
        return Difference(ar.Estimate(risk - 0.5, error, ar.ErrorKind.STANDARD), True)

    return value, Difference(ar.Estimate(end - 0.5, 1e-9), True)


@pytest.mark.parametrize("rate", [0.1, 1.0, 7.0])
def test_the_answer_is_within_its_error(rate):
    seen = []
    found = crossing(*curve(rate, 0.2, seen=seen))
    exact = (0.8 / 0.3 - 1.0) / rate
    assert found.converged
    assert abs(float(found.alpha) - exact) <= float(found.alpha.error)
    assert float(found.alpha.error) < 0.1 * exact
    assert len(seen) == len(set(seen)) < 20


def test_the_error_of_the_risk_is_carried_over():
    fine, rough = (crossing(*curve(1.0, 0.2, error)) for error in (1e-4, 0.03))
    slope = 0.8 / (1.0 + 5.0 / 3.0) ** 2  # of the risk in α at the answer
    assert float(rough.alpha.error) == pytest.approx(0.03 / slope, rel=0.3)
    assert float(fine.alpha.error) < 0.3 * float(rough.alpha.error)


def test_what_is_never_reached_is_said():
    never = crossing(*curve(1.0, 0.6))
    assert never.alpha is None
    assert "never" in never.reason
    late = crossing(*curve(1e-3, 0.2))
    assert late.alpha is None
    assert f"not up to α = {MOST:g}" in late.reason
    early = crossing(*curve(1e3, 0.2))
    assert float(early.alpha) < 0.1
    assert "down to" in early.reason


def test_a_point_that_did_not_converge_is_told():
    value, limit = curve(1.0, 0.2)
    found = crossing(lambda alpha: value(alpha)._replace(converged=alpha != 2.0), limit)
    assert not found.converged
    for end in (0.2, 0.6):
        value, limit = curve(1.0, end)
        assert not crossing(value, limit._replace(converged=False)).converged


def test_equal_limits_are_not_searched():
    for within in (-5e-10, 0.0, 5e-10):
        found = crossing(*curve(1.0, 0.5 + within))
        assert found.alpha is None
        assert found.reason.startswith("undecided: equal")


def test_the_target_is_checked_first(monkeypatch):
    monkeypatch.setattr("attnrisk.learning.needs.population_minimum", None)
    with pytest.raises(ValueError, match="risk"):
        ar.needed_data(ar.SpikedSLR(5.0, 3), ar.Linear(), risk=-1.0)


def test_one_question_at_a_time():
    task = ar.SpikedSLR(5.0, 3)
    with pytest.raises(ValueError, match="one of risk and other"):
        ar.needed_data(task, ar.Linear())
    with pytest.raises(ValueError, match="scale of its scores"):
        ar.needed_data(task, ar.Relu(), risk=0.5)


@pytest.mark.slow
def test_linear_attention_by_its_own_curve():
    task = ar.SpikedSLR(5.0, 3)
    found = ar.needed_data(task, ar.Linear(), risk=0.6)
    assert found.converged
    for side in (-1.0, 1.0):
        alpha = float(found.alpha) + side * 3 * float(found.alpha.error)
        risk = float(ar.tuned_erm_asymptotics(task, ar.Linear(), alpha, seed=1).test_risk)
        assert np.sign(0.6 - risk) == side
    never = ar.needed_data(task, ar.Linear(), risk=0.3)
    assert never.alpha is None
    assert math.isfinite(float(never.limit))
