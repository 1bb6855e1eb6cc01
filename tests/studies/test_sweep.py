"""What a study is: its axes, its points, their addresses, and what it refuses."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.studies import Study, execute, fingerprint, read_study
from attnrisk.studies.head_questions import LeastHeads
from attnrisk.studies.questions import QUESTIONS
from attnrisk.studies.sweeps import _column

BAYES = {"question": "bayes", "nu": [1, 2.5], "length": [2, "1-3"]}
SIMULATE = {
    "question": "simulate",
    "nu": 5,
    "length": 3,
    "attention": "softmax",
    "alpha": [1, 2],
    "ridge_k": [0.1, 1],
    "dim": 20,
    "seed": {"from": 0, "to": 2, "points": 3},
}


def test_points_are_the_product_of_the_axes():
    study = Study(**BAYES, task=["spiked", "max"], noise=0.1)
    expected = itertools.product(["spiked", "max"], [1.0, 2.5], ["2", "1-3"], [0.1], [1.0])
    assert [tuple(point.inputs.values()) for point in study.points] == list(expected)
    assert len(study) == 8
    assert len({point.address for point in study.points}) == 8


def test_one_ridge_stands_for_both():
    points = Study(**SIMULATE).points
    assert len(points) == 2 * 2 * 3
    assert all(point.inputs["ridge_v"] == point.inputs["ridge_k"] for point in points)
    assert len(Study(**SIMULATE, ridge_v=[1, 2]).points) == 2 * 2 * 2 * 3
    assert {type(point.inputs["seed"]) for point in points} == {int}


def test_ranges():
    study = Study(
        question="bayes", nu={"from": 1, "to": 100, "points": 3, "spacing": "log"}, length=2
    )
    assert study.axes["nu"] == pytest.approx((1, 10, 100))
    assert Study(question="bayes", nu={"from": 0, "to": 1, "points": 3}, length=2).axes["nu"] == (
        0,
        0.5,
        1,
    )


def test_a_study_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot assign"):
        Study(**BAYES).nu = (3.0,)


def test_the_address_is_the_content():
    def address(**given):
        return Study(**{"question": "bayes", "nu": 1, "length": 3} | given).points[0].address

    same = [{"nu": 1.0}, {"length": "3"}, {"length": "3-3"}, {"noise": -0.0}, {"nu": np.float64(1)}]
    assert {address(**given) for given in same} == {address()}
    others = [{"nu": math.nextafter(1, 2)}, {"length": 4}, {"noise": 0.1}, {"task": "max"}]
    laws = [{"length": f"1:{half!r},2:{1 - half!r}"} for half in (0.4, math.nextafter(0.4, 1))]
    addresses = {address(**given) for given in (*others, *laws)}
    assert len(addresses) == len(others) + len(laws)
    assert address() not in addresses


def test_other_numerics_have_other_addresses(monkeypatch):
    point = Study(**BAYES).points[0]
    before = point.address
    monkeypatch.setattr("attnrisk.studies.question.fingerprint", lambda question: "other")
    assert point.address != before


def test_the_fingerprint_sees_statements_only():
    source = 'def f(x):\n    """Doc."""\n    return x + 1  # why\n'
    told = fingerprint._statements(source)
    assert told == fingerprint._statements("def f(x):\n    return (x +\n 1)\n")
    assert told != fingerprint._statements(source.replace("1", "2"))


REFUSED = [
    ({"nuu": 1}, "key = 'nuu'", "(did you mean nu?)"),
    ({"lenght": 1}, "key = 'lenght'", "(did you mean length?)"),
    ({"question": "baies"}, "question = 'baies'", "(did you mean bayes?)"),
    ({"question": 1}, "question = 1", "a word"),
    ({"nu": -1}, "nu = -1", "≥ 0"),
    ({"nu": [1, math.nan]}, "nu = nan", "a number"),
    ({"nu": "five"}, "nu = 'five'", "a number"),
    ({"nu": True}, "nu = True", "a number"),
    ({"nu": []}, "nu = []", "not empty"),
    ({"nu": [1, 1.0]}, "nu = [1.0, 1.0]", "without repetition"),
    ({"nu": {"from": 1, "to": 2}}, "without 'points'", "from, to, points and spacing"),
    ({"nu": {"from": 1, "to": 2, "point": 2}}, "'point'", "(did you mean points?)"),
    ({"nu": {"from": 0, "to": 2, "points": 2, "spacing": "log"}}, "from = 0", "> 0"),
    ({"nu": {"from": 0, "to": 2, "points": 2, "spacing": "lin"}}, "spacing = 'lin'", "linear"),
    ({"nu": {"from": 0, "to": 2, "points": 1.5}}, "points = 1.5", "whole"),
    ({"nu": {"from": "1", "to": 2, "points": 2}}, "from = '1'", "a number"),
    ({"nu": {"from": 0, "to": True, "points": 2}}, "to = True", "a number"),
    ({"nu": {"from": 0, "to": "inf", "points": 2}}, "to = inf", "≤ 1e+12"),
    ({"nu": {"from": 0, "to": 2, "points": 10**7}}, "points = 10000000", "1000000"),
    ({"nu": [1, "inf"], "task": ["max", "spiked"]}, "nu = inf", "≤ 1e+12"),
    ({"task": ["max"], "spread": [1, 2]}, "spread = 2", "1 where the task is max"),
    ({"length": ["ten"]}, "length = 'ten'", "1-3"),
    ({"task": 3}, "task = 3", "a word"),
    ({"alpha": 2}, "alpha = [2.0]", "left out where the question is bayes"),
    ({"question": "optimal"}, "alpha = nothing", "given where the question is optimal"),
    ({"question": "optimal", "alpha": [1, 0]}, "alpha = 0", "> 0"),
    ({"question": "optimal", "alpha": "4"}, "alpha = '4'", "a number"),
    ({"question": "optimal", "alpha": True}, "alpha = True", "a number"),
    ({"question": "amp", "alpha": 1e-9, "dim": 10}, "alpha = 1e-09", "N = alpha · dim"),
    ({"question": "population", "attention": "heads"}, "attention = 'heads'", "one of softmax"),
    ({"question": "population", "bias": ["free", "tied"]}, "bias = 'tied'", "free, default, or"),
    ({"question": "population", "bias": 1e13}, "bias = 1", "a number between ±1e+12"),
    ({"question": "population", "attention": "sofmax"}, "attention = 'sofmax'", "softmax"),
    ({"question": "optimal", "alpha": 1, "length": [2, 10**6]}, "length = 1000000", "at most"),
    ({"noise": {"from": 0, "to": 1, "points": 300_000}}, "points = 1200000", "at most 1000000"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: next(iter(case[0])))
def test_refusals(case):
    given, *words = case
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (the words are checked below)
        Study(**BAYES | given)
    for word in words:
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_files(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('question = "bayes"\ntask = "max"\nnu = [1, inf]\nlength = [2, "1-3"]\n')
    assert read_study(path) == Study(
        question="bayes", task="max", nu=[1, math.inf], length=[2, "1-3"]
    )
    for text in ("question = bayes", f"nu = {'9' * 5000}", "nu = " + "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match="a TOML file"):
            read_study(path)


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_studies(path):
    assert len(read_study(path)) > 1


ESTIMATES = "test_risk train_error objective m_k q_k V_k m_v q_v V_v"
LEARNED = {name + end for name in ESTIMATES.split() for end in ("", "_error")}
RELIABILITY = {"replicon", "jumps", "seen_deviation", "warning"}
HEADS = {"M", "Q", "head_weights", "biases"}
OVERLAPS = {"m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"}
COLUMNS = {  # which scripts that read exported files rely on
    "bayes": {"risk", "risk_error"},
    "population": {"risk", "risk_error", "best_bias", "attained", *OVERLAPS},
    "erm": {*LEARNED, *RELIABILITY},
    "tuned-erm": {*LEARNED, *RELIABILITY, "best_ridge_k", "best_ridge_v"},
    "optimal": {
        *("risk", "risk_error", "reachable_risk", "reachable_risk_error", "hard"),
        *("q_k", "q_k_error", "q_v", "q_v_error"),
    },
    "simulate": {
        *("test_risk", "test_risk_error", "train_error", "objective", "iterations"),
        *OVERLAPS,
    },
    "amp": {
        *("risk", "risk_error", "q_k", "q_v", "expected_q_k", "expected_q_v"),
        *("iterations", "residual"),
        *OVERLAPS,
    },
    "features bayes": {"risk", "risk_error"},
    "heads": {
        *("risk", "risk_error", "attained", "kind"),
        *HEADS,
    },
    "heads erm": {
        *("test_risk", "test_risk_error", "train_error", "train_error_error"),
        *("objective", "objective_error", *RELIABILITY),
        *(f"{name}{end}" for name in ("m_v", "q_v", "V_v") for end in ("", "_error")),
        *HEADS,
    },
    "heads simulate": {
        *("test_risk", "test_risk_error", "train_error", "objective", "iterations"),
        *HEADS,
    },
    "train": {
        *("accuracy", "loss", "bits_per_character", "validation_accuracy", "validation_loss"),
        *("train_loss", "parameters", "seconds"),
    },
}


def test_every_question_of_a_study_has_its_columns():
    assert set(COLUMNS) == set(QUESTIONS)


def outputs(point):
    """What the store keeps."""
    (row,) = execute.answer([point])
    assert set(row.outputs) == COLUMNS[point.kind]
    return row.answer


ANSWERS = [
    # question, what it has beside nu and length, an output, and the same by another way
    ("bayes", {}, "risk", lambda task: ar.bayes_risk(task)),
    (
        "population",
        {"attention": "linear"},
        "risk",
        lambda task: ar.population_minimum(task, ar.Linear()).risk,
    ),
]


@pytest.mark.parametrize("case", ANSWERS, ids=lambda case: case[0])
def test_an_answer_is_what_the_library_says(case):
    name, inputs, output, expected = case
    (point,) = Study(question=name, nu=2, length=3, **inputs).points
    answer = outputs(point)
    found = expected(ar.SpikedSLR(2.0, 3))
    assert (answer[output], answer[f"{output}_error"]) == (found.value, found.error)
    assert answer["converged"]


SLOW_ANSWERS = [
    ("erm", {"attention": "linear", "alpha": 2, "ridge_k": 1}, "test_risk"),
    ("tuned-erm", {"attention": "linear", "alpha": 2}, "test_risk"),
    ("optimal", {"alpha": 2}, "reachable_risk"),
    ("simulate", {"attention": "linear", "alpha": 2, "ridge_k": 1, "dim": 50}, "test_risk"),
    ("amp", {"alpha": 2, "dim": 50}, "risk"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_ANSWERS, ids=lambda case: case[0])
def test_an_answer_is_what_the_command_line_says(case):
    name, inputs, output = case
    (point,) = Study(question=name, nu=2, length=3, **inputs).points
    answer = outputs(point)
    given = {name.replace("_", "-"): value for name, value in inputs.items()}
    options = [f"--{name}={value}" for name, value in given.items()]
    options += ["--tune"] if name == "tuned-erm" else []
    command = [name.removeprefix("tuned-"), "--nu=2", "--length=3", *options, "--json"]
    said = subprocess.run(
        [sys.executable, "-c", "from attnrisk.cli import main; main()", *command],
        capture_output=True,
        check=True,
    )
    fields = json.loads(said.stdout)
    assert answer[output] == pytest.approx(fields[output], rel=1e-12)
    assert answer["converged"] == fields["converged"]
    assert answer[f"{output}_error"] >= 0


HEADED = {"features": "flipped:4", "length": 2, "attention": "softmax", "heads": 2}


def test_heads_are_asked_as_figures_ask_them():
    (point,) = Study(question="heads", **HEADED).points
    assert point.address == LeastHeads("flipped:4", "2", "softmax", 2).address
    (noisy,) = Study(question="heads", **HEADED, noise=0.1).points
    assert float(noisy.problem.noise) == 0.1
    grid = HEADED | {"attention": ["softmax", "bayes-softmax"], "heads": [1, 2, 3]}
    assert len({each.address for each in Study(question="heads", **grid).points}) == 6


BAD_HEADS = {
    "heads = 0": {"heads": 0},
    "features = 'two:9'": {"features": "two:9"},
    "attention = 'softmix'": {"attention": "softmix"},
    "bias = '1.0'": {"attention": ["softmax", "bayes-softmax"], "bias": [1]},
    "nu = ": {"nu": 2},
}


@pytest.mark.parametrize("said", BAD_HEADS)
def test_heads_that_cannot_be_asked_are_refused(said):
    with pytest.raises(ValueError, match=said):
        Study(question="heads", **HEADED | BAD_HEADS[said])


def test_learned_heads_that_cannot_be_asked_are_refused():
    given = HEADED | {"alpha": 2, "ridge_k": 1}
    with pytest.raises(ValueError, match="heads = 4"):
        Study(question="heads erm", **given | {"heads": [2, 4]})
    with pytest.raises(ValueError, match="dim = 2"):
        Study(question="heads simulate", **given | {"features": "one-of:9,4"}, dim=[2, 20])


HEAD_ANSWERS = {
    "features bayes": ("risk", lambda task, heads: ar.bayes_risk(task)),
    "heads": ("risk", lambda task, heads: ar.population_minimum(task, heads).risk),
    "heads simulate": (
        "test_risk",
        lambda task, heads: (
            ar.fit_erm(
                ar.sample(task, jax.random.split(jax.random.key(0), 3)[0], 160, 20),
                heads,
                ar.Ridge(0.2, 0.2),
                jax.random.split(jax.random.key(0), 3)[1],
            ).test_risk
        ),
    ),
}


@pytest.mark.parametrize("name", HEAD_ANSWERS)
def test_heads_are_what_the_library_says(name):
    output, expected = HEAD_ANSWERS[name]
    learned = {"alpha": 8.0, "ridge_k": 0.2, "ridge_v": 0.2}
    more = {
        "features bayes": {},
        "heads": {"attention": "linear", "heads": 2},
        "heads simulate": {"attention": "softmax", "heads": 2, **learned, "dim": 20, "seed": 0},
    }[name]
    answer = outputs(QUESTIONS[name](features="flipped:4", length="2", **more))
    attention = ar.get_attention(more.get("attention", "softmax"))
    found = expected(ar.FeatureSLR(ar.flipped(4.0), 2), ar.Heads(attention, 2))
    assert (answer[output], answer[f"{output}_error"]) == (found.value, found.error)
    assert "heads" not in more or np.shape(answer["M"]) == (3, 2)


def test_matrices_are_text_in_a_grid():
    rows = [SimpleNamespace(outputs={"M": [[1.0, 0.5]]}), SimpleNamespace(outputs={}), None]
    assert _column(rows, "M").tolist() == ["[[1.0, 0.5]]", "", ""]


def test_what_shares_compiled_code():
    points = Study(**BAYES, task=["spiked", "max"]).points
    groups = {point.compiled_with for point in points}
    assert len(groups) == 4  # two tasks, one or three lengths


LOADED = """
import sys
def told():
    heavy = {"matplotlib", "dask", "distributed", "xarray", "pandas", "optax"}
    print(*sorted(heavy & set(sys.modules)))
import attnrisk, attnrisk.cli
told()
assert callable(attnrisk.judge) and callable(attnrisk.league)
import attnrisk.studies
told()
"""


def test_importing_the_package_loads_no_study():
    """Nor do studies load what only figures and models that are trained need."""
    said = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert said.stdout == "\n\n"
