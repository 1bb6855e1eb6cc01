"""Descent on the sphere: against quadrature, against descent in `R^d`, and against batches of whole tokens."""

from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf
from scipy.special import owens_t

import attnrisk as ar
from attnrisk._check import Refusal
from attnrisk.population import descent
from attnrisk.population.descent import (
    SETTINGS,
    ConstantTemperature,
    DecayingTemperature,
    UnitPair,
    erf_risk,
    manifold_starts,
    projected_descent,
    run_setting,
    sphere_starts,
    stochastic_projected_descent,
)
from attnrisk.population.overlaps import NAMES
from attnrisk.population.risk import as_arrays, plan, risk, stretched

ERF = ar.Elementwise(erf, features=(0.0,))
GAMMA = np.sqrt(0.5)
CROSS = ("m_kv", "m_vk", "q_kv")
FREE = ("m_kk", "m_vv", *CROSS)
TASK = ar.SpikedSLR(200.0, 10, spread=GAMMA)
KEY = jax.random.key(2410)


def unit_overlaps(rng, inverse_temperature):
    """Overlaps of `λ k` and `v` for two random unit vectors."""
    k, v = (vector / np.linalg.norm(vector) for vector in rng.normal(size=(2, 4)))
    cosines = UnitPair(k[None], v[None]).cosines
    return jax.tree.map(lambda x: float(np.squeeze(x)), stretched(cosines, inverse_temperature))


def free(cosines):
    """The five overlaps that unit vectors are free to have, last."""
    return np.stack([np.asarray(getattr(cosines, name)) for name in FREE], -1)


# The risk in closed form.

closed_risk = eqx.filter_jit(erf_risk)


@pytest.mark.parametrize(
    ("inverse_temperature", "length"),
    [(1e-3, 10), (0.1, 10), (0.9, 10), (30.0, 10), (2.0, ar.uniform(1, 3))],
)
def test_risk_agrees_with_quadrature(rng, inverse_temperature, length):
    for dim in (30, 400):
        task = ar.SpikedSLR(dim / 2, length, noise=0.1, spread=GAMMA)
        overlaps = unit_overlaps(rng, inverse_temperature)
        exact = ar.population_risk(task, ERF, overlaps)
        closed = float(closed_risk(*as_arrays((task, overlaps))))
        assert closed == pytest.approx(exact.value, rel=1e-12, abs=1e-12)


def test_gradient_agrees_with_quadrature(rng):
    task = as_arrays(ar.SpikedSLR(15.0, 10, noise=0.1, spread=GAMMA))
    how = plan(task, ERF, scale=1.0)

    @jax.jit
    def gradients(overlaps):
        functions = (lambda o: erf_risk(task, o)), (lambda o: risk(task, ERF, o, how))
        return [jax.grad(function)(overlaps) for function in functions]

    for inverse_temperature in (0.1, 0.9):
        overlaps = as_arrays(unit_overlaps(rng, inverse_temperature))
        closed, exact = gradients(overlaps)
        for name in NAMES:
            value, expected = getattr(closed, name), getattr(exact, name)
            assert float(value) == pytest.approx(float(expected), rel=1e-9, abs=1e-9), name


def test_owens_function():
    u, a = np.meshgrid(np.linspace(-8.0, 8.0, 161), [1e-3, 0.1, 0.5, 0.9, 1.0])
    expected = 8.0 * owens_t(np.sqrt(2.0) * u, a)
    np.testing.assert_allclose(descent._owen(u, a), expected, rtol=0, atol=3e-15)


# The descent on the population risk.


@jax.jit
def plain_descent(k, v, teacher, step_size, steps_and_temperatures):
    """One pair of vectors in `R^d`, moved by gradients of the risk by quadrature; the overlaps before each step."""
    task = ar.SpikedSLR(15.0, 4, noise=0.2, spread=GAMMA)
    how = plan(task, ERF, scale=2.0)

    def at(k, v, inverse_temperature):
        k = inverse_temperature * k
        m = [x @ y for x in (k, v) for y in teacher]
        return risk(task, ERF, ar.Overlaps(*m, k @ k, k @ v, v @ v), how)

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


def test_a_decaying_temperature_finds_the_teacher_from_most_starts():
    """The others end in the mismatched minimum (section 5), whose risk is the lower one at the last, small `λ`."""
    path = run_setting(replace(SETTINGS["decaying"], record_every=1200), seed=2)
    key, value, crossed = (getattr(path.cosines, name)[:, -1] for name in FREE[:3])
    found = np.abs(key) > 0.999
    assert 24 < found.sum() < 30
    assert np.all(key[found] * value[found] > 0.999)
    assert np.all(np.abs(crossed[~found]) > 0.999)
    assert path.risk[~found, -1].max() < path.risk[found, -1].min() - 1e-3


def test_a_small_constant_one_is_caught_by_the_mismatched_minimum():
    """Section 5: there `k = ±v*`, and `v` leans on `k*`."""
    path = run_setting(SETTINGS["small"])
    found = np.abs(path.cosines.m_kk[:, -1]) > 0.95
    caught = np.abs(path.cosines.m_kv[:, -1]) > 0.95
    assert np.all(found ^ caught)
    assert 5 < found.sum() < 25
    assert np.all(np.abs(path.cosines.m_vk[caught, -1]) > 0.5)
    assert path.risk[caught, -1].min() > path.risk[found, -1].max() + 1e-3


