"""Minima of several tasks side by side: the same digits in any company, one compiled call, nothing for empty lanes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import compilations, some_slow

import attnrisk as ar
from attnrisk.population import integrals, lanes
from attnrisk.population.integrals import Integrals, followed, known_of
from attnrisk.population.risk import light_plan, plan

NAMES = ["softmax", "elementwise-relu", "softplus", "relu", "top-k"]
SPIKED = [ar.SpikedSLR(nu, 3) for nu in (0.0, 1.0, 1.1, 2.0, 9.0)] + [
    ar.SpikedSLR(1.5, ar.uniform(1, 3), noise=0.2),
    ar.SpikedSLR(1.2, 3, spread=0.7),
]
MAX = [ar.MaxSLR(nu, 3) for nu in (0.0, 1.0, 1.1, np.inf)]


def _known(task, attention, fineness=1.25):
    return known_of(task, attention, light_plan(task, attention, 16.0, 0.0, 16.0, fineness))


@pytest.mark.parametrize("name", some_slow(NAMES, "softplus", "relu", "top-k"))
@pytest.mark.parametrize("tasks", some_slow([SPIKED, MAX], MAX), ids=["spiked", "max"])
def test_an_answer_does_not_depend_on_its_company(name, tasks, rng):
    attention = ar.get_attention(name)
    alone = [ar.population_minimum(task, attention) for task in tasks]
    order = rng.permutation(len(tasks)).tolist()
    together = ar.population_minima([tasks[i] for i in order], attention)
    for index, found in zip(order, together, strict=True):
        assert found.risk == alone[index].risk
        assert found.overlaps == alone[index].overlaps
        assert found.attained == alone[index].attained
    assert ar.population_minima([], attention) == []


def test_kernels_of_several_tasks_are_compiled_once():
    attention, compiled = ar.Softmax(), compilations()
    ar.population_minimum(ar.SpikedSLR(1.0, 5), attention)
    before = len(compiled)
    ar.population_minima([ar.SpikedSLR(nu, 6) for nu in np.linspace(1.0, 1.4, 9)], attention)
    assert len(compiled) == before


@pytest.mark.parametrize("task", [ar.SpikedSLR(1.2, 3), ar.MaxSLR(1.1, 3)], ids=str)
def test_lanes_as_arrays_give_what_a_loop_gives(task, monkeypatch):
    """Elsewhere than on a CPU they are arrays, whose sums may be rounded otherwise."""
    known = lanes.stacked([_known(task, ar.Softmax())])
    places = np.stack(np.broadcast_arrays(np.linspace(-1, 3, 8)[:, None] * [1, 2], 0.0), -1)
    counts = np.array([2, 1, 0, 2, 2, 1, 2, 2])

    def values(backend):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        over = eqx.filter_jit(lambda *each: lanes.over_lanes(integrals._at_places, *each))
        return np.asarray(over(known, places, counts))

    looped, arrays = values("cpu"), values("gpu")
    np.testing.assert_array_equal(np.all(looped, -1), np.arange(2) < counts[:, None])
    np.testing.assert_allclose(arrays, looped, rtol=1e-13)


def test_on_a_cpu_vmap_is_a_loop_that_does_not_enter_empty_lanes():
    entered = []

    def value(x, count):
        def step(_, total):
            jax.debug.callback(entered.append, x)
            return total + x

        return jax.lax.fori_loop(0, count, step, 0.0 * x)

    found = jax.jit(lambda *each: lanes.over_lanes(value, *each))(
        jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 0, 1])
    )
    jax.effects_barrier()
    assert found.tolist() == [2.0, 0.0, 3.0]
    assert [float(x) for x in entered] == [1.0, 1.0, 3.0]


def test_large_tables_have_fewer_lanes():
    task, attention = ar.MaxSLR(np.inf, 10), ar.Softmax()
    small, large = (
        _known(ar.MaxSLR(1.0, 10), attention),
        known_of(task, attention, plan(task, attention, 32.0, order=12)),
    )
    assert lanes.lanes_for(small) == lanes.LANES
    assert lanes.lanes_for(large) == 1
    assert [*lanes.alike([small, large, small, large])] == [[0, 2], [1], [3]]


def test_searches_that_want_nothing_or_end_at_different_times():
    known = _known(ar.SpikedSLR(1.2, 3), ar.Softmax())
    calls = []

    def search(rounds):
        found = []
        for m_kk in range(rounds):
            calls.append(rounds)
            found += yield Integrals(known, [(float(m_kk), 0.0)])
        return found

    found = followed([search(2), search(0), search(3)])
    assert [len(each) for each in found] == [2, 0, 3]
    assert found[0] == found[2][:2]
    assert calls == [2, 3, 2, 3, 3]
