"""The figures: their numbers agree with what is known, and their files are what they say."""

import csv
from dataclasses import astuple, fields
from math import log

import numpy as np
import pytest
from made_up_figures import (
    made_up,
    made_up_counts,
    made_up_curve,
    made_up_descent,
    made_up_ends,
    made_up_experiments,
    made_up_learned,
    made_up_path,
    made_up_phases,
    made_up_plane,
    made_up_points,
)
from matplotlib.image import imread

import attnrisk as ar
from attnrisk._rows import BAYES, FLOOR
from attnrisk.studies import figures
from attnrisk.studies.figures import (
    basins,
    descent,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    flow,
    haystack,
    phases,
    style,
)
from attnrisk.studies.figures.asking import Asking
from attnrisk.studies.figures.rows import Question, Row, answer

COLUMNS = "task nu length attention risk error attained bayes_risk bayes_error excess m_kk bias"

# A few points of both figures, in little time.
FIGURE2 = {"spiked": (0.0, 2.0), "max": (1.0,)}
HAYSTACK = ("linear", "sigmoid", "softmax"), (2, 1000)


@pytest.fixture(scope="module")
def rows():
    """Rows of figure 2 and of the haystack."""
    asked = [*figure2.questions(figure2.ATTENTIONS, FIGURE2), *haystack.questions(*HAYSTACK)]
    slow = [("max", "1-3"), ("max", "2")]
    quick = [q for q in asked if q.attention in HAYSTACK[0] and (q.task, q.length) not in slow]
    return Asking()(answer, quick, Row)


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
    (bayes,), (floor,) = (answer(Question("spiked", 5.0, "10", name)) for name in (BAYES, FLOOR))
    assert bayes.risk == pytest.approx(0.359807983557, abs=1e-11)
    assert bayes.risk == bayes.bayes_risk
    assert floor.risk == ar.elementwise_floor(ar.SpikedSLR(5.0, 10))
    assert bayes.m_kk is floor.m_kk is None


def test_answers_keep_the_order_and_report_each_question():
    asked = [Question(task, nu, "2", BAYES) for nu in (3.0, 1.0, 2.0) for task in ("spiked", "max")]
    seen = []
    rows = Asking(progress=lambda *report: seen.append(report))(answer, asked, Row)
    assert [(row.task, row.nu) for row in rows] == [(q.task, q.nu) for q in asked]
    assert [done for _, done, _ in seen] == [0, 1, 2, 3, 4, 5, 6]
    assert {total for *_, total in seen} == {6}


def test_an_error_in_one_question_is_raised():
    with pytest.raises(ValueError, match="nu = -1"):
        Asking()(answer, [Question("spiked", nu, "2", BAYES) for nu in (1.0, -1.0, 2.0)], Row)


def test_questions_cover_every_panel():
    asked = figure2.questions(figure2.ATTENTIONS, figure2._NU)
    panels = {(q.attention, q.task, q.length) for q in asked}
    assert len(panels) == (len(figure2.ATTENTIONS) + 1) * 6
    exact = {n for n, entry in ar.CATALOGUE.items() if entry.attention.family != "general"}
    assert set(haystack.ATTENTIONS) == exact
    for question in haystack.questions(haystack.ATTENTIONS, haystack._LENGTHS):
        signal = question.nu / log(int(question.length))
        assert min(abs(signal - c) for c in haystack.SIGNALS) < 1e-12


@pytest.fixture
def unworked(monkeypatch):
    """Figures whose rows cost nothing."""
    for module in (figure2, haystack):
        monkeypatch.setattr(module, "answer", lambda asked: [made_up(asked)])
    monkeypatch.setattr(figure3, "curve", made_up_curve)
    monkeypatch.setattr(figure3, "experiments", made_up_experiments)
    monkeypatch.setattr(figure4, "ends", made_up_ends)
    monkeypatch.setattr(figure5, "points", made_up_points)
    monkeypatch.setattr(figure6, "points", made_up_plane)
    monkeypatch.setattr(figure7, "curve", made_up_learned)
    monkeypatch.setattr(basins, "counts", lambda asked: [made_up_counts(asked)])
    monkeypatch.setattr(phases, "thresholds", lambda asked: [made_up_phases(asked)])
    monkeypatch.setattr(flow, "records", made_up_path)
    monkeypatch.setattr(descent, "records", made_up_descent)


