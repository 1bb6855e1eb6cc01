"""Searches for element-wise attentions that are compiled whole: against slower ways to every part of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import compilations, some_slow

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population import minimum
from attnrisk.population.elementwise import _expanded, descents, fields_of, profile
from attnrisk.population.integrals import followed
from attnrisk.population.lanes import LANES

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


def _problem(task, attention):
    return minimum._Problem(task, attention, minimum._searched(task, attention)[0], 0)


def _terrain(task, attention):
    return _problem(task, attention).terrain()


def _by_single_integrals(task, attention):
    return followed([_problem(task, attention).search()])[0]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_the_weights_of_a_grid_are_two_laws_of_fields(task):
    fields = fields_of(task, 16.0, 1.6)
    variance, spiked = getattr(task, "spread", 1.0) ** 2, isinstance(task, ar.SpikedSLR)
    assert abs(fields.label.sum() / variance - 1) < 1e-12
    assert abs(fields.power.sum() / (float(task.length.mean()) - 1 + variance) - 1) < 1e-12
    expected = task.shift if spiked else ar.mean_relevant_field(task)
    assert abs(fields.label @ fields.nodes / variance - expected) < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_sums_over_a_grid_are_those_of_the_risk(task, name, rng):
    """`E[y²] − 2 m_vv A + q_vv B` is the risk at aligned overlaps, which has its own integrals."""
    attention = ar.get_attention(name)
    m_kk, m_vv = rng.uniform(-3, 3, 2).tolist()
    a, b = profile(attention, fields_of(task, 16.0, 1.6), m_kk, attention.bias)
    risk = ar.population_risk(task, attention, ar.aligned(m_kk, m_vv))
    found = float(task.label_variance - 2 * m_vv * a + m_vv**2 * b)
    assert abs(found - float(risk)) <= float(risk.error) + 1e-11 * float(b)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", TASKS[::3], ids=str)
def test_the_derivatives_of_the_loss(task, name):
    attention, fields = ar.get_attention(name), fields_of(task, 16.0, 1.25)

    def loss(at):
        a, b = profile(attention, fields, at[0], at[1])
        return jnp.log(b) - 2 * jnp.log(jnp.abs(a))

    at = jnp.array([0.8, -0.4])
    value, slope, bend = _expanded(attention, fields, at)
    free = np.array([1.0, float(attention.free_bias)])
    np.testing.assert_allclose(value, loss(at), rtol=1e-13)
    np.testing.assert_allclose(slope, free * jax.grad(loss)(at), rtol=1e-10, atol=1e-12)
    hessian = jax.jacfwd(jax.jacfwd(loss))(at)
    np.testing.assert_allclose(bend, free * hessian * free[:, None], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", some_slow(TASKS, *TASKS[1::2]), ids=str)
def test_it_finds_what_the_search_by_single_integrals_finds(task, name):
    attention = ar.get_attention(name)
    end = descents(attention, [_terrain(task, attention)], 1e-9)[0]
    assert end.ended
    assert not end.falling
    found, slow = ar.population_minimum(task, attention), _by_single_integrals(task, attention)
    assert found.attained == slow.attained
    # The slow one may stop a rounding error above the minimum.
    apart = abs(float(found.risk) - float(slow.risk))
    assert apart <= float(found.risk.error) + float(slow.risk.error) + 2e-14
    assert abs(found.overlaps.m_kk - slow.overlaps.m_kk) < 1e-4 * (1 + abs(slow.overlaps.m_kk))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_finds_as_much_anywhere(name, rng):
    """Signals from none to overwhelming, any law of lengths, any spread; where it cannot, the other search does."""
    attention = ar.get_attention(name)
    laws = [1, 2, 10, 1000, 10**6, ar.uniform(1, 3), ar.LengthLaw([1, 1000], [0.3, 0.7])]
    quick = 0
    for _ in range(40):
        nu = float(rng.choice([0, 1e-8, 1e-3, 0.1, 1, 4, 9, 40]) * rng.uniform(0.5, 1.5))
        law = laws[rng.integers(len(laws))]
        spiked = ar.SpikedSLR(nu, law, spread=float(rng.choice([1, 1, 0.5, 2])))
        task = spiked if rng.random() < 0.6 else ar.MaxSLR(nu, law)
        quick += len(minimum._quick_ends([_problem(task, attention)], attention))
        found, slow = ar.population_minimum(task, attention), _by_single_integrals(task, attention)
        errors = float(found.risk.error) + float(slow.risk.error)
        assert float(found.risk) <= float(slow.risk) + errors
    assert quick >= 30


def test_an_answer_does_not_depend_on_its_company(rng):
    """Not even in its last digit, in whichever lane, alone, or with others of other shapes."""
    attention = ar.Erf()
    tasks = [ar.SpikedSLR(nu, 10) for nu in rng.uniform(0, 9, LANES + 3).tolist()] + TASKS
    alone = [ar.population_minimum(task, attention) for task in tasks]
    for _ in range(3):
        order = rng.permutation(len(tasks))[: rng.integers(2, len(tasks))].tolist()
        for index, found in zip(
            order, ar.population_minima([tasks[i] for i in order], attention), strict=True
        ):
            expected = alone[index]
            assert found.risk == expected.risk
            assert found.overlaps == expected.overlaps
            assert found.attention.bias == expected.attention.bias


def test_weights_that_vanish_are_an_infimum_not_attained():
    """Where erf does best in its tail, more so the further out, and nothing but the limit to `v` ends it."""
    task = ar.MaxSLR(0.2, ar.LengthLaw([1, 50], [0.3, 0.7]))
    found = ar.population_minimum(task, ar.Erf())
    assert not found.attained
    further = ar.Erf(bias=-8.0)
    a, b = profile(further, fields_of(task, 16.0, 1.6), 0.0085635, further.bias)
    infimum = float(task.label_variance - a**2 / b)
    assert float(found.risk) - float(found.risk.error) < infimum < float(found.risk)


def test_a_risk_that_is_falling_is_left_to_the_other_search():
    task, attention = ar.SpikedSLR(213.0, 3, spread=0.5), ar.Linear()
    end = descents(attention, [_terrain(task, attention)], 1e-9)[0]
    assert end.falling
    found = ar.population_minimum(task, attention)
    assert float(found.risk) == float(_by_single_integrals(task, attention).risk)


def test_eight_tasks_are_one_call_that_is_compiled_once():
    attention, compiled = as_arrays(ar.Sigmoid()), compilations()
    terrains = [
        _terrain(ar.SpikedSLR(nu, 7), attention) for nu in np.linspace(1, 2, LANES).tolist()
    ]
    descents(attention, terrains, 1e-9)
    before = len(compiled)
    descents(attention, [_terrain(ar.SpikedSLR(nu, 9), attention) for nu in (3.0, 4.0)], 1e-9)
    assert len(compiled) == before
