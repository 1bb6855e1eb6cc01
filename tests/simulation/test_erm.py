"""Empirical risk minimisation on data: against plain NumPy, SciPy, a test set, and the theory."""

from dataclasses import replace
from functools import cache
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import distance
from scipy.optimize import minimize
from scipy.special import erf

import attnrisk as ar
from attnrisk.attention import AbstractGeneral
from attnrisk.numerics.arrays import as_arrays
from attnrisk.simulation.erm import default_starts, objective

RIDGE = ar.Ridge(0.7, 1.3)
TASKS = {
    "ragged": ar.SpikedSLR(2.0, ar.LengthLaw([1, 3], [0.3, 0.7]), noise=0.1),
    "padded": ar.MaxSLR(1.0, ar.LengthLaw(range(17, 26), [1 / 9] * 9)),
}
KEY = jax.random.key(2)


@cache
def dataset(name):
    return ar.sample(TASKS[name], KEY, n=60, dim=10)


def hardmax(chi):
    return (chi == chi.max()).astype(float)


def taylor(chi):
    return (1 + chi + chi**2 / 2) / np.sum(1 + chi + chi**2 / 2)


SIGMAS = {
    "softmax": lambda chi: np.exp(chi) / np.exp(chi).sum(),
    "softmax-1": lambda chi: np.exp(chi) / (1 + np.exp(chi).sum()),
    "taylor-2": taylor,
    "erf": lambda chi: 1 + erf(chi),
    "hardmax": hardmax,
}


def plain(data, sigma, ridge):
    """The objective by its formula, one sequence at a time; several heads are averaged."""
    sequences = []
    for group in data.groups:
        tokens, labels, lengths = map(np.asarray, (group.tokens, group.labels, group.lengths))
        for at in zip(*np.nonzero(lengths), strict=True):
            sequences.append((tokens[at][: lengths[at]] / np.sqrt(data.dim), labels[at]))

    def value(vectors):
        *keys, v = vectors
        losses = [
            (y - np.mean([sigma(x @ k) for k in keys], 0) @ (x @ v)) ** 2 / 2 for x, y in sequences
        ]
        return sum(losses) + ridge.k / 2 * np.sum(np.square(keys)) + ridge.v / 2 * v @ v

    return value


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("ragged", "softmax"),
        ("ragged", "hardmax"),
        ("padded", "taylor-2"),
        ("padded", "softmax-1"),
        ("padded", "erf"),
    ],
)
def test_objective_and_gradient(task, name, rng):
    data, attention = dataset(task), ar.get_attention(name)
    points = rng.normal(size=(2, 2, 10))
    arrays = data.traceable(), as_arrays(attention), as_arrays(RIDGE)
    values, (gradients, _) = objective(*arrays, jnp.asarray(points))
    values, gradients = np.asarray(values), np.asarray(gradients)
    slow = plain(data, SIGMAS[name], RIDGE)
    for point, value, gradient in zip(points, values, gradients, strict=True):
        assert value == pytest.approx(slow(point), rel=1e-12)
        for way in rng.normal(size=(3, 2, 10)):
            change = (slow(point + 1e-5 * way) - slow(point - 1e-5 * way)) / 2e-5
            assert np.sum(gradient * way) == pytest.approx(change, rel=1e-5, abs=1e-4)


class Averaged(AbstractGeneral):
    """The mean of several heads of softmax, each with its own key."""

    name: ClassVar[str] = "averaged"
    count: int = eqx.field(static=True)

    @property
    def keys(self):
        return self.count

    def __call__(self, scores, mask=None):
        return ar.Softmax()(scores, mask)

    def attend(self, scores, mask=None):
        return jnp.mean(jax.vmap(lambda each: self(each, mask))(scores), 0)


