"""The rows behind the pictures are those of the library."""

import csv
import io
import math

import jax
import numpy as np
import pytest

import attnrisk as ar
from attnrisk._rows import BAYES, as_csv
from attnrisk.explorer import pictures
from attnrisk.explorer.answers import (
    FLOOR,
    OPTIMUM,
    QUICK,
    REACHABLE,
    SLOW,
    Followed,
    Learned,
    Least,
    LeastRow,
    Optimum,
    Weights,
)
from attnrisk.explorer.desk import answer

KINDS = {"spiked": ar.SpikedSLR, "max": ar.MaxSLR}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("spiked", "softmax"),
        pytest.param("max", "softmax", marks=pytest.mark.slow),
        ("spiked", "linear"),
        ("max", "linear"),
    ],
)
def test_formulas_are_the_minimum_that_a_search_finds(task, name):
    (row,) = Least(task, 2.0, "1-3", name).answer()
    least = ar.population_minimum(KINDS[task](2.0, ar.uniform(1, 3)), ar.get_attention(name))
    assert abs(row.risk - float(least.risk)) <= row.error + float(least.risk.error)
    assert row.m_kk == pytest.approx(float(least.overlaps.m_kk), rel=1e-5)
    assert row.m_vv == pytest.approx(float(least.overlaps.m_vv), rel=1e-5)
    assert Least(task, 2.0, "1-3", name).lane == QUICK


def test_searched_minimum():
    (row,) = Least("spiked", 5.0, "10", "erf").answer()
    least = ar.population_minimum(ar.SpikedSLR(5.0, 10), ar.Erf())
    assert (row.risk, row.error) == (float(least.risk), float(least.risk.error))
    assert row.bias == float(least.attention.bias)
    assert Least("spiked", 5.0, "10", "erf").lane == SLOW


def test_reference_lines():
    task = ar.SpikedSLR(5.0, 10)
    (bayes,), (floor,) = (Least("spiked", 5.0, "10", name).answer() for name in (BAYES, FLOOR))
    assert bayes.risk == float(ar.bayes_risk(task))
    assert floor.risk == float(ar.elementwise_floor(task))
    assert bayes.risk < floor.risk


def test_softmax_at_an_infinite_signal_is_a_limit():
    (row,) = Least("max", math.inf, "10", "softmax").answer()
    assert row.risk == 0.0
    assert not row.attained
    assert math.isfinite(row.m_kk)


def weights(length, name, nu=5.0, task="spiked", m_kk=2.0, m_vv=1.0, bias=0.0, seed=3):
    return Weights(task, nu, length, name, m_kk, m_vv, bias, seed).answer()


def test_weights_are_those_of_the_attention():
    rows = weights("10", "erf", m_vv=0.5, bias=-3.0)
    scores = np.array([row.score for row in rows])
    expected = 0.5 * np.asarray(ar.Erf(bias=-3.0)(jax.numpy.asarray(scores)))
    np.testing.assert_allclose([row.weight for row in rows], expected, rtol=1e-12)
    np.testing.assert_allclose(scores, [2.0 * row.field for row in rows])
    prediction = sum(row.weight * row.value for row in rows)
    assert rows[0].prediction == pytest.approx(prediction)
    (needle,) = (row for row in rows if row.needle)
    assert needle.value == rows[0].label


def test_every_attention_sees_the_same_sequence():
    fields = {tuple(row.field for row in weights("6", name)) for name in ("softmax", "linear")}
    assert len(fields) == 1
    assert tuple(row.field for row in weights("6", "softmax", seed=4)) not in fields


def test_the_needle_stands_out():
    """Its field has mean √ν; the others, the control, have none."""
    needles, others = [], []
    for seed in range(60):
        for row in weights("4", "linear", nu=9.0, seed=seed):
            (needles if row.needle else others).append(row.field)
    assert abs(np.mean(needles) - 3.0) < 5 / np.sqrt(60)
    assert abs(np.mean(others)) < 5 / np.sqrt(180)


def test_on_the_max_task_the_needle_is_the_largest():
    rows = weights("12", "softmax", nu=math.inf, task="max")
    assert max(rows, key=lambda row: row.field).needle


def test_a_long_sequence_shows_its_largest_weights_and_the_needle():
    rows = weights("3000", "softmax", nu=0.0)
    assert len(rows) == 40
    assert rows[0].tokens == 3000
    assert sum(row.needle for row in rows) == 1
    assert [row.token for row in rows] == sorted(row.token for row in rows)
    largest = max(rows, key=lambda row: row.weight)
    assert largest.score > 2.0 * 2.5  # the largest of 3000 fields


@pytest.mark.parametrize("length", ["1", "1-3", "2:0.5,50:0.5"])
@pytest.mark.parametrize("name", ["relu", "sparsemax", "sigmoid"])
def test_any_law_and_family(length, name):
    rows = weights(length, name)
    assert len(rows) == min(rows[0].tokens, len(rows))
    assert "<svg" in pictures.weights(rows)


@pytest.mark.slow
def test_optimum():
    best, reached = Optimum("spiked", 2.0, "2", 2.0).answer()
    found = ar.optimal_asymptotics(ar.SpikedSLR(2.0, 2), 2.0)
    assert (best.predictor, best.risk) == (OPTIMUM, float(found.risk))
    assert (reached.predictor, reached.risk) == (REACHABLE, float(found.reachable_risk))
    assert best.converged


def test_a_refusal_is_a_sentence():
    found = answer(Learned("spiked", 2.0, "1000", "softmax", 1.0))
    assert found.rows == ()
    assert found.sentence.startswith("length = 1000 is not allowed")


def test_no_number_is_not_shown(monkeypatch):
    row = LeastRow("spiked", 1.0, "2", "erf", math.nan, 0.0, True)
    monkeypatch.setattr(Least, "answer", lambda self: (row,))
    assert answer(Least("spiked", 1.0, "2", "erf")).rows == ()


def test_what_nobody_foresaw_is_a_sentence_and_a_report(monkeypatch, capsys):
    def fail(self):
        raise ZeroDivisionError("far away")

    monkeypatch.setattr(Least, "answer", fail)
    found = answer(Least("spiked", 1.0, "2", "erf"))
    assert found.sentence == "This could not be computed (ZeroDivisionError)."
    assert "far away" in capsys.readouterr().err


def test_csv_has_all_digits():
    rows = Least("spiked", 5.0, "1:0.25,8:0.75", BAYES).answer()
    (read,) = csv.DictReader(io.StringIO(as_csv(rows)))
    assert float(read["risk"]) == rows[0].risk
    assert read["length"] == "1:0.25,8:0.75"


@pytest.mark.slow
def test_flow():
    rows = Followed("spiked", 2.0, "10", "softmax", 0).answer()
    bayes = float(ar.bayes_risk(ar.SpikedSLR(2.0, 10)))
    ends = {row.start: row for row in rows}
    assert list(ends) == ["random 1", "random 2", "random 3", "random 4", "swapped"]
    assert ends["random 1"].risk == pytest.approx(bayes, abs=1e-6)
    assert ends["swapped"].risk > bayes + 0.1
    assert all(row.result == "converged" for row in ends.values())


@pytest.mark.slow
def test_learned():
    (row,) = Learned("spiked", 2.0, "2", "softmax", 4.0).answer()
    found = ar.tuned_erm_asymptotics(ar.SpikedSLR(2.0, 2), ar.Softmax(), 4.0)
    assert (row.risk, row.converged) == (float(found.test_risk), True)
    assert row.ridge_k == float(found.ridge.k)
