"""Every task that can be learned: a spread, a weight of the user's, and tasks of the user's own kinds (section 6)."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning.newton import run_newton
from attnrisk.learning.problem import Problem
from attnrisk.tasks import AbstractPlanted, AbstractSelected, LengthLaw, fixed
from tests.agreement import distance

ONE, ALPHA = ar.Ridge(1.0, 1.0), 4.0


def _same(left, right, errors=4.0):
    """Two fixed points, up to their errors, which are not large."""
    for name in ("test_risk", "train_error", "m_k", "q_k", "V_k", "m_v", "q_v", "V_v"):
        one, two = getattr(left, name), getattr(right, name)
        error = np.hypot(float(one.error), float(two.error))
        assert abs(float(one) - float(two)) < errors * error + 1e-9, name
        assert error < 0.05, name


@pytest.mark.parametrize("kind", [pytest.param("spiked", marks=pytest.mark.slow), "max"])
def test_a_weight_is_learned_as_the_task_it_stands_for(kind):
    """The fixed point with drawn teacher fields, against the one with the law of the location given the scores."""
    if kind == "spiked":
        known, weight = ar.SpikedSLR(1.0, 3), lambda at, chi: chi[at] - 0.5
    else:
        known = ar.MaxSLR(2.0, 3)
        weight = lambda at, chi: jnp.log(3.0) + jax.nn.log_softmax(2.0 * chi)[at]  # noqa: E731
    exact = ar.erm_asymptotics(known, ar.Softmax(), ALPHA, ONE, log2_points=5)
    drawn = ar.erm_asymptotics(ar.WeightedSLR(weight, 3), ar.Softmax(), ALPHA, ONE, log2_points=6)
    assert exact.converged
    assert drawn.converged
    _same(exact, drawn)


class Ours(AbstractPlanted):
    name: ClassVar[str] = "ours"
    shift: Any = eqx.field(default=2.0**0.5)
    length: LengthLaw = fixed(3)
    noise: float = 0.0
    spread: float = 1.0

    def log_odds(self, chi):
        return self.shift * chi


class Chosen(AbstractSelected):
    name: ClassVar[str] = "chosen"
    sharpness: Any = 2.0
    length: LengthLaw = fixed(2)
    noise: float = 0.1

    def log_odds(self, chi):
        return self.sharpness * chi


@pytest.mark.parametrize(
    ("own", "known"),
    [
        (Ours(), ar.SpikedSLR(2.0, 3)),
        pytest.param(Chosen(), ar.MaxSLR(2.0, 2, noise=0.1), marks=pytest.mark.slow),
    ],
)
def test_tasks_of_the_users_kind_are_those_of_the_catalogue(own, known):
    one, two = (Problem.of(task, ar.Linear(), 4, 0) for task in (own, known))
    start = one.starts(ONE)[1].x
    np.testing.assert_array_equal(start, two.starts(ONE)[1].x)
    steps = (run_newton(each, ALPHA, ONE, each.starts(ONE)[1]).x for each in (one, two))
    np.testing.assert_allclose(*steps, rtol=1e-9)
    optima = (ar.optimal_asymptotics(task, ALPHA).risk for task in (own, known))
    assert len({float(each) for each in optima}) == 1


def test_one_token_of_any_spread_is_ridge_regression():
    """`L = 1`: features of variance `γ²` with a mean that does not matter, and `V` of section 6 in closed form."""
    spread, noise, ridge = 0.6, 0.3, 0.7
    task = ar.SpikedSLR(2.0, 1, noise=noise, spread=spread)
    found = ar.erm_asymptotics(task, ar.Softmax(), 2.0, ar.Ridge(1.0, ridge), log2_points=8)
    roots = np.roots([ridge * spread**2, ridge + 2.0 * spread**2 - spread**2, -1.0])
    V = float(roots[roots > 0][0])
    bend = 1 + spread**2 * V
    m = 2.0 * spread**2 * V / bend
    gain = 2.0 * spread**2 * V**2 / bend**2
    q = (m**2 + gain * (spread**2 * (1 - 2 * m) + noise**2)) / (1 - gain * spread**2)
    risk = noise**2 + spread**2 * (1 - 2 * m + q)
    for ours, exact in ((found.V_v, V), (found.m_v, m), (found.q_v, q), (found.test_risk, risk)):
        assert abs(float(ours) - exact) < 4 * float(ours.error) + 1e-6


def test_the_optimum_with_a_spread_is_a_regression():
    """Much data leave the label noise; without noise `v*` is found from `α = 1` on; at most one draws level with it."""
    task = ar.SpikedSLR(2.0, 3, noise=0.3, spread=0.6)
    assert float(ar.optimal_asymptotics(task, 1e6).risk) == pytest.approx(0.09, rel=1e-4)
    assert float(ar.optimal_asymptotics(task, 1e-6).risk) == pytest.approx(0.45, rel=1e-4)
    clean = ar.SpikedSLR(2.0, 3, spread=0.6)
    assert float(ar.optimal_asymptotics(clean, 0.5).risk) == pytest.approx(0.18)
    assert float(ar.optimal_asymptotics(clean, 1.5).risk) == 0.0
    # Of spread one and very strong signal the location is known too.
    strong = ar.SpikedSLR(1e4, 3, noise=0.5)
    assert float(ar.optimal_asymptotics(strong, 2.0).risk) == pytest.approx(
        float(ar.optimal_asymptotics(ar.SpikedSLR(1e4, 3, noise=0.5, spread=1 + 1e-9), 2.0).risk),
        abs=1e-3,
    )


def test_refusals_name_the_reason():
    weighted = ar.WeightedSLR(lambda at, chi: chi[at] - 0.5, 3)
    with pytest.raises(ValueError, match="mean given noisy fields"):
        ar.optimal_asymptotics(weighted, 1.0)
    with pytest.raises(ValueError, match="norm of a token"):
        ar.state_evolution(ar.SpikedSLR(2.0, 3, spread=0.5), 1.0, 3)


@pytest.mark.slow
def test_experiments_with_a_spread_agree():
    """Three sizes, `1/D` removed; the theory without the spread is rejected."""
    task, ridge = ar.SpikedSLR(2.0, 3, noise=0.2, spread=0.6), ar.Ridge(0.2, 0.5)
    theory = ar.erm_asymptotics(task, ar.Softmax(), 6.0, ridge, log2_points=10)
    dims, runs = (100, 200, 400), []
    for dim in dims:
        data = (ar.sample(task, jax.random.key(seed), 6 * dim, dim) for seed in range(32))
        runs.append([ar.fit_erm(each, ar.Softmax(), ridge) for each in data])
    for name in ("test_risk", "train_error"):
        measured = [[float(getattr(fit, name)) for fit in fits] for fits in runs]
        assert abs(distance(dims, measured, getattr(theory, name))) < 4
    plain = ar.erm_asymptotics(ar.SpikedSLR(2.0, 3, noise=0.2), ar.Softmax(), 6.0, ridge)
    assert abs(distance(dims, measured, plain.train_error)) > 4
