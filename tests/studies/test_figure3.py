"""Figure 3: its curves agree with their limits, and its marks say what to distrust."""

from math import inf
from types import SimpleNamespace

import made_up_figures
import numpy as np
import pytest
from made_up_figures import changed, learning_row

import attnrisk as ar
from attnrisk._rows import BAYES
from attnrisk.learning import Ridge
from attnrisk.studies import Session, questions
from attnrisk.studies.figures import figure3
from attnrisk.studies.figures.figure3 import REACHABLE, Grid
from attnrisk.studies.figures.rows import beside
from attnrisk.studies.questions import LearningCurve, Thresholds

TINY = Grid((("spiked", 2.0),), (2.0, 6.0), (0.5, 1.1, 6.0), {"spiked": 5}, 100, 2)
JUMP = 1.24
PLACE = {"task": "spiked", "nu": 2.0, "length": "3"}


@pytest.fixture(scope="module")
def optimum():
    """Rows of the Bayes optimum; where it jumps is known."""
    session, jumps = Session(), {"algorithmic": JUMP}

    def ask(asked):
        asked = list(asked)
        return [jumps] if isinstance(asked[0], Thresholds) else session(asked)

    return figure3.optimum("spiked", 2.0, TINY, ask)


def learner(name, alphas=(0.5, 2.0, 6.0)):
    """A curve without the work, and its limit."""
    ridges = {"ridge_k": 1.0, "ridge_v": 1.0}
    curve = [learning_row(PLACE, name, alpha, 1 / (1 + alpha), 1e-3, **ridges) for alpha in alphas]
    return [*curve, learning_row(PLACE, name, inf, 0.1, 0.0)]


@pytest.fixture
def rows(optimum):
    return [*learner("softmax"), *learner("linear"), *optimum]


def lines(axes, **wanted):
    """Those lines of a panel that have points and these properties."""
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    return [
        line
        for line in drawn
        if all(getattr(line, f"get_{name}")() == value for name, value in wanted.items())
    ]


@pytest.mark.slow
def test_learned_curve():
    most, least = LearningCurve("spiked", 2.0, "3", "linear", TINY.alphas, 5).answer()
    assert [most["alpha"], least["alpha"]] == [6.0, 2.0]
    for found in (most, least):
        assert found["result"] == "converged"
        assert found["test_risk_error"] > 0
        assert min(found["ridge_k"], found["ridge_v"]) > 0
    limit = float(ar.linear_risk(ar.SpikedSLR(2.0, 3)))
    assert limit < most["test_risk"] < least["test_risk"] < 1.0


@pytest.mark.parametrize("retry_converges", [False, True])
def test_ridges_start_from_the_last_that_converged(monkeypatch, retry_converges):
    """Where it does not converge from there, it is tried without."""
    starts = []

    def tuned(task, student, alpha, seed, log2_points, start):
        starts.append((alpha, start and (start.ridge, start.x[0])))
        converged = alpha != 2.0 or (retry_converges and start is None)
        order = ar.Estimate(alpha * np.eye(2), np.zeros((2, 2)))
        return SimpleNamespace(
            recorded=("test_risk", "result"),
            test_risk=ar.Estimate(0.5, 0.0),
            ridge=Ridge(alpha, 1.0),
            **dict.fromkeys("MQV", order),
            bias=None,
            converged=converged,
            result="converged" if converged else "steps over",
        )

    monkeypatch.setattr(questions, "tuned_erm_asymptotics", tuned)
    asked = LearningCurve("spiked", 2.0, "3", "linear", (0.5, 1.0, 2.0, 6.0), 5)
    results = [each["result"] for each in asked.answer()]
    first, second, last = ((Ridge(alpha, 1.0), alpha) for alpha in (6.0, 2.0, 1.0))
    retried = [(6.0, None), (2.0, first), (2.0, None)]
    assert starts == [*retried, (1.0, second if retry_converges else None), (0.5, last)]
    second_result = "converged" if retry_converges else "steps over"
    assert results == ["converged", second_result, "converged", "converged"]


