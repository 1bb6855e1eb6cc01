"""`attnrisk erm` and `attnrisk optimal`: their fields, their words, and a mark on what did not converge."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning import ERMAsymptotics, Ridge, optimal_asymptotics

OVERLAPS = {"m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"}
SMALL = "--nu 2 --length 2 --alpha 2"
HARD = "--nu 2 --length 2 --alpha 1.05"


def answer(ran):
    """The one JSON object of a command that succeeded."""
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def made_up(alpha, ridge, test_risk=0.6, result=ar.Result.CONVERGED):
    """A fixed point without the work."""
    one = ar.Estimate(0.25 * np.eye(2), 1e-3 * np.eye(2))
    return ERMAsymptotics(
        test_risk=ar.Estimate(test_risk, 1e-3),
        train_error=ar.Estimate(0.3, 1e-3),
        objective=ar.Estimate(0.5, 1e-3),
        **dict.fromkeys(("M", "Q", "V"), one),
        alpha=alpha,
        ridge=ridge,
        result=result,
        start="teacher",
        residual=1e-3,
        steps=9,
        identities=np.zeros(4),
        replicon=0.5 if result.converged else 2.0,
        unresolved=0.0,
        jumps=0.0,
        slope=np.zeros(2),
    )


@cache
def optimum(alpha):
    return optimal_asymptotics(ar.SpikedSLR(2.0, 2), alpha)


@pytest.fixture
def learners(monkeypatch):
    """Softmax converges, any other does not; tuned ridges are 0.25 and 4."""

    def learned(task, attention, alpha, ridge):
        if attention.name == "softmax":
            return made_up(alpha, ridge)
        return made_up(alpha, ridge, 0.7, ar.Result.MAX_STEPS)

    def tuned(task, attention, alpha):
        return learned(task, attention, alpha, Ridge(0.25, 4.0))

    monkeypatch.setattr("attnrisk.learning.erm_asymptotics", learned)
    monkeypatch.setattr("attnrisk.learning.tuned_erm_asymptotics", tuned)
    monkeypatch.setattr("attnrisk.learning.optimal_asymptotics", lambda task, _: optimum(2.0))


def test_erm_in_json(run, monkeypatch):
    real = ar.erm_asymptotics

    def lighter(*given):
        return real(*given, log2_points=6)

    monkeypatch.setattr("attnrisk.learning.erm_asymptotics", lighter)
    fields = answer(
        run("erm", *SMALL.split(), "--attention", "linear", "--ridge-k", "0.5", "--json")
    )
    assert fields["test_risk"] == pytest.approx(0.61, abs=0.03)
    assert 0 < fields["test_risk_error"] < 0.02
    assert 0 < fields["train_error"] < fields["test_risk"]
    assert fields["converged"] is True
    assert fields["result"] == "converged"
    assert set(fields["overlaps"]) == OVERLAPS
    assert fields["overlaps"]["q_kk"] > fields["overlaps"]["m_kk"] ** 2 > 0
    assert set(fields["response"]) == {"V_k", "V_v"}
    assert fields["ridge"] == {"k": 0.5, "v": 1.0}
    assert fields["alpha"] == 2.0
    assert fields["optimal_risk"] <= fields["reachable_risk"] < fields["test_risk"]
    assert fields["attention"] == "linear"
    assert fields["replicon"] > 0
    assert fields["task"] == {"name": "spiked", "nu": 2, "length": "2", "noise": 0, "spread": 1}


@pytest.mark.usefixtures("learners")
class TestErm:
    def test_ridges_are_one_unless_given(self, run):
        assert answer(run("erm", "--alpha", "2", "--json"))["ridge"] == {"k": 1.0, "v": 1.0}
        fields = answer(run("erm", "--alpha", "2", "--ridge-v", "3", "--json"))
        assert fields["ridge"] == {"k": 1.0, "v": 3.0}
        assert fields["task"]["length"] == "3"

    def test_tuned_ridges(self, run):
        fields = answer(run("erm", "--alpha", "2", "--tune", "--json"))
        assert fields["ridge"] == {"k": 0.25, "v": 4.0}

    def test_several_attentions_in_json(self, run):
        fields = answer(run("erm", "--alpha", "2", "--attention", "linear,softmax", "--json"))
        assert "test_risk" not in fields
        assert [row["attention"] for row in fields["rows"]] == ["softmax", "linear"]
        assert [row["converged"] for row in fields["rows"]] == [True, False]

    def test_panel(self, run):
        ran = run("erm", "--alpha", "2", "--tune")
        assert ran.code == 0
        assert "softmax on the spiked task, ν = 5, L = 3, α = 2" in ran.out
        assert "0.600 ± 0.001" in ran.out
        assert "converged (start: teacher)" in ran.out
        assert "NOT CONVERGED" not in ran.out
        assert "r_k = 0.25, r_v = 4" in ran.out
        assert "replica" not in ran.out

    def test_an_unconverged_panel_is_marked(self, run):
        ran = run("erm", "--alpha", "2", "--attention", "linear")
        assert ran.code == 0
        assert "NOT CONVERGED: the largest number of steps was reached" in ran.out
        assert "replica symmetry is unstable" in ran.out

    def test_table(self, run, monkeypatch):
        monkeypatch.setattr("attnrisk.cli.render._WIDE", 80)
        out = run("erm", "--alpha", "2", "--attention", "linear,softmax,erf").out
        lines = [line.split() for line in out.splitlines() if " ± 0.001" in line]
        assert [words[0] for words in lines] == ["softmax", "linear", "erf"]
        assert [" ".join(words[7:]) for words in lines] == ["converged", *["! *"] * 2]
        assert "! NOT CONVERGED: the largest number of steps was reached (2 of 3)" in out
        assert "* replica symmetry is unstable" in " ".join(out.split())
        assert "(lowest achievable)" in out


def test_a_rival_is_told(run, monkeypatch):
    found = replace(made_up(2.0, Ridge(1.0, 1.0)), rivals=(made_up(2.0, Ridge(1.0, 1.0), 0.9),))
    monkeypatch.setattr("attnrisk.learning.erm_asymptotics", lambda *given: found)
    fields = answer(run("erm", *SMALL.split(), "--json"))
    assert [rival["test_risk"] for rival in fields["rivals"]] == [0.9]
    assert "0.900 ± 0.001" in run("erm", *SMALL.split()).out


@pytest.mark.parametrize(("bias", "shown"), [(-19.5, "→ −∞"), (19.5, "→ ∞")])
def test_a_bias_that_diverges_has_a_direction(run, monkeypatch, bias, shown):
    found = made_up(2.0, Ridge(1.0, 1.0), result=ar.Result.BECOMES_SOFTMAX)
    found = replace(found, bias=ar.Estimate(np.array(bias), np.array(np.inf)))
    monkeypatch.setattr("attnrisk.learning.erm_asymptotics", lambda *given: found)
    out = run("erm", *SMALL.split()).out
    assert f"learned bias       {shown}; the search ended at {bias:g}  " in out
    assert answer(run("erm", *SMALL.split(), "--json"))["bias_error"] == "inf"
    found = replace(found, result=ar.Result.CONVERGED)
    assert "learned bias       any: nothing depends on it" in run("erm", *SMALL.split()).out


def test_optimal_in_json(run):
    fields = answer(run("optimal", *HARD.split(), "--json"))
    assert fields["converged"] is True
    assert ar.bayes_risk(ar.SpikedSLR(2.0, 2)).value < fields["risk"] < fields["reachable_risk"] < 1
    assert 0 < fields["risk_error"] < 1e-3
    assert fields["hard"] is True
    assert fields["q_k"] == pytest.approx(2.1 / 3.1)  # all locations known
    assert fields["q_v"] == 1.0
    assert "thresholds" not in fields


def test_optimal_with_thresholds(run, monkeypatch):
    jumps = ar.Thresholds(ar.Estimate(1.0, 0.0), None)
    monkeypatch.setattr("attnrisk.learning.optimal_thresholds", lambda task: jumps)
    options = ("optimal", *HARD.split(), "--thresholds")
    fields = answer(run(*options, "--json"))["thresholds"]
    assert fields == {"information": {"alpha": 1.0, "error": 0.0}, "algorithmic": None}
    out = run(*options).out
    assert "at α = 1" in out
    assert "no jump" in out
    assert "NOT CONVERGED" not in out


@pytest.mark.usefixtures("learners")
def test_an_unconverged_optimum_is_marked(run, monkeypatch):
    found = optimum(1.05)
    moving = replace(found, reachable=replace(found.reachable, result=ar.Result.MAX_STEPS))
    monkeypatch.setattr("attnrisk.learning.optimal_asymptotics", lambda task, alpha: moving)
    out = run("optimal", *HARD.split()).out
    assert "NOT CONVERGED" in out
    assert "! not converged" in out
    for names in ("softmax", "linear,softmax"):
        out = run("erm", *HARD.split(), "--attention", names).out
        assert out.count("! not converged") == 1
    fields = json.loads(run("erm", *HARD.split(), "--attention", "softmax", "--json").out)
    assert fields["optimal_converged"] is False


BAD = [
    ("erm", "Missing option '--alpha'", "attnrisk erm --help"),
    ("erm --alpha 0", "--alpha = 0", "> 0 and ≤ 1000"),
    ("erm --alpha nan", "--alpha = nan", "> 0"),
    ("erm --alpha much", "--alpha = 'much'", "> 0"),
    ("erm --alpha 2 --ridge-k 0", "--ridge-k = 0", "> 0"),
    ("erm --alpha 2 --ridge-v -1", "--ridge-v = -1", "> 0"),
    ("erm --alpha 2 --ridge-v nan", "--ridge-v = nan", "> 0"),
    ("erm --alpha 2 --tune --ridge-v 1", "--ridge-v = 1", "left out where the ridges are tuned"),
    ("erm --alpha 2 --attention sofmax", "--attention = 'sofmax'", "(did you mean softmax?)"),
    ("erm --alpha 2 --length 1001", "--length = 1001", "at most 1000"),
    ("erm --alpha 2 --task weighted", "--task = 'weighted'", "one of spiked, max"),
    ("erm --alpha 2 --noise 1e12", "--noise = 1e+12", "at most 10000"),
    ("erm --alpha 2 --nu 1e12", "--nu = 1e+12", "at most 1e+06"),
    ("erm --alpha 1e12", "--alpha = 1e+12", "≤ 1000"),
    ("erm --alpha 2 --ridge-k 1e-300", "--ridge-k = 1e-300", "≥ 1e-09"),
    ("erm --alpha 2 --nu nan", "--nu = nan", "≥ 0"),
    ("optimal", "Missing option '--alpha'", "attnrisk optimal --help"),
    ("optimal --alpha -1", "--alpha = -1", "> 0 and ≤ 1000"),
    ("optimal --alpha inf", "--alpha = inf", "> 0"),
    ("optimal --alpha 2 --task max --length 1001", "--length = 1001", "at most 1000"),
    ("optimal --alpha 2 --task maxi", "--task = 'maxi'", "(did you mean max?)"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_bad_input_is_one_line(run, case):
    arguments, *words = case
    ran = run(*arguments.split())
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err
