"""Stochastic gradient descent: the flow at small steps and large batches, and the ridge that weight decay is."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.attention import AbstractGeneral
from attnrisk.numerics.arrays import as_arrays
from attnrisk.simulation.erm import objective
from attnrisk.simulation.sgd import _loss, _split

TASK = ar.SpikedSLR(2.0, 3)
DIM, BATCH, STEPS = 100, 2000, 60


@pytest.fixture(scope="module")
def data():
    return ar.stream(TASK, jax.random.key(0), n=BATCH * STEPS, dim=DIM, dtype="float32")


@pytest.fixture(scope="module")
def start(data):
    small = 0.1 * np.random.default_rng(0).normal(size=(2, DIM))
    return small + 0.3 * np.asarray(data.teacher)


def largest_distance(path, flow):
    names = ("m_kk", "m_vv", "q_kk", "q_vv", "m_kv", "m_vk", "q_kv")
    return max(np.max(np.abs(getattr(path, n) - getattr(flow, n))) for n in names)


@pytest.mark.parametrize("momentum", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_it_follows_the_flow(data, start, momentum):
    path = ar.fit_sgd(data, ar.Softmax(), 0.03, BATCH, momentum=momentum, start=start, records=6)
    assert path.result is ar.Result.FINISHED
    assert path.converged
    assert path.steps == STEPS
    first = jax.tree.map(lambda each: each[0], path.overlaps)
    times = np.union1d(path.times, path.times / 1.2)
    flow = ar.gradient_flow(TASK, ar.Softmax(), first, times).overlaps
    same, slower = (
        jax.tree.map(lambda each: each[np.searchsorted(times, at)], flow)  # noqa: B023
        for at in (path.times, path.times / 1.2)
    )
    moved = same.m_vv[-1] - same.m_vv[0]
    assert moved > 0.5
    assert largest_distance(path.overlaps, same) < 0.04
    assert largest_distance(path.overlaps, slower) > 0.05  # another unit of time


@pytest.mark.slow
def test_weight_decay_is_a_ridge():
    """All data at every step, until nothing moves: the minimum of section 6."""
    law = ar.LengthLaw([1, 3], [0.3, 0.7])
    data = ar.sample(ar.SpikedSLR(2.0, law), jax.random.key(1), n=60, dim=20)
    fit = ar.fit_erm(data, ar.Softmax(), ar.Ridge(0.5, 0.5))
    start, decay = 1.1 * np.stack([fit.k, fit.v]), 2 * 0.5 / data.alpha
    path = ar.fit_sgd(
        data, ar.Softmax(), 0.1, batch=60, epochs=2000, weight_decay=decay, start=start, records=1
    )
    np.testing.assert_allclose(path.k, fit.k, atol=1e-4)
    np.testing.assert_allclose(path.v, fit.v, atol=1e-4)


class TwoHeads(AbstractGeneral):
    """The mean of two heads of softmax."""

    name: ClassVar[str] = "two heads"

    @property
    def keys(self):
        return 2

    def __call__(self, scores, mask=None):
        return ar.Softmax()(scores, mask)

    def attend(self, scores, mask=None):
        return 0.5 * (self(scores[0], mask) + self(scores[1], mask))


def test_one_step_with_all_data_is_the_gradient_of_the_objective(rng):
    """Of two heads; `D ∂E` is `2/α` times the gradient of the empirical risk."""
    data = ar.sample(TASK, jax.random.key(1), n=60, dim=20)
    start, ridge = rng.normal(size=(3, 20)), ar.Ridge(0.5, 0.5)
    arrays = data.traceable(), as_arrays(TwoHeads()), as_arrays(ridge)
    _, (gradient, _) = objective(*arrays, jnp.asarray(start)[None])
    decay = 2 * 0.5 / data.alpha
    path = ar.fit_sgd(data, TwoHeads(), 0.1, batch=60, weight_decay=decay, start=start)
    expected = start - 0.1 * 2 / data.alpha * np.asarray(gradient[0])
    np.testing.assert_allclose(path.vectors, expected, atol=1e-12)
    assert path.overlaps.M.shape == (2, 3, 2)
    assert ar.record(path) == {"steps": 1, "result": "all steps done", "converged": True}


def test_too_long_steps_diverge_and_say_so(data, start):
    path = ar.fit_sgd(data, ar.Linear(), 5.0, BATCH, start=start, records=STEPS)
    assert path.result is ar.Result.DIVERGED
    assert not path.converged
    assert np.all(np.isfinite(path.k))
    assert np.all(np.isfinite(path.overlaps.q_vv))


def test_an_interrupt_leaves_the_path_so_far(data, start):
    def watch(done, total):
        if done == 20:
            raise KeyboardInterrupt

    path = ar.fit_sgd(data, ar.Softmax(), 0.03, BATCH, start=start, records=6, watch=watch)
    assert (path.result, path.steps) == (ar.Result.INTERRUPTED, 20)
    assert len(path.times) == 3


BAD = [
    ({"step": 0.0}, "step = 0"),
    ({"batch": 0}, "batch = 0"),
    ({"batch": BATCH * STEPS + 1}, "batch = "),
    ({"momentum": 1.0}, "momentum = 1"),
    ({"weight_decay": -1.0}, "weight_decay = -1"),
    ({"start": np.ones((2, 3))}, "start = "),
    ({"records": 0}, "records = 0"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: str(case[0]))
def test_bad_input(case, data):
    given, words = case
    with pytest.raises(ValueError, match=words):
        ar.fit_sgd(data, ar.Softmax(), **({"step": 0.1, "batch": 10} | given))


def test_early_stopping_keeps_the_vectors_of_the_least_loss():
    """With few samples and no ridge, the loss on others rises in the end."""
    data = ar.sample(ar.SpikedSLR(5.0, 2, noise=0.5), jax.random.key(5), n=120, dim=40)
    given = {"step": 0.1, "batch": 90, "epochs": 600, "records": 200}
    stopped = ar.fit_sgd(data, ar.Softmax(), **given, held_out=0.25, patience=20)
    assert stopped.result is ar.Result.STOPPED_EARLY
    assert stopped.converged
    assert stopped.best == np.argmin(stopped.validation) == len(stopped.times) - 21
    overlaps = data.overlaps(stopped.vectors)
    assert overlaps.m_vv == pytest.approx(stopped.overlaps.m_vv[stopped.best], rel=1e-12)
    assert stopped.validation[stopped.best] < stopped.validation[-1]
    whole = ar.fit_sgd(data, ar.Softmax(), **given | {"epochs": 5})
    assert (whole.best, whole.result) == (len(whole.times) - 1, ar.Result.FINISHED)
    assert len(whole.validation) == 0


def test_sequences_held_out_are_not_learned_from():
    """Their loss is a mean of its own, and training without them is training on the others alone."""
    data = ar.sample(TASK, jax.random.key(6), n=40, dim=10)
    kept, held = _split(data, 0.3, jax.random.key(0))
    assert sorted(np.concatenate([*kept, *held])) == list(range(40))
    assert [len(each) for each in held] == [12]
    path = ar.fit_sgd(data, ar.Softmax(), 0.1, 28, epochs=1, held_out=0.3)
    vectors = jnp.asarray(path.vectors), jnp.zeros(0)
    losses = [_loss(data.traceable(), ar.Softmax(), vectors, each, [1.0]) for each in (held, kept)]
    assert path.validation[-1] == pytest.approx(float(losses[0]), rel=1e-12)
    assert path.validation[-1] != pytest.approx(float(losses[1]), rel=1e-3)


def test_records_are_as_many_as_asked_for_with_all_data_at_every_step():
    """An epoch of one step is no reason to record each; where records are changes nothing of the path."""
    data = ar.sample(TASK, jax.random.key(7), n=40, dim=10)
    few, many, more = (
        ar.fit_sgd(data, ar.Softmax(), 0.1, 40, epochs=12, records=records)
        for records in (5, 12, 40)
    )
    np.testing.assert_allclose(few.times, 0.1 * np.array([0, 2, 5, 7, 10, 12]))
    assert len(many.times) == len(more.times) == 13
    np.testing.assert_allclose(few.vectors, many.vectors, rtol=1e-12)
