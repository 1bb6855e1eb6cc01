"""The least risk: against closed forms, against Bayes, and against anything else one might try."""

import numpy as np
import pytest
from problems import EXACT, random_overlaps, some_slow

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.overlaps import overlaps_of
from attnrisk.population.plan import plan
from attnrisk.population.risk import compiled_risk


@pytest.mark.parametrize("length", [2, ar.uniform(1, 3), 1], ids=str)
@pytest.mark.parametrize(
    "task",
    [
        lambda n: ar.SpikedSLR(3.0, n, noise=0.5),
        lambda n: ar.MaxSLR(2.0, n),
        lambda n: ar.MaxSLR(np.inf, n),
    ],
)
def test_linear_attention_has_a_closed_form(task, length):
    task = task(length)
    found = ar.population_minimum(task, ar.Linear())
    assert found.attained
    assert abs(float(found.risk) - float(ar.linear_risk(task))) <= float(found.risk.error) + 1e-12
    assert abs(found.overlaps.m_kk - float(ar.linear_scale(task))) < 1e-5


@pytest.mark.parametrize(
    ("nu", "length"),
    [(0.1, 2), (2.0, 2), (8.0, 10), (0.1, ar.uniform(1, 3)), (8.0, ar.uniform(1, 3))],
    ids=str,
)
def test_softmax_finds_the_teacher_on_the_spiked_task(nu, length):
    task = ar.SpikedSLR(nu, length)
    found = ar.population_minimum(task, ar.Softmax())
    assert abs(float(found.risk) - float(ar.bayes_risk(task))) < 1e-10
    assert abs(found.overlaps.m_kk - np.sqrt(nu)) < 1e-4
    assert abs(found.overlaps.m_vv - 1) < 1e-4


@pytest.mark.parametrize("nu", [1.0, pytest.param(7.0, marks=pytest.mark.slow)])
def test_softmax_finds_the_teacher_on_the_max_task(nu):
    task = ar.MaxSLR(nu, 3)
    found = ar.population_minimum(task, ar.Softmax())
    assert abs(float(found.risk) - float(ar.bayes_risk(task))) < 1e-10
    assert abs(found.overlaps.m_kk - nu) < 1e-3


@pytest.mark.parametrize(("nu", "length"), [(2.0, 3), (5.0, 10), (12.0, 1000)])
def test_sigmoid_with_a_free_bias_is_the_best_of_its_family(nu, length):
    task = ar.SpikedSLR(nu, length)
    floor = float(ar.elementwise_floor(task))
    found = ar.population_minimum(task, ar.Sigmoid())
    assert abs(float(found.risk) - floor) < 1e-10
    assert abs(float(found.attention.bias) + nu / 2 + np.log(length - 1)) < 1e-3
    assert float(ar.population_minimum(task, ar.Erf()).risk) > floor
    assert float(ar.linear_risk(task)) > floor > float(ar.bayes_risk(task))


@pytest.mark.parametrize(
    ("task", "attention"),
    [
        (ar.SpikedSLR(5.0, 10), ar.Sigmoid()),
        (ar.MaxSLR(2.0, 5), ar.Sigmoid()),
        (ar.MaxSLR(np.inf, 2), ar.Erf()),
    ],
)
def test_the_floor_of_the_family_is_close_below_its_members(task, attention):
    floor = float(ar.elementwise_floor(task))
    found = float(ar.population_minimum(task, attention).risk)
    assert -1e-10 < found - floor < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("length", [10, 2])
def test_the_floor_of_the_family_with_an_argmax_to_find(length):
    task = ar.MaxSLR(np.inf, length, noise=0.5)
    hard, soft = (
        float(ar.elementwise_floor(each)) for each in (task, ar.MaxSLR(200.0, length, noise=0.5))
    )
    assert abs(hard - 0.25 - (length - 1) / (2 * length - 1)) < 1e-13
    assert 0 < soft - hard < 0.01


def test_an_infimum_that_is_not_attained():
    """A kernel that looks like ReLU from afar does better the longer `k` is."""
    task, attention = ar.SpikedSLR(5.0, 3), ar.get_attention("elu+1")
    found = ar.population_minimum(task, attention)
    assert not found.attained
    near, far = (
        ar.population_risk(task, attention, ar.aligned(m_kk, found.overlaps.m_vv))
        for m_kk in (100.0, found.overlaps.m_kk)
    )
    assert float(near) > float(far) > float(found.risk) - float(found.risk.error)
    assert float(far) < float(found.risk) + 1e-3


@pytest.mark.slow
def test_an_argmax_is_found_in_the_limit():
    """There too a longer `k` is always better, and in the end nothing is missed."""
    found = ar.population_minimum(ar.MaxSLR(np.inf, 3), ar.Softmax())
    assert not found.attained
    assert abs(float(found.risk)) <= float(found.risk.error) < 1e-6


