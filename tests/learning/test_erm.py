"""Empirical risk minimisation with finite data: reference values, identities, and closed forms."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk._results import ErrorKind, Result, record
from attnrisk.learning.energy import Fitted
from attnrisk.learning.equations import hats, terms
from attnrisk.learning.samples import cavity_samples, draw, locate
from attnrisk.learning.unknowns import Order, Unknowns, pack, updated
from attnrisk.numerics.arrays import as_arrays
from attnrisk.simulation.erm import objective

SPIKED = ar.SpikedSLR(2.0, 3)
ONE = ar.Ridge(1.0, 1.0)

# docs/theory.md, section 9: values of (m_k, q_k, V_k, m_v, q_v, V_v, test, train) with their standard errors.
REFERENCE = {
    "linear": (
        (0.304, 0.270, 0.568, 0.337, 0.155, 0.094, 0.790, 0.253),
        (0.002, 0.002, 0.002, 0.001, 0.001, 0.001, 0.004, 0.002),
    ),
    "softmax": (
        (0.421, 0.315, 0.706, 0.728, 0.645, 0.455, 0.596, 0.332),
        (0.003, 0.003, 0.002, 0.002, 0.003, 0.003, 0.001, 0.002),
    ),
    "max": (
        (0.699, 0.724, 1.088, 0.768, 0.678, 0.436, 0.514, 0.252),
        (0.002, 0.003, 0.010, 0.001, 0.004, 0.007, 0.002, 0.002),
    ),
}


def _numbers(found):
    return (
        found.m_k,
        found.q_k,
        found.V_k,
        found.m_v,
        found.q_v,
        found.V_v,
        found.test_risk,
        found.train_error,
    )


@pytest.fixture(scope="module")
def softmax():
    return ar.erm_asymptotics(SPIKED, ar.Softmax(), 4.0, ONE)


def _agrees(found, reference):
    assert found.converged
    for ours, value, error in zip(_numbers(found), *reference, strict=True):
        assert abs(float(ours) - value) <= 2 * error + 2 * float(ours.error) + 5e-4


@pytest.mark.optimised
def test_softmax_on_spiked(softmax):
    _agrees(softmax, REFERENCE["softmax"])
    assert 0 < float(softmax.test_risk.error) < 1e-3


@pytest.mark.slow
def test_linear_on_spiked():
    _agrees(ar.erm_asymptotics(SPIKED, ar.Linear(), 4.0, ONE), REFERENCE["linear"])


@pytest.mark.slow
def test_softmax_on_max():
    task, ridge = ar.MaxSLR(np.inf, 3), ar.Ridge(0.5, 1.0)
    _agrees(ar.erm_asymptotics(task, ar.Softmax(), 4.0, ridge, log2_points=8), REFERENCE["max"])


@pytest.mark.optimised
def test_errors_are_the_spread_over_seeds(softmax):
    """Another seed differs by as much as the errors say, and not by nothing."""
    other = ar.erm_asymptotics(SPIKED, ar.Softmax(), 4.0, ONE, seed=1)
    for one, two in zip(_numbers(softmax), _numbers(other), strict=True):
        apart = abs(float(one) - float(two))
        assert 0 < apart < 5 * np.hypot(float(one.error), float(two.error))


@pytest.mark.optimised
def test_identities_and_envelope(softmax):
    np.testing.assert_allclose(softmax.identities, 0.0, atol=1e-6)
    steps = (ar.Ridge(1.0 + 0.01, 1.0), ar.Ridge(1.0 - 0.01, 1.0))
    above, below = (ar.erm_asymptotics(SPIKED, ar.Softmax(), 4.0, ridge) for ridge in steps)
    envelope = (float(above.objective) - float(below.objective)) / 0.02
    assert abs(envelope - float(softmax.q_k) / 2) < 1e-3
    slope = (float(above.test_risk) - float(below.test_risk)) / 0.02
    assert abs(slope - softmax.slope[0]) < 1e-3


def _ridge_regression(length, noise, alpha, ridge):
    """Regression of `y` on the sum of the tokens: features of variance `L`, teacher `v*/L`, noise `1 − 1/L + Δ²`."""
    roots = np.roots([ridge * length, ridge + alpha * length - length, -1.0])
    response = float(roots[roots > 0][0])
    bend = 1 + length * response
    m = alpha / bend * response
    gain = response**2 * alpha * length / bend**2
    q = (m**2 + gain * (1 + noise**2 - 2 * m)) / (1 - gain * length)
    return response, m, q, 1 + noise**2 - 2 * m + length * q


@pytest.mark.parametrize(
    ("task", "attention"),
    [
        pytest.param(
            ar.SpikedSLR(2.0, 3, noise=0.3),
            ar.Elementwise(jnp.ones_like),
            marks=pytest.mark.slow,
        ),
        (ar.SpikedSLR(2.0, 1, noise=0.3), ar.Softmax()),
        pytest.param(ar.MaxSLR(2.0, 2), ar.Elementwise(jnp.ones_like), marks=pytest.mark.slow),
    ],
    ids=["sum of tokens", "one token", "sum on max"],
)
def test_ridge_regression(task, attention):
    found = ar.erm_asymptotics(task, attention, 2.0, ar.Ridge(1.0, 0.7), log2_points=8)
    length = int(task.length.longest)
    response, m, q, risk = _ridge_regression(length, task.noise, 2.0, 0.7)
    assert found.converged
    for ours, exact in (
        (found.V_v, response),
        (found.m_v, m),
        (found.q_v, q),
        (found.test_risk, risk),
    ):
        assert abs(float(ours) - exact) < 4 * float(ours.error) + 1e-6


@pytest.mark.slow
def test_no_signal_leaves_the_location_open():
    """`ν = 0`: with much data, uniform attention, `1 − E[1/L]`."""
    task = ar.SpikedSLR(0.0, ar.uniform(1, 3))
    found = ar.erm_asymptotics(task, ar.Softmax(), 100.0, ONE, log2_points=6)
    assert found.converged
    assert abs(float(found.m_k)) < 1e-3
    assert abs(float(found.test_risk) - (1 - np.mean([1, 1 / 2, 1 / 3]))) < 0.02


@pytest.mark.slow
def test_much_data_meets_the_population():
    found = ar.tuned_erm_asymptotics(SPIKED, ar.Softmax(), 300.0, log2_points=7)
    assert found.converged
    limit = float(ar.bayes_risk(SPIKED).value)
    assert limit - 3 * float(found.test_risk.error) <= float(found.test_risk) < limit + 0.02


@pytest.mark.slow
def test_tuning_agrees_with_a_grid():
    alpha = 2.0
    tuned = ar.tuned_erm_asymptotics(SPIKED, ar.Linear(), alpha, log2_points=7)
    grid = [
        ar.erm_asymptotics(SPIKED, ar.Linear(), alpha, ar.Ridge(k, v), log2_points=7)
        for k in (0.3, 1.0, 3.0)
        for v in (1.0, 4.0, 16.0)
    ]
    least = min(float(point.test_risk) for point in grid if point.converged)
    assert tuned.converged
    assert float(tuned.test_risk) < least + 3 * float(tuned.test_risk.error)
    assert np.all(np.abs(tuned.slope) * [tuned.ridge.k, tuned.ridge.v] < 5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 100.0])
@pytest.mark.parametrize("ridge", [ar.Ridge(0.05, 0.05), ar.Ridge(20.0, 20.0)], ids=["low", "high"])
def test_corners_are_answered_or_marked(alpha, ridge):
    found = ar.erm_asymptotics(SPIKED, ar.Softmax(), alpha, ridge, log2_points=6)
    assert np.isfinite(float(found.test_risk))
    assert float(found.q_k) > float(found.m_k) ** 2
    if not found.converged:
        assert found.result is Result.MAX_STEPS
    elif ridge.k > 1:
        assert not found.warning
        assert 0.3 < float(found.test_risk) < 1.05


@pytest.mark.slow
@pytest.mark.parametrize("r", [1e-2, 1e-4])
def test_vanishing_ridges(r):
    """`r → 0`: the fixed point is found or its absence told, and so is that replica symmetry is unstable there."""
    found = ar.erm_asymptotics(SPIKED, ar.Softmax(), 12.0, ar.Ridge(r, r), log2_points=6)
    assert found.converged or (found.result is Result.MAX_STEPS and r < 1e-3)
    assert float(found.train_error) < float(found.test_risk)
    assert float(ar.bayes_risk(SPIKED)) < float(found.test_risk) < 1.0
    assert found.replicon > 1
    assert found.warning


@pytest.mark.parametrize("name", ar.CATALOGUE)
def test_what_ignores_the_scale_of_its_scores_has_no_minimum(name):
    """Shorter is cheaper and as good: the objective on data falls all the way to `k = 0`."""
    attention, data = ar.get_attention(name), ar.sample(SPIKED, jax.random.key(0), 40, 20)
    known = data.traceable(), as_arrays(attention), as_arrays(ONE)
    scales = jnp.array([[1.0, 1.0], [0.1, 1.0], [0.01, 1.0], [1e-3, 1.0]])
    points = scales[..., None] * data.teacher
    values, _ = objective(*known, points)
    losses = np.asarray(values) - 0.5 * np.sum(np.square(points), (1, 2))
    assert (np.ptp(losses) < 1e-9) == (name in ("relu", "relu2", "hardmax", "cosine"))
    if np.ptp(losses) < 1e-9:
        with pytest.raises(ValueError, match="scale of its scores"):
            ar.erm_asymptotics(SPIKED, attention, 4.0, ONE)
        with pytest.raises(ValueError, match="scale of its scores"):
            ar.tuned_erm_asymptotics(SPIKED, attention, 4.0)
        with pytest.raises(ValueError, match="scale of its scores"):
            ar.fit_erm(data, attention, ONE)


@pytest.mark.slow
def test_low_signal_and_low_ridges_come_with_a_warning():
    found = ar.erm_asymptotics(
        ar.SpikedSLR(0.3, 3), ar.Softmax(), 1.0, ar.Ridge(0.02, 0.02), log2_points=6
    )
    assert np.isfinite(float(found.test_risk))
    assert not found.converged or "replica symmetry" in found.warning


@pytest.mark.slow
def test_hard_selection():
    """`ν = ∞` on max: the weaker the ridge on `k`, the nearer to hardmax, and the lower the risk."""
    task = ar.MaxSLR(np.inf, 3)
    strong, weak = (
        ar.erm_asymptotics(task, ar.Softmax(), 8.0, ar.Ridge(r, 0.1), log2_points=6)
        for r in (0.3, 1e-3)
    )
    assert strong.converged
    assert weak.converged
    assert float(weak.q_k) > 2 * float(strong.q_k)
    assert float(weak.test_risk) < float(strong.test_risk)
    assert float(ar.optimal_asymptotics(task, 8.0).risk) < float(weak.test_risk)


@pytest.mark.slow
def test_thirty_tokens():
    task = ar.SpikedSLR(8.0, 30)
    found = ar.erm_asymptotics(task, ar.Softmax(), 8.0, ONE, log2_points=4)
    assert found.converged
    assert float(ar.bayes_risk(task)) < float(found.test_risk) < 1.0
    assert np.max(np.abs(found.identities)) < 1e-6


@pytest.mark.slow
def test_few_data_favour_linear_attention():
    """Bayes ≤ tuned softmax ≤ tuned linear fails where there are few data: the second inequality is the other way."""
    alpha = 0.5
    softmax, linear = (
        ar.tuned_erm_asymptotics(SPIKED, attention, alpha).test_risk
        for attention in (ar.Softmax(), ar.Linear())
    )
    assert float(linear) + 3 * float(linear.error) < float(softmax) - 3 * float(softmax.error)
    assert float(ar.optimal_asymptotics(SPIKED, alpha).risk) < float(linear)


@pytest.mark.slow
def test_kinks_are_admitted():
    found = ar.erm_asymptotics(SPIKED, ar.Sparsemax(), 4.0, ONE, log2_points=6)
    assert found.unresolved > 0.01
    assert "kink" in found.warning


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["spiked", pytest.param("max", marks=pytest.mark.slow)])
def test_one_engine_for_the_bayes_optimum_too(name):
    """The posterior's pulls in place of the minimiser's: `m = q`, `V = 1 − q` is a fixed point, that of section 7."""
    task = ar.SpikedSLR(2.0, 3, noise=0.1) if name == "spiked" else ar.MaxSLR(2.0, 3, noise=0.3)
    alpha = 4.0
    optimum = ar.optimal_asymptotics(task, alpha).reachable
    q_k, q_v = float(optimum.q_k), float(optimum.q_v)
    orders = ((q, q, 1 - q) for q in (q_k, q_v))
    optimal = Unknowns(*(Order(*(np.array([[[each]]]) for each in it)) for it in orders))
    width = task.noise**2 + 1 - q_v
    location = task.location_given(1 - q_k)

    @jax.jit
    @jax.vmap
    @jax.vmap
    @jax.vmap
    def pulls(sample):
        missed = sample.label - sample.values
        found = location.posterior(location.weigh(sample.keys), -(missed**2) / (2 * width))
        return Fitted(found.score, found.probability * missed / width, jnp.zeros(()))

    def one(points):
        seen = cavity_samples(task, optimal, points, locate(task, optimal.correlation[0], points))
        found = terms(task, optimal, seen, jax.tree.map(np.asarray, pulls(seen.sample)))
        return hats(optimal, np.mean(found, 1))[0]

    found = [one(points) for (points,) in draw(task, 1, 11, 8, 0)]
    total = jax.tree.map(lambda *hat: alpha * np.mean(hat, (0, 1)), *found)
    # The normalisation of the spike, e^{-ν|k|²/2}, acts as a ridge.
    precision = [1.0 + alpha * float(location.precision[0, 0]), 1.0]
    expected = pack(optimal)[0]
    np.testing.assert_allclose(pack(updated(total, precision)), expected, atol=4e-3)
    wrong = pack(updated(total, [1.5, 1.5]))
    assert np.max(np.abs(wrong - expected)) > 0.02


def test_record(softmax):
    flat = record(softmax)
    numbers = ("test_risk", "train_error", "objective", "m_k", "q_k", "V_k", "m_v", "q_v", "V_v")
    for name in numbers:
        assert flat[name] == float(getattr(softmax, name))
        assert flat[f"{name}_error"] == getattr(softmax, name).error
    assert set(flat) == {
        *numbers,
        *(f"{name}_error" for name in numbers),
        *("replicon", "jumps", "seen_deviation", "warning", "result", "converged"),
    }
    assert (flat["warning"], flat["result"], flat["converged"]) == ("", "converged", True)
    assert flat["seen_deviation"] == 0.0
    unstable = replace(softmax, replicon=1.5)
    assert record(unstable)["seen_deviation"] == pytest.approx(0.33 * flat["test_risk"])
    assert record(replace(unstable, unresolved=0.1))["seen_deviation"] is None
    assert softmax.test_risk.kind is ErrorKind.STANDARD
    assert softmax.M.value.shape == softmax.Q.value.shape == softmax.V.value.shape == (2, 2)
    assert softmax.Q.value[1, 1] == float(softmax.q_v)
    assert softmax.overlaps.m_kk == float(softmax.m_k)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": np.nan}, "alpha"),
        ({"task": ar.MaxSLR(2.0, 1001)}, "length"),
        ({"task": ar.WeightedSLR(lambda at, chi: 0.0 * chi[at], 33)}, "each location"),
        ({"task": ar.SpikedSLR(2.0, 33), "attention": ar.Sparsemax()}, "length"),
        ({"task": ar.SpikedSLR(2.0, 1001)}, "length"),
    ],
)
def test_bad_input(arguments, word):
    given = {"task": SPIKED, "attention": ar.Softmax(), "alpha": 1.0, "ridge": ONE} | arguments
    with pytest.raises(ValueError, match=word):
        ar.erm_asymptotics(**given)


@pytest.mark.parametrize(("k", "v", "word"), [(0.0, 1.0, "ridge_k"), (1.0, -1.0, "ridge_v")])
def test_bad_ridges(k, v, word):
    with pytest.raises(ValueError, match=word):
        ar.Ridge(k, v)
