"""Numbers with their errors, and JSON that any reader accepts."""

import json
import math

import pytest

from attnrisk import Estimate, MaxSLR, SpikedSLR
from attnrisk.cli.output import print_json, significant, task_fields, task_words, with_error


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
