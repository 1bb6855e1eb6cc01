"""`attnrisk flow`: the path of one run, the ends of many, and a mark on those that did not converge."""

import json

import jax
import numpy as np
import pytest

import attnrisk as ar
from attnrisk import Result
from attnrisk.cli.flow import times_to
from attnrisk.flow import Flow, swapped_starts

OVERLAPS = {"m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"}
SWAPPED = "--m-kv 1 --m-vk 1 --q-kk 1 --q-vv 1"


def answer(ran):
    """The one JSON object of a command that succeeded."""
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def flow(run, options):
    return run("flow", *options.split())


def test_one_run_in_json(run):
    fields = answer(flow(run, "--attention linear --json"))
    assert fields["result"] == "converged"
    assert fields["converged"] is True
    assert fields["risk"] == pytest.approx(1 / (1 + 1 / 9 + 2 / 10), abs=1e-9)  # section 4.4
    assert 0 < fields["risk_error"] < 1e-9
    assert set(fields["overlaps"]) == OVERLAPS
    assert fields["overlaps"]["m_kk"] == pytest.approx(0.9 * 2**0.5, abs=1e-3)
    assert fields["bias"] is None
    assert fields["attention"] == "linear"
    assert fields["task"]["nu"] == 2.0
    path = fields["path"]
    assert path[0]["time"] == 0.0
    assert path[-1]["time"] == fields["time"] < 1e5
    assert path[-1]["risk"] == fields["risk"]
    assert np.all(np.diff([moment["time"] for moment in path]) > 0)
    assert np.all(np.diff([moment["risk"] for moment in path]) < 1e-9)
    assert path[-1]["gradient_norm"] < 1e-5 < path[0]["gradient_norm"]
    assert all(set(moment["overlaps"]) == OVERLAPS for moment in path)


@pytest.mark.slow
def test_a_run_that_leaves_the_domain_is_marked(run):
    # Linear attention from swapped roles has no minimum: k grows and v shrinks.
    fields = answer(flow(run, f"--attention linear --time 1e9 {SWAPPED} --json"))
    assert fields["converged"] is False
    given = {"m_kv": 1.0, "m_vk": 1.0, "q_kk": 1.0, "q_vv": 1.0}
    assert fields["path"][0]["overlaps"] == pytest.approx(dict.fromkeys(OVERLAPS, 0.0) | given)
    assert fields["overlaps"]["q_kk"] > 100.0
    assert 10 / 12 < fields["risk"] < 0.835


@pytest.fixture
def drifted(monkeypatch):
    """Runs without the work: none moves. The first converges, if it has time until 50, and the second leaves."""

    def gradient_flow(task, attention, start, times):
        runs, times = len(start.m_kk), np.array(times)
        end_time = np.minimum([50.0, *[times[-1]] * runs], times[-1])[:runs]
        first = Result.CONVERGED if times[-1] > 50.0 else Result.TIME_OVER
        results = [first, Result.LEFT_DOMAIN, *[Result.TIME_OVER] * runs][:runs]
        still = np.ones((runs, times.size))
        return Flow(
            times=times,
            overlaps=jax.tree.map(
                lambda leaf: np.asarray(leaf)[:, None] * still[..., None, None], start
            ),
            bias=0.25 * still,
            risk=ar.Estimate(0.5 * still, 1e-12 * still),
            gradient_norm=1e-3 * still,
            end=start,
            end_bias=0.25 * still[:, 0],
            end_time=end_time,
            end_risk=ar.Estimate(0.5 * still[:, 0], 1e-12 * still[:, 0]),
            result=np.array(results),
        )

    monkeypatch.setattr("attnrisk.flow.gradient_flow", gradient_flow)