@pytest.mark.usefixtures("unworked")
@pytest.mark.parametrize("name", figures.NAMES)
def test_draw_writes_the_picture_its_data_and_its_caption(name, tmp_path):
    module = figures._MODULES[name]
    files = figures.draw(name, tmp_path / "new", quick=True)
    assert [path.suffix for path in files] == [".pdf", ".png", ".csv", ".txt"]
    pdf, png, data, caption = files
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"/FontFile2" in pdf.read_bytes()  # TrueType, embedded
    picture = imread(png)[..., :3]
    assert picture.shape[1] >= 1400
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 200
    with data.open(encoding="utf-8") as file:
        head, *table = list(csv.reader(file))
    rows = module.compute(True, Asking())
    assert head == [field.name for field in fields(rows[0])]
    assert table == [["" if x is None else str(x) for x in astuple(row)] for row in rows]
    assert caption.read_text(encoding="utf-8") == module.CAPTION


def test_columns():
    assert [field.name for field in fields(Row)] == COLUMNS.split()


def test_a_limit_that_is_not_attained_is_an_open_circle():
    rows = [
        made_up(question)
        for question in figure2.questions(
            figure2.ATTENTIONS, {"spiked": (0.0, 6.0), "max": (0.0, 1.0)}
        )
    ]
    panels = figure2.plot(rows).axes
    circles = [
        line for line in panels[0].lines if line.get_marker() == "o" and line.get_xdata().size
    ]
    assert len(circles) == len(figure2.ATTENTIONS) + 1
    assert all(line.get_markerfacecolor() == "white" for line in circles)
    assert not any(line.get_marker() == "o" and line.get_xdata().size for line in panels[3].lines)


def test_an_unknown_figure_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="one of 2, 3, 4, 5, 6, 7, phases, haystack, flow, basins, descent"
    ):
        figures.draw("1", tmp_path)


def crosses(axes):
    return [line for line in axes.lines if line.get_marker() == "x" and line.get_xdata().size]


@pytest.mark.slow
def test_ends_of_linear_attention_are_well_matched():
    rows = figure4.ends(Question("spiked", 2.0, "10", "linear"))
    found = {row.parameter: row for row in rows}
    assert list(found) == ["m_kk", *figure4.SHOWN]
    assert found["m_kk"].mean == pytest.approx(0.9 * 2**0.5, abs=1e-3)
    assert found["m_vv"].mean == pytest.approx(0.0847457627, abs=1e-5)
    for row in rows:
        assert (row.runs, row.unconverged) == (20, 0)
        assert row.low <= row.mean <= row.high
        assert row.start_low < row.start_high
    for name in ("m_kv", "m_vk", "R_kk", "R_kv", "R_vv"):
        assert max(abs(found[name].low), abs(found[name].high)) < 1e-4


def test_figure4_asks_for_every_panel():
    asked = figure4.questions(figure4._NU)
    assert {(q.task, q.attention) for q in asked} == {
        (task, name) for task in figure4.TASKS for name in figure4.ATTENTIONS
    }
    assert figure4.RUNS >= 20


def test_unconverged_runs_are_crosses():
    grid = {"spiked": (1.0, 2.0), "max": (1.0, 1.5)}
    drawn = figure4.plot([row for q in figure4.questions(grid) for row in made_up_ends(q)])
    spiked, selected = np.split(np.array(drawn.axes), 2)
    assert all(len(crosses(axes)) == len(figure4.ATTENTIONS) for axes in spiked)
    assert not any(crosses(axes) for axes in selected)
    assert "unconverged runs" in [text.get_text() for text in drawn.legends[0].texts]


def test_a_flow_that_escapes_is_not_joined_to_the_trap():
    grid = {"spiked": (1.0, 2.0, 3.0), "max": (1.0,)}
    rows = [
        row
        for q in figure5.questions(figure5.ATTENTIONS, grid)
        for row in made_up_points(q, ("minimum" if q.nu > 1 else figure5.ESCAPED,))
    ]
    figure = figure5.plot(rows)
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [list(line.get_xdata()) for line in dashed] == [[2.0, 3.0]] * len(figure5.ATTENTIONS)
    named = [text.get_text() for text in figure.legends[0].texts]
    assert "escapes to the well-matched" in named
    assert "saddle" not in named


def test_starts_cover_every_column_of_the_basins():
    for grid in (basins._FULL, basins._QUICK):
        asked = basins.questions(grid)
        assert len({(q.task, q.attention) for q in asked}) == len(grid.runs)
        for task in basins.TASKS:
            rows = [made_up_counts(q) for q in asked if (q.task, q.attention) == (task, "linear")]
            columns = [[row for row in rows if basins._is_in(row, at)] for at in range(3)]
            points = (grid.nu[task], grid.length, grid.size)
            assert [len(column) for column in columns] == [len(part) for part in points]
            assert len(rows) == sum(map(len, points)) - 2  # the centre once


def test_a_fate_that_nobody_meets_is_not_drawn():
    asked = basins.questions(basins._QUICK)
    without = basins.plot([made_up_counts(q) for q in asked])
    with_some = basins.plot([made_up_counts(q, 3 * (q.task == "max")) for q in asked])
    labels = [[text.get_text() for text in it.legends[0].texts] for it in (without, with_some)]
    assert "neither" in labels[1]
    assert "neither" not in labels[0]
    assert [bool(crosses(axes)) for axes in with_some.axes] == [False] * 3 + [True] * 3


