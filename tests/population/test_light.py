"""The cheap rule that flows are integrated with, against the one that risks are reported with."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import TASKS

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.overlaps import overlaps_of, vectors_of
from attnrisk.population.plan import light_plan, plan
from attnrisk.population.risk import compiled_profile

SCALE = 2.0
CASES = [
    *(("spiked", name) for name in ("softmax", "softmax-1", "sigmoid")),
    ("spiked", "relu"),
    ("spiked-spread", "softmax"),
    ("spiked-spread", "erf"),
    ("max", "softmax"),
    ("max", "linear"),
    pytest.param("max-hard", "softplus", marks=pytest.mark.slow),
]


@eqx.filter_jit
def _expand(problem, vectors):
    engine, task, attention = problem
    return jax.value_and_grad(lambda y: engine.risk(task, attention, overlaps_of(y)))(vectors)


@eqx.filter_jit
def _hessian(problem, state):
    def gradient(state):
        return _expand(problem, state.reshape(2, 4))[1].ravel()

    return jax.jacfwd(gradient)(state)


def _vectors(rng):
    k, v = rng.normal(size=(2, 4))
    return jnp.array([0.9 * SCALE * k / np.linalg.norm(k), v])


@pytest.mark.parametrize(("task", "name"), CASES)
def test_agrees_with_the_full_rule(task, name, rng):
    task, attention = TASKS[task], ar.get_attention(name)
    full, light = (
        as_arrays((engine, task, attention))
        for engine in (
            plan(task, attention, SCALE, 1.0, SCALE),
            light_plan(task, attention, SCALE, SCALE, SCALE),
        )
    )
    for _ in range(2):
        vectors = _vectors(rng)
        value, gradient = _expand(light, vectors)
        exact_value, exact_gradient = _expand(full, vectors)
        np.testing.assert_allclose(value, exact_value, rtol=1e-7, atol=2e-8)
        np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("spiked", "relu"),
        pytest.param("max", "softmax", marks=pytest.mark.slow),
        ("max", "erf"),
    ],
)
@pytest.mark.parametrize("residual", [pytest.param(0.5, marks=pytest.mark.slow), 1e-3])
def test_hessian_against_differences_of_the_gradient(task, name, residual):
    task, attention = TASKS[task], ar.get_attention(name)
    problem = as_arrays((light_plan(task, attention, SCALE, SCALE, SCALE), task, attention))
    state = jnp.array([1.1, 0.3 * residual, residual, 0.0, -0.2, 0.8, 0.3, 0.4])
    hessian, step = _hessian(problem, state), 1e-5
    for i, unit in enumerate(jnp.eye(8)):
        ahead, behind = (
            _expand(problem, (state + sign * step * unit).reshape(2, 4))[1] for sign in (1, -1)
        )
        np.testing.assert_allclose(hessian[i], (ahead - behind).ravel() / (2 * step), atol=3e-6)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-7)


@pytest.mark.parametrize(
    ("task", "name"),
    [("spiked", "softplus"), ("spiked", "taylor-2"), ("max", "softmax"), ("max-hard", "linear")],
)
def test_finer_steps_are_right_to_rounding(task, name):
    """The error falls with the steps until nothing but rounding is left: no part of it is fixed, like a cut tail."""
    task, attention, reach = TASKS[task], ar.get_attention(name), 8.0

    def explained(engine):
        a, b = compiled_profile(*as_arrays((engine, task, attention, 3.0)))
        return float(a**2 / b)

    exact = explained(plan(task, attention, reach, order=12))
    errors = [
        abs(explained(light_plan(task, attention, reach, 0.0, reach, fineness)) - exact)
        for fineness in (1.0, 1.25, 1.6)
    ]
    assert errors[0] < 2e-8
    assert errors[1] < 2e-10
    assert errors[2] < 1e-12


def test_vectors_have_the_overlaps_that_they_were_made_from(rng):
    vectors = jnp.asarray(rng.normal(size=(2, 7)))
    overlaps = overlaps_of(vectors)
    again = overlaps_of(vectors_of(overlaps))
    for name in ("M", "Q"):
        np.testing.assert_allclose(getattr(again, name), getattr(overlaps, name), atol=1e-14)


def test_widened_rules_have_the_same_shape_and_agree():
    for task, name in (("spiked", "softplus"), ("max", "softmax"), ("max-hard", "erf")):
        task, attention = TASKS[task], ar.get_attention(name)
        first, second = (
            as_arrays(light_plan(task, attention, 8.0, 0.0, 8.0, 1.6, widened))
            for widened in (1.0, 1.07)
        )
        assert [leaf.shape for leaf in jax.tree.leaves(first)] == [
            leaf.shape for leaf in jax.tree.leaves(second)
        ]
        a, b = (
            compiled_profile(each, *as_arrays((task, attention, 2.3))) for each in (first, second)
        )
        np.testing.assert_allclose(a, b, rtol=1e-11)
