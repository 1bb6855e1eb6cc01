"""Gradient flow: against descent on long vectors, and by the identities of section 5."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.flow.state import SMOOTHING, Extent, Problem, derivatives
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.overlaps import NAMES, overlaps_of, swapped, vectors_of
from attnrisk.population.plan import light_plan, plan
from attnrisk.population.risk import compiled_risk

TASK = ar.SpikedSLR(2.0, 10)
OPTIMUM = ar.aligned(np.sqrt(2.0))
START = jax.tree.map(lambda leaf: leaf[0], ar.random_starts(jax.random.key(3), 1))
TIMES = np.array([0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0])


class _TwoHeads(ar.AbstractGeneral):
    """The average of two softmax heads."""

    name = "two heads"

    @property
    def keys(self):
        return 2

    def __call__(self, scores, mask=None):
        return jax.nn.softmax(scores)

    def attend(self, scores, mask=None):
        return jnp.mean(jax.nn.softmax(scores, axis=-1), 0)


def _gradient(task, attention, overlaps, scale):
    """The partial derivatives of the risk in the overlaps; of `Q` those in the lower triangle, which alone is read."""
    problem = as_arrays((task, attention, light_plan(task, attention, scale, scale, scale)))
    return eqx.filter_jit(_partial_derivatives)(problem, as_arrays(overlaps))


def _partial_derivatives(problem, overlaps):
    task, attention, how = problem
    return jax.grad(lambda overlaps: how.risk(task, attention, overlaps))(overlaps)


@eqx.filter_jit
def _slope(problem, vectors, how):
    """The gradient of the risk in the vectors of a state."""
    return jax.grad(problem.risk)(vectors.ravel(), how).reshape(vectors.shape)


def _numbers(overlaps):
    """The seven numbers of one head, first."""
    return np.array([getattr(overlaps, name) for name in NAMES])


def _velocity(overlaps, slopes):
    """Section 5, word for word."""
    m_kk, m_kv, m_vk, m_vv, q_kk, q_kv, q_vv = overlaps
    e_mkk, e_mkv, e_mvk, e_mvv, e_qkk, e_qkv, e_qvv = slopes
    return np.array(
        [
            -(e_mkk + 2 * e_qkk * m_kk + e_qkv * m_vk),
            -(e_mkv + 2 * e_qkk * m_kv + e_qkv * m_vv),
            -(e_mvk + 2 * e_qvv * m_vk + e_qkv * m_kk),
            -(e_mvv + 2 * e_qvv * m_vv + e_qkv * m_kv),
            -2 * (e_mkk * m_kk + e_mkv * m_kv + 2 * e_qkk * q_kk + e_qkv * q_kv),
            -(e_mkk * m_vk + e_mkv * m_vv + 2 * e_qkk * q_kv + e_qkv * q_vv)
            - (e_mvk * m_kk + e_mvv * m_kv + 2 * e_qvv * q_kv + e_qkv * q_kk),
            -2 * (e_mvk * m_vk + e_mvv * m_vv + 2 * e_qvv * q_vv + e_qkv * q_kv),
        ]
    )


def test_overlaps_move_as_the_seven_equations_say():
    vectors = jnp.array([[0.7, 0.3, 0.5, 0.0], [-0.4, 0.8, 0.2, 0.6]])
    how = light_plan(TASK, ar.Softmax(), 2.0, 2.0, 2.0)
    slope = -_slope(Problem(TASK, ar.Softmax()), vectors, how)
    _, moved = jax.jvp(overlaps_of, (vectors,), (slope,))
    overlaps = overlaps_of(vectors)
    slopes = _gradient(TASK, ar.Softmax(), overlaps, 2.0)
    expected = _velocity(_numbers(overlaps), _numbers(slopes))
    np.testing.assert_allclose(_numbers(moved), expected, atol=1e-8)


@pytest.mark.parametrize(
    "attention",
    [pytest.param(ar.Softmax(), marks=pytest.mark.slow), ar.Linear()],
    ids=lambda a: a.name,
)
def test_follows_descent_on_vectors(attention):
    """Runge–Kutta on `k, v ∈ R^400`, whose gradient is made of four vectors and seven partial derivatives."""
    problem, dim = as_arrays((TASK, attention, light_plan(TASK, attention, 4.0, 4.0, 4.0))), 400
    frame = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, 4)))[0].T * np.sqrt(dim)
    teacher = frame[:2]
    student = np.asarray(vectors_of(START)) @ frame

    def overlaps(student):
        return ar.Overlaps(student @ teacher.T / dim, student @ student.T / dim)

    def slope(student, problem):
        by = _partial_derivatives(problem, overlaps(student))
        return -(by.M @ teacher + (by.Q + by.Q.T) @ student)

    @eqx.filter_jit
    def descend(student, step, count, problem):
        def move(_, student):
            def stage(before, ahead):
                here = slope(student + step * ahead * before, problem)
                return here, here

            ahead = jnp.array([0.0, 0.5, 0.5, 1.0])
            _, slopes = jax.lax.scan(stage, jnp.zeros_like(student), ahead)
            return student + step / 6 * jnp.tensordot(jnp.array([1.0, 2.0, 2.0, 1.0]), slopes, 1)

        return jax.lax.fori_loop(0, count, move, student)

    flow = ar.gradient_flow(TASK, attention, START, TIMES, accuracy=1e-7)
    recorded = _numbers(flow.overlaps)
    np.testing.assert_allclose(recorded[:, 0], _numbers(overlaps(student)), atol=1e-12)
    stable = 0.004 if attention.name == "linear" else 0.2
    for column in range(1, 5):
        begin, end = TIMES[column - 1 : column + 1]
        count = int(np.ceil((end - begin) / stable))
        student = descend(*jax.device_put((student, (end - begin) / count, count)), problem)
        np.testing.assert_allclose(recorded[:, column], _numbers(overlaps(student)), atol=2e-5)


@pytest.fixture(scope="module")
def path():
    return ar.gradient_flow(TASK, ar.Softmax(), START, np.linspace(0.0, 20.0, 81), accuracy=1e-6)


def test_risk_falls_by_the_squared_gradient(path):
    risks, squares = np.asarray(path.risk.value), np.asarray(path.gradient_norm) ** 2
    assert np.all(np.diff(risks) < 0)
    step = path.times[2] - path.times[0]
    lost = risks[:-2:2] - risks[2::2]
    simpson = step / 6 * (squares[:-2:2] + 4 * squares[1::2] + squares[2::2])
    np.testing.assert_allclose(lost, simpson, rtol=1e-4, atol=1e-7)


def test_residuals_stay_positive(path):
    assert np.linalg.eigvalsh(path.overlaps.residual).min() >= -1e-12


@pytest.mark.slow
def test_many_runs_reach_the_bayes_risk():
    flow = ar.gradient_flow(TASK, ar.Softmax(), ar.random_starts(jax.random.key(0), 6), [1e5])
    assert flow.result.tolist() == [ar.Result.CONVERGED] * 6
    np.testing.assert_allclose(flow.end_risk.value, float(ar.bayes_risk(TASK).value), atol=1e-9)
    assert np.all(flow.end_time < 1e5)
    assert np.all(flow.gradient_norm < 1e-6)
    record = ar.record(flow)
    assert record["result"] == ["converged"] * 6
    assert np.shape(record["end_risk"]) == np.shape(record["m_kk"]) == (6,)


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_others():
    starts = jax.tree.map(lambda *leaves: np.array(leaves), START, OPTIMUM)
    both = ar.gradient_flow(TASK, ar.Linear(), starts, TIMES)
    alone = ar.gradient_flow(TASK, ar.Linear(), START, TIMES)
    np.testing.assert_allclose(both.risk.value[0], alone.risk.value, rtol=1e-12)
    assert np.shape(alone.risk.value) == TIMES.shape
    assert np.shape(alone.end_time) == ()


@pytest.mark.slow
def test_stays_at_the_optimum():
    flow = ar.gradient_flow(TASK, ar.Softmax(), OPTIMUM, TIMES)
    assert flow.result is ar.Result.CONVERGED
    np.testing.assert_allclose(flow.overlaps.m_kk, np.sqrt(2.0), atol=1e-6)
    np.testing.assert_allclose(flow.risk.value, float(ar.bayes_risk(TASK).value), atol=1e-9)


@pytest.mark.slow
def test_sign_of_the_label_is_a_convention():
    """`v, v*, y → −v, −v*, −y`: the overlaps with one `v` change sign, the risk does not."""
    mirrored = {
        name: -value for name, value in START.as_dict().items() if name in ("m_kv", "m_vk", "q_kv")
    }
    other = ar.Overlaps(**(START.as_dict() | mirrored))
    first, second = (ar.gradient_flow(TASK, ar.Softmax(), it, TIMES) for it in (START, other))
    np.testing.assert_allclose(first.risk.value, second.risk.value, rtol=1e-9)
    np.testing.assert_allclose(first.overlaps.m_vk, -second.overlaps.m_vk, atol=1e-9)
    np.testing.assert_allclose(first.overlaps.m_vv, second.overlaps.m_vv, atol=1e-9)


@pytest.mark.slow
def test_a_free_bias_flows_too():
    flow = ar.gradient_flow(ar.SpikedSLR(2.0, 3), ar.Erf(), START, [1e5])
    best = ar.population_minimum(ar.SpikedSLR(2.0, 3), ar.Erf())
    assert flow.result is ar.Result.CONVERGED
    np.testing.assert_allclose(flow.end_risk.value, float(best.risk.value), atol=1e-8)
    np.testing.assert_allclose(flow.end_bias, float(best.attention.bias), atol=1e-3)


@pytest.mark.slow
def test_selected_task():
    task = ar.MaxSLR(1.5, 3)
    flow = ar.gradient_flow(task, ar.Softmax(), START, [1e5], accuracy=1e-2)
    assert flow.result is ar.Result.CONVERGED
    np.testing.assert_allclose(flow.end_risk.value, float(ar.bayes_risk(task).value), atol=1e-7)
    np.testing.assert_allclose(flow.end.m_kk, 1.5, atol=1e-3)


@pytest.mark.slow
def test_says_why_it_stopped():
    short = ar.gradient_flow(TASK, ar.Linear(), START, [0.0, 1.0])
    assert short.result is ar.Result.TIME_OVER
    assert float(short.end_time) == 1.0
    gone = ar.gradient_flow(TASK, ar.Linear(), swapped(), [1e7], accuracy=1e-2)
    assert gone.result is ar.Result.LEFT_DOMAIN
    assert float(gone.end.q_kk) > 800
    assert float(gone.end_time) < 1e7
    beyond = ar.gradient_flow(TASK, ar.Softmax(), ar.aligned(100.0), [1.0])
    assert beyond.result is ar.Result.LEFT_DOMAIN
    assert float(beyond.end_time) == 0.0


def test_three_vectors_move_as_the_matrix_equations_say():
    """Section 10, from the gradient in `M` and `Q`: it has the whole of an off-diagonal one in the lower triangle."""
    task, attention = ar.SpikedSLR(2.0, 3), _TwoHeads()
    start = jax.tree.map(lambda leaf: leaf[0], ar.random_starts(jax.random.key(1), 1, 0.7, keys=2))
    vectors = vectors_of(as_arrays(start))
    assert vectors.shape == (3, 5)
    how = plan(task, attention, 1.0, seed=3, randomisations=1)
    slope = -_slope(Problem(task, attention), vectors, how)
    _, moved = jax.jvp(overlaps_of, (vectors,), (slope,))

    smoothed = ar.Overlaps(start.M, start.Q + SMOOTHING**2 * jnp.eye(3))
    by = jax.jit(jax.grad(lambda it: jnp.mean(how.risk(task, attention, it))))(as_arrays(smoothed))
    by_q = (by.Q + by.Q.T) / 2
    np.testing.assert_allclose(np.triu(by.Q, 1), 0.0)
    half = by.M @ start.M.T + 2 * by_q @ start.Q
    np.testing.assert_allclose(moved.M, -(by.M + 2 * by_q @ start.M), atol=1e-10)
    np.testing.assert_allclose(moved.Q, -(half + half.T), atol=1e-10)


def test_two_heads_flow_through_random_points():
    """Two heads, where the task needs one, end at the risk of the one. What each does is not determined by the points:
    the risk hardly changes when one grows and the other shrinks."""
    task, attention = ar.SpikedSLR(2.0, 3), _TwoHeads()
    start = jax.tree.map(lambda leaf: leaf[0], ar.random_starts(jax.random.key(1), 1, keys=2))
    flow = ar.gradient_flow(task, attention, start, [0.0, 1.0, 1e4], tolerance=1e-4, accuracy=1e-2)
    assert flow.converged
    assert flow.risk.kind is ar.ErrorKind.STANDARD
    bayes = float(ar.bayes_risk(task).value)
    assert abs(float(flow.end_risk.value) - bayes) < 5 * float(flow.end_risk.error) < 0.02
    assert np.all(np.diff(flow.risk.value) < 0)
    # Random points leave the overlap as uncertain as their error of the risk.
    average = ar.population_risk(task, ar.Softmax(), ar.aligned(float(np.mean(flow.end.M[:2, 0]))))
    assert float(average) - bayes < 5 * float(flow.end_risk.error)
    record = ar.record(flow)
    assert record["result"] == "converged"
    assert record["end_risk_error"] == float(flow.end_risk.error)


@pytest.mark.parametrize(
    "attention", [ar.General(jax.nn.softmax), ar.Sparsemax()], ids=lambda a: a.name
)
def test_flows_through_random_points(attention):
    """Those of a softmax that is not recognised end where softmax does, to the error of the points."""
    task = ar.SpikedSLR(2.0, 2)
    flow = ar.gradient_flow(task, attention, START, [1e4], tolerance=1e-4, accuracy=1e-2)
    assert flow.converged
    assert flow.end_risk.kind is ar.ErrorKind.STANDARD
    found = ar.population_minimum(task, attention)
    assert abs(float(flow.end_risk.value) - float(found.risk.value)) < 1e-3
    exact = ar.population_risk(task, attention, flow.end)
    assert abs(float(flow.end_risk.value) - float(exact.value)) < 1e-9


def test_a_weighted_task_flows_too():
    """Here the weight is that of the spiked task."""
    task = ar.WeightedSLR(lambda location, chi: jnp.sqrt(2.0) * chi[location] - 1.0, 2)
    flow = ar.gradient_flow(task, ar.Softmax(), START, [1e4], tolerance=1e-4, accuracy=1e-2)
    assert flow.converged
    bayes = float(ar.bayes_risk(ar.SpikedSLR(2.0, 2)).value)
    assert abs(float(flow.end_risk.value) - bayes) < 5 * float(flow.end_risk.error) + 1e-4


def test_memory_is_that_of_one_state_and_one_direction():
    """A wide rule, for a long key of a token that is spread out, once asked for 31 GB in a batch of 64."""
    problem = Problem(ar.SpikedSLR(0.3, 4, 0.0, 1.6), ar.Taylor2())
    problem, how = as_arrays((problem, problem.plan(Extent(8.0, 8.0, 8.0))))
    compiled = eqx.filter_jit(derivatives).lower(problem, how, jnp.ones(8)).compile()
    assert compiled.compiled.memory_analysis().temp_size_in_bytes < 1e9


@pytest.mark.parametrize("times", [[], [1.0, 0.5], [-1.0, 2.0], [np.nan], [np.inf], [[1.0]]])
def test_bad_times_are_refused(times):
    with pytest.raises(ValueError, match="times"):
        ar.gradient_flow(TASK, ar.Linear(), START, times)


def test_swapped_starts_are_random_ones_moved():
    around, moved = (
        starts(jax.random.key(5), 4, 0.3) for starts in (ar.random_starts, ar.swapped_starts)
    )
    swap = swapped().M
    np.testing.assert_allclose(moved.M, swap + around.M)
    np.testing.assert_allclose(moved.residual, around.residual, atol=1e-12)


def test_bad_starts_are_refused():
    with pytest.raises(ValueError, match="positive semidefinite"):
        ar.gradient_flow(TASK, ar.Linear(), ar.Overlaps(m_kk=np.array([1.0, 0.1])))
    with pytest.raises(ValueError, match="runs"):
        ar.random_starts(jax.random.key(0), 0)
    with pytest.raises(ValueError, match="size"):
        ar.random_starts(jax.random.key(0), 2, -0.1)
    with pytest.raises(ValueError, match="tolerance"):
        ar.gradient_flow(TASK, ar.Linear(), START, tolerance=0.0)
    with pytest.raises(ValueError, match=r"start .* 3 student and 2 teacher vectors"):
        ar.gradient_flow(TASK, _TwoHeads(), START)
    with pytest.raises(ValueError, match="continuous"):
        ar.gradient_flow(TASK, ar.Hardmax(), START)


def test_three_heads_find_two_features():
    """Through random points: the flow lowers the risk of three heads on two features."""
    task = ar.FeatureSLR(ar.one_of([9.0, 6.0]), length=3)
    attention = ar.Heads(ar.Softmax(), count=3)
    start = overlaps_of(0.3 * np.random.default_rng(0).normal(size=(4, 7)), teachers=3)
    flow = ar.gradient_flow(task, attention, start, times=[0.0, 0.5, 1.0])
    assert flow.risk.kind is ar.ErrorKind.STANDARD
    assert flow.overlaps.M.shape == (3, 4, 3)
    assert np.all(np.diff(flow.risk.value) < -10 * flow.risk.error.max())
    exact = ar.population_risk(task, attention, flow.end)
    assert exact.kind is ar.ErrorKind.BOUND
    assert abs(float(exact) - float(flow.end_risk.value)) < 4 * float(flow.end_risk.error)


@pytest.mark.optimised
def test_errors_of_risks_at_a_kink_are_not_understated(rng):
    """Against panels of order 24, which agree with those of order 32 to 2e-13."""
    task, attention = ar.SpikedSLR(2.0, 10), ar.Relu()
    problem = Problem(task, attention)
    vectors = (
        0.7 * rng.normal(size=(24, 2, 4))[-8:]
    )  # of 24, those that come nearest to their errors
    overlaps = overlaps_of(vectors, 2)
    risks, _ = problem.values(problem.pack(overlaps), hessians=False)
    engine = plan(task, attention, float(np.sqrt(overlaps.q_kk.max())), order=24)
    for at in range(len(vectors)):
        one = jax.tree.map(lambda leaf: leaf[at], overlaps)  # noqa: B023
        exact = float(compiled_risk(*as_arrays((engine, task, attention, one))))
        assert abs(exact - risks.value[at]) <= risks.error[at]


def test_one_head_flows_like_the_plain_attention():
    start = ar.Overlaps(m_kk=0.2, m_vv=0.2, q_kk=0.1, q_vv=0.1)
    task, times = ar.SpikedSLR(2.0, 3), [0.0, 1.0, 3.0]
    plain = ar.gradient_flow(task, ar.Softplus(bias=-0.5), start, times)
    one = ar.gradient_flow(task, ar.Heads(ar.Softplus(bias=-0.2), 1, bias=-0.3), start, times)
    np.testing.assert_allclose(one.overlaps.M, plain.overlaps.M, rtol=1e-12)
    np.testing.assert_allclose(one.risk.value, plain.risk.value, rtol=1e-12)
    assert one.risk.kind is ar.ErrorKind.BOUND
