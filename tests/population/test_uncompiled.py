"""Least risks by NumPy against the compiled search: within their errors, and left to it where they are not settled."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.attention import CATALOGUE
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population import uncompiled
from attnrisk.population.plan import ORDERS, kinks_at, plan
from attnrisk.population.risk import compiled_profile
from attnrisk.studies.judge.tasks import GRID

EIGHTH = ar.Kernel(lambda x: 8.0 * jnp.log(jnp.abs(1.0 + x / 8.0)), features=(), analytic=True)
SQUARE = ar.Kernel(lambda x: jnp.log1p(x**2), features=(), analytic=True)
# φ of the user's own, of which all that lies below −373 rounds to 0.
ROUNDED = ar.Kernel(lambda x: jnp.log(jax.nn.softplus(x) ** 2), features=(), analytic=True)
GAUSSIAN = ar.Kernel(lambda x: -(x**2) / 2.0, features=(), analytic=True)
POWER = ar.Kernel(
    lambda x: jnp.log(jnp.maximum(x - 0.5, 0.0) ** 1.5 + 0.01), features=(0.5,), constant=0.01
)
CASES = {
    "kernel": (ar.Softplus(), ar.SpikedSLR(5.0, 10)),
    "max": (ar.Taylor2(), ar.MaxSLR(2.0, 3)),
    "longer k": (EIGHTH, ar.SpikedSLR(27.63, 1000)),
    "becomes softmax": (ar.Softplus(free_bias=True), ar.SpikedSLR(5.0, 10)),
    "becomes softmax, vanishes": (ROUNDED.with_free_bias(), ar.SpikedSLR(5.0, 10)),
    "power": (EIGHTH.with_free_bias(), ar.SpikedSLR(5.0, 10)),
    "towards a power": (ar.Taylor2(free_bias=True), ar.SpikedSLR(5.0, 10)),
    "below the limit of a power": (ar.Taylor2(free_bias=True), ar.MaxSLR(2.0, 3)),
    "max, a constant": (ar.SoftmaxPlusOne(), ar.MaxSLR(2.0, 10)),
    "free bias": (ar.Sigmoid(free_bias=True), ar.SpikedSLR(5.0, 3)),
    "element-wise": (ar.Elementwise(jnp.exp), ar.MaxSLR(1.0, 10)),
    "element-wise, free bias": (
        ar.Elementwise(jax.nn.sigmoid, free_bias=True, analytic=True),
        ar.MaxSLR(2.0, 3),
    ),
    "two lengths": (ar.ScalableSoftmax(), ar.SpikedSLR(5.0, ar.parse_lengths("2:0.5,18:0.5"))),
    "two lengths, limit": (
        ar.Elementwise(lambda x, length: jax.nn.silu(x * jnp.log(length)), analytic=True),
        ar.SpikedSLR(5.0, ar.parse_lengths("2:0.5,18:0.5")),
    ),
    "one length": (ar.SigmoidLogLength(free_bias=True), ar.SpikedSLR(5.0, 10)),
    "kink": (POWER, ar.SpikedSLR(5.0, 10)),
    "kink, max": (ar.EluPlusOne(), ar.MaxSLR(2.0, 3)),
    "kink, short k": (
        ar.Kernel(lambda x: jnp.log(1e-6 + jnp.maximum(x, 0.0) ** 4)),
        ar.SpikedSLR(5.0, 3),
    ),
    "kink, exponential": (ar.Softpick(), ar.SpikedSLR(9.0, 10)),
    "kink, becomes softmax": (ar.EluPlusOne(free_bias=True), ar.SpikedSLR(5.0, 10)),
}


@cache
def _found(case):
    """The minimum with NumPy."""
    attention, task = CASES[case]
    return uncompiled._minimum(task, attention)


# Searches that take longer to run than to compile.
LONG = ("power", "towards a power")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.optimised] if case in LONG else []) for case in CASES],
)
def test_it_agrees_with_the_compiled_search(case):
    attention, task = CASES[case]
    found, known = _found(case), ar.population_minimum(task, attention)
    assert found.result == known.result
    assert float(found.risk.error) < 1e-6
    difference = abs(float(found.risk) - float(known.risk))
    assert difference <= float(found.risk.error) + float(known.risk.error)
    if found.attained:
        m_kk, m_vv = float(found.overlaps.m_kk), float(found.overlaps.m_vv)
        kinks = kinks_at(found.attention, m_kk)
        engine = plan(task, found.attention, abs(m_kk), order=ORDERS[1], kinks=kinks)
        a, b = compiled_profile(*as_arrays((engine, task, found.attention, m_kk)))
        at_found = float(task.label_variance) - 2.0 * m_vv * float(a) + m_vv**2 * float(b)
        assert at_found == pytest.approx(float(known.risk), abs=1e-7)


def test_softplus_becomes_relu_in_a_large_haystack():
    """The infimum is the least risk of ReLU, which a search over an angle finds."""
    task = ar.SpikedSLR(27.63, 1000)
    found, known = uncompiled._minimum(task, ar.Softplus()), ar.population_minimum(task, ar.Relu())
    assert found.result == ar.Result.K_DIVERGES
    assert float(found.risk.error) < 1e-6
    difference = abs(float(found.risk) - float(known.risk))
    assert difference <= float(found.risk.error) + float(known.risk.error)


def test_taylor_2_with_a_free_bias_is_one_plus_a_square():
    first = _found("below the limit of a power")  # (1 + (1 + x)²)/2 is 1 + x + x²/2
    second = uncompiled._minimum(ar.MaxSLR(2.0, 3), SQUARE.with_free_bias())
    assert first.result == second.result
    difference = abs(float(first.risk) - float(second.risk))
    assert difference <= float(first.risk.error) + float(second.risk.error)
    assert first.bias + 1.0 == pytest.approx(second.bias, abs=0.01)


def test_the_limit_of_a_kernel_with_a_kink_is_a_power():
    """Of long `k` the power is left; where all scores are negative, φ is the constant and each weight one quarter."""
    found = uncompiled._minimum(ar.MaxSLR(2.0, 3), POWER)
    power = ar.Kernel(lambda x: 1.5 * jnp.log(jnp.maximum(x, 0.0)), features=(0.0,))
    known = ar.population_minimum(ar.MaxSLR(2.0, 3), power)
    explained, m_vv = 1.0 - float(known.risk), float(known.overlaps.m_vv)
    negative = 1 / 2**3
    label = explained / m_vv + negative / 4
    norm = explained / m_vv**2 + negative * 3 / 4**2
    assert found.result == ar.Result.K_DIVERGES
    assert float(found.risk) == pytest.approx(1.0 - label**2 / norm, abs=found.risk.error)


def test_a_limit_that_is_known_to_few_digits_says_so():
    """ELU + 1 over a constant plus its sum becomes ReLU slowly, as the norm of `k` grows."""
    attention = ar.Kernel(ar.EluPlusOne().log_phi, constant=0.01)
    task = ar.SpikedSLR(18.4, 100)
    with np.errstate(over="ignore"):
        found, known = uncompiled._minimum(task, attention), ar.population_minimum(task, ar.Relu())
    assert found.result == ar.Result.K_DIVERGES
    assert 1e-6 < found.risk.error < 1e-4
    assert abs(float(found.risk) - float(known.risk)) <= found.risk.error + known.risk.error


def test_a_tolerance_leaves_less_to_the_compiled_search():
    """Among many tokens ELU + 1 over ε plus its sum becomes ReLU too, more slowly."""
    attention = ar.Kernel(ar.EluPlusOne().log_phi, constant=1e-6)
    task = ar.SpikedSLR(4.0 * np.log(1000), 1000)
    with np.errstate(over="ignore"):
        assert uncompiled._minimum(task, attention) is None
        found = uncompiled._minimum(task, attention, 1e-3)
    known = ar.population_minimum(task, ar.Relu())
    assert 1e-4 < found.risk.error < 1e-3
    assert abs(float(found.risk) - float(known.risk)) <= found.risk.error + known.risk.error


def test_a_search_that_leaves_its_range_settles_nothing():
    attention = ar.Taylor2(free_bias=True)
    assert uncompiled._searched(uncompiled._Sums(ar.SpikedSLR(5.0, 3), attention)) is None


@pytest.mark.parametrize(
    "attention",
    [
        ar.Kernel(lambda x: x - jnp.log1p(x**2) / 8.0, analytic=True),
        ar.Kernel(lambda x: jnp.sqrt(1.0 + x**2), analytic=True),
        ar.Softplus(),
    ],
)
def test_the_error_in_a_flat_valley_covers_the_infimum(attention):
    """These become softmax as the bias grows, and a search may stop on the way."""
    task = ar.SpikedSLR(5.0, 3)
    found = uncompiled._searched(uncompiled._Sums(task, attention.with_free_bias()))
    assert found is None or float(found.risk - ar.bayes_risk(task)) <= float(found.risk.error)


def test_a_sum_of_too_many_terms_is_left_to_the_compiled_search():
    task = ar.SpikedSLR(27.63, 1000)
    assert uncompiled._minimum(task, GAUSSIAN.with_free_bias()) is None


class Tempered(ar.AbstractKernel):
    """Softplus of scores times an array."""

    name = "tempered"
    analytic = True
    slope: jax.Array

    def log_phi(self, argument):
        return jnp.log(jax.nn.softplus(self.slope * argument))


def test_an_attention_may_hold_arrays():
    task, sharp = ar.SpikedSLR(5.0, 3), Tempered(slope=jnp.array(2.0))
    known = ar.population_minimum(task, ar.Softplus())
    for found in (uncompiled._minimum(task, sharp), ar.population_minimum(task, sharp)):
        assert float(found.risk) == pytest.approx(float(known.risk), abs=1e-7)
        assert float(found.overlaps.m_kk) == pytest.approx(float(known.overlaps.m_kk) / 2, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("name", list(CATALOGUE))
def test_it_agrees_on_random_tasks_of_the_catalogue(name, free):
    """On two tasks of the grid of `judge`, a spiked and a max one, with a signal that is drawn near theirs."""
    random = np.random.default_rng(list(CATALOGUE).index(name))
    attention = ar.get_attention(name).with_free_bias(free)
    for kind in ("spiked", "max"):
        place = random.choice([each for each in GRID if each.task == kind])
        task = replace(place, nu=place.nu * random.uniform(0.8, 1.25)).problem
        if free and attention.bias_is_void:
            continue
        found = uncompiled._minimum(task, attention)
        if found is None:
            continue
        known = ar.population_minimum(task, attention)
        difference = abs(float(found.risk) - float(known.risk))
        assert difference <= float(found.risk.error) + float(known.risk.error), place
        assert found.attained == known.attained, place


@pytest.mark.parametrize(
    "attention", [ar.Relu(), ar.EluPlusOne(), ar.ElementwiseRelu(free_bias=True), ar.Sparsemax()]
)
def test_what_it_cannot_settle_is_left_to_the_compiled_search(attention):
    task = ar.SpikedSLR(2.0, 3)
    assert uncompiled._minimum(task, attention) is None


def test_the_order_of_tasks_is_kept():
    tasks = [ar.SpikedSLR(2.0, 3), ar.SpikedSLR(0.0, 3), ar.SpikedSLR(5.0, 3)]
    found = uncompiled.uncompiled_minima(tasks, ar.Softmax())
    for task, each in zip(tasks, found, strict=True):
        assert float(each.risk) == pytest.approx(float(ar.bayes_risk(task)), abs=1e-9)


def test_weights_that_underflow_at_every_score():
    """With a bias of a few hundred all weights are zero."""
    task = ar.SpikedSLR(4 * np.log(1000), 1000)
    found = uncompiled._minimum(task, ROUNDED.with_free_bias())
    bayes = ar.bayes_risk(task)
    assert abs(float(found.risk) - float(bayes)) <= float(found.risk.error) + float(bayes.error)
    assert found.result == ar.Result.BECOMES_SOFTMAX


@pytest.mark.parametrize("free", [False, True])
def test_the_constant_beside_a_power_only_sets_the_scale(free):
    """A kernel over its sum plus `c` is that over its sum plus 1, at scores that are shorter by a factor."""
    task = ar.SpikedSLR(2.0, 3)
    found, known = (
        uncompiled._minimum(
            task,
            ar.Kernel(
                lambda x: jnp.log(jnp.maximum(x, 0.0) ** 2), constant=constant, free_bias=free
            ),
        )
        for constant in (1e-6, 1.0)
    )
    assert float(found.risk) == pytest.approx(float(known.risk), abs=1e-9)
    assert float(found.overlaps.m_kk) == pytest.approx(1e-3 * float(known.overlaps.m_kk), rel=1e-3)
    assert found.bias == pytest.approx(1e-3 * known.bias, rel=1e-3)
    assert float(found.overlaps.m_vv) == pytest.approx(float(known.overlaps.m_vv), rel=1e-3)
