"""The Bayes optimum with finite data: against section 9, plain Monte Carlo, identities and limits."""

from functools import cache

import numpy as np
import pytest
from scipy.special import ndtr

import attnrisk as ar
from attnrisk._results import ErrorKind, Result, record
from attnrisk.learning import fixed_point, optimal_asymptotics, optimal_thresholds
from attnrisk.learning.evidence import evidence
from attnrisk.learning.optimal import draw, outcome, reachable
from attnrisk.numerics.arrays import as_arrays

pytestmark = pytest.mark.optimised

SPIKED, SPIKED_NOISY = ar.SpikedSLR(2.0, 3), ar.SpikedSLR(2.0, 3, noise=0.1)
MAX, MAX_NOISY = ar.MaxSLR(2.0, 3), ar.MaxSLR(np.inf, 3, noise=np.sqrt(0.05))


@cache
def _solved(name, alpha):
    """Solved once for all tests: a task cannot be a key, its name can."""
    return optimal_asymptotics(globals()[name], alpha)


def _depth(q):
    return -np.log1p(-np.asarray(q))


def _evidence(task, q, points):
    return evidence(*as_arrays((task, _depth(q))), points)


def _across(replicates):
    """Mean and standard error."""
    return np.mean(replicates), np.std(replicates, ddof=1) / np.sqrt(len(replicates))


# The table of section 9 came from a short Monte Carlo and shows no errors. Away from one its overlaps are right to
# 0.005, as the sharper tests below show; those near one are right to all digits.
REFERENCE = [
    ("SPIKED", 0.9, "optimum", (0.529, 0.512, 0.730)),
    ("SPIKED", 2.0, "optimum", (0.800, 1.0, 0.399)),
    ("SPIKED", 1.1, "reachable", (None, None, 0.630)),
    ("SPIKED", 1.1, "optimum", (None, 1.0, 0.428)),
    ("SPIKED_NOISY", 0.9, "optimum", (0.527, 0.500, None)),
    ("SPIKED_NOISY", 4.0, "optimum", (0.882, 0.996, None)),
    ("MAX_NOISY", 1.0, "reachable", (0.140, 0.405, None)),
    ("MAX_NOISY", 4.0, "reachable", (0.902, 0.981, None)),
]


@pytest.mark.parametrize(("name", "alpha", "which", "printed"), REFERENCE)
def test_values_of_section_9(name, alpha, which, printed):
    found = getattr(_solved(name, alpha), which)
    assert found.converged
    assert found.result is Result.CONVERGED
    for value, expected in zip((found.q_k, found.q_v, found.risk), printed, strict=True):
        if expected is not None:
            rounding = 5e-3 if 0.1 < expected < 0.95 else 5e-4
            assert abs(float(value) - expected) < rounding + 2 * float(value.error)


def test_exact_recovery_without_noise():
    """At `q_v = 1` every label gives its location away, and `k` is the mean of the relevant tokens."""
    found = _solved("SPIKED", 1.1)
    best = found.optimum
    assert float(best.q_v) == float(found.q_v) == 1.0
    assert abs(float(best.q_hat_k) - 1.1 * 2.0) < 1e-9
    assert float(best.q_hat_v) == float(best.free_entropy) == np.inf
    missed = ar.bayes_risk(ar.SpikedSLR(2.0 * float(found.q_k), 3))
    assert abs(float(found.risk) - float(missed)) < 4 * float(found.risk.error)


def test_the_hard_phase_and_its_ends():
    inside, below, above = (_solved("SPIKED", alpha) for alpha in (1.1, 0.9, 2.0))
    assert inside.hard
    assert float(inside.reachable_risk) > float(inside.risk) + 0.1
    for outside in (below, above):
        assert not outside.hard
        assert float(outside.reachable_risk) == pytest.approx(float(outside.risk), abs=1e-7)
    assert float(below.q_v) < 0.9
    assert float(above.reachable.q_v) == 1.0


