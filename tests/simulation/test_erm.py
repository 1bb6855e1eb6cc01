"""Empirical risk minimisation on data: against plain NumPy, SciPy, a test set, and the theory."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import distance
from scipy.optimize import minimize
from scipy.special import erf

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.simulation.erm import objective

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
    """The objective by its formula, one sequence at a time."""
    sequences = []
    for group in data.groups:
        tokens, labels, lengths = map(np.asarray, (group.tokens, group.labels, group.lengths))
        for at in zip(*np.nonzero(lengths), strict=True):
            sequences.append((tokens[at][: lengths[at]] / np.sqrt(data.dim), labels[at]))

    def value(flat):
        k, v = flat.reshape(2, -1)
        loss = sum((y - sigma(x @ k) @ (x @ v)) ** 2 / 2 for x, y in sequences)
        return loss + ridge.k / 2 * k @ k + ridge.v / 2 * v @ v

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
    points = rng.normal(size=(2, 20))
    known = data.traceable(), as_arrays(attention), as_arrays(RIDGE)
    values, gradients = map(np.asarray, objective(*known, jnp.asarray(points)))
    slow = plain(data, SIGMAS[name], RIDGE)
    for point, value, gradient in zip(points, values, gradients, strict=True):
        assert value == pytest.approx(slow(point), rel=1e-12)
        for way in rng.normal(size=(3, 20)):
            change = (slow(point + 1e-5 * way) - slow(point - 1e-5 * way)) / 2e-5
            assert gradient @ way == pytest.approx(change, rel=1e-5, abs=1e-4)


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
    assert abs(float(measured) - exact) < 4 * float(measured.error) < 0.04
    stretched = eqx.tree_at(lambda fit: fit.v, fitted, 1.3 * fitted.v)  # not what was measured
    wrong = ar.measure_risk(spiked, stretched, jax.random.key(9), 40_000)
    assert abs(float(wrong) - exact) > 4 * float(wrong.error)


def test_the_lowest_minimum_wins(spiked, fitted):
    """A start of the wrong sign of v, with one step, is a rival at most."""
    starts = {"good": np.stack([fitted.k, fitted.v]), "bad": np.stack([fitted.k, -fitted.v])}
    found = ar.fit_erm(spiked, ar.Softmax(), RIDGE, starts=starts, most_iterations=1)
    assert (found.start, found.result) == ("good", "converged")
    (rival,) = found.rivals
    assert (rival.start, rival.result, rival.converged) == ("bad", "steps over", False)
    assert rival.objective > found.objective


def test_an_interrupt_leaves_the_best_so_far(spiked, fitted):
    def watch(step, gradient):
        if step == 4:
            raise KeyboardInterrupt

    found = ar.fit_erm(spiked, ar.Softmax(), RIDGE, watch=watch)
    assert found.result == "interrupted"
    assert not found.converged
    assert found.iterations <= 4
    zero = float(np.sum(np.asarray(spiked.groups[0].labels) ** 2)) / 2 / spiked.dim
    assert fitted.objective < found.objective < zero


BAD = [
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, starts={}), "starts"),
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, starts={"a": np.ones((2, 3))}), "starts"),
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, tolerance=-1.0), "tolerance = -1"),
    (lambda data: ar.fit_erm(data, ar.Softmax(), RIDGE, most_iterations=0), "most_iterations = 0"),
    (lambda data: ar.fit_erm(dataset("padded"), ar.Sparsemax(), RIDGE), "attention = sparsemax"),
]


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
