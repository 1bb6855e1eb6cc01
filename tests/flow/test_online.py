"""Online SGD: reference values, the gradient flow in its drift, and real SGD on vectors (section 10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.flow.online import _draw, _moments
from attnrisk.flow.state import Problem
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.engines.base import HeadRange
from attnrisk.population.overlaps import overlaps_of, vectors_of
from attnrisk.population.plan import heads_engine

optimised = pytest.mark.optimised
TASK, STEP = ar.SpikedSLR(4.0, 3, noise=0.2), 1.5
M = np.array([[0.3, 0.1], [0.05, 0.3]])
START = ar.Overlaps(M, M @ M.T + 0.09 * np.eye(2))
TIMES = [0.0, 4.0, 12.0]


@pytest.fixture(scope="module")
def path():
    return ar.online_sgd(TASK, ar.Softmax(), START, step=STEP, times=TIMES, log2_points=10)


@pytest.fixture(scope="module")
def quiet():
    """The same drift without the noise of the gradients: the limit of large batches."""
    return ar.online_sgd(
        TASK, ar.Softmax(), START, step=STEP, batch=10**9, times=TIMES[:2], log2_points=10
    )


def _numbers(path, column):
    """`m_kk, m_vv, q_kk, q_vv` and their standard errors."""
    pairs = ((path.M, (0, 0)), (path.M, (1, 1)), (path.Q, (0, 0)), (path.Q, (1, 1)))
    values = [each.value[column][place] for each, place in pairs]
    return np.array(values), np.array([each.error[column][place] for each, place in pairs])


@optimised
def test_reference_values(path):
    """Section 10: its last digit, and four standard errors."""
    for column, known in ((1, [0.891, 1.009, 1.69, 1.54]), (2, [1.378, 0.963, 3.43, 1.50])):
        values, errors = _numbers(path, column)
        assert np.all(np.abs(values - known) < 4 * errors + [5e-4, 5e-4, 5e-3, 5e-3])
    assert path.result is ar.Result.TIME_OVER
    assert not path.converged
    assert ar.record(path)["end_time"] == 12.0


def _descend(runs, dim, steps, rng):
    """Real SGD on vectors, one fresh sequence each step, several runs at a time; gradients by hand."""
    teacher = np.linalg.qr(rng.normal(size=(dim, 4)))[0].T * np.sqrt(dim)
    student = np.tile(np.asarray(vectors_of(START)) @ teacher, (runs, 1, 1))
    shift = np.sqrt(TASK.nu) * teacher[0] / np.sqrt(dim)
    for _ in range(steps):
        tokens = rng.standard_normal((runs, 3, dim))
        tokens[:, 0] += shift
        label = tokens[:, 0] @ teacher[1] / np.sqrt(dim) + TASK.noise * rng.normal(size=runs)
        chi, z = (np.einsum("rld,rd->rl", tokens, student[:, at]) / np.sqrt(dim) for at in (0, 1))
        weights = np.exp(chi - chi.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        output = (weights * z).sum(1, keepdims=True)
        slopes = np.stack([weights * (z - output), weights], 1)
        left = (label - output[:, 0])[:, None, None]
        student += STEP * left * (slopes @ tokens) / np.sqrt(dim)
    gram = student @ student.swapaxes(1, 2) / dim
    overlap = student @ teacher[:2].T / dim
    return np.stack([overlap[:, 0, 0], overlap[:, 1, 1], gram[:, 0, 0], gram[:, 1, 1]], 1)


@optimised
def test_real_descent_on_vectors(path, quiet, rng):
    runs, dim = 8, 1000
    found = _descend(runs, dim, 4 * dim, rng)
    mean, spread = found.mean(0), found.std(0, ddof=1) / np.sqrt(runs)
    values, errors = _numbers(path, 1)
    tolerance = 4 * np.hypot(spread, errors) + 5.0 / dim
    assert np.all(np.abs(mean - values) < tolerance)
    assert np.any(np.abs(mean - _numbers(quiet, 1)[0]) > 3 * tolerance)  # the negative control


def test_without_the_noise_of_the_gradients_keys_stay_short(quiet):
    assert quiet.Q.value[1, 0, 0] == pytest.approx(0.93, abs=0.02)
    flow = ar.gradient_flow(TASK, ar.Softmax(), START, times=np.array(TIMES[:2]) * STEP / 2)
    errors = 4 * quiet.M.error[1] + 1e-3
    assert np.all(np.abs(quiet.M.value[1] - flow.overlaps.M[1]) < errors)


def test_the_drift_of_heads_is_the_gradient_flow(rng):
    """`E[(y−f) Σ ∂f h*ᵀ]` over random fields against derivatives of the exact risk, and those against the flow of
    vectors of `T + P` components."""
    law = ar.ShiftMixture([[2.0, 0.5], [-1.0, 1.5]], [0.3, 0.7])
    task, heads = ar.FeatureSLR(law, 3, noise=0.1), ar.Heads(ar.Softmax(), 2)
    vectors = jnp.asarray(0.5 * rng.normal(size=(3, 6)))
    overlaps = overlaps_of(vectors, 3)
    engine = heads_engine(task, heads, HeadRange(1.5, 3.0), 1.0)

    @jax.jit
    def slopes(overlaps, arrays):
        engine, task, heads = arrays
        return jax.grad(lambda at: engine.risk(task, heads, at))(overlaps)

    arrays = as_arrays((engine, task, heads))
    by = slopes(as_arrays(overlaps), arrays)
    twice_q = np.asarray(by.Q + by.Q.T)
    M, Q = np.asarray(overlaps.M), np.asarray(overlaps.Q)
    d_M = -(np.asarray(by.M) + twice_q @ M)
    half = -(np.asarray(by.M) @ M.T + twice_q @ Q)
    # Vectors move down the gradient, which is made of the teacher's and the student's vectors.
    teacher = np.eye(3, 6)
    moved = -(np.asarray(by.M) @ teacher + twice_q @ np.asarray(vectors))
    np.testing.assert_allclose(moved[:, :3], d_M, atol=1e-12)
    np.testing.assert_allclose(moved @ np.asarray(vectors).T, half, atol=1e-12)
    problem = Problem(task, heads)
    points = _draw(problem, 0)
    found = [
        jax.tree.map(np.asarray, jax.jit(_moments)(*as_arrays((problem, overlaps, each))))
        for each in points
    ]
    for part, expected in ((0, d_M / 2), (1, half / 2)):
        sample = np.stack([each[part] for each in found])
        error = sample.std(0, ddof=1) / np.sqrt(len(sample))
        assert np.all(np.abs(sample.mean(0) - expected) < 6 * error + 2e-3)
    assert np.all(np.linalg.eigvalsh(found[0][2]) > 0)


def test_a_long_step_diverges():
    path = ar.online_sgd(TASK, ar.Softmax(), START, step=10.0, times=[0.0, 20.0], log2_points=8)
    assert path.result is ar.Result.DIVERGED
    assert path.end_time < 20.0


@optimised
@pytest.mark.slow
def test_the_largest_step_separates():
    largest = ar.largest_step(TASK, ar.Softmax(), START)
    low, high = float(largest) - 2 * float(largest.error), float(largest) + 2 * float(largest.error)
    results = [
        ar.online_sgd(TASK, ar.Softmax(), START, step=step, times=[0.0, 20.0]).result
        for step in (low, high)
    ]
    assert results == [ar.Result.TIME_OVER, ar.Result.DIVERGED]


@optimised
@pytest.mark.slow
def test_a_shorter_step_leaves_less_risk():
    best = float(ar.bayes_risk(TASK))
    ends = [
        ar.online_sgd(TASK, ar.Softmax(), START, step=step, times=[0.0, 60.0 / step])
        for step in (0.2, 0.8)
    ]
    left = [float(end.end_risk) - best for end in ends]
    assert 0 < left[0] < left[1]


BAD = {
    "step = 0": lambda: ar.online_sgd(TASK, ar.Softmax(), START, step=0.0),
    "batch = 0": lambda: ar.online_sgd(TASK, ar.Softmax(), START, batch=0),
    "task = max": lambda: ar.online_sgd(ar.MaxSLR(1.0, 3), ar.Softmax(), START),
    "start = ": lambda: ar.online_sgd(TASK, ar.Heads(ar.Softmax(), 2), START),
    "times = ": lambda: ar.online_sgd(TASK, ar.Softmax(), START, times=[1.0, 0.0]),
    "tied": lambda: ar.online_sgd(TASK, ar.BayesSoftmax(1, tied=True), START),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_input_is_refused(said):
    with pytest.raises(ValueError, match=said):
        BAD[said]()