@pytest.mark.slow
def test_experiments_lie_on_the_theory():
    theory = ar.erm_asymptotics(ar.SpikedSLR(2.0, 3), ar.Linear(), 4.0, Ridge(0.6, 12.0), 0, 6)
    risk, error = float(theory.test_risk), float(theory.test_risk.error)
    grid = TINY._replace(alphas=(1.0, 4.0), size=300, runs=3)
    learned = changed(learner("linear", (4.0,))[0], ridge_k=0.6, ridge_v=12.0)
    (found,) = figure3.experiments(grid, [learned], Session())
    assert (found.curve, found.size, found.runs, found.warning) == ("linear", 300, 3, None)
    assert (found.ridge_k, found.ridge_v) == (0.6, 12.0)
    assert 0 < found.error < 0.1
    assert abs(found.risk - risk) < 3 * error + 3 * found.error
    figure = figure3.plot([*learner("softmax"), *learner("linear"), *made_up_optimum(), found])
    (square,) = lines(figure.axes[0], marker="s")
    assert (list(square.get_xdata()), list(square.get_ydata())) == ([4.0], [found.risk])
    assert "simulation, $\\sqrt{ND} = 300$" in [text.get_text() for text in figure.legends[0].texts]


def made_up_optimum():
    """Both branches on one line."""
    return [
        learning_row(PLACE, curve, alpha, 0.2, 0.0)
        for curve in (BAYES, REACHABLE)
        for alpha in (0.5, 2.0, 6.0)
    ]


@pytest.mark.optimised
def test_the_optimum_jumps_at_one_and_is_out_of_reach_for_a_while(optimum):
    best = {row.alpha: row for row in optimum if row.curve == BAYES}
    reached = {row.alpha: row for row in optimum if row.curve == REACHABLE}
    assert list(best) == list(reached) == sorted(best)
    assert len(best) == len(TINY.optimal_alphas) + 4
    before, after = (best[side] for side in beside(1.0))
    assert before.risk - after.risk > 0.05
    hard = [alpha for alpha in best if figure3._is_hard(best[alpha], reached[alpha])]
    assert hard == [alpha for alpha in best if 1.0 < alpha < JUMP]


def test_experiments_take_the_ridges_of_the_theory():
    asked = []

    def ask(questions):
        questions = list(questions)
        asked.extend(questions)
        return made_up_figures.ask(questions)

    rows = figure3.compute(TINY, ask)
    trials = [each for each in asked if isinstance(each, questions.Simulate)]
    expected = [("softmax", 0), ("softmax", 1), ("linear", 0), ("linear", 1)]
    assert [(trial.attention, trial.seed) for trial in trials] == expected
    assert {(trial.alpha, trial.ridge_k, trial.ridge_v) for trial in trials} == {(6.0, 1.0, 2.0)}
    first, second = [row for row in rows if row.size is not None]
    assert (first.curve, first.runs, first.error) == ("softmax", 2, pytest.approx(0.02 / 2**0.5))
    assert second.curve == "linear"


def test_what_did_not_converge_is_a_cross(rows):
    assert not lines(figure3.plot(rows).axes[0], marker="x")
    figure = figure3.plot([changed(rows[0], result="steps over"), *rows[1:]])
    (cross,) = lines(figure.axes[0], marker="x")
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([0.5], [rows[0].risk])
    assert "not converged" in [text.get_text() for text in figure.legends[0].texts]


def test_an_infimum_is_not_a_failure(rows):
    infimum = str(ar.Result.K_DIVERGES)
    limits = [changed(row, result=infimum) if row.alpha == inf else row for row in rows]
    assert not lines(figure3.plot(limits).axes[0], marker="x")


def test_unstable_points_are_hollow(rows):
    axes = figure3.plot([changed(rows[0], warning="unstable"), *rows[1:]]).axes[0]
    (hollow,) = lines(axes, marker="o", fillstyle="none")
    assert list(hollow.get_xdata()) == [0.5]


def test_the_reachable_ends_on_the_optimum(rows, optimum):
    axes = figure3.plot(rows).axes[0]
    (reached,) = lines(axes, color=figure3.GREY)
    best = [row for row in optimum if row.curve == BAYES and 1.0 < row.alpha < JUMP]
    assert reached.get_xdata()[0] == pytest.approx(best[0].alpha)
    assert reached.get_xdata()[-1] == pytest.approx(best[-1].alpha)
    assert reached.get_ydata()[-1] == pytest.approx(best[-1].risk, abs=1e-3)
    assert reached.get_ydata()[-2] > best[-1].risk + 0.05
