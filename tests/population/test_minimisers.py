"""Formulas of minimisers against the search."""

import math

import pytest

import attnrisk as ar
from attnrisk.population.minimisers import linear_minimum, softmax_minimum

FORMULAS = {"linear": linear_minimum, "softmax": softmax_minimum}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_search_finds_the_same(name):
    task = ar.SpikedSLR(2.0, ar.uniform(1, 3), noise=0.3)
    formula, found = FORMULAS[name](task), ar.population_minimum(task, ar.get_attention(name))
    assert abs(float(formula.risk) - float(found.risk)) <= formula.risk.error + found.risk.error
    for overlap in ("m_kk", "m_vv"):
        expected = float(getattr(found.overlaps, overlap))
        assert float(getattr(formula.overlaps, overlap)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("task", [ar.SpikedSLR(2.0, 5), ar.MaxSLR(1.0, ar.uniform(2, 4))])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_risk_at_the_minimiser_is_the_least(task, name):
    formula = FORMULAS[name](task)
    there = ar.population_risk(task, formula.attention, formula.overlaps)
    assert float(there) == pytest.approx(float(formula.risk), abs=1e-9)


def test_an_infinite_signal_is_a_limit():
    found = softmax_minimum(ar.MaxSLR(math.inf, 10))
    assert (found.attained, float(found.risk)) == (False, 0.0)
    assert math.isfinite(found.overlaps.m_kk)


@pytest.mark.parametrize("formula", FORMULAS.values())
def test_other_spreads_are_refused(formula):
    with pytest.raises(ValueError, match=r"spread = 0\.5"):
        formula(ar.SpikedSLR(2.0, 3, spread=0.5))
