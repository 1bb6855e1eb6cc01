"""Derivatives of the risk with respect to the overlaps: exact ones against finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import OVERLAPS, TASKS
from scipy.special import expit

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.overlaps import NAMES
from attnrisk.population.plan import plan

CASES = [
    ("spiked", "softmax"),
    ("spiked", "relu"),
    ("spiked", "erf"),
    ("spiked-spread", "softplus"),
    ("max", "softmax"),
    ("max-hard", "linear"),
    pytest.param("max-hard", "elu+1", marks=pytest.mark.slow),
]
STEP = 1e-4
_ORDER = 6  # of panels: derivatives are right to 10^-7


def _function(task, attention):
    """The risk as a function of the seven overlaps in one vector."""
    engine = plan(task, attention, scale=1.5, noise=1.0, slope=1.5, order=_ORDER)
    arrays = as_arrays((engine, task, attention))

    @eqx.filter_jit
    def compiled(arrays, vector):
        engine, task, attention = arrays
        return engine.risk(task, attention, ar.Overlaps(**dict(zip(NAMES, vector, strict=True))))

    return lambda vector: compiled(arrays, vector)


@pytest.mark.parametrize(("task", "name"), CASES)
def test_gradient(task, name, rng):
    """In two random directions, of which each moves all overlaps."""
    function = _function(TASKS[task], ar.get_attention(name))
    at = jnp.array(list(OVERLAPS["off"].as_dict().values()))
    directions = rng.choice([-1.0, 1.0], size=(2, 7)) * rng.uniform(0.5, 1.5, size=(2, 7))
    steps = STEP * directions
    central = [(function(at + step) - function(at - step)) / (2 * STEP) for step in steps]
    np.testing.assert_allclose(directions @ jax.grad(function)(at), central, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_second_derivatives():
    """The rule for derivatives is itself differentiable."""
    function = _function(TASKS["spiked"], ar.Softmax())
    at = jnp.array(list(OVERLAPS["off"].as_dict().values()))
    gradient = jax.jit(jax.grad(function))
    steps = STEP * jnp.eye(7)
    central = [(gradient(at + step) - gradient(at - step)) / (2 * STEP) for step in steps]
    hessian = jax.jacfwd(gradient)(at)
    np.testing.assert_allclose(hessian, central, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)


@pytest.mark.parametrize("task", ["spiked", pytest.param("max", marks=pytest.mark.slow)])
def test_the_derivative_in_a_bias(task):
    """By `jax.grad`, with and without `jit`, of a bias that is not free."""

    def value(bias):
        attention = ar.Softplus(bias=bias)
        return ar.population_risk(TASKS[task], attention, ar.aligned(1.2, 0.8)).value

    central = (value(0.5 + STEP) - value(0.5 - STEP)) / (2 * STEP)
    assert abs(central) > 1e-3
    slopes = [jax.grad(value)]
    if (
        task == "spiked"
    ):  # under `jit` the table of a max task is compiled for large norms, which takes minutes
        slopes.append(jax.jit(jax.grad(value)))
    for slope in slopes:
        assert abs(float(slope(0.5)) - central) < 1e-7


def test_population_risk_can_be_differentiated_by_its_user():
    task = ar.SpikedSLR(2.0, 3)

    def value(m_kk):
        return ar.population_risk(task, ar.Softmax(), ar.aligned(m_kk)).value

    assert abs(float(jax.grad(value)(jnp.sqrt(2.0)))) < 1e-9
    assert float(jax.grad(value)(1.0)) < -1e-2
    assert float(jax.grad(value)(2.0)) > 1e-2


def _softplus(scores):
    """To first order in an imaginary part."""
    return np.logaddexp(0.0, scores.real) + 1j * scores.imag * expit(scores.real)


def _two_token_risk(task, m_kk, q_kk, m_vv, q_vv):
    """`1 − 2 m_vv E[σ_ε] + q_vv E[Σσ²]` of softplus, where `z` does not depend on scores; analytic in `q_kk`."""
    x = np.arange(-180, 181) * 0.05
    mass = 0.05 * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    spiked = task.name == "spiked"
    scores = np.sqrt(q_kk) * x
    phi = _softplus(scores + (m_kk * np.sqrt(task.nu) if spiked else 0.0))[:, None]
    other = _softplus(scores)
    weight = phi / (phi + other)
    chance = 1.0  # that the first token is the relevant one
    if not spiked:
        # Given scores a field is normal, of mean m_kk/q_kk times its score, and so is the difference of two.
        noise = np.sqrt(2.0 * (1.0 - m_kk**2 / q_kk)) * x
        apart = np.arange(-360, 361) * 0.05 * m_kk / np.sqrt(q_kk)
        by_distance = 1.0 / (1.0 + np.exp(-task.nu * (apart[:, None] + noise))) @ mass
        place = np.arange(x.size)
        chance = 2.0 * by_distance[place[:, None] - place + 360]
    square = weight**2 + (1.0 - weight) ** 2
    return 1.0 + mass @ (q_vv * square - 2.0 * m_vv * chance * weight) @ mass


@pytest.mark.parametrize(
    ("task", "q_kk"),
    [
        (ar.SpikedSLR(2.0, 2), 0.01),
        (ar.SpikedSLR(2.0, 2), 1.0),
        (ar.SpikedSLR(2.0, 2), 100.0),
        pytest.param(ar.MaxSLR(2.0, 2), 0.01, marks=pytest.mark.optimised),
        pytest.param(ar.MaxSLR(2.0, 2), 16.0, marks=pytest.mark.optimised),
    ],
    ids=str,
)
def test_the_rule_of_a_gradient_suits_the_overlaps(task, q_kk):
    """Under `jax.grad` overlaps are known: scores of any scale have derivatives as exact as their risk."""
    m_kk, m_vv, q_vv = 0.6 * np.sqrt(q_kk), 0.7, 0.9

    def value(q_kk):
        overlaps = ar.Overlaps(m_kk=m_kk, m_vv=m_vv, q_kk=q_kk, q_vv=q_vv)
        return ar.population_risk(task, ar.Softplus(), overlaps).value

    found, slope = jax.value_and_grad(value)(q_kk)
    exact = _two_token_risk(task, m_kk, q_kk * (1 + 1e-30j), m_vv, q_vv)
    np.testing.assert_allclose(found, exact.real, rtol=1e-9)
    np.testing.assert_allclose(slope, exact.imag / (1e-30 * q_kk), rtol=1e-7)


def test_gradient_in_the_matrices():
    """Only the lower triangle of `Q` is read: there is the whole derivative in `q_kv`."""
    task, at = TASKS["spiked"], OVERLAPS["off"]

    def value(overlaps):
        return ar.population_risk(task, ar.Softmax(), overlaps).value

    found = jax.grad(value)(jax.tree.map(jnp.asarray, at))
    for name, number in at.as_dict().items():
        ends = [ar.Overlaps(**(at.as_dict() | {name: number + s * STEP})) for s in (1, -1)]
        central = (value(ends[0]) - value(ends[1])) / (2 * STEP)
        np.testing.assert_allclose(getattr(found, name), central, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["erf", "elementwise-relu"])
def test_inside_jit_the_noise_may_be_anything(name):
    """Where overlaps are not known, nothing may be assumed of what a field leaves of a score."""
    task, attention = ar.MaxSLR(2.0, 3), ar.get_attention(name)
    overlaps = ar.Overlaps(m_kk=6.0, m_vv=0.7, q_kk=36.0 + 1e-4, q_vv=0.9)
    exact = ar.population_risk(task, attention, overlaps)
    traced = jax.jit(lambda o: ar.population_risk(task, attention, o).value)(overlaps)
    np.testing.assert_allclose(traced, exact.value, rtol=1e-7)
