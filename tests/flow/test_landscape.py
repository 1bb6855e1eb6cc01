"""Minima and saddles of the risk, and how often gradient flow finds which."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.scipy.special import erf

import attnrisk as ar
from attnrisk.flow import Basins
from attnrisk.flow.state import Problem
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.exponential import Paths

SPIKED = ar.SpikedSLR(2.0, 10)


@pytest.mark.parametrize("attention", [ar.Softmax(), ar.Linear(), ar.Erf()], ids=lambda a: a.name)
def test_well_matched_minima_are_minima(attention):
    best = ar.population_minimum(SPIKED, attention)
    found = ar.certify(SPIKED, best.attention, best.overlaps)
    assert found.kind == "minimum"
    assert found.eigenvalues[0] > 0.01
    assert found.gradient_norm < 1e-6


def test_curvature_against_differences_of_the_risk():
    """Along `m_vv` the risk is a parabola, whose curvature the Hessian must hold."""
    found = ar.certify(SPIKED, ar.Linear(), ar.aligned(0.0, 1.0))
    below, at, above = (
        float(ar.population_risk(SPIKED, ar.Linear(), ar.aligned(0.0, m)).value)
        for m in (0.9, 1.0, 1.1)
    )
    assert found.kind == "not stationary"
    curvature = (below + above - 2 * at) / 0.01
    assert found.eigenvalues[0] <= curvature <= found.eigenvalues[-1]


@pytest.mark.optimised
def test_random_points_certify_too():
    """A softmax that is not recognised, against softmax itself."""
    task, best = ar.SpikedSLR(2.0, 2), ar.aligned(np.sqrt(2.0))
    exact = ar.certify(task, ar.Softmax(), best)
    found = ar.certify(task, ar.General(jax.nn.softmax), best)
    assert found.kind == exact.kind == "minimum"
    assert found.risk.kind is ar.ErrorKind.STANDARD
    np.testing.assert_allclose(found.eigenvalues, exact.eigenvalues, atol=0.01)
    elsewhere = ar.certify(task, ar.General(jax.nn.softmax), ar.aligned(1.0))
    assert elsewhere.kind == "not stationary"


def test_one_spare_direction_is_enough():
    """Outside the span of all vectors the Hessian is `2 E_Q`, with eigenvalues that a second direction repeats."""
    problem = Problem(SPIKED, ar.Linear())
    overlaps = ar.Overlaps(m_kk=0.7, m_kv=0.3, m_vk=-0.4, m_vv=0.8, q_kk=1.2, q_kv=0.25, q_vv=1.5)
    batch = jax.tree.map(lambda leaf: leaf[None], overlaps)
    (state,), (wide,) = problem.pack(batch), problem.pack(batch, spare=2)
    how = problem.plan(problem.limits(state[None])[0])

    @eqx.filter_jit
    def derivatives(problem, at, state):
        by = jax.grad(lambda at: how.risk(problem.task, problem.attention, at))(at)
        return by.Q + by.Q.T, jax.hessian(problem.risk)(state, how)

    expected, hessian = derivatives(*as_arrays((problem, overlaps, wide)))
    hessian = np.asarray(hessian).reshape(2, 6, 2, 6)
    for direction in (4, 5):
        np.testing.assert_allclose(hessian[:, direction, :, direction], expected, atol=1e-7)
        others = np.delete(hessian[:, direction], direction, -1)
        np.testing.assert_allclose(others, 0.0, atol=1e-9)


def test_answers_have_records():
    found = ar.record(ar.certify(SPIKED, ar.Linear(), ar.aligned(0.5, 1.0)))
    assert found["kind"] == "not stationary"
    assert found["result"] == ar.Result.NOT_STATIONARY
    assert not found["converged"]
    assert {"risk", "risk_error", "m_kk", "q_vv", "lowest_eigenvalue", "matched"} <= found.keys()
    counts = ar.record(Basins(3, 1, 0, np.zeros(4)))
    assert counts["matched"] == 3
    assert counts["matched_fraction"] == 0.75
    assert counts["matched_fraction_error"] > 0.1


@pytest.mark.slow
def test_softmax_is_trapped_among_ten_tokens_and_not_among_three():
    trap = ar.mismatched_minimum(SPIKED, ar.Softmax())
    assert trap.kind == "minimum"
    assert not trap.matched
    assert trap.eigenvalues[0] > 1e-3
    assert abs(float(trap.risk.value) - 0.931) < 5e-4
    escaped = ar.mismatched_minimum(ar.SpikedSLR(2.0, 3), ar.Softmax())
    assert escaped.matched
    np.testing.assert_allclose(
        escaped.risk.value, ar.bayes_risk(ar.SpikedSLR(2.0, 3)).value, atol=1e-9
    )


@pytest.mark.slow
def test_linear_attention_goes_on_along_a_valley():
    """`k = a v*`, `v = b k*` with `ab` fixed and `a → ∞` predicts `Σ z*χ*`: its best multiple has a closed form."""
    spiked = ar.mismatched_minimum(SPIKED, ar.Linear())
    assert spiked.kind == "not attained"
    assert abs(float(spiked.risk.value) - 10 / 12) < 10 * float(spiked.risk.error) < 1e-6


@pytest.mark.slow
def test_linear_attention_goes_on_along_a_valley_of_the_max_task_too():
    task = ar.MaxSLR(2.0, 10)
    found = ar.mismatched_minimum(task, ar.Linear())
    limit = 1 - float(ar.mean_relevant_field(task)) ** 2 / 10
    assert found.kind == "not attained"
    assert abs(float(found.risk.value) - limit) < 10 * float(found.risk.error) < 1e-4


@pytest.mark.parametrize("time", [0.0, 1e3])
def test_keys_that_leave_the_domain_need_not_diverge(monkeypatch, time):
    """A run that stops at once, and one whose risk falls ever faster as `k` grows."""

    def follow(problem, starts, times, *rest):
        growth = np.clip(np.log10(times), 0.0, 3.0) * (time > 0)
        points = np.zeros((times.size, 8))
        points[:, 0], points[:, 5] = 0.01 + 0.1 * growth, 1.0  # k along k*, v = v*
        return Paths(
            points[-1:], np.array([time]), points[None], np.array([ar.Result.LEFT_DOMAIN], object)
        )

    monkeypatch.setattr("attnrisk.flow.landscape.follow", follow)
    found = ar.mismatched_minimum(SPIKED, ar.Linear())
    assert found.result is ar.Result.LEFT_DOMAIN
    assert found.kind == "not stationary"
    assert not found.converged


def test_a_saddle_shows_the_way_down():
    """With `h(0) = 0` nothing moves at `k = v = 0`, but a step of both leads down."""
    odd = ar.Elementwise(erf)
    found = ar.certify(SPIKED, odd, ar.Overlaps())
    assert found.kind == "saddle"
    assert found.gradient_norm < 1e-12
    lower = ar.population_risk(SPIKED, odd, found.escape)
    assert float(lower.value) < float(found.risk.value) - 1e-3


@pytest.mark.slow
def test_basins_count_every_run():
    small = ar.basins(SPIKED, ar.Linear(), jax.random.key(0), runs=12, size=0.1)
    assert (small.matched, small.mismatched, small.unfinished) == (12, 0, 0)
    large = ar.basins(SPIKED, ar.Linear(), jax.random.key(0), runs=12, size=1.0)
    assert large.matched + large.mismatched + large.unfinished == 12
    assert large.matched < 12
    assert 0 < large.matched_fraction.error < 0.2