def test_objective_and_gradient_of_three_heads(rng):
    """`r_k` acts on every key; two points at once."""
    data, attention = dataset("padded"), Averaged(3)
    points = rng.normal(size=(2, 4, 10))
    arrays = data.traceable(), as_arrays(attention), as_arrays(RIDGE)
    values, (gradients, _) = objective(*arrays, jnp.asarray(points))
    values, gradients = np.asarray(values), np.asarray(gradients)
    slow = plain(data, SIGMAS["softmax"], RIDGE)
    for point, value, gradient in zip(points, values, gradients, strict=True):
        assert value == pytest.approx(slow(point), rel=1e-12)
        for at in np.ndindex(4, 2):
            way = np.zeros((4, 10))
            way[at] = 1e-5
            change = (slow(point + way) - slow(point - way)) / 2e-5
            assert gradient[at] == pytest.approx(change, rel=1e-5, abs=1e-5)


def test_a_fit_of_two_heads():
    """No point nearby is lower, and what is reported belongs to the vectors."""
    data = dataset("ragged")
    fit = ar.fit_erm(data, Averaged(2), RIDGE)
    assert fit.converged
    assert fit.vectors.shape == (3, 10)
    assert (fit.overlaps.M.shape, fit.overlaps.Q.shape) == ((3, 2), (3, 3))
    slow = plain(data, SIGMAS["softmax"], RIDGE)
    found = minimize(lambda flat: slow(flat.reshape(3, 10)), fit.vectors.ravel() + 0.01)
    assert fit.objective * 10 == pytest.approx(slow(fit.vectors), rel=1e-12)
    assert fit.objective * 10 == pytest.approx(found.fun, rel=1e-6)
    *keys, v = fit.vectors
    loss = slow(fit.vectors) - RIDGE.k / 2 * np.sum(np.square(keys)) - RIDGE.v / 2 * v @ v
    assert fit.train_error == pytest.approx(2 * loss / 60, rel=1e-9)
    measured = ar.measure_risk(data, fit, jax.random.key(0), 2000)
    assert measured.error > 0


def test_the_informed_start_of_more_heads_than_features():
    """One key lies along k*, one opposite; the others are small and differ, as equal heads would never part."""
    data = dataset("ragged")
    start = np.asarray(default_starts(data, Averaged(4))["teacher"])
    for key, sign in zip(start, (1.0, -1.0), strict=False):
        np.testing.assert_allclose(key, sign * np.sqrt(2.0) * np.asarray(data.teacher)[0])
    np.testing.assert_array_equal(start[-1], data.teacher[-1])
    assert np.max(np.abs(start[2:4])) < 0.5
    assert np.min(np.abs(start[2] - start[3])) > 0


@pytest.fixture(scope="module")
def spiked():
    return ar.sample(ar.SpikedSLR(2.0, 3), KEY, n=300, dim=80)


@pytest.fixture(scope="module")
def fitted(spiked):
    return ar.fit_erm(spiked, ar.Softmax(), RIDGE)


def test_the_minimum_of_scipy(spiked, fitted):
    """Plain NumPy under SciPy's L-BFGS-B, from the same start."""
    x, y = (np.asarray(leaf) for leaf in (spiked.groups[0].tokens[0], spiked.groups[0].labels[0]))
    x = x / np.sqrt(80)

    def value_and_gradient(flat):
        k, v = flat.reshape(2, -1)
        chi, z = x @ k, x @ v
        sigma = np.exp(chi) / np.exp(chi).sum(1, keepdims=True)
        mean = np.sum(sigma * z, 1)
        off = mean - y
        by_chi = off[:, None] * sigma * (z - mean[:, None])
        gradient = (
            np.einsum("nl,nld->d", by_chi, x),
            np.einsum("nl,nld->d", off[:, None] * sigma, x),
        )
        value = off @ off / 2 + RIDGE.k / 2 * k @ k + RIDGE.v / 2 * v @ v
        return value, np.concatenate([gradient[0] + RIDGE.k * k, gradient[1] + RIDGE.v * v])

    start = 0.1 * np.random.default_rng(0).normal(size=160)
    options = {"maxiter": 2000, "ftol": 0.0, "gtol": 1e-7}
    found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    assert fitted.converged
    assert fitted.objective * 80 == pytest.approx(found.fun, rel=1e-9)
    np.testing.assert_allclose(np.concatenate([fitted.k, fitted.v]), found.x, atol=1e-4)
    assert fitted.train_error == pytest.approx(
        2 * (found.fun - RIDGE.k / 2 * found.x[:80] @ found.x[:80]) / 300
        - RIDGE.v * found.x[80:] @ found.x[80:] / 300,
        abs=1e-6,
    )


