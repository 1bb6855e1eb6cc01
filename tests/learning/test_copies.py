"""Heads that are copies of one head: their fixed point, and the response of differences between them (section 10.1)."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning.copies import merge_fixed_points
from attnrisk.learning.newton import run_newton
from attnrisk.learning.problem import Problem
from attnrisk.learning.separation import Separation, separation

ALIKE = {
    "softmax": (ar.Heads(ar.Softmax(), 3), ar.Softmax()),
    "biases": (ar.Heads(ar.Softplus(), 2, bias=0.5), ar.get_attention("softplus", 0.5)),
    "bayes-softmax": (ar.BayesSoftmax(2, bias=0.3), ar.Softmax()),
}


@pytest.mark.parametrize("name", ALIKE)
def test_copies_are_one_head(name, rng):
    heads, plain = ALIKE[name]
    one, scores = heads.as_copies(), jnp.asarray(rng.normal(size=5))
    copies = heads.attend(jnp.tile(scores, (heads.keys, 1)))
    np.testing.assert_allclose(one.attend(scores[None]), copies, rtol=1e-12)
    np.testing.assert_allclose(plain.attend(scores[None]), copies, rtol=1e-12)


@pytest.mark.parametrize(
    "heads",
    [
        ar.Softmax(),
        ar.Heads(ar.Softmax(), 1),
        ar.Heads(ar.Softmax(), 2, weights=[0.3, 0.7]),
        ar.Heads(ar.Softplus(), 2, bias=[0.0, 1.0]),
        ar.BayesSoftmax(2, bias=[0.0, 1.0]),
    ],
    ids=str,
)
def test_heads_that_are_not_alike_have_no_copies(heads):
    assert heads.as_copies() is None


def _response(task, heads, alpha, ridge):
    """`V_d` and, of differences, the response of `M_d` to a field along each feature."""
    problem = Problem.of(task, heads.as_copies(), 7, 0)
    total = ar.Ridge(heads.keys * ridge, 1.0)
    found = run_newton(problem, alpha, total, problem.starts(total)[0])
    assert found.result.converged
    here = separation(problem, heads, found.x, found.displacements, alpha, ridge)
    assert here.is_stable
    M = np.sqrt(heads.keys) * problem.layout.unpack(found.x).keys.M[0]
    size, count = len(M), len(M) + 2
    fields = here.V * np.concatenate([np.eye(size), M[None], np.zeros((1, size))])
    answers = np.linalg.solve(np.eye(count) - here.map, fields)
    alone = np.linalg.solve(np.eye(size) - here.map[:size, :size], fields[:size])
    return here.V, answers[:size], answers[size], alone


@eqx.filter_jit
def _bends(heads, scores, values, labels):
    """The Hessian of the loss of each sequence along a difference of two keys."""
    difference = jnp.zeros(heads.keys).at[:2].set(jnp.array([1.0, -1.0]) / jnp.sqrt(2.0))

    def loss(moved, score, value, label):
        weights = heads.attend(score + jnp.outer(difference, moved))
        return (label - weights @ value) ** 2 / 2.0

    rest = jnp.zeros(scores.shape[1])
    return jax.vmap(jax.hessian(loss), (None, 0, 0, 0))(rest, scores, values, labels)


def _measured(task, heads, alpha, ridge, dim, seed):
    """The same from the Hessian of the objective along a difference of two keys, at a fit of one head."""
    data = ar.sample(task, jax.random.key(seed), round(alpha * dim), dim)
    total = ar.Ridge(heads.keys * ridge, 1.0)
    fit = ar.fit_erm(data, heads.as_copies(), total, jax.random.key(seed + 50))
    (block,) = data.groups
    tokens = block.tokens.reshape(-1, *block.tokens.shape[-2:])
    scores, values = (tokens @ each / np.sqrt(dim) for each in (fit.k, fit.v))
    bends = _bends(heads, scores, values, block.labels.ravel())
    added = np.einsum("nld,nlm,nme->de", tokens, bends, tokens, optimize=True) / dim
    inverse = np.linalg.inv(ridge * np.eye(dim) + added)
    teacher = np.asarray(data.teacher)[:-1]
    with_mean = np.sqrt(heads.keys) * teacher @ inverse @ fit.k / dim
    return np.trace(inverse) / dim, teacher @ inverse @ teacher.T / dim, with_mean


def test_differences_respond_as_in_a_fit():
    """Of copies with an overlap. Without the equations of `Q_sd` and `V_sd` the response would not be symmetric."""
    task, heads, dim, runs = (
        ar.FeatureSLR(ar.one_of([9.0, 4.0]), 3),
        ar.Heads(ar.Softmax(), 3),
        150,
        4,
    )
    V, along, with_mean, alone = _response(task, heads, 6.0, 0.4)
    np.testing.assert_allclose(along, along.T, atol=1e-6)
    assert abs(alone[0, 1] - alone[1, 0]) > 0.01
    found = [_measured(task, heads, 6.0, 0.4, dim, seed) for seed in range(runs)]
    of_runs = [np.stack(each) for each in zip(*found, strict=True)]

    def is_close(runs, theory):
        """Within the errors of the runs, of two thousand points, and a correction of order 1/D."""
        error = np.std(runs, 0, ddof=1) / np.sqrt(len(runs))
        return np.abs(np.mean(runs, 0) - theory) < 4 * error + (0.01 + 1.0 / dim) * V

    for runs_of, theory in zip(of_runs, (V, along, with_mean), strict=True):
        assert np.all(is_close(runs_of, theory))
    assert not is_close(of_runs[1], V * np.eye(2))[0, 0]  # as in any other direction
    assert not np.any(is_close(of_runs[2], 0.0))


TASK, HEADS = ar.FeatureSLR(ar.flipped(9.0), 3), ar.Heads(ar.Softmax(), 2)


@pytest.fixture(scope="module")
def collapsed():
    """Two heads on flipped needles that few data leave identical."""
    return ar.erm_asymptotics(TASK, HEADS, 4.0, ar.Ridge(0.4, 1.0), log2_points=4)


def test_few_data_collapse_and_more_separate(collapsed):
    """On flipped needles, with errors that one head has; of heads that separate, the copies are a rival."""
    one = ar.erm_asymptotics(TASK, ar.Softmax(), 4.0, ar.Ridge(0.8, 1.0), log2_points=6)
    assert collapsed.converged
    assert float(collapsed.separation_growth) < 1.0
    assert ar.head_separation(collapsed.overlaps) < 1e-12
    for name in ("test_risk", "train_error", "objective"):
        ours, theirs = getattr(collapsed, name), getattr(one, name)
        assert float(ours) == pytest.approx(float(theirs), abs=1e-9)
        assert float(ours.error) == pytest.approx(float(theirs.error), rel=1e-6)
    assert float(collapsed.test_risk.error) < 0.01
    assert collapsed.slope[0] == pytest.approx(2 * one.slope[0])
    mean = collapsed.V.value[:-1, :-1].sum() / 2
    assert mean == pytest.approx(2 * float(one.V_k))
    apart = ar.erm_asymptotics(TASK, HEADS, 12.0, ar.Ridge(0.4, 1.0), log2_points=4)
    assert ar.head_separation(apart.overlaps) > 1.0
    (copies,) = (each for each in apart.rivals if each.separation_growth is not None)
    assert copies.result is ar.Result.SADDLE
    assert float(copies.separation_growth) > 1.0
    assert apart.separation_growth is None


def test_collapsed_heads_in_theory_and_in_an_experiment(collapsed):
    """Few points and one small dataset: both have copies, and about the same training error."""
    data = ar.sample(TASK, jax.random.key(0), 600, 150)
    fit = ar.fit_erm(data, HEADS, ar.Ridge(0.4, 1.0), jax.random.key(100))
    assert fit.converged
    assert collapsed.start == "identical heads"
    assert ar.head_separation(fit.overlaps) < 0.3
    assert fit.train_error == pytest.approx(float(collapsed.train_error), abs=0.08)
    flat = ar.record(collapsed)
    assert flat["converged"]
    assert np.isfinite(flat["test_risk"])


def test_fixed_points_near_stable_copies_are_left_out(collapsed):
    copies = replace(collapsed, rivals=())
    lower = ar.Estimate(float(copies.objective) - 1e-3, 1e-4, copies.objective.kind)
    blurred = replace(copies, objective=lower, separation_growth=None)
    far = replace(blurred, M=replace(copies.M, value=copies.M.value + 1.0))
    saddle = replace(copies, result=ar.Result.SADDLE)
    lost = replace(blurred, result=ar.Result.MAX_STEPS)
    assert merge_fixed_points(blurred, [copies]) == copies
    assert merge_fixed_points(lost, [copies]) == copies
    assert merge_fixed_points(far, [copies]).M is far.M
    assert merge_fixed_points(blurred, [saddle]).rivals == (saddle,)
    assert merge_fixed_points(lost, [saddle]).result is ar.Result.MAX_STEPS


@pytest.mark.parametrize(
    ("map_of", "spread", "growth"),
    [
        ([[0.0, -2.0], [2.0, 0.0]], 0.3, 0.3),  # a rotation has no real eigenvalue
        ([[1.5, 1e-9], [-1e-9, 1.5]], 0.3, 1.5),  # a real pair that noise has split
        ([[0.2, 0.0], [0.0, -3.0]], 0.1, 0.2),
    ],
)
def test_growth_is_the_largest_real_eigenvalue(map_of, spread, growth):
    found = Separation(1.0, np.array(map_of), spread, 0.0)
    assert found.growth == pytest.approx(growth)
    assert found.is_stable == (growth < 1)


def test_unequal_heads_start_from_copies_too():
    """Copies are solved apart for averaged heads only."""
    ridge = ar.Ridge(0.5, 1.0)
    for weights, names in (([0.5, 0.5], []), ([0.7, 0.3], ["copies"])):
        problem = Problem.of(TASK, ar.Heads(ar.Softmax(), 2, weights=weights), 3, 0)
        found = [start.name for start in problem.starts(ridge)]
        assert found == ["no information", "teacher", *names]
