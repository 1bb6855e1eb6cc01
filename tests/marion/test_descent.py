"""Descent on the sphere: against descent in `R^d`, and against batches of whole tokens."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

import attnrisk as ar
from attnrisk._check import Refusal
from attnrisk.marion.descent import (
    ConstantTemperature,
    DecayingTemperature,
    projected_descent,
    stochastic_projected_descent,
)
from attnrisk.marion.sphere import UnitPair, manifold_starts, sphere_starts
from attnrisk.population.plan import plan

ERF = ar.Elementwise(erf, features=(0.0,))
GAMMA = np.sqrt(0.5)
CROSS = ("m_kv", "m_vk", "q_kv")
FREE = ("m_kk", "m_vv", *CROSS)
TASK = ar.SpikedSLR(200.0, 10, spread=GAMMA)
KEY = jax.random.key(2410)


def free(cosines):
    """The five overlaps that unit vectors are free to have, last."""
    return np.stack([np.asarray(getattr(cosines, name)) for name in FREE], -1)


# The descent on the population risk.


@jax.jit
def plain_descent(k, v, teacher, step_size, steps_and_temperatures):
    """One pair of vectors in `R^d`, moved by gradients of the risk by quadrature; the overlaps before each step."""
    task = ar.SpikedSLR(15.0, 4, noise=0.2, spread=GAMMA)
    how = plan(task, ERF, scale=2.0)

    def at(k, v, inverse_temperature):
        k = inverse_temperature * k
        student = jnp.stack([k, v])
        return how.risk(task, ERF, ar.Overlaps(student @ teacher.T, student @ student.T))

    def step(pair, inverse_temperature):
        k, v = pair
        gradients = jax.grad(at, (0, 1))(k, v, inverse_temperature)
        project = (jnp.eye(k.size) - jnp.outer(x, x) for x in pair)
        moved = [x - step_size * p @ g for x, p, g in zip(pair, project, gradients, strict=True)]
        record = [x @ y for x in pair for y in teacher], k @ v, at(k, v, inverse_temperature)
        return tuple(x / jnp.linalg.norm(x) for x in moved), record

    return jax.lax.scan(step, (k, v), steps_and_temperatures)[1]


@pytest.mark.parametrize(
    "schedule", [ConstantTemperature(0.3), DecayingTemperature(1.5, rate=1e-2)]
)
def test_four_coordinates_are_enough(rng, schedule):
    """The whole path agrees with that of vectors in 30 dimensions, whatever the directions of the teacher are."""
    dim, steps, step_size = 30, 400, 0.02
    task = ar.SpikedSLR(15.0, 4, noise=0.2, spread=GAMMA)
    frame = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    starts = rng.normal(size=(2, 3, dim))
    starts /= np.linalg.norm(starts, axis=-1, keepdims=True)
    path = projected_descent(task, UnitPair(*starts), schedule, step_size, steps)
    temperatures = jnp.array([schedule(step) for step in range(steps + 1)])
    for repeat, (k, v) in enumerate(zip(*starts, strict=True)):
        teacher = jnp.asarray(frame[:2])
        m, q_kv, risks = plain_descent(k @ frame, v @ frame, teacher, step_size, temperatures)
        m_kk, m_kv, m_vk, m_vv = m
        expected = np.stack([m_kk, m_vv, m_kv, m_vk, q_kv], -1)
        np.testing.assert_allclose(free(path.cosines)[repeat], expected, atol=1e-9)
        np.testing.assert_allclose(path.risk[repeat], risks, atol=1e-9)
    moved = np.abs(free(path.cosines)[:, -1] - free(path.cosines)[:, 0]).max(1)
    assert np.all(moved > 0.1)
    np.testing.assert_allclose(path.risk - path.excess_risk, 0.04, atol=1e-12)


def test_records_are_those_of_every_step():
    start, schedule = sphere_starts(KEY, 400, 30), DecayingTemperature(1.0, rate=0.1)
    often = projected_descent(TASK, start, schedule, 1e-3, 100)
    seldom = projected_descent(TASK, start, schedule, 1e-3, 2000, 20)
    np.testing.assert_array_equal(seldom.steps, np.arange(0, 2001, 20))
    np.testing.assert_allclose(seldom.inverse_temperature, 1.0 / (1.0 + 0.1 * seldom.steps))
    np.testing.assert_allclose(seldom.risk[:, :6], often.risk[:, ::20], rtol=1e-12)
    np.testing.assert_allclose(
        free(seldom.cosines)[:, :6], free(often.cosines)[:, ::20], atol=1e-12
    )


def test_a_descent_can_be_taken_up_where_it_ended():
    start, schedule = sphere_starts(KEY, 400, 30), ConstantTemperature(0.1)
    whole = projected_descent(TASK, start, schedule, 4e-3, 2000, 20)
    half = projected_descent(TASK, start, schedule, 4e-3, 1000, 10)
    rest = projected_descent(TASK, half.end, schedule, 4e-3, 1000, 10)
    np.testing.assert_allclose(rest.risk[:, -1], whole.risk[:, -1], atol=1e-9)
    assert np.all(rest.risk[:, -1] < rest.risk[:, 0] - 1e-4)


def test_vectors_stay_on_the_sphere():
    schedule, how = DecayingTemperature(1.0), (4e-3, 500, 5)
    start, task = sphere_starts(KEY, 80, 30), ar.SpikedSLR(40.0, 10, noise=0.1, spread=GAMMA)
    ends = (
        projected_descent(task, start, schedule, *how).end,
        stochastic_projected_descent(
            task, KEY, start, schedule, 1e-3, 500, dim=80, batch=5, record_every=250
        ).end,
    )
    for end in ends:
        assert end.k.shape == end.v.shape == (30, 4)
        for vectors in (end.k, end.v):
            np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0, atol=1e-14)


def test_risk_decreases_at_small_steps_only():
    start, schedule = sphere_starts(KEY, 400, 30), ConstantTemperature(0.9)
    small, large = (projected_descent(TASK, start, schedule, size, 500, 5) for size in (1e-4, 2e-2))
    assert np.all(np.diff(small.risk) < 0.0)
    assert np.any(np.diff(large.risk) > 1e-3)


def test_the_manifold_is_invariant():
    start = manifold_starts(KEY, 400, 30)
    path = projected_descent(TASK, start, ConstantTemperature(0.1), 4e-3, 20_000, 200)
    for name in CROSS:
        assert np.all(getattr(path.cosines, name) == 0.0), name
    both = np.stack([path.cosines.m_kk[:, -1], path.cosines.m_vv[:, -1]])
    assert np.all(np.abs(both) > 0.95)
    assert np.all(both[0] * both[1] > 0)


# The stochastic descent.

LAW = ar.SpikedSLR(4.0, 3, noise=0.3, spread=0.6)
BATCH, DIM, SAMPLES, INVERSE_TEMPERATURE, STEP_SIZE = 2, 8, 30_000, 0.8, 0.15
PAIR = np.zeros((2, DIM))
PAIR[0, :4] = 0.5, -0.3, 0.8, 0.0
PAIR[1, :4] = 0.2, 0.4, -0.3, 0.6
PAIR /= np.linalg.norm(PAIR, axis=-1, keepdims=True)


@cache
def whole_tokens(steps):
    """Samples of the five overlaps after so many steps on batches of tokens in `R^d`; places are random too."""
    length = int(LAW.length.longest)

    def loss(pair, tokens, label):
        k, v = pair
        prediction = jnp.sum(erf(INVERSE_TEMPERATURE * tokens @ k) * (tokens @ v), -1)
        return jnp.mean((prediction - label) ** 2)

    def step(pair, key):
        keys = jax.random.split(key, 3)
        tokens = jax.random.normal(keys[0], (BATCH, length, DIM))
        rows, place = jnp.arange(BATCH), jax.random.randint(keys[1], (BATCH,), 0, length)
        relevant = LAW.spread * tokens[rows, place] + LAW.shift * jnp.eye(DIM)[0]
        label = relevant[:, 1] + LAW.noise * jax.random.normal(keys[2], (BATCH,))
        gradient = jax.grad(loss)(pair, tokens.at[rows, place].set(relevant), label)
        along = gradient - jnp.sum(pair * gradient, -1, keepdims=True) * pair
        moved = pair - STEP_SIZE * along
        return moved / jnp.linalg.norm(moved, axis=-1, keepdims=True), None

    def run(key):
        (k, v), _ = jax.lax.scan(step, jnp.asarray(PAIR), jax.random.split(key, steps))
        return jnp.stack([k[0], v[1], k[1], v[0], k @ v])

    return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, SAMPLES)))


def reduced_tokens(key, steps, dim=DIM, task=LAW):
    """The same from the package."""
    start = UnitPair(*np.repeat(PAIR[:, None], SAMPLES, 1))
    path = stochastic_projected_descent(
        task,
        key,
        start,
        ConstantTemperature(INVERSE_TEMPERATURE),
        STEP_SIZE,
        steps,
        dim=dim,
        batch=BATCH,
        record_every=steps,
    )
    return free(path.cosines)[:, -1]


def standard_errors_apart(one, two):
    """The largest difference of the means and of the covariances of two samples, in standard errors."""

    def moments(sample):
        centred = sample - sample.mean(0)
        upper = np.triu_indices(sample.shape[1])
        terms = np.append(sample, (centred[:, :, None] * centred[:, None])[:, *upper], 1)
        return terms.mean(0), terms.var(0) / len(sample)

    (mean_one, variance_one), (mean_two, variance_two) = moments(one), moments(two)
    return np.max(np.abs(mean_one - mean_two) / np.sqrt(variance_one + variance_two))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 1])
def test_law_is_that_of_whole_tokens(steps):
    """Twenty moments of five overlaps."""
    sample = reduced_tokens(jax.random.fold_in(KEY, 1), steps)
    assert standard_errors_apart(whole_tokens(steps), sample) < 4.5


def test_a_wrong_law_is_refused():
    """By the same twenty moments: two dimensions more, or another noise."""
    keys, oracle = jax.random.split(jax.random.fold_in(KEY, 2)), whole_tokens(1)
    louder = ar.SpikedSLR(LAW.nu, 3, noise=0.8, spread=LAW.spread)
    assert standard_errors_apart(oracle, reduced_tokens(keys[0], 1, dim=DIM + 2)) > 8
    assert standard_errors_apart(oracle, reduced_tokens(keys[1], 1, task=louder)) > 8


# Schedules, refusals.


def test_schedules():
    assert ConstantTemperature(0.9)(12_345) == 0.9
    decaying = DecayingTemperature(2.0)
    assert decaying(0) == 2.0
    assert decaying(10_000) == pytest.approx(1.0)
    assert decaying(200_000) == pytest.approx(2.0 / 21.0)
    assert DecayingTemperature(1.0, rate=0.5)(2) == 0.5


START = UnitPair([[1.0, 0.0]], [[0.6, 0.8]])


def descend(**changes):
    given = {"task": TASK, "start": START, "schedule": ConstantTemperature(0.1)}
    given |= {"step_size": 1e-3, "steps": 10} | changes
    return projected_descent(**given)


def descend_stochastically(**changes):
    given = {"task": TASK, "key": KEY, "start": START, "schedule": ConstantTemperature(0.1)}
    given |= {"step_size": 1e-3, "steps": 10, "dim": 400, "batch": 5} | changes
    return stochastic_projected_descent(**given)


@pytest.mark.parametrize("ask", [descend, descend_stochastically])
@pytest.mark.parametrize(
    "changes",
    [
        {"step_size": 0.0},
        {"step_size": np.nan},
        {"steps": 0},
        {"steps": 2.5},
        {"steps": np.nan},
        {"record_every": 0},
        {"record_every": 3},
        {"task": ar.MaxSLR(2.0, 10)},
    ],
)
def test_bad_input_to_a_descent(ask, changes):
    (name,) = changes
    with pytest.raises(Refusal, match=f"^{name} = .* {name} must be"):
        ask(**changes)


@pytest.mark.parametrize("changes", [{"batch": 0}, {"batch": np.nan}, {"dim": 5}, {"dim": 400.0}])
def test_bad_input_to_a_stochastic_descent(changes):
    (name,) = changes
    with pytest.raises(Refusal, match=f"^{name} = .* {name} must be"):
        descend_stochastically(**changes)


def test_a_stochastic_descent_needs_one_length():
    with pytest.raises(Refusal, match="length = 1-3"):
        descend_stochastically(task=ar.SpikedSLR(2.0, ar.uniform(1, 3)))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "hot"])
def test_bad_temperatures(bad):
    for kind in (ConstantTemperature, DecayingTemperature):
        with pytest.raises(Refusal, match="inverse_temperature"):
            kind(bad)
    if bad != 0.0:
        with pytest.raises(Refusal, match="rate"):
            DecayingTemperature(1.0, rate=bad)
