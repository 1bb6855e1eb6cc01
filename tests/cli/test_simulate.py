"""`attnrisk simulate`: its fields, its words, bad input, and an interrupt."""

import json
import signal
from dataclasses import replace

import jax
import pytest

import attnrisk as ar
from attnrisk import simulation

OVERLAPS = {"m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"}
SMALL = "simulate --alpha 3 --dim 30 --nu 2 --length 2 --ridge-k 0.5 --seed 4"


def answer(ran):
    """The one JSON object of a command that succeeded."""
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


@pytest.fixture(scope="module")
def fit():
    """What the small command finds."""
    for_data, for_start, _ = jax.random.split(jax.random.key(4), 3)
    data = ar.sample(ar.SpikedSLR(2.0, 2), for_data, 90, 30)
    return ar.fit_erm(data, ar.Softmax(), ar.Ridge(0.5, 1.0), for_start)


def test_json(run, fit):
    fields = answer(run(*SMALL.split(), "--test-set", "2000", "--json"))
    assert fields["test_risk"] == pytest.approx(float(fit.test_risk), rel=1e-6)
    assert 0 < fields["test_risk_error"] < 1e-9
    assert fields["train_error"] == pytest.approx(fit.train_error, rel=1e-6)
    assert fields["objective"] == pytest.approx(fit.objective, rel=1e-9)
    assert fields["converged"] is True
    assert fields["result"] == "converged"
    assert set(fields["overlaps"]) == OVERLAPS
    assert fields["overlaps"]["m_vv"] == pytest.approx(fit.overlaps.m_vv, abs=1e-4)
    assert 0 < fields["seconds"] < 100
    assert (fields["n"], fields["dim"], fields["alpha"]) == (90, 30, 3.0)
    assert fields["ridge"] == {"k": 0.5, "v": 1.0}
    assert fields["precision"] == "float64"
    assert fields["seed"] == 4
    assert fields["task"] == {"name": "spiked", "nu": 2, "length": "2", "noise": 0, "spread": 1}
    assert {fields["start"], fields["rivals"][0]["start"]} == {"random", "teacher"}
    error = fields["test_set_risk_error"]
    assert abs(fields["test_set_risk"] - fields["test_risk"]) < 4 * error


@pytest.fixture
def fitted(monkeypatch, fit):
    """Every fit is this one, and what it was asked for is kept."""
    asked = []

    def found(data, attention, ridge, key, watch):
        asked.append((data, attention, ridge))
        watch(0, 1.0)
        watch(10, 0.0)
        return replace(fit, attention=attention, ridge=ridge)

    monkeypatch.setattr(simulation, "fit_erm", found)
    monkeypatch.setattr(simulation, "sample", simulation.stream)  # nothing to draw
    return asked


@pytest.mark.parametrize(("name", "bias"), [("softplus", "free"), ("erf", "default")])
def test_a_learned_bias_is_shown(run, fitted, monkeypatch, fit, name, bias):
    learned = ar.get_attention(name, 0.125)
    monkeypatch.setattr(
        simulation, "fit_erm", lambda *given, watch: replace(fit, attention=learned)
    )
    assert (
        "learned bias           0.125"
        in run(*SMALL.split(), "--attention", name, "--bias", bias).out
    )


def test_panel(run, fitted):
    ran = run(*SMALL.split())
    assert ran.code == 0
    assert "softmax on the spiked task, ν = 2, L = 2, α = 3" in ran.out
    assert "converged after" in ran.out
    assert "NOT CONVERGED" not in ran.out
    assert "N = 90, D = 30" in ran.out
    assert "r_k = 0.5, r_v = 1" in ran.out
    assert "m_kk = " in ran.out
    assert "given this fit" in ran.out
    assert "test set" not in ran.out


def test_every_option_reaches_the_library(run, fitted):
    options = "--task max --nu inf --length 1-3 --noise 0.1 --attention linear --precision float32"
    fields = answer(run("simulate", "--alpha", "0.5", "--dim", "9", *options.split(), "--json"))
    ((data, attention, ridge),) = fitted
    assert repr(data.task) == repr(ar.MaxSLR(float("inf"), ar.uniform(1, 3), 0.1))
    assert (data.n, data.dim, data.precision) == (4, 9, "float32")
    assert (attention.name, ridge.k, ridge.v) == ("linear", 1.0, 1.0)
    assert fields["test_set_risk"] is None