# The starts.


def test_sphere_starts_are_uniform():
    dim, repeats = 9, 40_000
    start = sphere_starts(KEY, dim, repeats)
    values = free(start.cosines)
    variance = np.mean(values**2, 0)
    error = np.sqrt(np.var(values**2, 0) / repeats)
    assert np.all(np.abs(variance - 1 / dim) < 5 * error)
    assert np.all(np.abs(variance - 1 / (dim - 1)) > 5 * error)
    correlation = np.corrcoef(values.T) - np.eye(len(FREE))
    assert np.abs(correlation).max() < 5 / np.sqrt(repeats)


def test_manifold_starts_are_uniform_there():
    dim, repeats = 9, 40_000
    start = manifold_starts(KEY, dim, repeats)
    for name in CROSS:
        assert np.all(getattr(start.cosines, name) == 0.0), name
    for name, room in (("m_kk", dim - 1), ("m_vv", dim - 2)):
        squares = np.asarray(getattr(start.cosines, name)) ** 2
        assert abs(squares.mean() - 1 / room) < 5 * squares.std() / np.sqrt(repeats), name


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


@pytest.mark.parametrize("steps", [1, 4])
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


def test_stochastic_runs_follow_their_seed():
    setting = replace(SETTINGS["stochastic"], steps=1000, record_every=500)
    first, again, other = (run_setting(setting, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.risk, again.risk)
    assert np.all(first.risk != other.risk)
    assert np.all(np.isfinite(first.risk))
    np.testing.assert_allclose(first.risk - first.excess_risk, 0.01, atol=1e-12)
    assert first.risk[:, -1].mean() < 0.9 * first.risk[:, 0].mean()


# Schedules, settings, refusals.


def test_schedules():
    assert ConstantTemperature(0.9)(12_345) == 0.9
    decaying = DecayingTemperature(2.0)
    assert decaying(0) == 2.0
    assert decaying(10_000) == pytest.approx(1.0)
    assert decaying(200_000) == pytest.approx(2.0 / 21.0)
    assert DecayingTemperature(1.0, rate=0.5)(2) == 0.5


def test_settings_are_those_of_the_paper():
    told = {
        name: (s.dim, s.noise, s.schedule(0), s.schedule(10_000), s.step_size, s.steps, s.repeats)
        for name, s in SETTINGS.items()
    }
    assert told == {
        "manifold": (400, 0.0, 0.1, 0.1, 4e-3, 20_000, 30),
        "small": (400, 0.0, 0.1, 0.1, 4e-3, 20_000, 30),
        "large": (400, 0.0, 0.9, 0.9, 1e-3, 120_000, 30),
        "decaying": (400, 0.0, 1.0, 0.5, 4e-3, 120_000, 30),
        "stochastic": (80, 0.1, 2.0, 1.0, 1e-3, 200_000, 30),
    }
    for setting in SETTINGS.values():
        assert setting.task.nu == setting.dim / 2
        assert setting.task.spread**2 == pytest.approx(0.5)
        assert setting.task.length.mean() == 10
    assert SETTINGS["stochastic"].batch == 5
    assert SETTINGS["manifold"].starts is manifold_starts


START = UnitPair([[1.0, 0.0]], [[0.6, 0.8]])


def descend(**changes):
    given = {"task": TASK, "start": START, "schedule": ConstantTemperature(0.1)}
    given |= {"step_size": 1e-3, "steps": 10} | changes
    return projected_descent(**given)


def wander(**changes):
    given = {"task": TASK, "key": KEY, "start": START, "schedule": ConstantTemperature(0.1)}
    given |= {"step_size": 1e-3, "steps": 10, "dim": 400, "batch": 5} | changes
    return stochastic_projected_descent(**given)


@pytest.mark.parametrize("ask", [descend, wander])
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
        wander(**changes)


def test_a_stochastic_descent_needs_one_length():
    with pytest.raises(Refusal, match="length = 1-3"):
        wander(task=ar.SpikedSLR(2.0, ar.uniform(1, 3)))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "hot"])
def test_bad_temperatures(bad):
    for kind in (ConstantTemperature, DecayingTemperature):
        with pytest.raises(Refusal, match="inverse_temperature"):
            kind(bad)
    if bad != 0.0:
        with pytest.raises(Refusal, match="rate"):
            DecayingTemperature(1.0, rate=bad)


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ([[1.0, 0.1]], [[1.0, 0.0]]),
        ([[1.0, 0.0]], [[np.nan, 0.0]]),
        ([[1.0, 0.0]], [[1.0, 0.0, 0.0]]),
        ([1.0, 0.0], [1.0, 0.0]),
        ([[1.0]], [[1.0]]),
    ],
)
def test_bad_vectors(k, v):
    with pytest.raises(Refusal, match=r"^[kv] = "):
        UnitPair(k, v)


@pytest.mark.parametrize("starts", [sphere_starts, manifold_starts])
def test_bad_starts(starts):
    with pytest.raises(Refusal, match="dim"):
        starts(KEY, 3, 10)
    with pytest.raises(Refusal, match="repeats"):
        starts(KEY, 10, 0)


def test_bad_seed():
    with pytest.raises(Refusal, match="seed"):
        run_setting(SETTINGS["small"], seed=-1)
