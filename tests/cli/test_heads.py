"""`--task features`, `--heads` and `--attention bayes-softmax`."""

import json
from importlib import import_module

import jax
import numpy as np
import pytest

import attnrisk as ar
from attnrisk import learning
from attnrisk.population.minimum import Minimum
from attnrisk.studies import head_questions

FLIPPED = ("--task", "features", "--features", "flipped:4")


def _answer(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


@pytest.mark.parametrize(
    ("law", "risk"), [("one-of:9,6,4", 0.43567395), ("gaussian:9,5,2", 0.33873582)]
)
def test_bayes(run, law, risk):
    fields = _answer(run("bayes", "--task", "features", "--features", law, "--json"))
    assert fields["risk"] == pytest.approx(risk, abs=5e-9)
    assert fields["task"] == {"name": "features", "features": law, "length": "10", "noise": 0.0}
    assert law in run("bayes", "--task", "features", "--features", law).out


@pytest.fixture
def searched(monkeypatch):
    """What was searched, each task and attention once."""
    known, search = {}, ar.population_minimum

    def least(task, attention):
        at = str(task), str(attention)
        if at not in known:
            known[at] = search(task, attention)
        return known[at]

    for module in ("attnrisk.studies.judge.comparison", "attnrisk.population"):
        monkeypatch.setattr(import_module(module), "population_minimum", least)
    return known


def test_two_heads(run, searched):
    """Their risk is the Bayes risk of the task, 0.2043335125."""
    words = ("population", *FLIPPED, "--length", "2", "--attention", "bayes-softmax")
    words += ("--heads", "2")
    fields = _answer(run(*words, "--json"))
    assert fields["risk"] == pytest.approx(0.2043335125, abs=1e-9)
    assert fields["attained"]
    assert fields["converged"]
    assert fields["heads"] == 2
    assert fields["gap"] == pytest.approx(0.0, abs=1e-9)
    assert set(fields["overlaps"]) == {"M", "Q"}
    assert np.shape(fields["overlaps"]["M"]) == (3, 2)
    assert np.ptp(fields["biases"]) < 1e-3
    assert fields["head_weights"] is None
    assert fields["minima"][0]["kind"] == "minimum"
    assert "2 heads of bayes-softmax" in run(*words).out
    assert len(searched) == 1


@pytest.mark.slow
def test_heads_of_the_catalogue(run):
    names = "softmax,softmax-1"
    fields = _answer(run("population", *FLIPPED, "--attention", names, "--heads", "2", "--json"))
    risks = {row["attention"]: row["risk"] for row in fields["rows"]}
    assert risks["softmax"] == pytest.approx(0.677381, abs=1e-6)
    assert risks["softmax-1"] == pytest.approx(0.612804, abs=1e-6)
    assert fields["rows"][0]["head_weights"] == [0.5, 0.5]
    assert len(fields["rows"][0]["biases"]) == 2


def test_flow_of_two_heads(run):
    words = ("flow", *FLIPPED, "--length", "2", "--heads", "2", "--time", "3")
    fields = _answer(run(*words, "--json"))
    assert np.shape(fields["overlaps"]["M"]) == (3, 2)
    assert np.shape(fields["overlaps"]["Q"]) == (3, 3)
    assert fields["head_weights"] == [0.5, 0.5]
    assert len(fields["biases"]) == fields["heads"] == 2
    assert len(fields["feature_times"]) == 1
    assert fields["path"][0]["time"] == 0.0
    assert fields["path"][-1]["time"] == fields["time"] == 3.0
    assert fields["path"][-1]["risk"] < fields["path"][0]["risk"]
    assert not fields["converged"]


@pytest.mark.optimised
def test_online_sgd_is_the_library(run, monkeypatch):
    words = ("flow", *FLIPPED, "--length", "2", "--heads", "2", "--time", "1", "--step", "0.5")
    follow, paths = ar.online_sgd, []

    def once(*given, **how):
        if not paths:
            paths.append(follow(*given, **how))
        return paths[0]

    monkeypatch.setattr("attnrisk.flow.online_sgd", once)
    fields = _answer(run(*words, "--json"))
    start = jax.tree.map(
        lambda leaf: leaf[0], ar.random_starts(jax.random.key(0), 1, keys=2, features=1)
    )
    task, heads = ar.FeatureSLR(ar.flipped(4.0), 2), ar.Heads(ar.Softmax(), 2)
    times = [each["time"] for each in fields["path"]]
    path = follow(task, heads, start, step=0.5, times=times)
    np.testing.assert_allclose(fields["overlaps"]["M"], path.end.M, atol=1e-12)
    assert fields["risk"] == pytest.approx(float(path.end_risk), abs=1e-12)
    assert (fields["step"], fields["batch"]) == (0.5, 1)
    shown = run(*words).out
    assert "Online SGD, 2 heads of softmax" in shown
    assert "features found at" in shown


def test_simulated_heads(run):
    words = (
        "simulate",
        *FLIPPED,
        "--heads",
        "2",
        "--alpha",
        "3",
        "--dim",
        "20",
        "--ridge-k",
        "0.1",
    )
    fields = _answer(run(*words, "--json"))
    assert np.shape(fields["overlaps"]["M"]) == (3, 2)
    assert fields["converged"]
    assert (fields["attention"], fields["heads"]) == ("softmax", 2)
    assert fields["head_weights"] == [0.5, 0.5]
    assert fields["biases"] == [0.0, 0.0]
    at = ar.Overlaps(**fields["overlaps"])
    again = ar.population_risk(ar.FeatureSLR(ar.flipped(4.0), 3), ar.Heads(ar.Softmax(), 2), at)
    assert fields["test_risk"] == pytest.approx(float(again), abs=1e-11)
    assert "2 heads of softmax" in run(*words).out


def test_one_head_on_features_has_matrices(run):
    """Also where they have the shape of one head on one direction."""
    words = (*FLIPPED, "--alpha", "3", "--dim", "20", "--attention", "erf", "--length", "2")
    fields = _answer(run("simulate", *words, "--json"))
    assert set(fields["overlaps"]) == {"M", "Q"}
    assert (fields["heads"], fields["head_weights"]) == (1, None)
    assert fields["biases"] == [fields["bias"]]


def test_learned_heads_are_the_library(run, monkeypatch):
    """With the matrices of the overlaps, and no Bayes optimum; here without the work."""
    task, heads, ridge = ar.FeatureSLR(ar.flipped(4.0), 2), ar.get_heads("softmax", 2), (0.2, 1.0)
    found, asked = made_up(), []

    def solved(*given):
        asked.append(given)
        return found

    monkeypatch.setattr(learning, "erm_asymptotics", solved)
    monkeypatch.setattr(head_questions, "erm_asymptotics", solved)
    words = (*FLIPPED, "--heads", "2", "--length", "2", "--alpha", "8", "--ridge-k", "0.2")
    fields = _answer(run("erm", *words, "--json"))
    assert fields["test_risk"] == float(found.test_risk)
    np.testing.assert_array_equal(fields["overlaps"]["M"], found.M.value)
    assert (fields["heads"], fields["optimal_risk"]) == (2, None)
    assert "2 heads of softmax" in run("erm", *words).out
    record = head_questions.HeadsERM("flipped:4", "2", "softmax", 2, 8.0, *ridge).answer()
    assert record["test_risk"] == float(found.test_risk)
    assert record["test_risk_error"] == float(found.test_risk.error)
    assert np.shape(record["M"]) == (3, 2)
    for its_task, its_heads, alpha, its_ridge, *_ in asked:
        assert (str(its_task), str(its_heads), alpha) == (str(task), str(heads), 8.0)
        assert (float(its_ridge.k), float(its_ridge.v)) == ridge


def made_up():
    """A fixed point of two heads."""
    value = ar.Estimate(0.6, 1e-3)
    M = np.arange(6.0).reshape(3, 2) / 10
    Q = np.eye(3) + M @ M.T
    return ar.ERMAsymptotics(
        **dict.fromkeys(("test_risk", "train_error", "objective"), value),
        **{
            name: ar.Estimate(each, 0.01 * each)
            for name, each in zip("MQV", (M, Q, Q), strict=True)
        },
        **{"alpha": 8.0, "ridge": ar.Ridge(0.2, 1.0), "result": ar.Result.CONVERGED},
        **{"start": "teacher", "residual": 1e-3, "steps": 9, "identities": np.zeros(4)},
        **{"replicon": 0.5, "unresolved": 0.0, "jumps": 0.0, "slope": np.zeros(2)},
    )


def test_compared_heads_are_those_of_population(run, searched):
    """The numbers of a law are in units of ν; searched once."""
    words = ("--task", "features", "--heads", "2", "--length", "2", "--json")
    (row,) = _answer(run("compare", "linear", "--features", "flipped:0.5", "--nu", "8", *words))[
        "rows"
    ]
    alone = _answer(run("population", "--attention", "linear", "--features", "flipped:4", *words))
    for name in ("attention", "risk", "error", "gap", "overlaps", "head_weights", "biases"):
        assert row[name] == alone[name], name
    assert (row["bayes_risk"], row["converged"]) == (alone["bayes_risk"], alone["converged"])
    assert (row["nu"], row["length"], row["heads"]) == (8.0, 2, 2)
    assert len(searched) == 1


def test_heads_are_compared_as_they_are_and_with_free_biases(monkeypatch):
    """Each search at each length, with a signal that grows; here without the searches."""
    module, asked = import_module("attnrisk.studies.judge.comparison"), []

    def least(task, attention):
        asked.append((str(task.length), float(task.strength) ** 2, attention.free_bias))
        overlaps = ar.Overlaps(np.eye(3, 2), np.eye(3))
        return Minimum(ar.Estimate(0.5, 1e-9), overlaps, attention, ar.Result.CONVERGED)

    monkeypatch.setattr(module, "population_minimum", least)
    found = ar.compare(
        *("softplus", "softmax-1"),
        lengths=(3, 10),
        signal=2.0,
        task="features",
        features="flipped:0.5",
        heads=2,
    )
    signals = {"3": np.log(3), "10": np.log(10)}
    expected = [(length, bias) for length in signals for bias in (False, True)]
    expected += [(length, True) for length in signals]  # softmax-1 has free biases as it is
    assert [(length, bias) for length, _, bias in asked] == expected
    for length, nu, _ in asked:
        assert nu == pytest.approx(signals[length])
    assert [each.plain.nu for each in found] == pytest.approx(2 * [2 * s for s in signals.values()])
    assert float(found[0].plain.bayes) == pytest.approx(
        float(ar.bayes_risk(ar.FeatureSLR(ar.flipped(np.log(3)), 3)))
    )


def test_data_needed_by_heads(run, monkeypatch):
    asked = []

    def needed_data(task, attention, risk, other):
        asked.append((str(task.shift_law), attention.keys, other and other.keys))
        return ar.Needs(None, ar.Estimate(0.1, 1e-9), "never", True)

    monkeypatch.setattr(learning, "needed_data", needed_data)
    words = ("needs", "softmax", "--attention", "softmax-1", *FLIPPED, "--heads", "2", "--json")
    assert _answer(run(*words))["heads"] == 2
    assert asked == [("flipped:4", 2, 2)]


def test_fewer_dimensions_than_directions(run):
    ran = run("simulate", *FLIPPED[:3], "one-of:9,6,4", "--alpha", "2", "--dim", "3")
    assert ran.code == 2
    assert "--dim = 3" in ran.err
    assert "at least 4" in ran.err


def test_when_features_are_found():
    times, M = np.array([0.0, 1.0, 2.0, 4.0]), np.zeros((4, 3, 3))
    M[:, 0, 0], M[:, 1, 1] = [0.0, 0.5, 1.0, 2.0], [0.1, 0.1, 0.2, 0.3]
    overlaps = ar.Overlaps(M, M @ M.swapaxes(1, 2) + np.eye(3))
    assert ar.feature_times(times, overlaps) == [2.0, None]


BAD = [
    (("bayes", "--task", "features"), "--features = (nothing)"),
    (("bayes", "--features", "flipped:9"), "--features = flipped:9"),
    (("bayes", "--task", "features", "--features", "two:9"), "--features = 'two:9'"),
    (("bayes", "--task", "features", "--features", "one-of:9,x"), "--features = 'one-of:9,x'"),
    (("bayes", "--task", "features", "--features", "gaussian:-1"), "--features = 'gaussian:-1'"),
    (("bayes", *FLIPPED, "--nu", "4"), "--nu = 4"),
    (("flow", *FLIPPED, "--heads", "2", "--start", "mismatched"), "--start = mismatched"),
    (("flow", *FLIPPED, "--heads", "2", "--m-kk", "1", "--q-kk", "1"), "left out with several"),
    (("flow", "--attention", "softmax,linear"), "--attention = 'softmax,linear'"),
    (("flow", "--step", "0.5", "--task", "max"), "--task = max"),
    (("bayes", *FLIPPED, "--spread", "2"), "--spread = 2"),
    (("bayes", *FLIPPED, "--noise", "-1"), "--noise = -1"),
    (("bayes", "--task", "feature"), "--task = 'feature'"),
    (("erm", "--task", "features", "--alpha", "1"), "--features = (nothing)"),
    (("erm", "--alpha", "1", "--heads", "4"), "--heads = 4"),
    (("simulate", "--alpha", "1", "--dim", "9", "--task", "features"), "--features = (nothing)"),
    (
        ("population", "--attention", "erf", "--heads", "2", "--m-kk", "1", "--q-kk", "1"),
        "left out with several",
    ),
    (("compare", "softmax", "--task", "features"), "--features = nothing"),
    (("compare", "softmax", "--features", "flipped:1"), "--features = 'flipped:1'"),
    (("compare", "softmax", "--task", "max", "--heads", "2"), "--task = max"),
    (("compare", "softmax", "--heads", "0"), "--heads = 0"),
    (("compare", "softmax", *FLIPPED[:3], "two:1"), "--features = 'two:1'"),
    (("needs", "softmax", "--risk", "0.5", "--heads", "4"), "--heads = 4"),
    (("population", *FLIPPED, "--heads", "0"), "--heads = 0"),
    (("population", *FLIPPED, "--heads", "two"), "--heads = 'two'"),
    (("population", *FLIPPED, "--heads", "2", "--m-kk", "1", "--q-kk", "1"), "--m-kk"),
    (("population", "--task", "max", "--heads", "2"), "--task"),
    (("population", "--attention", "bayes", "--heads", "2"), "--attention = 'bayes'"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line_that_names_the_flag(run, words, said):
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_heads_are_made_from_words():
    from attnrisk.cli.options import heads

    read = heads().read
    one, two, three = read(
        attention=["softmax,softmax-1", "bayes-softmax"], bias="default", heads="2"
    )
    assert isinstance(one, ar.Heads)
    assert (one.count, one.free_bias) == (2, False)
    assert isinstance(two.attention, ar.SoftmaxPlusOne)
    assert two.free_bias
    assert isinstance(three, ar.BayesSoftmax)
    assert isinstance(read(attention=["softmax"], bias="default", heads="1")[0], ar.Softmax)
