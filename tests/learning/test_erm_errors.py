"""Errors of the theory of empirical risk minimisation: samples that jump, more points, and other seeds."""

import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning import erm
from attnrisk.learning.equations import map_step
from attnrisk.learning.newton import distinct, run_newton
from attnrisk.learning.problem import Problem

SPIKED = ar.SpikedSLR(2.0, 3)
ONE = ar.Ridge(1.0, 1.0)
STEEP = (ar.SpikedSLR(5.0, 3), ar.Softmax(), 1.2, ar.Ridge(0.09, 0.24))


@pytest.mark.optimised
def test_samples_that_jump_between_minima_widen_the_error():
    """One difference of the map, against the derivative in all six unknowns by differences."""
    task, attention, alpha, ridge = STEEP
    problem = Problem.of(task, attention, 7, 0)
    starts = problem.starts(ridge)
    (best, *_) = distinct([run_newton(problem, alpha, ridge, start) for start in starts])
    steps, given = 0.03 * np.abs(best.x), (alpha, ridge, best.displacements)

    def searched(x):
        return map_step(problem, x, *given, known=best.step)[1].target

    sides = [[searched(best.x + side * step) for side in (1.0, -1.0)] for step in np.diag(steps)]
    jacobian = np.array([above - below for above, below in sides]).T / (2.0 * steps)
    whole = best._replace(step=best.step._replace(jacobian=jacobian))
    found = problem.report(best)
    unit = np.eye(best.x.size)[best.layout.places.values.M[0, 0]]
    smooth, exact = (it.error(unit) for it in (best, whole))
    assert exact > 1.2 * smooth
    assert abs(found.m_v.error / exact - 1) < 0.3
    assert found.jumps > 0.05
    assert "jump" in found.warning


def test_more_points_need_no_more_derivatives(monkeypatch):
    """With those of the first points, the fixed point of all, and nearly its errors."""
    whole = ar.erm_asymptotics(SPIKED, ar.Softmax(), 4.0, ONE, log2_points=6)
    first = ar.erm_asymptotics(SPIKED, ar.Softmax(), 4.0, ONE, log2_points=5)
    monkeypatch.setattr(erm, "LOG2_SLOPES", 5)
    ours = ar.erm_asymptotics(SPIKED, ar.Softmax(), 4.0, ONE, log2_points=6)
    assert ours.converged
    np.testing.assert_allclose(ours.identities, 0.0, atol=1e-6)
    for name in ("test_risk", "train_error", "m_k", "V_v"):
        a, b = getattr(ours, name), getattr(whole, name)
        assert abs(float(a) - float(b)) < 1e-6, name
        assert abs(float(a.error) / float(b.error) - 1) < 0.1, name
    assert abs(float(first.test_risk) - float(whole.test_risk)) > 1e-4


def test_more_points_may_reorder_or_merge_fixed_points(monkeypatch):
    """The best on few points is a rival where its objective on all points is the higher one."""
    problem = Problem.of(SPIKED, ar.Softmax(), 5, 0)
    first = problem.first_points(1)
    low = run_newton(first, 4.0, ONE, first.starts(ONE)[1])
    apart = 0.1 * np.eye(low.x.size)[low.layout.places.values.M[0, 0]]
    there = {name: getattr(low.step, name) - apart for name in ("target", "replicates")}
    step = low.step._replace(train=low.step.train + 0.1, **there)
    high = low._replace(x=low.x - apart, step=step)

    def swapped(_, rough):
        train = low.step.train + (0.2 if rough is low else 0.1)
        return rough._replace(step=rough.step._replace(train=train), rough=rough)

    monkeypatch.setattr(Problem, "find_all", lambda *_: [high, low])
    monkeypatch.setattr(Problem, "moved_from", swapped)
    found = first.solve(4.0, ONE, problem)
    (rival,) = found.rivals
    assert float(found.m_v) == pytest.approx(float(rival.m_v) - 0.1)
    assert float(found.objective) < float(rival.objective)
    monkeypatch.setattr(Problem, "moved_from", lambda *_: low)
    assert first.solve(4.0, ONE, problem).rivals == ()


@pytest.mark.slow
@pytest.mark.parametrize(("nu", "alpha"), [(2.0, 4.0), (4.0, 2.0)])
def test_a_standard_error_of_one_in_ten_thousand(nu, alpha):
    """With `2^12` points; two seeds agree."""
    found = [
        ar.erm_asymptotics(ar.SpikedSLR(nu, 3), ar.Softmax(), alpha, ONE, seed, log2_points=12)
        for seed in range(2)
    ]
    one, two = (it.test_risk for it in found)
    assert max(one.error, two.error) < 1e-4
    assert abs(float(one) - float(two)) < 4 * np.hypot(one.error, two.error)


@pytest.mark.slow
def test_the_error_is_the_scatter_between_seeds():
    """Also where the risk is steep, and where it is not, no sample jumps."""
    for problem, jumps in ((STEEP, True), ((SPIKED, ar.Softmax(), 4.0, ar.Ridge(1.0, 1.0)), False)):
        found = [ar.erm_asymptotics(*problem, seed, 7) for seed in range(24)]
        risks, errors = np.array([(float(it.test_risk), it.test_risk.error) for it in found]).T
        assert abs(np.std(risks, ddof=1) / np.sqrt(np.mean(errors**2)) - 1) < 0.3
        assert (np.mean([it.jumps for it in found]) > 0.05) == jumps
