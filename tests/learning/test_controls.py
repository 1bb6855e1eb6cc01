"""Control variates: their means are zero, and the regression on them is exact where it should be (section 6.4)."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning import equations
from attnrisk.learning.controls import Moments, ValueLaw, hold
from attnrisk.learning.equations import controls, flat, map_step
from attnrisk.learning.problem import Problem
from attnrisk.learning.samples import cavity_samples, draw, locate
from attnrisk.learning.unknowns import Order, Unknowns
from attnrisk.numerics.arrays import as_arrays

TASKS = {
    "spread and noise": ar.SpikedSLR(2.0, 3, noise=0.4, spread=0.6),
    "max": ar.MaxSLR(2.0, 3, noise=0.4),
    "weight": ar.WeightedSLR(lambda at, chi: chi[at] - 0.5, 3, noise=0.4),
    "two features": ar.FeatureSLR(ar.one_of([4.0, 2.0]), 3, noise=0.4),
    "three features": ar.FeatureSLR(ar.gaussian([4.0, 2.0, 1.0]), 3, noise=0.4),
}


@eqx.filter_jit
def _held(attention, sample, location, response, law):
    return jax.vmap(partial(hold, attention), (0, 0, None, None))(sample, location, response, law)


def _controls(task, attention, points, m_in_law):
    heads = attention.keys
    M = np.linspace(0.6, -0.3, heads * task.features).reshape(1, heads, task.features)
    keys = Order(M, M @ M.swapaxes(1, 2) + np.eye(heads), 0.5 * np.eye(heads)[None])
    unknowns = Unknowns(keys, Order(*(np.array([[[each]]]) for each in (0.7, 0.8, 0.4))))
    seen = cavity_samples(task, unknowns, points, locate(task, unknowns.correlation[0], points))
    law = ValueLaw(m_in_law, 0.8, float(task.label_variance))
    location = np.tile(seen.location, (len(points.label), 1))
    sample, response = jax.tree.map(lambda leaf: leaf[0], (flat(seen.sample), unknowns.response))
    held = _held(*as_arrays((attention, sample, location, response, law)))
    shape = 1, *seen.probability.shape
    held = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*shape, *leaf.shape[1:]), held)
    return controls(task, unknowns, seen, held)[0]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "attention", [ar.Erf(), ar.Heads(ar.Softmax(), 2)], ids=["erf", "two heads"]
)
def test_controls_have_mean_zero(name, attention):
    """Over scrambled points; with another overlap in their means they do not."""
    task = TASKS[name]
    points = [each for (each,) in draw(task, attention.keys, 10, 16, 0)]
    ours, wrong = (
        np.array([_controls(task, attention, each, m).mean(0) for each in points])
        for m in (0.7, 0.5)
    )
    error = ours.std(0, ddof=1) / 4 + 1e-12
    assert np.all(np.abs(ours.mean(0)) < 5 * error)
    assert np.max(np.abs(wrong.mean(0)) / error) > 8
    assert np.sum(ours.std(0) > 1e-9) >= 4


def test_regression_finds_a_linear_relation(rng):
    """Also with controls that are copies of each other, or zero up to rounding."""
    given = rng.normal(size=(2, 500, 3))
    slopes = rng.normal(size=(3, 2))
    padded = np.concatenate([given, given[..., :1], 1e-17 * rng.normal(size=(2, 500, 1))], -1)
    moments = Moments.of(3.0 + given @ slopes, padded)
    found = moments.controlled(moments.coefficients(moments.varies))
    np.testing.assert_allclose(found, 3.0, rtol=1e-6)
    assert np.all(np.abs(moments.terms - 3.0) > 1e-4)


def test_held_scores_need_no_average_where_they_do_not_move():
    """A constant attention: the pulls are those with scores held, and the equations have no noise left."""
    constant = ar.Elementwise(jnp.ones_like)
    found = ar.erm_asymptotics(
        ar.SpikedSLR(2.0, 3, noise=0.3), constant, 2.0, ar.Ridge(1.0, 0.7), log2_points=5
    )
    assert found.converged
    assert found.test_risk.error < 1e-6


@pytest.mark.parametrize("log2_points", [3, 5])
def test_errors_of_few_points_are_not_understated(log2_points):
    """Against the value of many points, over seeds; those that say so are left out."""
    task, ridge = ar.SpikedSLR(2.0, 3), ar.Ridge(1.0, 1.0)
    exact = 0.5961  # to 2e-4, with 2^12 points
    found = [
        ar.erm_asymptotics(task, ar.Softmax(), 4.0, ridge, seed=seed, log2_points=log2_points)
        for seed in range(6)
    ]
    away = [
        (float(each.test_risk) - exact) / each.test_risk.error for each in found if each.converged
    ]
    assert np.sqrt(np.mean(np.square(away))) < 1.6 if away else log2_points == 3


@pytest.mark.parametrize(
    "task",
    [ar.SpikedSLR(2.0, ar.uniform(2, 3), noise=0.3), TASKS["weight"]],
    ids=["lengths", "weight"],
)
def test_groups_of_randomisations_change_nothing(task, monkeypatch):
    problem = Problem.of(task, ar.Softmax(), 4, 0)
    x, ridge = problem.starts(ar.Ridge(1.0, 1.0))[1].x, ar.Ridge(1.0, 1.0)
    _, together = map_step(problem, x, 4.0, ridge, None, True)
    assert problem.group_size > 1
    monkeypatch.setattr(equations, "_POINTS_PER_GROUP", 1)
    assert problem.group_size == 1
    displacements, alone = map_step(problem, x, 4.0, ridge, None, True)
    np.testing.assert_allclose(alone.target, together.target, rtol=1e-10, atol=1e-12)
    assert len(displacements) == len(problem.points)
    with pytest.raises(ValueError, match="displacements of 15 groups"):
        map_step(problem, x, 4.0, ridge, displacements[1:], False)
