"""Searches for element-wise attentions: against slower ways to every part of them."""

import numpy as np
import pytest
from problems import some_slow

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.minimise import map_batch
from attnrisk.population import minimum as searches
from attnrisk.population.plan import light_plan
from attnrisk.population.risk import compiled_profile

NAMES = ["linear", "erf", "sigmoid"]
TASKS = [
    ar.SpikedSLR(4.0, 10),
    ar.SpikedSLR(0.3, ar.uniform(1, 3), noise=0.5),
    ar.SpikedSLR(6.0, 100, spread=0.6),
    ar.SpikedSLR(15.0, 10**6),
    ar.MaxSLR(3.0, 10),
    ar.MaxSLR(2.0, ar.LengthLaw([1, 50], [0.3, 0.7])),
    ar.MaxSLR(15.0, 2, noise=0.2),
    ar.MaxSLR(np.inf, 30),
]


def _slowly(task, attention):
    """By panels, and by Brent's method in both numbers."""
    search = searches.Search(task, attention, 0, light=False, newton=False)
    while True:
        problem = search.problem()
        (outcome,) = map_batch(problem.method, [problem])
        if (found := search.update(outcome)) is not None:
            return found


def _engine(task, attention, fineness=1.6):
    return light_plan(task, attention, 16.0, 0.0, 16.0, fineness)


@pytest.mark.parametrize("task", [task for task in TASKS if task.name == "max"], ids=str)
def test_the_weights_of_a_grid_are_two_laws_of_fields(task):
    engine = _engine(task, ar.Sigmoid())
    assert abs(engine.relevant.sum() - 1) < 1e-12
    assert abs(engine.mass.sum() - 1) < 1e-12
    assert abs(engine.relevant @ engine.fields - float(ar.mean_relevant_field(task))) < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_profile_is_the_risk_at_aligned_overlaps(task, name, rng):
    """`E[y²] − 2 m_vv A + q_vv B` is the risk at aligned overlaps, by panels."""
    attention = ar.get_attention(name)
    m_kk, m_vv = rng.uniform(-3, 3, 2).tolist()
    a, b = compiled_profile(*as_arrays((_engine(task, attention), task, attention, m_kk)))
    risk = ar.population_risk(task, attention, ar.aligned(m_kk, m_vv))
    found = float(task.label_variance - 2 * m_vv * a + m_vv**2 * b)
    assert abs(found - float(risk)) <= float(risk.error) + 1e-11 * float(b)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", some_slow(TASKS, *TASKS[1::2]), ids=str)
def test_it_finds_what_the_slower_search_finds(task, name):
    attention = ar.get_attention(name)
    found, slow = ar.population_minimum(task, attention), _slowly(task, attention)
    assert found.attained == slow.attained
    # The slow one may stop a rounding error above the minimum.
    apart = abs(float(found.risk) - float(slow.risk))
    assert apart <= float(found.risk.error) + float(slow.risk.error) + 2e-14
    assert abs(found.overlaps.m_kk - slow.overlaps.m_kk) < 1e-4 * (1 + abs(slow.overlaps.m_kk))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_finds_as_much_anywhere(name, rng):
    """Signals from none to overwhelming, any law of lengths, any spread."""
    attention = ar.get_attention(name)
    laws = [1, 2, 10, 1000, 10**6, ar.uniform(1, 3), ar.LengthLaw([1, 1000], [0.3, 0.7])]
    for _ in range(40):
        nu = float(rng.choice([0, 1e-8, 1e-3, 0.1, 1, 4, 9, 40]) * rng.uniform(0.5, 1.5))
        law = laws[rng.integers(len(laws))]
        spiked = ar.SpikedSLR(nu, law, spread=float(rng.choice([1, 1, 0.5, 2])))
        task = spiked if rng.random() < 0.6 else ar.MaxSLR(nu, law)
        found, slow = ar.population_minimum(task, attention), _slowly(task, attention)
        errors = float(found.risk.error) + float(slow.risk.error)
        assert float(found.risk) <= float(slow.risk) + errors


def test_weights_that_vanish_are_an_infimum_not_attained():
    """Where erf does best in its tail, more so the further out, and nothing but the limit to `v` ends it."""
    task = ar.MaxSLR(0.2, ar.LengthLaw([1, 50], [0.3, 0.7]))
    found = ar.population_minimum(task, ar.Erf())
    assert found.result is ar.Result.WEIGHTS_VANISH
    assert not found.attained
    further = ar.Erf(bias=-8.0)
    a, b = compiled_profile(*as_arrays((_engine(task, further), task, further, 0.0085635)))
    infimum = float(task.label_variance - a**2 / b)
    assert float(found.risk) - float(found.risk.error) < infimum < float(found.risk)


def test_only_the_manifold_is_searched_and_said_so():
    found = ar.population_minimum(ar.SpikedSLR(0.3, 4, spread=1.6), ar.Taylor2())
    assert found.result is ar.Result.ON_MANIFOLD
    assert "only k along k*" in found.result
    assert found.attained
    assert found.converged