def test_what_a_fit_reports(spiked, fitted):
    assert fitted.overlaps.q_kk == pytest.approx(fitted.k @ fitted.k / 80)
    assert fitted.overlaps.m_vv == pytest.approx(fitted.v @ np.asarray(spiked.teacher)[1] / 80)
    assert fitted.alpha == 300 / 80
    assert 0 < fitted.gradient_norm <= 1e-6
    assert 0 < fitted.iterations < fitted.evaluations
    (rival,) = fitted.rivals
    assert {fitted.start, rival.start} == {"random", "teacher"}
    assert rival.objective >= fitted.objective - 1e-9
    risk = ar.population_risk(spiked.task, ar.Softmax(), fitted.overlaps)
    assert float(fitted.test_risk) == float(risk)
    assert fitted.test_risk.kind is risk.kind
    kept = ar.record(fitted)
    assert (kept["test_risk"], kept["test_risk_error"]) == (float(risk), float(risk.error))
    assert (kept["result"], kept["converged"]) == ("converged", True)
    assert kept["m_kk"] == fitted.overlaps.m_kk
    assert kept["iterations"] == fitted.iterations


def test_a_stream_gives_the_same_fit(spiked, fitted):
    streamed = ar.stream(spiked.task, KEY, n=300, dim=80)
    again = ar.fit_erm(streamed, ar.Softmax(), RIDGE)
    np.testing.assert_allclose(again.k, fitted.k, atol=1e-5)
    assert again.objective == pytest.approx(fitted.objective, rel=1e-10)


def test_single_precision_costs_six_digits(spiked, fitted):
    groups = eqx.tree_at(
        lambda groups: groups[0].tokens, spiked.groups, spiked.groups[0].tokens.astype(np.float32)
    )
    single = ar.Dataset(spiked.task, spiked.teacher, groups, precision="float32")
    found = ar.fit_erm(single, ar.Softmax(), RIDGE)
    assert found.converged
    assert found.objective == pytest.approx(fitted.objective, rel=1e-6)
    assert 0 < abs(found.overlaps.m_kk - fitted.overlaps.m_kk) < 1e-4


def test_the_exact_risk_is_that_of_a_test_set(spiked, fitted):
    exact = float(fitted.test_risk)
    measured = ar.measure_risk(spiked, fitted, jax.random.key(9), 40_000)
    assert measured.kind is ar.ErrorKind.STANDARD
    assert abs(float(measured) - exact) < 4 * float(measured.error) < 0.04
    stretched = replace(fitted, vectors=fitted.vectors * [[1.0], [1.3]])  # not what was measured
    wrong = ar.measure_risk(spiked, stretched, jax.random.key(9), 40_000)
    assert abs(float(wrong) - exact) > 4 * float(wrong.error)


def test_the_lowest_minimum_wins(spiked, fitted):
    """A start of the wrong sign of v, with one step, is a rival at most."""
    starts = {"good": np.stack([fitted.k, fitted.v]), "bad": np.stack([fitted.k, -fitted.v])}
    found = ar.fit_erm(spiked, ar.Softmax(), RIDGE, starts=starts, steps=1)
    assert (found.start, found.result) == ("good", ar.Result.CONVERGED)
    (rival,) = found.rivals
    assert (rival.start, rival.result, rival.converged) == ("bad", ar.Result.MAX_STEPS, False)
    assert rival.objective > found.objective


def test_an_interrupt_leaves_the_best_so_far(spiked, fitted):
    def watch(step, gradient):
        if step == 4:
            raise KeyboardInterrupt

    found = ar.fit_erm(spiked, ar.Softmax(), RIDGE, watch=watch)
    assert found.result is ar.Result.INTERRUPTED
    assert not found.converged
    assert found.iterations <= 4
    zero = float(np.sum(np.asarray(spiked.groups[0].labels) ** 2)) / 2 / spiked.dim
    assert fitted.objective < found.objective < zero


