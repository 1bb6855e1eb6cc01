"""`attnrisk amp`: its fields, its words, and what an interrupt leaves."""

import json
from functools import cache

import pytest

import attnrisk as ar
from attnrisk.simulation import amp

SMALL = ("--nu", "2", "--length", "3", "--alpha", "2", "--dim", "60")


def test_json(run):
    ran = run("amp", *SMALL, "--noise", "0.1", "--seed", "1", "--json")
    assert (ran.code, ran.err) == (0, "")
    fields = json.loads(ran.out)
    assert fields["converged"] is True
    assert fields["result"] == "converged"
    assert 0.4 < fields["q_k"] < 1.1
    assert fields["q_k"] == pytest.approx(fields["overlaps"]["m_kk"])
    assert fields["q_v"] == pytest.approx(fields["overlaps"]["m_vv"])
    assert 0 < fields["expected_q_k"] < 1
    limit = ar.optimal_asymptotics(ar.SpikedSLR(2.0, 3, noise=0.1), 2.0).reachable
    assert fields["theory"]["risk"] == float(limit.risk)
    assert fields["theory"]["q_v"] == float(limit.q_v)
    assert abs(fields["risk"] - fields["theory"]["risk"]) < 0.3
    assert (fields["n"], fields["dim"], fields["alpha"], fields["seed"]) == (120, 60, 2.0, 1)
    assert fields["iterations"] > 5
    assert fields["start"] == "nothing"


@cache
def _optimum():
    return ar.optimal_asymptotics(ar.SpikedSLR(2.0, 3), 2.0)


@pytest.fixture
def _solved_once(monkeypatch):
    """The theory is that of the first test."""
    optimum = _optimum()
    monkeypatch.setattr("attnrisk.learning.optimal_asymptotics", lambda task, alpha: optimum)


@pytest.mark.usefixtures("_solved_once")
def test_table(run):
    ran = run("amp", *SMALL)
    assert ran.code == 0
    assert "Message passing on the spiked task, ν = 2, L = 3, α = 2, D = 60" in " ".join(
        ran.out.split()
    )
    for name in ("risk", "q_k", "q_v", "difference"):
        assert name in ran.out
    assert "converged (" in ran.out
    assert "NOT CONVERGED" not in ran.out


@pytest.mark.usefixtures("_solved_once")
def test_an_unfinished_path_is_marked(run):
    ran = run("amp", *SMALL, "--steps", "2")
    assert ran.code == 0
    assert "! NOT CONVERGED: the largest number of steps" in ran.out


@pytest.mark.usefixtures("_solved_once")
def test_an_interrupt_leaves_what_there_is(run, monkeypatch):
    step = amp.advance

    def interrupted(*given):
        if float(given[-1].messages.variances[1]) < 0.5:
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(amp, "advance", interrupted)
    ran = run("amp", *SMALL, "--json")
    assert ran.code == 130
    assert json.loads(ran.out)["converged"] is False
    assert ran.err.count("\n") == 1
    assert "Interrupted after" in ran.err


BAD = [
    ("amp --dim 10", "Missing option '--alpha'", "attnrisk amp --help"),
    ("amp --alpha 1", "Missing option '--dim'", "attnrisk amp --help"),
    ("amp --alpha 0 --dim 10", "--alpha = 0", "> 0"),
    ("amp --alpha nan --dim 10", "--alpha = nan", "> 0"),
    ("amp --alpha 1 --dim 1", "--dim = 1", "from 2"),
    ("amp --alpha 1 --dim ten", "--dim = 'ten'", "whole number"),
    ("amp --alpha 1 --dim 10 --seed -1", "--seed = -1", "from 0"),
    ("amp --alpha 1 --dim 10 --damping 1", "--damping = 1", "≥ 0 and < 1"),
    ("amp --alpha 1 --dim 10 --damping -0.1", "--damping = -0.1", "≥ 0 and < 1"),
    ("amp --alpha 1 --dim 10 --steps 0", "--steps = 0", "from 1"),
    ("amp --alpha 1 --dim 10 --start techer", "--start = 'techer'", "(did you mean teacher?)"),
    ("amp --alpha 1 --dim 10 --task max --length 1001", "--length = 1001", "at most 1000"),
    ("amp --alpha 1 --dim 10 --precision half", "--precision = 'half'", "float32"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_bad_input_is_one_line(run, case):
    arguments, *words = case
    ran = run(*arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err
