"""Several heads on several features: against sequences drawn token by token, and against one head."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import attend

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.engines.base import head_range
from attnrisk.population.minimum import Minimum
from attnrisk.population.overlaps import overlaps_of
from attnrisk.population.plan import has_exact_heads, heads_engine
from attnrisk.population.risk import compiled_risk

TASK = ar.FeatureSLR(ar.one_of([6.0, 3.0]), length=5, noise=0.2)
_FINENESS = 0.7  # of exact rules: right to 10^-5, far below a standard error


def _monte_carlo(task, attention, overlaps, n, rng):
    """Tokens in the coordinates of the teacher and of what the student has beyond it."""
    features, length = task.features, int(task.length.longest)
    factor = np.linalg.cholesky(np.asarray(overlaps.residual) + 1e-14 * np.eye(len(overlaps.Q)))
    teacher = rng.normal(size=(n, length, features + 1))
    location = rng.integers(length, size=n)
    law = task.shift_law
    atom = rng.choice(len(law.means), size=n, p=law.weights)
    teacher[np.arange(n), location, :features] += law.means[atom]
    own = rng.normal(size=(n, length, len(factor)))
    student = teacher @ np.asarray(overlaps.M).T + own @ factor.T
    label = teacher[np.arange(n), location, -1] + task.noise * rng.normal(size=n)
    scores = jnp.asarray(student[..., :-1].swapaxes(1, 2))
    weights = np.asarray(attend(attention.attend, scores))
    losses = (label - (weights * student[..., -1]).sum(1)) ** 2
    return losses.mean(), losses.std() / np.sqrt(n)


def _coarse_risk(attention, overlaps):
    engine = heads_engine(TASK, attention, head_range(TASK, attention, overlaps), _FINENESS)
    return compiled_risk(*as_arrays((engine, TASK, attention, overlaps)))


def test_heads_of_kernels_have_exact_engines():
    for name in ar.CATALOGUE:
        heads = ar.Heads(ar.get_attention(name), count=3)
        assert has_exact_heads(TASK, heads) is (ar.get_attention(name).family == "kernel")


# Smooth kernels, with a constant and of the length; kinks where a kernel vanishes and where it does not; by random
# points one of each family and one of the length.
THREE = ["softmax", "softmax-1", "taylor-2", "softplus", "ssmax", "relu", "elu+1"]
THREE += ["erf", "linear", "sigmoid-logL", "sparsemax", "hardmax"]


@pytest.mark.parametrize("name", THREE)
def test_three_heads_on_two_features(name, rng):
    """By random points as `population_risk` has them, and by one coarse rule where there is an exact one."""
    attention = ar.Heads(ar.get_attention(name), count=3)
    overlaps = overlaps_of(0.6 * rng.normal(size=(4, 7)), teachers=3)
    if has_exact_heads(TASK, attention):
        found = _coarse_risk(attention, overlaps)
    else:
        found = ar.population_risk(TASK, attention, overlaps)
        assert found.kind is ar.ErrorKind.STANDARD
    mean, error = _monte_carlo(TASK, attention, overlaps, 100_000, rng)
    assert abs(float(found) - mean) < 4 * np.hypot(error, float(getattr(found, "error", 0.0)))


def test_the_features_matter(rng):
    """The negative control: with the two features exchanged the risk is another."""
    attention = ar.Heads(ar.Softmax(), count=3)
    vectors = 0.6 * rng.normal(size=(4, 7))
    exchanged = overlaps_of(vectors[:, [1, 0, *range(2, 7)]], teachers=3)
    found = _coarse_risk(attention, exchanged)
    mean, error = _monte_carlo(TASK, attention, overlaps_of(vectors, teachers=3), 100_000, rng)
    assert abs(float(found) - mean) > 6 * error


def test_one_head_on_one_feature_is_the_spiked_task(rng):
    overlaps = overlaps_of(rng.normal(size=(2, 4)))
    exact = ar.population_risk(ar.SpikedSLR(4.0, 3), ar.Softmax(), overlaps)
    task = ar.FeatureSLR(ar.ShiftMixture([[2.0]]), length=3)
    found = ar.population_risk(task, ar.Softmax(), overlaps)
    assert float(found.error) < 1e-11
    assert abs(float(found) - float(exact)) < float(found.error) + float(exact.error)


def test_heads_that_see_the_same_are_one_head(rng):
    k, v = rng.normal(size=(2, 5))
    twice = overlaps_of(np.stack([k, k, v]), teachers=2)
    once = overlaps_of(np.stack([k, v]), teachers=2)
    task = ar.MaxSLR(2.0, 4)
    found = ar.population_risk(task, ar.Heads(ar.Erf(), count=2), twice)
    exact = ar.population_risk(task, ar.Erf(), once)
    assert abs(float(found) - float(exact)) < 5 * float(found.error)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="of 4 student and 3 teacher vectors"):
        ar.population_risk(TASK, ar.Heads(ar.Softmax(), count=3), ar.aligned(1.0))


BAD_MATRICES = {
    "nan": (np.zeros((2, 2)), np.full((2, 2), np.nan)),
    "complex": (np.zeros((2, 2)), 1j * np.eye(2)),
    "words": ("a", np.eye(2)),
    "asymmetric": (np.zeros((2, 2)), [[1.0, 0.5], [0.0, 1.0]]),
    "empty": (np.zeros((0, 0)), np.zeros((0, 0))),
    "shapes": (np.zeros((2, 3)), np.eye(3)),
    "residual": (2.0 * np.eye(2), np.eye(2)),
}


@pytest.mark.parametrize("matrices", BAD_MATRICES.values(), ids=BAD_MATRICES)
def test_matrices_that_are_no_overlaps_are_refused(matrices):
    with pytest.raises(ValueError, match="not allowed"):
        ar.Overlaps(*matrices)


@pytest.mark.parametrize(
    "call",
    [
        lambda task, softmax: ar.gradient_flow(task, softmax, None),
        lambda task, softmax: ar.gradient_flow(task, "softmax", ar.aligned(1.0)),
        lambda task, softmax: ar.erm_asymptotics(task, "softmax", 4.0, ar.Ridge(1.0, 1.0)),
        lambda task, softmax: ar.erm_asymptotics(task, softmax, 4.0, None),
        lambda task, softmax: ar.optimal_asymptotics(None, 1.1),
        lambda task, softmax: ar.sample("spiked", jax.random.key(0), 10, 3),
    ],
)
def test_what_is_no_task_attention_or_ridge_is_refused(call):
    with pytest.raises(ValueError, match="not allowed"):
        call(ar.SpikedSLR(2.0, 3), ar.Softmax())


def test_the_free_bias_of_the_heads_is_that_of_their_attention():
    assert ar.Heads(ar.Erf(), 2).free_bias
    assert not ar.Heads(ar.Softmax(), 2).free_bias
    assert not ar.Heads(ar.Erf(), 2, free_bias=False).free_bias


BAD_HEADS = {
    "weights": lambda: ar.Heads(ar.Softmax(), 2, weights="equal"),
    "number of weights": lambda: ar.Heads(ar.Softmax(), 2, weights=[1.0, 2.0, 3.0]),
    "number of biases": lambda: ar.Heads(ar.Softmax(), 2, bias=[1.0, 2.0, 3.0]),
    "nested": lambda: ar.Heads(ar.Heads(ar.Softmax(), 2), 2),
    "none": lambda: ar.BayesSoftmax(0),
    "weight zero": lambda: ar.BayesSoftmax(2, weights=[0.0, 1.0]),
    "norms": lambda: ar.BayesSoftmax(2, tied=True).attend(jnp.ones((2, 3))),
}


@pytest.mark.parametrize("make", BAD_HEADS.values(), ids=BAD_HEADS)
def test_bad_heads_are_refused(make):
    with pytest.raises(ValueError, match="not allowed"):
        make()


def test_weights_of_heads():
    """Each normalised by itself, or tokens and heads together; padding has no weight."""
    scores, mask = jnp.array([[1.0, 2.0, 0.5], [0.3, -1.0, 9.0]]), jnp.array([True, True, False])
    heads = ar.Heads(ar.SoftmaxPlusOne(), 2, weights=[0.3, 0.5], bias=[0.1, -0.2])
    strengths = np.exp(np.asarray(scores) + np.array([[0.1], [-0.2]])) * np.asarray(mask)
    expected = 0.3 * strengths[0] / (1 + strengths[0].sum()) + 0.5 * strengths[1] / (
        1 + strengths[1].sum()
    )
    np.testing.assert_allclose(heads.attend(scores, mask), expected, rtol=1e-12)
    together = ar.BayesSoftmax(2, bias=[0.1, -0.2]).attend(scores, mask)
    np.testing.assert_allclose(together, strengths.sum(0) / strengths.sum(), rtol=1e-12)


def test_the_record_of_several_heads_has_their_matrices():
    overlaps = overlaps_of(np.arange(15.0).reshape(3, 5), teachers=3)
    found = ar.record(Minimum(ar.Estimate(0.5, 1e-3), overlaps, ar.Softmax()))
    assert found["M"][0][1] == 1.0
    assert found["Q"] == overlaps.Q.tolist()
    assert json.loads(json.dumps(found)) == found