def test_the_informed_branch_of_max():
    found = optimal_asymptotics(MAX, 1.2)
    assert found.hard
    assert float(found.q_v) == 1.0
    assert float(found.informed.q_k) > float(found.reachable.q_k) + 0.2


def test_free_entropy_chooses():
    """With little noise both branches have a finite free entropy: either wins on its side of the crossing."""
    task = ar.SpikedSLR(0.5, 3, noise=0.03)
    early, late = optimal_asymptotics(task, 1.34), optimal_asymptotics(task, 1.42)
    for found in (early, late):
        assert float(found.informed.risk) < float(found.reachable_risk) - 0.05
        entropies = (float(each.free_entropy) for each in (found.reachable, found.informed))
        assert float(found.optimum.free_entropy) == max(entropies) < np.inf
    assert early.risk == early.reachable_risk
    assert not early.hard
    assert late.risk == late.informed.risk
    assert late.hard


def _plain_spiked(task, q_k, q_v, n, rng):
    """Location drawn, posterior by Bayes' rule; `E[Σ(∂ log Z)²]` with standard errors."""
    length, places = int(task.length.longest), rng.integers(task.length.longest, size=n)
    rows, variance = np.arange(n), task.noise**2 + 1 - q_v
    chi = rng.normal(size=(n, length)) * np.sqrt(q_k)
    chi[rows, places] += np.sqrt(task.nu) * q_k
    z = rng.normal(size=(n, length)) * np.sqrt(q_v)
    y = z[rows, places] + np.sqrt(variance) * rng.normal(size=n)
    missing = y[:, None] - z
    joint = np.exp(np.sqrt(task.nu) * chi - missing**2 / (2 * variance))
    posterior = joint / joint.sum(1, keepdims=True)
    signals = task.nu * posterior**2, (posterior * missing / variance) ** 2
    return [_across(signal.sum(1)) for signal in signals]


def _plain_max(task, q_k, q_v, n, rng):
    """The location from fields drawn anew, its law by Gauss–Hermite, `∂ log Z` by differences."""
    length, rows = int(task.length.longest), np.arange(n)
    left, variance = np.sqrt(1 - q_k), task.noise**2 + 1 - q_v
    omega = rng.normal(size=(n, length)) * np.sqrt(q_k)
    chi = omega + left * rng.normal(size=(n, length))
    soft = 0.0 if np.isinf(task.nu) else rng.gumbel(size=chi.shape) / task.nu
    z = rng.normal(size=(n, length)) * np.sqrt(q_v)
    y = z[rows, np.argmax(chi + soft, 1)] + np.sqrt(variance) * rng.normal(size=n)
    missing = y[:, None] - z
    label = np.exp(-(missing**2) / (2 * variance))
    posterior = _location_law(task.nu, omega, left) * label
    posterior /= posterior.sum(1, keepdims=True)

    def log_evidence(token, step):
        shift = step * (np.arange(length) == token)
        return np.log((_location_law(task.nu, omega + shift, left) * label).sum(1))

    scores = [
        (log_evidence(each, 1e-4) - log_evidence(each, -1e-4)) / 2e-4 for each in range(length)
    ]
    signal_v = ((posterior * missing / variance) ** 2).sum(1)
    return [_across(np.sum(np.square(scores), 0)), _across(signal_v)]