@pytest.mark.usefixtures("drifted")
class TestPresentation:
    def test_several_runs_in_json(self, run):
        fields = answer(flow(run, "--runs 3 --seed 4 --json"))
        assert "path" not in fields
        results = [each["result"] for each in fields["runs"]]
        assert results == [Result.CONVERGED, Result.LEFT_DOMAIN, Result.TIME_OVER]
        assert [each["converged"] for each in fields["runs"]] == [True, False, False]
        assert [each["time"] for each in fields["runs"]] == [50.0, 1e5, 1e5]
        assert len({each["path"][0]["overlaps"]["m_kk"] for each in fields["runs"]}) == 3

    def test_seed(self, run):
        starts = [flow(run, f"--seed {seed} --json").out for seed in (3, 3, 4)]
        assert starts[0] == starts[1] != starts[2]

    def test_path_table(self, run):
        ran = flow(run, "--attention linear")
        assert ran.code == 0
        assert "linear on the spiked task, ν = 2, L = 10" in ran.out
        assert "result    converged" in ran.out
        assert "NOT CONVERGED" not in ran.out
        lines = [line.split() for line in ran.out.splitlines()]
        head = "time risk m_kk m_kv m_vk m_vv R_kk R_kv R_vv gradient"
        assert head in map(" ".join, lines)
        rows = [line for line in lines if len(line) == 12 and line[2] == "±"]
        assert [rows[0][0], rows[1][0], rows[-1][0]] == ["0", "0.01", "50"]
        assert 10 <= len(rows) <= 20

    def test_runs_table(self, run):
        out = flow(run, "--runs 3").out
        lines = [line for line in out.splitlines() if "0.50000000" in line]
        ends = [" converged", " !", " !"]
        assert all(line.rstrip().endswith(end) for line, end in zip(lines, ends, strict=True))
        assert "! NOT CONVERGED: left the range" in out
        assert "! NOT CONVERGED: the last time was reached (1 of 3)" in out

    def test_an_unconverged_run_is_marked(self, run):
        ran = flow(run, "--time 10")
        assert ran.code == 0
        assert "NOT CONVERGED: the last time was reached" in ran.out

    @pytest.mark.parametrize("options", ["--runs 3", "--attention erf"])
    def test_narrow_terminal(self, run, monkeypatch, options):
        monkeypatch.setattr("attnrisk.cli.render._WIDE", 80)
        out = flow(run, options).out
        assert "m_vv" in out
        assert "R_kk" not in out
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 80

    def test_only_a_free_bias_is_told(self, run):
        assert answer(flow(run, "--attention erf --json"))["bias"] == 0.25
        assert answer(flow(run, "--attention softmax --json"))["bias"] is None
        assert "bias      0.25" in flow(run, "--attention erf").out


def test_mismatched_starts_lie_around_swapped_roles():
    starts = swapped_starts(jax.random.key(1), 2000, 0.1)
    assert np.mean(starts.m_kv) == pytest.approx(1.0, abs=0.02)
    assert np.mean(starts.m_vk) == pytest.approx(1.0, abs=0.02)
    assert np.mean(starts.m_kk) == pytest.approx(0.0, abs=0.02)
    assert np.std(starts.m_vv) == pytest.approx(0.1, abs=0.01)
    assert np.mean(starts.residual[:, 0, 0]) == pytest.approx(0.02, abs=0.002)


@pytest.mark.parametrize("end", [1e5, 3.0, 1e-4, 1e12])
def test_times_ascend_to_the_end(end):
    times = times_to(end)
    assert times[0] == 0.0
    assert times[-1] == end
    assert np.all(np.diff(times) > 0)


BAD = [
    ("--attention sofmax", "--attention = 'sofmax'", "(did you mean softmax?)"),
    ("--nu -1", "--nu = -1", "≥ 0"),
    ("--runs 0", "--runs = 0", "from 1 to"),
    ("--runs two", "--runs = 'two'", "a whole number"),
    ("--runs 1.5", "--runs = '1.5'", "a whole number"),
    ("--seed -1", "--seed = -1", "from 0 to"),
    ("--seed 99999999999999999999", "--seed = 99999999999999999999", "from 0 to"),
    ("--size 0", "--size = 0", "> 0"),
    ("--size nan", "--size = nan", "≤ 100000"),
    ("--size 1e12", "--size = 1e+12", "≤ 100000"),
    ("--time 0", "--time = 0", "> 0"),
    ("--time inf", "--time = inf", "> 0"),
    ("--start swapped", "--start = 'swapped'", "one of random, mismatched"),
    (f"--start random {SWAPPED}", "--start = 'random'", "left out where overlaps are given"),
    (f"--runs 2 {SWAPPED}", "--runs = 2", "1 where overlaps are given"),
    ("--m-kk 1 --q-kk 0.5", "eigenvalue -0.5", "positive semidefinite"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_bad_input_is_one_line(run, case):
    options, *words = case
    ran = flow(run, options)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err
