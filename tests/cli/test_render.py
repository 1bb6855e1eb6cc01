"""Numbers with their errors, and JSON that any reader accepts."""

import json
import math

import pytest

from attnrisk import Estimate, MaxSLR, Overlaps, Result, SpikedSLR
from attnrisk.cli.render import (
    facts,
    nested,
    overlap_words,
    print_json,
    print_parts,
    result_notes,
    result_words,
    significant,
    task_fields,
    task_words,
    with_error,
)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.35980798355655, 7e-15, "0.359807983557 ± 7e-15"),
        (0.3795123, 1.2e-4, "0.3795 ± 0.0001"),
        (-0.3795123, 1.2e-4, "-0.3795 ± 0.0001"),
        (0.5, 1e-4, "0.5000 ± 0.0001"),
        (4.776217e-5, 1e-8, "4.776e-05 ± 1e-08"),
        (23.361, 0.2, "23.4 ± 0.2"),
        (5.2, 1.0, "5 ± 1"),
        (1e-16, 7e-15, "0 ± 7e-15"),
        (-1e-16, 7e-15, "0 ± 7e-15"),
        (0.01, 0.0, "0.01"),
        (0.0, 0.0, "0"),
        (math.inf, math.nan, "inf ± nan"),
        (math.nan, 1.0, "nan ± 1"),
    ],
)
def test_as_many_digits_as_the_error_leaves(value, error, shown):
    assert with_error(Estimate(value, error)) == shown


def test_no_more_digits_than_asked():
    assert significant(Estimate(1 / 3, 1e-15), most=5) == "0.33333"


def test_overlaps_have_eight_digits():
    assert "m_kk = 0.33333333, " in overlap_words(Overlaps(m_kk=1 / 3, q_kk=1.0))
    two_heads = Overlaps([[1 / 3, 0], [0, 0], [0, 1]], [[2 / 3, 0, 0], [0, 1, 0], [0, 0, 1.5]])
    lines = (
        "M = [[0.33333333, 0], [0, 0], [0, 1]]",
        "Q = [[0.66666667, 0, 0], [0, 1, 0], [0, 0, 1.5]]",
    )
    assert overlap_words(two_heads).splitlines() == list(lines)


def test_json_has_no_infinity(capsys):
    def refuse(word):
        pytest.fail(f"{word} is not JSON")

    print_json({"a": math.inf, "b": [-math.inf, {"c": math.nan}], "d": True, "e": None, "f": 0.1})
    fields = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert fields == {"a": "inf", "b": ["-inf", {"c": None}], "d": True, "e": None, "f": 0.1}


def test_a_task_in_words():
    assert task_words(SpikedSLR(nu=5, length=10)) == "spiked task, ν = 5, L = 10"
    odd = SpikedSLR(nu=0.25, length=2, noise=0.1, spread=0.5)
    assert task_words(odd) == "spiked task, ν = 0.25, L = 2, noise 0.1, spread 0.5"


def test_a_task_in_fields():
    assert task_fields(MaxSLR(nu=math.inf, length=3)) == {
        "name": "max",
        "nu": math.inf,
        "length": "3",
        "noise": 0.0,
    }
    assert task_fields(SpikedSLR(nu=1, length=3, spread=2))["spread"] == 2.0


def test_nested_by_name():
    flat = {"risk": 1, "risk_error": 2, "m_kk": 3, "q_vv": 4, "ridge_k": 5, "ridge_v": 6, "q_k": 7}
    assert nested(flat | {"q_k_error": 8}) == {
        "risk": 1,
        "risk_error": 2,
        "overlaps": {"m_kk": 3, "q_vv": 4},
        "ridge": {"k": 5, "v": 6},
        "q_k": 7,
        "q_k_error": 8,
    }
    assert nested({"M": [[1]], "Q": [[2]]}) == {"overlaps": {"M": [[1]], "Q": [[2]]}}


def test_order_parameters_with_responses():
    flat = {
        "test_risk": 1,
        "test_risk_error": 2,
        "V_k": 3,
        "V_k_error": 4,
        "q_k": 5,
        "q_k_error": 6,
    }
    assert nested(flat | {"train_error": 7, "train_error_error": 8}) == {
        "test_risk": 1,
        "test_risk_error": 2,
        "response": {"V_k": 3},
        "errors": {"V_k": 4, "q_k": 6, "train_error": 8},
        "train_error": 7,
    }


def test_what_did_not_converge_is_marked():
    assert result_words(Result.CONVERGED) == "converged"
    assert result_words(Result.K_DIVERGES).startswith("infimum")
    for result in Result:
        assert result.converged or result_words(result).startswith("NOT CONVERGED: ")
    assert result_words(Result.TIME_OVER) == "NOT CONVERGED: the last time was reached"
    notes = result_notes([Result.CONVERGED, Result.DIVERGED, Result.DIVERGED])
    assert notes == ["! NOT CONVERGED: diverged (2 of 3)"]


def test_brackets_are_no_markup(capsys):
    print_parts(facts("[red]", {"store": "[bold]a:smile:.sqlite"}))
    out = capsys.readouterr().out
    assert "[red]" in out
    assert "[bold]a:smile:.sqlite" in out