def test_shares_have_the_error_of_a_count():
    row = made_up_counts(basins.Starts("spiked", 2.0, "10", "erf", 1.0, 100))
    assert (row.matched, row.mismatched, row.unfinished) == (50, 50, 0)
    share = basins.share_of(row.matched, row.runs)
    assert (share.value, share.error) == (0.5, pytest.approx(0.05))
    assert basins.share_of(0, 100).error == pytest.approx(0.01)


@pytest.mark.slow
def test_small_starts_of_linear_attention_find_the_teacher():
    (row,) = basins.counts(basins.Starts("spiked", 2.0, "10", "linear", 0.1, 12))
    assert (row.matched, row.mismatched, row.unfinished) == (12, 0, 0)


def test_the_mark_says_whether_a_flow_came_to_rest():
    panels = flow.plot(made_up_path(flow.Runs(5))).axes
    assert [len(crosses(axes)) for axes in panels] == [0, 1, 0, 4]


def test_the_hard_phase_lies_between_the_thresholds():
    (row,) = phases.thresholds(Question("spiked", 2.0, "3", BAYES))
    assert (row.information, row.information_error) == (1.0, 0.0)
    assert row.algorithmic == pytest.approx(1.24, abs=3 * row.algorithmic_error)
    asked = [Question("spiked", nu, "3", BAYES) for nu in (0.0, 1.0, 2.0, 4.0)]
    (axes,) = phases.plot([made_up_phases(q) for q in asked]).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in dots] == [[1.0, 2.0, 4.0]]  # where there is a jump


def test_planes_mark_what_to_distrust():
    grid = figure6.Grid((1.0, 8.0), (0.1, 1.0, 10.0), 6)
    asked = figure6.planes(grid)
    figure = figure6.plot([row for plane in asked for row in made_up_plane(plane)])
    panels = figure.axes[: len(asked)]
    for axes in panels:
        (cross,) = crosses(axes)
        assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([0.1], [0.1])
        stars = [line for line in axes.lines if line.get_marker() == "*"]
        assert [list(line.get_xdata()) for line in stars] == [[1.0]]
    named = [text.get_text() for text in figure.legends[0].texts]
    assert named == ["tuned ridges", "replica symmetry fails", "not converged"]


@pytest.mark.slow
def test_tuning_ends_below_the_grid():
    plane = figure6.Plane("spiked", 2.0, "3", "softmax", 4.0, (0.1, 1.0, 10.0), 6)
    *rows, tuned = figure6.points(plane)
    assert len(rows) == 9
    assert tuned.tuned
    assert not any(row.tuned for row in rows)
    assert tuned.risk <= min(row.risk for row in rows) + 3 * tuned.error


def test_learning_curves_cover_what_has_a_minimum():
    assert set(figure7.ATTENTIONS) == {
        name for name in ar.CATALOGUE if ar.get_attention(name).is_scale_sensitive
    }
    rows = made_up_learned(Question("spiked", 5.0, "3", "softmax"))
    axes = figure7.plot([*rows, *made_up_learned(Question("spiked", 5.0, "3", BAYES))]).axes
    (cross,) = crosses(axes[0])
    assert list(cross.get_xdata()) == [16.0, 16.0]
    hollow = [line for line in axes[0].lines if line.get_fillstyle() == "none"]
    assert [list(line.get_xdata()) for line in hollow] == [[0.5]]


def test_every_attention_of_the_catalogue_has_a_line_of_its_own():
    lines = {name: style.line(name) for name in ar.CATALOGUE}
    assert len({(line.colour, str(line.dashes)) for line in lines.values()}) == len(lines)
    assert len({line.colour for line in lines.values()}) == len(lines)
    assert set(style.COLOURS) == set(ar.CATALOGUE)


def test_one_line_style_per_family():
    dashes = {}
    for name, entry in ar.CATALOGUE.items():
        dashes.setdefault(entry.attention.family, set()).add(str(style.line(name).dashes))
    assert {len(styles) for styles in dashes.values()} == {1}
    assert len(set.union(*dashes.values())) == len(dashes)


def test_lines_pass_through_the_points_and_do_not_overshoot():
    x, y = [0.0, 1.0, 2.0, 6.0], [0.9, 0.5, 0.49, 0.1]
    fine, curve = style.smooth(x, y)
    np.testing.assert_allclose(np.interp(x, fine, curve), y, atol=2e-3)
    assert np.all(np.diff(curve) <= 0)
    assert fine[0] == x[0]
    assert fine[-1] == x[-1]