UNMASKED = ar.General(lambda scores: jax.nn.softmax(scores))
BAD = [
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, starts={}), "starts"),
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, starts={"a": np.ones((2, 3))}), "starts"),
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, tolerance=-1.0), "tolerance = -1"),
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, steps=0), "steps = 0"),
    (lambda data: ar.fit_erm(dataset("padded"), UNMASKED, RIDGE), "attention = general"),
    (lambda data: ar.fit_erm(data, Averaged(2), RIDGE, starts={"a": data.teacher}), "3 finite"),
]


def test_a_fit_that_would_not_fit_is_refused(spiked, monkeypatch):
    """The memory of L-BFGS is 40 times the starts."""
    monkeypatch.setattr("attnrisk.simulation.data.free_memory", lambda: 1e5)
    with pytest.raises(ValueError, match=r"size = .*L-BFGS from 2 starts, dim = 80"):
        ar.fit_erm(spiked, ar.Softmax(), RIDGE)


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[1])
def test_bad_input(case, spiked):
    with pytest.raises(ValueError, match=case[1]):
        case[0](spiked)


# Theory and experiment.

MEASURES = ("m_k", "q_k", "m_v", "q_v", "train_error")
SIZES = (40, 80, 160)


def measured(task, attention, alpha, ridge, dims, seeds):
    """`runs[measure][size]`: what many experiments found."""
    runs = []
    for dim in dims:
        found = []
        for seed in range(seeds):
            data = ar.sample(task, jax.random.key(seed), round(alpha * dim), dim)
            fit = ar.fit_erm(data, attention, ridge)
            assert fit.converged
            o = fit.overlaps
            found.append((o.m_kk, o.q_kk, o.m_vv, o.q_vv, fit.train_error))
        runs.append(np.array(found).T)
    return dict(zip(MEASURES, zip(*runs, strict=True), strict=True))


def distances(runs, theory, dims=SIZES):
    return [distance(dims, runs[name], getattr(theory, name)) for name in MEASURES]


@pytest.mark.slow
def test_theory_and_experiment():
    task, attention, ridge = ar.SpikedSLR(2.0, 2), ar.Softmax(), ar.Ridge(1.0, 1.0)
    runs = measured(task, attention, 3.0, ridge, SIZES, 8)
    right = ar.erm_asymptotics(task, attention, 3.0, ridge, log2_points=8)
    wrong = ar.erm_asymptotics(task, attention, 3.0, ar.Ridge(1.0, 1.2), log2_points=8)
    assert np.max(np.abs(distances(runs, right))) < 3.5
    assert np.max(np.abs(distances(runs, wrong))) > 5  # the negative control


@pytest.mark.slow
def test_theory_and_experiment_everywhere():
    """Two tasks, two attentions, four α: 95 % within three standard errors, and no bias; not so with a wrong ridge."""
    tasks = ar.SpikedSLR(2.0, 2), ar.MaxSLR(np.inf, 2)
    ridge, other = ar.Ridge(1.0, 1.0), ar.Ridge(1.0, 1.2)
    right, wrong = [], []
    for task in tasks:
        for attention in (ar.Softmax(), ar.Linear()):
            for alpha in (0.5, 2.0, 4.0, 8.0):
                runs = measured(task, attention, alpha, ridge, SIZES, 16)
                for held, under in ((right, ridge), (wrong, other)):
                    theory = ar.erm_asymptotics(task, attention, alpha, under, log2_points=8)
                    held.append(distances(runs, theory))
                jax.clear_caches()
    right, wrong = np.array(right), np.array(wrong)
    assert np.mean(np.abs(right) < 3) >= 0.95
    assert np.all(np.abs(right.mean(0)) < 3 / np.sqrt(len(right)))
    assert np.mean(np.abs(wrong) < 3) < 0.95
