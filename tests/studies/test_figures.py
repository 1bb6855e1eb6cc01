"""The figures: rows that agree with the closed forms, and files that hold a picture and its data."""

import csv

import numpy as np
import pytest
from matplotlib.image import imread

import attnrisk as ar
from attnrisk.studies import figures
from attnrisk.studies.figures import figure2, haystack
from attnrisk.studies.figures.rows import BAYES, FLOOR, Question, Row, answer, answers
from attnrisk.studies.figures.style import line


def test_rows_agree_with_closed_forms():
    linear = answer(Question("max", np.inf, "3", "linear"))
    assert abs(linear.risk - ar.linear_risk(ar.MaxSLR(np.inf, 3))) <= linear.error + 1e-12
    floor = answer(Question("spiked", 5.0, "10", FLOOR))
    assert floor.bayes_risk < floor.risk == ar.elementwise_floor(ar.SpikedSLR(5.0, 10))


def test_softmax_lies_on_the_bayes_line():
    asked = [Question("spiked", 2.0, "1-3", name) for name in ("softmax", BAYES, "linear")]
    seen = []
    softmax, bayes, linear = answers(asked, lambda *told: seen.append(told))
    assert abs(softmax.risk - bayes.risk) <= softmax.error + bayes.error
    assert linear.excess > 0.1
    assert [told[1:] for told in seen] == [(1, 3), (2, 3), (3, 3)]


def test_every_attention_has_a_look_of_its_own():
    looks = {(line(name).colour, str(line(name).dashes)) for name in ar.CATALOGUE}
    assert len(looks) == len(ar.CATALOGUE)


@pytest.mark.parametrize("module", [figure2, haystack])
def test_files_hold_a_picture_and_its_data(module, tmp_path, monkeypatch):
    """With rows made up on the spot: drawing is what is tested."""

    def made_up(asked, progress):
        return [_made_up_row(question) for question in asked]

    monkeypatch.setattr(module, "answers", made_up)
    name = {figure2: "2", haystack: "haystack"}[module]
    files = {path.suffix: path for path in figures.draw(name, tmp_path, quick=True)}
    assert set(files) == {".pdf", ".png", ".csv", ".txt"}
    assert files[".pdf"].read_bytes().startswith(b"%PDF")
    assert imread(files[".png"]).std() > 0.05
    with files[".csv"].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"task", "nu", "length", "attention", "risk", "error", "attained"} <= set(rows[0])
    assert len(rows) > 50


def _made_up_row(question):
    inputs = question.task, question.nu, question.length, question.attention
    risk = 1 / (2 + question.nu)
    return Row(*inputs, risk, 1e-12, question.nu < 8, risk, 1e-12, 0.0)