def _location_law(nu, omega, left):
    """At `ν = inf` the chance that each field is the largest; else, for two tokens, the mean of a sigmoid."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    weights = weights / weights.sum()
    gaps = omega[:, :, None] - omega[:, None, :]
    if np.isfinite(nu):
        score = nu * (gaps[:, [0, 1], [1, 0], None] + np.sqrt(2) * left * nodes)
        return (0.5 * (1 + np.tanh(score / 2))) @ weights
    below = ndtr(gaps[..., None] / left + nodes)
    np.einsum("nllg->nlg", below)[:] = 1.0
    return below.prod(2) @ weights


@pytest.mark.parametrize(
    ("task", "q", "oracle", "n"),
    [
        (ar.SpikedSLR(2.0, 3), (0.4, 0.6), _plain_spiked, 200_000),
        (ar.SpikedSLR(2.0, 3, noise=0.3), (0.7, 0.95), _plain_spiked, 200_000),
        (ar.MaxSLR(np.inf, 3, noise=0.2), (0.6, 0.7), _plain_max, 10_000),
        (ar.MaxSLR(3.0, 2, noise=0.2), (0.3, 0.8), _plain_max, 40_000),
    ],
    ids=["spiked", "spiked with noise", "max", "soft max"],
)
def test_signals_agree_with_plain_monte_carlo(task, q, oracle, n, rng):
    found = _evidence(task, q, draw(task))
    expected = oracle(task, *q, n, rng)
    wrong = oracle(task, q[0] + 0.1, q[1] - 0.2, n, rng)  # the negative control
    signals = found.signal_k, found.signal_v
    for signal, (mean, error), (other, _) in zip(signals, expected, wrong, strict=True):
        value, own = _across(signal)
        assert abs(value - mean) < 4 * np.hypot(error, own)
        assert abs(value - other) > 4 * np.hypot(error, own)


@pytest.mark.parametrize("name", ["SPIKED_NOISY", "MAX_NOISY"])
def test_plain_monte_carlo_leaves_the_fixed_point_where_it_is(name, rng):
    found, task = _solved(name, 1.0).optimum, globals()[name]
    oracle, n = (_plain_spiked, 400_000) if name == "SPIKED_NOISY" else (_plain_max, 30_000)
    signals = oracle(task, float(found.q_k), float(found.q_v), n, rng)
    for (mean, error), q_hat in zip(signals, (found.q_hat_k, found.q_hat_v), strict=True):
        assert abs(mean - float(q_hat)) < 4 * np.hypot(error, float(q_hat.error))


@pytest.mark.parametrize("name", ["SPIKED_NOISY", "MAX_NOISY"])
def test_free_entropy_is_stationary_at_the_fixed_point(name):
    """`dΦ/dq = ½(q̂ − q/(1−q))` everywhere, and zero at the fixed point alone."""
    found, task = _solved(name, 1.0).optimum, globals()[name]
    points = draw(task)
    fixed = np.array([float(found.q_k), float(found.q_v)])

    def free_entropy(q):
        return outcome(task, 1.0, _depth(q), _evidence(task, q, points)).free_entropy

    for q, stationary in ((fixed, True), (fixed + 0.2, False)):
        seen = _evidence(task, q, points)
        signals = seen.signal_k, seen.signal_v
        for i, signal in enumerate(signals):
            step = 1e-4 * np.eye(2)[i]
            slope, error = _across((free_entropy(q + step) - free_entropy(q - step)) / 2e-4)
            expected, own = _across((signal - q[i] / (1 - q[i])) / 2)
            assert abs(slope - expected) < 4 * np.hypot(error, own)
            assert (abs(slope) < 4 * error) == stationary


def test_one_token_is_linear_regression():
    """`u = 1 − q_v` solves `u² + (Δ² + α − 1) u = Δ²`, and nothing is left to chance."""
    task, alpha = ar.SpikedSLR(3.0, 1, noise=0.5), 1.7
    found = optimal_asymptotics(task, alpha)
    left = 1 - float(found.q_v)
    assert abs(left**2 + (0.25 + alpha - 1) * left - 0.25) < 1e-8
    assert abs(float(found.optimum.q_hat_k) - alpha * 3.0) < 1e-7
    assert abs(float(found.risk) - 0.25 - left) < 1e-8
    assert float(found.risk.error) < 1e-7


@pytest.mark.parametrize("make", [ar.SpikedSLR, ar.MaxSLR])
def test_a_law_of_lengths_is_a_mixture(make):
    law = ar.LengthLaw([1, 3], [0.25, 0.75])
    tasks = [make(2.0, length, noise=0.3) for length in (law, 1, 3)]
    mixed, *parts = (_evidence(task, (0.4, 0.6), draw(task)) for task in tasks)
    for together, one, three in zip(mixed, *parts, strict=True):
        mean, error = _across(together)
        (first, small), (third, large) = _across(one), _across(three)
        tolerance = 4 * np.linalg.norm([error, 0.25 * small, 0.75 * large]) + 1e-7
        assert abs(mean - 0.25 * first - 0.75 * third) < tolerance


@pytest.mark.parametrize("task", [ar.SpikedSLR(0.0, 3), ar.MaxSLR(0.0, 3)], ids=str)
def test_without_a_signal_nothing_is_learned_of_k(task):
    found = optimal_asymptotics(task, 1.2)
    for branch in (found.reachable, found.informed):
        assert abs(float(branch.q_k)) < 1e-9
    assert float(found.q_v) == 1.0
    assert abs(float(found.risk) - 2 / 3) < 1e-6
    assert 0.1 < float(found.reachable.q_v) < 0.9


@pytest.mark.parametrize("name", ["SPIKED_NOISY", "MAX_NOISY"])
def test_more_data_never_hurts(name):
    task = globals()[name]
    found = [_solved(name, alpha) for alpha in (0.3, 1.0, 4.0, 20.0)]
    for risks in ([each.risk for each in found], [each.reachable_risk for each in found]):
        values = np.array([float(risk) for risk in risks])
        errors = np.array([float(risk.error) for risk in risks])
        assert np.all(np.diff(values) < 0)
        assert np.all(values > float(ar.bayes_risk(task)) - 4 * errors)
        assert np.all(values < task.label_variance)
    assert all(each.converged for each in found)


@pytest.mark.parametrize("name", ["SPIKED", "SPIKED_NOISY", "MAX"])
def test_endless_data_teach_all(name):
    found, bayes = _solved(name, 1e7), ar.bayes_risk(globals()[name])
    assert abs(float(found.risk) - float(bayes)) < 4 * float(found.risk.error) + 1e-6
    assert float(found.risk.error) < 1e-3


def test_few_data_teach_nothing():
    found = _solved("SPIKED", 1e-6)
    assert abs(float(found.risk) - 1.0) < 1e-6
    assert abs(float(found.q_v) - 1e-6 / 3) < 1e-8
    assert abs(float(found.q_k) - 2e-6 / 3) < 1e-8


def test_errors_are_those_between_seeds():
    found = [reachable(SPIKED, 0.9, draw(SPIKED, seed)) for seed in range(8)]
    for name in ("q_k", "q_v", "risk", "free_entropy"):
        estimates = [getattr(each, name) for each in found]
        spread = np.std([float(each) for each in estimates], ddof=1)
        claimed = np.mean([float(each.error) for each in estimates])
        assert 0.4 < spread / claimed < 2.5


def test_an_unfinished_iteration_says_so(monkeypatch):
    """A single token at `α = 1` without noise converges like `1/n`, never below the tolerance."""
    monkeypatch.setattr(fixed_point, "MOST_STEPS", 60)
    found = optimal_asymptotics(ar.SpikedSLR(3.0, 1), 1.0)
    assert not found.converged
    assert found.result is found.reachable.result is Result.MAX_STEPS
    assert found.reachable.steps == 60
    assert found.reachable.residual > 0
    assert float(found.risk) < 3 * float(found.risk.error)  # the limit is zero


def test_thresholds_without_noise():
    found = optimal_thresholds(SPIKED)
    assert float(found.information) == 1.0
    assert found.information.error == 0.0
    assert found.algorithmic.error < 0.01 * float(found.algorithmic)
    for side, recovered in ((0.98, False), (1.02, True)):
        branch = reachable(SPIKED, side * float(found.algorithmic), draw(SPIKED))
        assert (float(branch.q_v) == 1.0) == recovered


def test_thresholds_with_noise():
    task = ar.SpikedSLR(0.5, 3, noise=0.03)
    found = optimal_thresholds(task)
    information, algorithmic = float(found.information), float(found.algorithmic)
    assert 1 < information < algorithmic < 2
    for alpha, hard in ((0.97 * information, False), (1.03 * information, True)):
        assert optimal_asymptotics(task, alpha).hard == hard
    assert not optimal_asymptotics(task, 1.03 * algorithmic).hard


def test_nothing_jumps_with_much_noise():
    found = optimal_thresholds(ar.SpikedSLR(2.0, 3, noise=0.5))
    assert found.information is None
    assert found.algorithmic is None


BAD_INPUT = [
    (lambda: optimal_asymptotics(SPIKED, 0.0), "alpha = 0"),
    (lambda: optimal_asymptotics(SPIKED, -1.0), "alpha = -1"),
    (lambda: optimal_asymptotics(SPIKED, np.nan), "alpha = nan"),
    (lambda: optimal_asymptotics(SPIKED, np.inf), "alpha = inf"),
    (lambda: optimal_asymptotics(SPIKED, "many"), "alpha = 'many'"),
    (lambda: optimal_thresholds(ar.SpikedSLR(2.0, 3, spread=0.7)), "spread = 0.7"),
    (lambda: optimal_asymptotics(ar.WeightedSLR(lambda e, chi: 0.0, 3), 1.0), "task = weighted"),
    (lambda: optimal_thresholds(ar.WeightedSLR(lambda e, chi: 0.0, 3)), "task = weighted"),
    (lambda: optimal_asymptotics(ar.SpikedSLR(2.0, 1001), 1.0), "length = 1001"),
    (lambda: optimal_asymptotics(ar.MaxSLR(2.0, ar.uniform(1, 1001)), 1.0), "length = 1-1001"),
]


@pytest.mark.parametrize(("ask", "words"), BAD_INPUT, ids=[words for _, words in BAD_INPUT])
def test_bad_input_is_refused_in_one_line(ask, words):
    with pytest.raises(ValueError, match=r"is not allowed: .* must be") as error:
        ask()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_records():
    found = _solved("SPIKED", 0.9)
    flat = record(found)
    names = ["risk", "risk_error", "reachable_risk", "reachable_risk_error", "q_k", "q_k_error"]
    assert list(flat) == [*names, "q_v", "q_v_error", "hard", "result", "converged"]
    assert (flat["risk"], flat["result"], flat["converged"]) == (
        float(found.risk),
        "converged",
        True,
    )
    assert found.risk.kind is found.q_k.kind is ErrorKind.STANDARD
    path = ar.state_evolution(SPIKED, 0.9, 2)
    assert path.result is Result.FINISHED
    assert record(path) == {"steps": 2, "result": "all steps done", "converged": True}
    assert record(ar.Thresholds(None, None)) == {"information": None, "algorithmic": None}


def test_the_state_evolution_climbs_to_the_reachable_fixed_point():
    path, end = ar.state_evolution(SPIKED_NOISY, 0.9, 60), _solved("SPIKED_NOISY", 0.9).reachable
    for along, last in ((path.q_k, end.q_k), (path.q_v, end.q_v)):
        assert along.value[0] == 0.0
        assert np.all(np.diff(along.value) > -1e-12)
        assert along.value[-1] == pytest.approx(float(last), abs=1e-6)
        assert 0.2 < along.error[-1] / float(last.error) < 5
    again = ar.state_evolution(SPIKED_NOISY, 0.9, 3, (path.q_k.value[2], path.q_v.value[2]))
    np.testing.assert_allclose(again.q_v.value, path.q_v.value[2:6], rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "words"),
    [((0.0, 5), "alpha"), ((1.0, 0), "steps = 0"), ((1.0, 5, (0.5, 1.0)), "start")],
)
def test_a_bad_state_evolution_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        ar.state_evolution(SPIKED_NOISY, *given)
