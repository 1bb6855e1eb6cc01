"""Single figures: which runs they mark, join and choose, and what their styles tell apart."""

import made_up_figures
import numpy as np
import pytest
from made_up_figures import ask

import attnrisk as ar
from attnrisk._rows import as_csv
from attnrisk.studies import Session, figures
from attnrisk.studies.figures import (
    basins,
    figure1,
    figure4,
    figure5,
    figure6,
    figure7,
    flow,
    phases,
    prediction,
    style,
)
from attnrisk.studies.figures.rows import Row, joined
from attnrisk.studies.questions import Thresholds


def crosses(axes):
    return [line for line in axes.lines if line.get_marker() == "x" and line.get_xdata().size]


@pytest.mark.slow
def test_ends_of_linear_attention_are_well_matched():
    rows = joined([figure4.Ends("spiked", 2.0, "10", "linear")], Session())
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


def test_unconverged_runs_are_crosses():
    asked = [each for each in figure4.FULL if each.task == "spiked" or each.nu < 2]
    drawn = figure4.plot(figure4.compute(asked, ask))
    spiked, selected = np.split(np.array(drawn.axes), 2)
    assert all(len(crosses(axes)) == len(figure4.ATTENTIONS) for axes in spiked)
    assert not any(crosses(axes) for axes in selected)
    assert "runs not converged" in [text.get_text() for text in drawn.legends[0].texts]


def test_a_flow_that_escapes_is_not_joined_to_the_trap():
    asked = [each for each in figure5.FULL if each.nu in (1.0, 2.0, 3.0)]

    def kinds(questions):
        outcomes = [("minimum" if q.nu > 1 else figure5.ESCAPED,) for q in questions]
        return list(map(made_up_figures.minima, questions, outcomes))

    figure = figure5.plot(figure5.compute(asked, kinds))
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [list(line.get_xdata()) for line in dashed] == [[2.0, 3.0]] * len(figure5.ATTENTIONS)
    named = [text.get_text() for text in figure.legends[0].texts]
    assert "escapes to the global minimum" in named
    assert "saddle" not in named


def test_starts_cover_every_column_of_the_basins():
    for asked in (basins.FULL, basins.QUICK):
        for task in basins.TASKS:
            rows = [q for q in asked if (q.task, q.attention) == (task, "linear")]
            columns = [
                [row for row in rows if basins.is_varied(row, name)] for name in basins.CENTRE
            ]
            assert min(map(len, columns)) >= 3
            assert len(rows) == sum(map(len, columns)) - 2  # the centre once


def test_a_fate_that_nobody_meets_is_not_drawn():
    def unfinished(questions):
        found = [made_up_figures.counts(q, 3 * (q.task == "max")) for q in questions]
        return [q.inputs | counts for q, counts in zip(questions, found, strict=True)]

    without = basins.plot(basins.compute(basins.QUICK, ask))
    with_some = basins.plot(basins.compute(basins.QUICK, unfinished))
    labels = [[text.get_text() for text in it.legends[0].texts] for it in (without, with_some)]
    assert "neither" in labels[1]
    assert "neither" not in labels[0]
    assert [bool(crosses(axes)) for axes in with_some.axes] == [False] * 3 + [True] * 3


def test_shares_have_the_error_of_a_count():
    share = basins.share_of(50, 100)
    assert (share.value, share.error) == (0.5, pytest.approx(0.05))
    assert basins.share_of(0, 100).error == pytest.approx(0.01)


@pytest.mark.slow
def test_small_starts_of_linear_attention_find_the_teacher():
    found = basins.Starts("spiked", 2.0, "10", "linear", 0.1, 12).answer()
    assert found == {"matched": 12, "mismatched": 0, "unfinished": 0}


def test_the_mark_says_whether_a_flow_came_to_rest():
    panels = flow.plot(flow.compute(flow.QUICK, ask)).axes
    assert [len(crosses(axes)) for axes in panels] == [0, 1, 0, 4]


@pytest.mark.optimised
def test_the_hard_phase_lies_between_the_thresholds():
    found = Thresholds("spiked", 2.0, "3").answer()
    assert (found["information"], found["information_error"]) == (1.0, 0.0)
    assert found["algorithmic"] == pytest.approx(1.24, abs=3 * found["algorithmic_error"])
    asked = [Thresholds("spiked", nu, "3") for nu in (0.0, 1.0, 2.0, 4.0)]
    (axes,) = phases.plot(phases.compute(asked, ask)).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in dots] == [[1.0, 2.0, 4.0]]  # where there is a jump


