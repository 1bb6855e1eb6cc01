"""The figures: their numbers agree with what is known, and their files are what they say."""

import csv
from math import log

import numpy as np
import pytest
from matplotlib.image import imread

import attnrisk as ar
from attnrisk.studies import figures
from attnrisk.studies.figures import figure2, haystack, style
from attnrisk.studies.figures.rows import BAYES, FLOOR, Question, Row, answer, answers

COLUMNS = "task nu length attention risk error attained bayes_risk bayes_error excess m_kk bias"

# A few points of both figures, in little time.
FIGURE2 = {"spiked": (0.0, 2.0), "max": (1.0,)}
HAYSTACK = ("linear", "sigmoid", "softmax"), (2, 1000)


@pytest.fixture(scope="module")
def rows():
    """Rows of figure 2 and of the haystack."""
    asked = [*figure2.questions(FIGURE2), *haystack.questions(*HAYSTACK)]
    slow = [("max", "1-3"), ("max", "2")]
    return answers(
        q for q in asked if q.attention in HAYSTACK[0] and (q.task, q.length) not in slow
    )


def task_of(row):
    kind = {"spiked": ar.SpikedSLR, "max": ar.MaxSLR}[row.task]
    return kind(row.nu, ar.parse_lengths(row.length))


def test_softmax_lies_on_the_bayes_risk(rows):
    checked = [row for row in rows if row.attention == "softmax"]
    assert len(checked) == 13
    for row in checked:
        assert abs(row.excess) <= row.error + row.bayes_error, row


def test_nobody_beats_the_bayes_risk(rows):
    for row in rows:
        assert row.excess >= -row.error - row.bayes_error, row


def test_linear_agrees_with_its_closed_form(rows):
    checked = [row for row in rows if row.attention == "linear"]
    assert len(checked) == 13
    for row in checked:
        assert row.risk == pytest.approx(ar.linear_risk(task_of(row)), abs=1e-9), row


def test_sigmoid_lies_on_the_element_wise_floor(rows):
    checked = [row for row in rows if row.attention == "sigmoid"]
    assert len(checked) == 6
    for row in checked:
        assert row.risk == pytest.approx(ar.elementwise_floor(task_of(row)), abs=1e-9), row


def test_references_need_no_minimum():
    bayes, floor = (answer(Question("spiked", 5.0, "10", name)) for name in (BAYES, FLOOR))
    assert bayes.risk == pytest.approx(0.359807983557, abs=1e-11)
    assert bayes.risk == bayes.bayes_risk
    assert floor.risk == ar.elementwise_floor(ar.SpikedSLR(5.0, 10))
    assert bayes.m_kk is floor.m_kk is None


def test_answers_keep_the_order_and_report_each_question():
    asked = [Question(task, nu, "2", BAYES) for nu in (3.0, 1.0, 2.0) for task in ("spiked", "max")]
    seen = []
    rows = answers(asked, lambda *report: seen.append(report))
    assert [(row.task, row.nu) for row in rows] == [(q.task, q.nu) for q in asked]
    assert [done for _, done, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert {total for *_, total in seen} == {6}


def test_an_error_in_one_question_is_raised():
    with pytest.raises(ValueError, match="nu = -1"):
        answers([Question("spiked", nu, "2", BAYES) for nu in (1.0, -1.0, 2.0)])


def test_questions_cover_every_panel():
    asked = figure2.questions(figure2._NU)
    panels = {(q.attention, q.task, q.length) for q in asked}
    assert len(panels) == (len(figure2.ATTENTIONS) + 1) * 6
    exact = {n for n, entry in ar.CATALOGUE.items() if ar.family(entry.attention) != "general"}
    assert set(haystack.ATTENTIONS) == exact
    for question in haystack.questions(haystack.ATTENTIONS, haystack._LENGTHS):
        signal = question.nu / log(int(question.length))
        assert min(abs(signal - c) for c in haystack.SIGNALS) < 1e-12


@pytest.mark.parametrize("name", figures.NAMES)
def test_draw_writes_the_picture_its_data_and_its_caption(name, tmp_path, monkeypatch):
    module = figures._MODULES[name]
    monkeypatch.setattr(module, "answers", lambda asked, _: [made_up(q) for q in asked])
    files = figures.draw(name, tmp_path / "new", quick=True)
    assert [path.suffix for path in files] == [".pdf", ".png", ".csv", ".txt"]
    pdf, png, data, caption = files
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"/FontFile2" in pdf.read_bytes()  # TrueType, embedded
    picture = imread(png)[..., :3]
    assert picture.shape[1] >= 1400
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 500
    with data.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == COLUMNS.split()
    assert [float(line["risk"]) for line in table] == [row.risk for row in module.compute(True)]
    assert caption.read_text(encoding="utf-8") == module.CAPTION


def made_up(question):
    """A row without any computation, between 0 and 1; the strongest signal is not attained."""
    risk = 1 / (1 + question.nu + len(question.attention) / 30)
    inputs = question.task, question.nu, question.length, question.attention
    return Row(*inputs, risk, 1e-12, question.nu < 5, risk, 0.0, 0.0, 1.0, 0.0)


def test_a_limit_that_is_not_attained_is_an_open_circle():
    rows = [
        made_up(question)
        for question in figure2.questions({"spiked": (0.0, 6.0), "max": (0.0, 1.0)})
    ]
    panels = figure2.plot(rows).axes
    circles = [
        line for line in panels[0].lines if line.get_marker() == "o" and line.get_xdata().size
    ]
    assert len(circles) == len(figure2.ATTENTIONS) + 1
    assert all(line.get_markerfacecolor() == "white" for line in circles)
    assert not any(line.get_marker() == "o" and line.get_xdata().size for line in panels[3].lines)


def test_an_unknown_figure_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one of 2, haystack"):
        figures.draw("3", tmp_path)


def test_every_attention_of_the_catalogue_has_a_line_of_its_own():
    lines = {name: style.line(name) for name in ar.CATALOGUE}
    assert len({(line.colour, str(line.dashes)) for line in lines.values()}) == len(lines)
    assert len({line.colour for line in lines.values()}) == len(lines)
    assert set(style.COLOURS) == set(ar.CATALOGUE)


def test_one_line_style_per_family():
    dashes = {}
    for name, entry in ar.CATALOGUE.items():
        dashes.setdefault(ar.family(entry.attention), set()).add(str(style.line(name).dashes))
    assert {len(styles) for styles in dashes.values()} == {1}
    assert len(set.union(*dashes.values())) == len(dashes)


def test_lines_pass_through_the_points_and_do_not_overshoot():
    x, y = [0.0, 1.0, 2.0, 6.0], [0.9, 0.5, 0.49, 0.1]
    fine, curve = style.smooth(x, y)
    np.testing.assert_allclose(np.interp(x, fine, curve), y, atol=2e-3)
    assert np.all(np.diff(curve) <= 0)
    assert fine[0] == x[0]
    assert fine[-1] == x[-1]
