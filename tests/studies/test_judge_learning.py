"""The learning curves of a verdict, and those stored of its references."""

import jax.numpy as jnp
import pytest

import attnrisk as ar
from attnrisk.studies.judge import recognise
from attnrisk.studies.judge.curves import ALPHAS, REFERENCES, curve, reference_curve
from attnrisk.studies.judge.tasks import WORKBENCH
from attnrisk.studies.judge.traits import traits
from attnrisk.studies.judge.verdict import _learners


def power(scores):
    kernel = (1.0 + scores / 8.0) ** 8
    return kernel / jnp.sum(kernel)


@pytest.mark.parametrize(
    ("attention", "free"),
    [
        ("softplus", [False, True]),
        ("erf", [True]),  # its bias is free in the catalogue
        ("softmax", [False]),  # a bias has no effect
        ("relu", []),
        (power, [False]),  # ridges would shrink k and 8 + b together
        ("cosine", []),
        ("clipped-softmax", [False]),  # its risks are averages over random points
    ],
)
def test_a_bias_is_learned_where_it_has_an_effect(attention, free):
    student = recognise(attention, "mine")
    assert [each.free_bias for each in _learners(student, traits(student))] == free


@pytest.mark.optimised
def test_softplus_with_a_learned_bias_learns_like_softmax():
    first = reference_curve("softmax")[0]
    found = curve(WORKBENCH.problem, ar.Softplus().with_free_bias(), "softplus", ALPHAS[:1])[0]
    assert found.label == "softplus, learned bias"
    assert found.result is ar.Result.BECOMES_SOFTMAX
    assert float(found.risk) == pytest.approx(float(first.risk), abs=0.1 * first.risk.error)


@pytest.mark.optimised
@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_stored_curves_of_the_references(name, alpha):
    known = {point.alpha: point for point in reference_curve(name)}[alpha]
    found = ar.tuned_erm_asymptotics(WORKBENCH.problem, REFERENCES[name], alpha, log2_points=6)
    assert found.converged
    assert not found.warning
    assert float(known.risk) == pytest.approx(float(found.test_risk), abs=0.1 * known.risk.error)
    assert known.risk.error == pytest.approx(found.test_risk.error, rel=0.1)