def test_an_unconverged_fit_is_marked(run, fitted, fit, monkeypatch):
    stalled = replace(fit, result=ar.Result.STALLED)
    monkeypatch.setattr(simulation, "fit_erm", lambda *given, **more: stalled)
    ran = run(*SMALL.split())
    assert "NOT CONVERGED: no step lowers the objective after" in ran.out
    assert answer(run(*SMALL.split(), "--json"))["converged"] is False


def test_an_interrupted_fit_is_shown_with_a_message(run, fitted, fit, monkeypatch):
    stopped = replace(fit, result=ar.Result.INTERRUPTED)
    monkeypatch.setattr(simulation, "fit_erm", lambda *given, **more: stopped)
    ran = run(*SMALL.split(), "--json")
    assert ran.code == 130
    assert ran.err == "Interrupted: this is the best point so far, not a minimum\n"
    assert json.loads(ran.out)["result"] == "interrupted"


def test_an_interrupt_before_there_is_a_point_is_no_traceback(run, fitted, monkeypatch):
    def interrupted(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "fit_erm", interrupted)
    ran = run(*SMALL.split())
    assert (ran.code, ran.out, ran.err) == (130, "", "Interrupted\n")


def test_an_interrupt_waits_until_a_step_is_done(run, monkeypatch):
    """While the data are drawn, and while the fit compiles, it is put off: jax may crash otherwise."""
    monkeypatch.setattr("attnrisk.cli.interrupts._GRACE", 600.0)  # on a machine that is busy
    real, done = simulation.fit_erm, []

    def pressed(*given, **more):
        signal.raise_signal(signal.SIGINT)
        done.append("survived")
        return real(*given, **more)

    monkeypatch.setattr(simulation, "fit_erm", pressed)
    ran = run(*SMALL.split(), "--json")
    assert done == ["survived"]
    assert ran.code == 130
    assert json.loads(ran.out)["result"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_does_not_fit_is_refused_before_it_starts(run, monkeypatch):
    monkeypatch.setattr("attnrisk.simulation.data.free_memory", lambda: 2.0**20)
    ran = run("simulate", "--alpha", "1", "--dim", "1000")
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "0.0224 GiB" in ran.err
    assert "stream" in ran.err


BAD = [
    ("simulate --dim 10", "Missing option '--alpha'"),
    ("simulate --alpha 2", "Missing option '--dim'"),
    ("simulate --alpha 0 --dim 10", "--alpha = 0", "> 0"),
    ("simulate --alpha nan --dim 10", "--alpha = nan", "> 0"),
    ("simulate --alpha 2 --dim 1", "--dim = 1", "from 2 to"),
    ("simulate --alpha 2 --dim ten", "--dim = 'ten'", "whole number"),
    ("simulate --alpha 1e9 --dim 10", "--alpha = 1e9", "N = alpha · dim"),
    ("simulate --alpha 1e-9 --dim 10", "--alpha = 1e-9", "N = alpha · dim"),
    ("simulate --alpha 2 --dim 10 --ridge-k 0", "--ridge-k = 0", "> 0"),
    ("simulate --alpha 2 --dim 10 --ridge-v x", "--ridge-v = 'x'", "> 0"),
    ("simulate --alpha 2 --dim 10 --seed -1", "--seed = -1", "from 0 to"),
    ("simulate --alpha 2 --dim 10 --test-set -5", "--test-set = -5", "from 0 to"),
    ("simulate --alpha 2 --dim 10 --test-set 1", "--test-set = 1", "0 or "),
    ("simulate --alpha 2 --dim 10 --precision half", "--precision = 'half'", "float32"),
    ("simulate --alpha 2 --dim 10 --attention sofmax", "--attention = 'sofmax'", "did you mean"),
    ("simulate --alpha 2 --dim 10 --task weighted", "--task = 'weighted'", "one of spiked, max"),
    ("simulate --alpha 2 --dim 10 --noise 1e12", "--noise = 1e+12", "at most 10000"),
    ("simulate --alpha 2 --dim 10 --nu -1", "--nu = -1", "≥ 0"),
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