@pytest.mark.slow
def test_a_known_limit_on_the_max_task():
    """elu+1 becomes ReLU as `k` grows, and from above: what is left halves when `k` doubles."""
    task, attention = ar.MaxSLR(2.0, 10), ar.get_attention("elu+1")
    found, relu = (ar.population_minimum(task, each) for each in (attention, ar.Relu()))
    assert not found.attained
    assert abs(float(found.risk) - float(relu.risk)) <= found.risk.error + relu.risk.error
    near, far = (
        float(ar.population_risk(task, attention, ar.aligned(m_kk, found.overlaps.m_vv)))
        for m_kk in (15.0, 30.0)
    )
    assert 1.5 < (near - float(found.risk)) / (far - float(found.risk)) < 3.0


@pytest.mark.slow
def test_softplus_turns_into_relu_when_the_haystack_is_large():
    task = ar.SpikedSLR(40.0, 1000)
    softplus, relu = (ar.population_minimum(task, each) for each in (ar.Softplus(), ar.Relu()))
    assert not softplus.attained
    assert relu.attained
    assert abs(float(softplus.risk) - float(relu.risk)) <= float(softplus.risk.error) + float(
        relu.risk.error
    )


@pytest.mark.parametrize("task", [ar.SpikedSLR(0.0, 10), ar.MaxSLR(0.0, 2)])
@pytest.mark.parametrize("name", ["erf", "sigmoid"])
def test_a_bias_that_does_not_matter_is_not_carried_off(task, name):
    """Without a signal the loss is flat in the bias; weights must not vanish, nor `v` grow to make up for them."""
    found = ar.population_minimum(task, ar.get_attention(name))
    assert abs(float(found.risk) - float(ar.bayes_risk(task))) < 1e-9
    assert 0 < found.overlaps.m_vv < 5


@pytest.mark.parametrize("name", ["softmax", "softplus", "taylor-2"])
def test_without_a_signal_uniform_attention_is_best(name):
    task = ar.SpikedSLR(0.0, ar.uniform(1, 3), noise=0.1)
    found = ar.population_minimum(task, ar.get_attention(name))
    assert abs(float(found.risk) - (0.01 + 1 - (1 + 1 / 2 + 1 / 3) / 3)) < 1e-9
    assert abs(found.overlaps.m_kk) < 1e-3


@pytest.mark.parametrize("name", ["sparsemax", "hardmax"])
def test_general_attentions_lie_above_bayes(name):
    task = ar.SpikedSLR(2.0, 3)
    found = ar.population_minimum(task, ar.get_attention(name))
    gap = float(found.risk) - float(ar.bayes_risk(task))
    assert gap > -4 * float(found.risk.error)
    assert gap < 0.15


@pytest.mark.parametrize("name", some_slow(EXACT, "relu2", "elu+1", "softmax-1"))
def test_nothing_off_the_manifold_is_lower(name, rng):
    """Neither near the minimum nor far from it, a residual of `k` included."""
    task = ar.SpikedSLR(2.0, 3)
    found = ar.population_minimum(task, ar.get_attention(name))
    arrays = as_arrays((plan(task, found.attention, scale=8.0), task, found.attention))
    m_kk, m_vv = found.overlaps.m_kk, found.overlaps.m_vv
    for step in (0.0, 0.01, 0.1, 0.5):
        k, v = np.array([m_kk, 0, 0, 0]), np.array([0, m_vv, 0, 0])
        k = k + step * max(abs(m_kk), 0.1) * rng.normal(size=4)
        v = v + step * max(abs(m_vv), 0.1) * rng.normal(size=4)
        overlaps = overlaps_of(np.stack([k, v]))
        other = random_overlaps(rng)
        for each in (overlaps, other):
            value = compiled_risk(*arrays, as_arrays(each))
            assert float(value) >= float(found.risk) - float(found.risk.error) - 1e-9


@pytest.mark.parametrize(
    "task",
    [
        ar.SpikedSLR(8.0, 2),
        ar.SpikedSLR(6.0, ar.LengthLaw([1, 2, 3], [1 / 3] * 3)),
        ar.SpikedSLR(4.39, 3),
        ar.MaxSLR(3.0, 2),
        ar.MaxSLR(4.0, 2),
        ar.MaxSLR(0.0, ar.uniform(1, 3)),
        ar.SpikedSLR(0.0, ar.uniform(1, 3)),
        ar.MaxSLR(0.5, ar.LengthLaw([1, 50], [0.9, 0.1])),
        pytest.param(ar.MaxSLR(20.0, 1), marks=pytest.mark.optimised),
    ],
    ids=repr,
)
def test_the_search_ends_within_the_stated_error(task):
    """Softmax attains the Bayes risk: what a search leaves above it must be in the error."""
    found, bayes = ar.population_minimum(task, ar.Softmax()).risk, ar.bayes_risk(task)
    assert abs(found.value - bayes.value) <= found.error + bayes.error


def test_the_norm_of_k_is_void_for_squared_relu():
    """Two tokens without a signal: E[w] = 3/8 and E[Σ w²] = 11/16, whatever the norm of k."""
    found = ar.population_minimum(ar.SpikedSLR(0.0, 2), ar.get_attention("relu2", 0.0))
    assert float(found.risk) == pytest.approx(35 / 44, abs=1e-8)
    assert found.risk.error < 1e-8
    assert abs(float(found.overlaps.m_kk)) == 1.0
