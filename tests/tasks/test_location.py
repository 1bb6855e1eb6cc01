"""The location of fields that are known up to a variance, against quadrature and draws of the fields themselves."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar

MEANS = np.array([0.4, -0.7, 1.1, 5.0])
MASK = np.array([True, True, True, False])
LOG_LIKELIHOOD = np.array([-0.3, 0.5, -1.2, 2.0])
VARIANCE = 0.6
TASKS = [ar.SpikedSLR(2.0, 4), ar.MaxSLR(1.5, 4)]
FEATURES = ar.FeatureSLR(ar.ShiftMixture([[1.2], [-0.7]], [0.3, 0.7], [[[0.4]], [[0.0]]]), 4)

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
GRID = np.array(list(itertools.product(_NODES, repeat=3)))
MASS = np.prod(np.array(list(itertools.product(_WEIGHTS / _WEIGHTS.sum(), repeat=3))), 1)


def _weights(task, means, variance=VARIANCE):
    """`G_ε/L` of three tokens: the weight `g` of section 1, averaged over the fields."""
    chi = means + np.sqrt(variance) * GRID
    if task.name == "spiked":
        return MASS @ np.exp(np.sqrt(task.nu) * chi - task.nu / 2) / 3
    if task.name == "features":
        return MASS @ np.exp(np.asarray(task.shift_law.log_ratio(jnp.asarray(chi[..., None])))) / 3
    return MASS @ np.asarray(jax.nn.softmax(task.nu * chi, -1))


def _log_evidence(task, means):
    return np.log(_weights(task, means) @ np.exp(LOG_LIKELIHOOD[:3]))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_agrees_with_quadrature_over_the_fields(task):
    location = task.location_given(VARIANCE)
    weights = location.weigh(MEANS[None], MASK)
    found = location.posterior(weights, LOG_LIKELIHOOD)
    expected = _weights(task, MEANS[:3])
    np.testing.assert_allclose(np.exp(weights.log[:3]), expected, rtol=1e-5)
    law = location.law(MEANS[None], MASK)
    np.testing.assert_allclose(law[:3], expected / expected.sum(), atol=1e-5)
    joint = expected * np.exp(LOG_LIKELIHOOD[:3])
    np.testing.assert_allclose(found.probability[:3], joint / joint.sum(), atol=1e-5)
    np.testing.assert_allclose(found.log_evidence, np.log(joint.sum()), atol=1e-5)
    steps = 1e-4 * np.eye(3)
    score = [
        (_log_evidence(task, MEANS[:3] + step) - _log_evidence(task, MEANS[:3] - step)) / 2e-4
        for step in steps
    ]
    np.testing.assert_allclose(found.score[0, :3], score, atol=1e-4)
    for masked in (law[3], found.probability[3], found.score[0, 3]):
        assert masked == 0.0
    wrong = _weights(task, MEANS[:3], VARIANCE / 2)  # the negative control
    assert np.max(np.abs(np.exp(weights.log[:3]) / wrong - 1)) > 0.01


@pytest.mark.parametrize("task", [*TASKS, FEATURES], ids=lambda task: task.name)
@pytest.mark.parametrize("place", range(3))
def test_the_score_of_every_location(task, place):
    """`∂ log G_ε/∂ω` by differences of a quadrature over the fields; and the score of another location differs."""
    location = task.location_given(VARIANCE)
    weights = location.weigh(jnp.asarray(MEANS[None]), jnp.asarray(MASK))
    found, other = (np.asarray(location.score(weights, np.eye(4)[at])) for at in (place, place - 1))
    ends = [
        [np.log(_weights(task, MEANS[:3] + sign * step)[place]) for sign in (1.0, -1.0)]
        for step in 1e-4 * np.eye(3)
    ]
    slope = -np.diff(ends)[:, 0] / 2e-4
    np.testing.assert_allclose(found[0, :3], slope, atol=1e-4)
    assert found[0, 3] == 0.0
    assert np.max(np.abs(other[0, :3] - slope)) > 0.05


def test_a_weight_is_visited_at_every_location():
    """Its probabilities and scores, against the weight and its differences."""

    def log_weight(at, chi):
        return jnp.log(chi.size * jnp.exp(0.7 * chi[at] + 0.2 * at) / jnp.sum(jnp.exp(0.7 * chi)))

    task, chi = ar.WeightedSLR(log_weight, 3), MEANS[:3]
    no_shift = np.ones((1, 1)), np.zeros((1, 3)), np.zeros(1)
    probability, score = task.visit(*no_shift, jnp.asarray(chi))
    for place in range(3):
        assert probability[place] == pytest.approx(np.exp(log_weight(place, chi)) / 3)
        slope = [
            float(log_weight(place, chi + step) - log_weight(place, chi - step)) / 2e-5
            for step in 1e-5 * np.eye(3)
        ]
        np.testing.assert_allclose(score[place, 0], slope, atol=1e-6)


@pytest.mark.parametrize("nu", [np.inf, 3.0])
def test_agrees_with_draws_of_the_argmax(nu, rng):
    n = 200_000
    chi = MEANS[:3] + np.sqrt(VARIANCE) * rng.normal(size=(n, 3))
    noise = 0.0 if np.isinf(nu) else rng.gumbel(size=(n, 3)) / nu
    counts = np.bincount(np.argmax(chi + noise, 1), minlength=3) / n
    law = np.asarray(ar.MaxSLR(nu, 3).location_given(VARIANCE).law(MEANS[None, :3]))
    assert np.all(np.abs(counts - law) < 4 * np.sqrt(law * (1 - law) / n))
    other = np.asarray(ar.MaxSLR(nu, 3).location_given(VARIANCE / 3).law(MEANS[None, :3]))
    assert np.any(np.abs(counts - other) > 8 * np.sqrt(law * (1 - law) / n))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_known_fields_give_the_posterior_of_the_task(task):
    law = task.location_given(0.0).law(MEANS[None])
    np.testing.assert_allclose(law, task.posterior(jnp.asarray(MEANS)), atol=1e-6)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_visit_has_the_score_of_the_relevant_token(task):
    """`normals = ω/c`, of which `c` is the correlation, and the first token is the relevant one."""
    correlation = np.sqrt(1.0 - VARIANCE) * np.ones((1, 1))
    shift, teacher = np.zeros(1), np.zeros(0)
    normals = MEANS[None, :3] / correlation
    probability, scores = task.visit(correlation, normals, shift, teacher)
    np.testing.assert_array_equal(probability, [1.0])
    slope = [
        np.log(_weights(task, MEANS[:3] + step)[0] / _weights(task, MEANS[:3] - step)[0])
        for step in 1e-4 * np.eye(3)
    ]
    np.testing.assert_allclose(scores, np.array(slope)[None, None] / 2e-4, atol=1e-4)


@pytest.mark.parametrize("nu", [np.inf, 2.0])
def test_teacher_fields_have_the_relevant_token_first(nu, rng):
    """Means of the relevant and of the other fields, against weights of plain draws; and sequences of two lengths."""
    task, n = ar.MaxSLR(nu, 4), 200_000
    lengths = np.repeat([2, 4], n // 2)
    drawn = task.draw_teacher(rng.random((n, task.teacher_uniforms(4))), lengths)
    for length in (2, 4):
        chi = rng.normal(size=(n, length))
        law = np.asarray(jax.vmap(task.posterior)(jnp.asarray(chi)))
        own = np.sum(law * chi, 1)
        ours = drawn[lengths == length]
        error = 4 * np.hypot(own.std() / np.sqrt(n), ours[:, 0].std() / np.sqrt(len(ours)))
        assert abs(ours[:, 0].mean() - own.mean()) < error
        others = (ours[:, :length].sum(1) - ours[:, 0]) / (length - 1)
        assert abs(others.mean() + own.mean() / (length - 1)) < error
        assert abs(own.mean()) > 8 * error


def test_visiting_the_first_location_is_enough_where_it_is_planted(rng):
    """`E[Σ_ε p_ε f]` over all locations and draws is that over sequences whose relevant token is the first."""
    task, n = ar.SpikedSLR(2.0, 3), 100_000
    known = 1.0 - VARIANCE
    fields = np.sqrt(known) * rng.normal(size=(n, 3))
    places = rng.integers(3, size=n)
    anywhere, first = fields.copy(), fields.copy()
    anywhere[np.arange(n), places] += known * task.shift
    first[:, 0] += known * task.shift
    law = jax.jit(jax.vmap(task.location_given(VARIANCE).law))
    found = [np.asarray(law(each[:, None])) for each in (anywhere, first)]
    one, two = found[0][np.arange(n), places], found[1][:, 0]
    assert abs(one.mean() - two.mean()) < 4 * np.hypot(one.std(), two.std()) / np.sqrt(n)
    # Nishimori: the probability of the true location is the sum of squares.
    assert abs(two.mean() - np.sum(found[1] ** 2, 1).mean()) < 4 * two.std() / np.sqrt(n)


def test_normalisation():
    planted, selected = (task.location_given(VARIANCE) for task in TASKS)
    np.testing.assert_allclose(planted.precision, [[2.0]])
    np.testing.assert_allclose(selected.precision, [[0.0]])
    assert float(planted.softmax_scale) == pytest.approx(np.sqrt(2.0))
    assert selected.softmax_scale is None
