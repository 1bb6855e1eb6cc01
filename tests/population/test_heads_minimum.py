"""Minima over the keys of several heads: reference values, the Bayes risk, one head, and the Hessian (section 10)."""

import json
from importlib import import_module

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar

FLIPPED = ar.flipped(4.0)


def test_two_heads_turn_to_both_sides():
    """The lowest minimum has opposite heads; two copies of the best single head are another."""
    found = ar.population_minimum(ar.FeatureSLR(FLIPPED, 10), ar.Heads(ar.Softmax(), 2))
    assert float(found.risk) == pytest.approx(0.677381, abs=5e-7)
    keys = np.sort(found.overlaps.M[:-1, 0])
    np.testing.assert_allclose(keys, [-1.770, 1.770], atol=1e-3)
    assert found.converged
    assert found.attained
    assert [each.kind for each in found.minima] == ["minimum", "minimum"]
    assert float(found.minima[1].risk) == pytest.approx(0.834693, abs=5e-7)
    np.testing.assert_allclose(np.abs(found.minima[1].overlaps.M[:-1, 0]), 1.457, atol=1e-3)
    again = ar.population_risk(ar.FeatureSLR(FLIPPED, 10), found.attention, found.overlaps)
    assert float(again) == float(found.risk)
    flat = ar.record(found)
    assert flat["head_weights"] == [0.5, 0.5]
    assert json.loads(json.dumps(flat)) == flat


def test_bayes_softmax_finds_the_bayes_risk():
    task = ar.FeatureSLR(FLIPPED, 10, noise=0.1)
    found = ar.population_minimum(task, ar.BayesSoftmax(2))
    assert abs(float(found.risk) - float(ar.bayes_risk(task))) < 1e-9
    np.testing.assert_allclose(np.sort(found.overlaps.M[:-1, 0]), [-2.0, 2.0], atol=1e-3)
    np.testing.assert_allclose(np.ptp(found.biases), 0.0, atol=1e-3)
    assert found.lowest.kind == "minimum"


def test_the_search_over_heads_with_one_head():
    task = ar.SpikedSLR(5.0, 10)
    found = ar.heads_minimum(task, ar.Heads(ar.Softmax(), 1))
    assert abs(float(found.risk) - float(ar.bayes_risk(task))) < 1e-9
    assert found.overlaps.m_kk == pytest.approx(np.sqrt(5.0), abs=1e-4)


class Angle(eqx.Module):
    """A loss of the angle `θ` between two keys in a plane, which a rotation leaves: `θ²` or `−|θ|`, and `|θ|³`."""

    attention: ar.Heads
    crest: bool = eqx.field(static=True)

    def loss(self, integral, point):
        first, second = point.reshape(2, 2)
        cross = first[0] * second[1] - first[1] * second[0]
        theta = jnp.arctan2(cross, -first @ second)
        size = jnp.sqrt(theta**2 + 1e-24)
        return integral * ((-size if self.crest else theta**2) + 3.0 * size**3)


@pytest.mark.parametrize(("crest", "kind"), [(False, "flat"), (True, "saddle")])
def test_kinks_are_no_saddles_but_crests_are(crest, kind):
    """Two opposite keys of different length: by one step of differences a rotation has a negative curvature."""
    search = import_module("attnrisk.population.heads_minimum")
    point = np.array([0.38, 0.0, -0.28, 0.0])
    problem = Angle(ar.Heads(ar.Relu(), 2), crest)
    end = search.Descent(point, 0.0, np.zeros(4), 0)
    found, eigenvalues = search._curvature(problem, 1.0, end)
    assert found == kind
    analytic = Angle(ar.Heads(ar.Softmax(), 2), crest)
    by_one_step, _ = search._curvature(analytic, 1.0, end)
    assert by_one_step == "saddle"
    assert crest or abs(eigenvalues[0]) < 1e-4


def test_several_heads_on_a_selected_task_are_refused():
    with pytest.raises(ValueError, match="task = max is not allowed"):
        ar.population_minimum(ar.MaxSLR(2.0, 3), ar.Heads(ar.Softmax(), 2))


def test_heads_that_jump_are_refused():
    with pytest.raises(ValueError, match="continuous"):
        ar.population_minimum(ar.FeatureSLR(FLIPPED, 5), ar.Heads(ar.Hardmax(), 2))


SLOW = {
    "softmax-1": (FLIPPED, 10, ar.Heads(ar.SoftmaxPlusOne(), 2, free_bias=True), 0.612804),
    "softmax-1, two tokens": (
        FLIPPED,
        2,
        ar.Heads(ar.SoftmaxPlusOne(), 2, free_bias=True),
        0.276614,
    ),
    "one head": (FLIPPED, 10, ar.Softmax(), 0.834693),
    "softmax, two tokens": (FLIPPED, 2, ar.Heads(ar.Softmax(), 2), 0.5),
    "free weights": (FLIPPED, 10, ar.Heads(ar.Softmax(), 2, weights="free"), 0.677381),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_reference_values(name):
    law, length, attention, risk = SLOW[name]
    found = ar.population_minimum(ar.FeatureSLR(law, length), attention)
    assert float(found.risk) == pytest.approx(risk, abs=6e-7)
    assert found.converged


@pytest.mark.slow
def test_three_heads_find_three_features():
    """Each its own atom, `(3, √6, 2)`, at the Bayes risk."""
    task = ar.FeatureSLR(ar.one_of([9.0, 6.0, 4.0]), 10)
    found = ar.population_minimum(task, ar.BayesSoftmax(3))
    assert abs(float(found.risk) - float(ar.bayes_risk(task))) < 1e-6
    keys = found.overlaps.M[:-1, :-1]
    np.testing.assert_allclose(np.sort(np.diag(keys.T @ keys)), [4.0, 6.0, 9.0], atol=0.05)


@pytest.mark.slow
def test_heads_without_an_exact_engine_have_a_standard_error():
    found = ar.population_minimum(ar.FeatureSLR(FLIPPED, 5), ar.Heads(ar.Sparsemax(), 2))
    assert found.risk.kind is ar.ErrorKind.STANDARD
    assert found.lowest.kind == "not certified"
    assert float(found.risk) > float(ar.bayes_risk(ar.FeatureSLR(FLIPPED, 5)))