def test_planes_mark_what_to_distrust():
    asked = figure6.planes((1.0, 8.0), (0.1, 1.0, 10.0), 6)
    figure = figure6.plot(figure6.compute(asked, ask))
    panels = figure.axes[: len(asked)]
    for axes in panels:
        (cross,) = crosses(axes)
        assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([0.1], [0.1])
        stars = [line for line in axes.lines if line.get_marker() == "*"]
        assert [list(line.get_xdata()) for line in stars] == [[1.0]]
    named = [text.get_text() for text in figure.legends[0].texts]
    assert named == ["tuned penalties", "replica symmetry fails", "not converged"]


@pytest.mark.slow
def test_tuning_ends_below_the_grid(monkeypatch):
    monkeypatch.setattr(figure6, "ATTENTIONS", ("softmax",))
    *rows, tuned = figure6.compute(figure6.planes((4.0,), (0.1, 1.0, 10.0), 6), Session())
    assert len(rows) == 9
    assert tuned.tuned
    assert not any(row.tuned for row in rows)
    assert tuned.risk <= min(row.risk for row in rows) + 3 * tuned.error


def test_learning_curves_cover_what_has_a_minimum():
    left_out = {"ssmax", "sigmoid-logL", "softpick", "clipped-softmax", "top-k"}
    sensitive = {name for name in ar.CATALOGUE if ar.get_attention(name).is_scale_sensitive}
    assert set(figure7.ATTENTIONS) == sensitive - left_out
    axes = figure7.plot(figure7.compute(figure7.QUICK, ask)).axes
    assert [list(line.get_xdata()) for line in crosses(axes[0])] == [[16.0]] * 3
    hollow = [
        line for line in axes[0].lines if line.get_fillstyle() == "none" and len(line.get_xdata())
    ]
    assert [list(line.get_xdata()) for line in hollow] == [[0.5]] * 3


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


def test_the_best_rate_is_chosen_on_validation_data():
    rates = {0.1: (1.0, 2.0), 0.2: (1.2, 1.3), 0.3: (0.1, float("nan"))}
    every = [
        Row(learning_rate=rate, validation_loss=loss, loss=-loss)
        for rate, losses in rates.items()
        for loss in losses
    ]
    assert [each.learning_rate for each in figure1.best_of(every)] == [0.2, 0.2]


def test_figure1_reads_its_own_csv(tmp_path):
    drawn = figures.make("1", True, ask)
    assert figure1.read("# a comment\n" + as_csv(drawn.rows)) == drawn.rows


def test_the_data_that_are_kept_can_be_drawn():
    rows = figure1.measured()
    assert {row.task for row in rows} == {"recall", "needle", "text"}
    assert len({row.seed for row in rows}) >= 3
    assert len({row.learning_rate for row in rows}) >= 3
    for model in figure1.summary(rows, "accuracy"):
        assert len(model.values) == 3
        assert 0 <= model.low <= model.mean <= model.high <= 1
    assert len(figure1.plot(rows).axes) == 3


def pairs(gaps, accuracies):
    return [
        Row(gap=gap, accuracies=" ".join(map(repr, values)))
        for gap, values in zip(gaps, accuracies, strict=True)
    ]


def test_rank_correlation_and_its_uncertainty():
    gaps = [0.0, 0.1, 0.2, 0.3, 0.4]
    clear = [
        (1.0, 0.98, 0.99),
        (0.9, 0.88, 0.92),
        (0.7, 0.72, 0.71),
        (0.5, 0.52, 0.49),
        (0.1, 0.2, 0.15),
    ]
    assert prediction.correlation(pairs(gaps, clear), "gap") == pytest.approx((-1.0, -1.0, -1.0))
    value, low, high = prediction.correlation(pairs(gaps, clear[::-1]), "gap")
    assert value == pytest.approx(1.0)
    value, low, high = prediction.correlation(
        pairs(gaps, [clear[at] for at in (0, 2, 1, 4, 3)]), "gap"
    )
    assert value == pytest.approx(-0.8)  # 1 - 6·4/(5·24) of two swapped pairs
    assert -1.0 <= low < value < high
    assert prediction.correlation(pairs(gaps, [clear[0]] * 5), "gap") == (None, None, None)


def test_crosses_have_the_colour_of_their_curve():
    for name, attentions in (("3", ("softmax", "linear")), ("7", ("softmax", "erf", "linear"))):
        axes = figures.make(name, True, ask).picture.axes[0]
        colours = {line.get_color() for line in crosses(axes)}
        assert colours == {style.line(each).colour for each in attentions}
    axes = figures.make("4", True, ask).picture.axes[0]
    assert {line.get_color() for line in crosses(axes)} == {
        style.line(each).colour for each in figure4.ATTENTIONS
    }
