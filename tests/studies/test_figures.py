"""The figures: their numbers agree with what is known, and their files are what they say."""

import csv
from math import log

import made_up_figures
import numpy as np
import pytest
from made_up_figures import ask
from matplotlib.image import imread
from matplotlib.text import Text

import attnrisk as ar
from attnrisk._rows import BAYES, FLOOR, as_csv
from attnrisk.studies import EngineError, Session, figures
from attnrisk.studies.figures import (
    basins,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    flow,
    haystack,
    phases,
    prediction,
    style,
)
from attnrisk.studies.figures.rows import Row, joined, least, least_risks
from attnrisk.studies.questions import Bayes, Optimal, Thresholds

LEAST = (
    "task nu length attention bias risk error attained bayes_risk bayes_error excess m_kk best_bias"
)
LEARNED = "task nu length attention alpha risk error result warning ridge_k ridge_v"
HEADS = "law nu length curve risk error bayes_risk excess result"
COLUMNS = {
    "1": "task attention width layers steps batch_size length pairs vocabulary precision learning_rate seed "
    "parameters accuracy loss bits_per_character best_accuracy validation_accuracy validation_loss train_loss "
    "seconds result chosen",
    "2": LEAST,
    "3": "task nu length curve alpha risk error result ridge_k ridge_v warning size runs",
    "4": "task nu length attention parameter mean low high start_low start_high runs unconverged",
    "5": "task nu length attention point risk error kind lowest_eigenvalue bias "
    "m_kk m_kv m_vk m_vv q_kk q_kv q_vv",
    "6": "task nu length attention alpha ridge_k ridge_v tuned risk error result warning",
    "7": LEARNED,
    "phases": "task nu length information information_error algorithmic algorithmic_error",
    "samples": "task nu length attention alpha alpha_error alpha_above points",
    "haystack": LEAST,
    "flow": "start result end_time bayes_risk time risk risk_error m_kk m_kv m_vk m_vv R_kk R_kv R_vv "
    "gradient_norm",
    "basins": "task nu length attention size runs matched mismatched unfinished",
    "descent": "setting step inverse_temperature key key_low key_high value value_low value_high "
    "excess excess_low excess_high teacher_excess found",
    "prediction": "task attention width length pairs accuracy lowest highest accuracies gap gap_without_bias bias result "
    "attained correlation_gap correlation_gap_low correlation_gap_high correlation_gap_without_bias "
    "correlation_gap_without_bias_low correlation_gap_without_bias_high",
    "heads": HEADS,
    "flipped": f"signal tokens {HEADS}",
    "pruning": "curve result pruned heads risk error",
    "stages": "curve time risk risk_error bayes_risk head feature overlap overlap_error found",
    "specialise": "alpha ridge_k separation test_risk test_risk_error train_error replicon minima warning result "
    "fitted_separation fitted_spread fitted_train_error fitted_test_risk fitted_result",
}

# A few points of both figures, in little time.
FIGURE2 = {"spiked": (0.0, 2.0), "max": (1.0,)}
HAYSTACK = [(name, "default", (2, 1000)) for name in ("linear", "sigmoid", "softmax")]
HAYSTACK += [("relu", "free", (1000,))]


@pytest.fixture(scope="module")
def rows():
    """Rows of figure 2 and of the haystack."""
    asked = [*figure2.curves(figure2.ATTENTIONS, FIGURE2), *haystack.curves(HAYSTACK)]
    slow = [("max", "1-3"), ("max", "2")]
    chosen = ("linear", "sigmoid", "softmax", "relu, bias free")
    quick = [q for q in asked if q.name in chosen and (q.task, q.length) not in slow]
    return least_risks(Session(), quick)


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
        assert row.risk == pytest.approx(float(ar.linear_risk(task_of(row))), abs=1e-9), row


def test_sigmoid_lies_on_the_element_wise_floor(rows):
    checked = [row for row in rows if row.attention == "sigmoid"]
    assert len(checked) == 6
    for row in checked:
        assert row.risk == pytest.approx(float(ar.elementwise_floor(task_of(row))), abs=1e-9), row


def test_references_need_no_minimum():
    asked = [least("spiked", 5.0, "10", name) for name in (BAYES, FLOOR)]
    bayes, floor = least_risks(Session(), asked)
    assert bayes.risk == pytest.approx(0.359807983557, abs=1e-11)
    assert bayes.risk == bayes.bayes_risk
    assert floor.risk == float(ar.elementwise_floor(ar.SpikedSLR(5.0, 10)))
    assert bayes.m_kk is floor.m_kk is None


def test_answers_keep_the_order_and_report_each_question():
    asked = [Bayes(task, nu, "2") for nu in (3.0, 1.0, 2.0) for task in ("spiked", "max")]
    seen = []
    rows = least_risks(Session(progress=lambda *report: seen.append(report)), asked)
    assert [(row.task, row.nu) for row in rows] == [(q.task, q.nu) for q in asked]
    assert [done for _, done, _ in seen] == [0, 1, 2, 3, 4, 5, 6]
    assert {total for *_, total in seen} == {6}


def test_an_error_in_one_question_is_raised():
    with pytest.raises(EngineError, match="nu = -1"):
        Session()([Bayes("spiked", nu, "2") for nu in (1.0, -1.0, 2.0)])


def test_questions_cover_every_panel():
    asked = figure2.curves(figure2.ATTENTIONS, figure2._NU)
    panels = {(q.name, q.task, q.length) for q in asked}
    assert len(panels) == (len(figure2.ATTENTIONS) + 1) * 6
    exact = {n for n, entry in ar.CATALOGUE.items() if entry.attention.family != "general"}
    assert set(haystack.ATTENTIONS) == exact - {"ssmax", "sigmoid-logL", "softpick"}
    for question in haystack.curves(haystack._FULL):
        signal = question.nu / log(int(question.length))
        assert min(abs(signal - c) for c in haystack.SIGNALS) < 1e-12


def test_rows_tell_what_bias_was_asked(rows):
    (relu,) = [row for row in rows if row.attention == "relu" and round(haystack._signal(row)) == 4]
    assert relu.bias == "free"
    assert relu.best_bias < 0  # a threshold above the ordinary tokens
    assert {row.bias for row in rows if row.attention == "softmax"} == {"default"}


def test_each_row_of_the_haystack_has_every_attention_once():
    for strip in (haystack._WITHOUT, haystack._WITH):
        assert sorted(strip.attentions) == sorted(haystack.ATTENTIONS)
    for name in haystack.ATTENTIONS:
        attention = ar.get_attention(name)
        same = attention.free_bias or attention.bias_is_void
        assert (name in haystack.TUNED) is not same, name


def test_a_curve_without_a_bias_is_not_drawn_with_it():
    drawn = haystack.plot(haystack.compute(False, ask))
    colour = style.line("relu").colour
    for bias, axes in zip(("default", "free"), (drawn.axes[0], drawn.axes[3]), strict=True):
        asked = [
            q for q in haystack._curves(False) if q.name.startswith("relu,") or q.name == "relu"
        ]
        (curve,) = [
            line for line in axes.lines if line.get_color() == colour and line.get_xdata().size
        ]
        here = [q for q in asked if q.bias == bias and q.nu == log(int(q.length))]
        ends = [made_up_figures.least(q)["risk"] for q in (here[-1], here[0])]
        assert [curve.get_ydata()[at] for at in (0, -1)] == pytest.approx(ends)


@pytest.mark.parametrize("name", figures.NAMES)
def test_draw_writes_the_picture_its_data_and_its_caption(name, tmp_path):
    module = figures.FIGURES[name]
    files = figures.draw(name, tmp_path / "new", quick=True, ask=ask)
    assert [path.suffix for path in files] == [".pdf", ".svg", ".png", ".csv", ".txt"]
    pdf, svg, png, data, caption = files
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"<svg" in svg.read_bytes()
    assert b"/FontFile2" in pdf.read_bytes()  # TrueType, embedded
    picture = imread(png)[..., :3]
    assert picture.shape[1] >= 1400
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 200
    with data.open(encoding="utf-8") as file:
        head, *table = list(csv.reader(file))
    rows = module.compute(True, ask)
    assert head == COLUMNS[name].split()
    for row in rows:
        assert list(vars(row)) == head
    assert table == [["" if x is None else str(x) for x in vars(row).values()] for row in rows]
    assert caption.read_text(encoding="utf-8") == module.CAPTION


@pytest.mark.parametrize("name", figures.NAMES)
@pytest.mark.parametrize("quick", [True, False])
def test_what_a_figure_can_ask_at_once_it_does_ask(name, quick):
    asked = []

    def note(questions):
        questions = list(questions)
        asked.extend(questions)
        return ask(questions)

    figures.FIGURES[name].compute(quick, note)
    assert set(figures.FIGURES[name].questions(quick)) <= set(asked)


def test_a_limit_that_is_not_attained_is_an_open_circle():
    grid = {"spiked": (0.0, 6.0), "max": (0.0, 1.0)}
    panels = figure2.plot(least_risks(ask, figure2.curves(figure2.ATTENTIONS, grid))).axes
    circles = [
        line for line in panels[0].lines if line.get_marker() == "o" and line.get_xdata().size
    ]
    assert len(circles) == len(figure2.ATTENTIONS)
    assert all(line.get_markerfacecolor() == "white" for line in circles)
    assert not any(line.get_marker() == "o" and line.get_xdata().size for line in panels[3].lines)


def texts(figure):
    """All words of a picture that are shown."""
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text.get_alpha() != 0
    ]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", figures.NAMES)
def test_text_can_be_read_at_page_width(name, quick):
    picture = figures.make(name, quick, ask).picture
    pixels = 720 / (72 * picture.get_figwidth())  # of a point
    for text in texts(picture):
        assert text.get_fontsize() * pixels >= 9, text.get_text()


@pytest.mark.parametrize("name", [name for name in figures.NAMES if name not in ("1", "haystack")])
def test_every_panel_says_its_signal_and_its_length(name):
    picture = figures.make(name, False, ask).picture
    for axes in picture.axes:
        if not axes.axison or axes.get_label() == "<colorbar>":
            continue
        column = [a for a in picture.axes if a.get_subplotspec() and same_column(a, axes)]
        labels = [a.get_xlabel() + a.get_ylabel() for a in [*column, axes]]
        titles = [axes.get_title()]
        if name in (
            "descent",
            "stages",
        ):  # overlaps and risk of one setting share their column's title
            titles += [a.get_title() for a in column]
        said = " ".join([*labels, *titles])
        assert "nu" in said, said
        assert "L = " in said or "L \\sim" in said or "tokens $L$" in said, said


def same_column(one, other):
    return one.get_subplotspec().colspan == other.get_subplotspec().colspan


def test_the_optimum_is_broken_where_it_jumps():
    """A spline through the threshold would show risks that nobody has."""
    for name, module in (("3", figure3), ("7", figure7)):
        for axes in figures.make(name, False, jumping).picture.axes:
            if not axes.axison:
                continue
            black = [
                line
                for line in axes.lines
                if line.get_color() == style.INK and line.get_linestyle() == "-"
            ]
            drawn = [line.get_xdata() for line in black if len(line.get_xdata())]
            assert len(drawn) == 2, module
            assert drawn[0].max() < 1.0 < drawn[1].min()
            assert drawn[0].max() > 0.99
            assert drawn[1].min() < 1.01
            heights = np.concatenate([line.get_ydata() for line in black])
            assert not np.any((heights > 0.3) & (heights < 0.7))


def jumping(questions):
    """The optimum falls from above 0.7 to below 0.3 at α = 1."""
    questions = list(questions)
    return [
        each | {"risk": 0.8 if each["alpha"] < 1 else 0.2} if isinstance(q, Optimal) else each
        for q, each in zip(questions, ask(questions), strict=True)
    ]


def test_crosses_have_the_colour_of_their_curve():
    for name, attentions in (("3", ("softmax", "linear")), ("7", ("softmax", "erf", "linear"))):
        axes = figures.make(name, True, ask).picture.axes[0]
        colours = {line.get_color() for line in crosses(axes)}
        assert colours == {style.line(each).colour for each in attentions}
    axes = figures.make("4", True, ask).picture.axes[0]
    assert {line.get_color() for line in crosses(axes)} == {
        style.line(each).colour for each in figure4.ATTENTIONS
    }


def test_few_points_are_joined_by_straight_lines():
    few = [1.0, 2.0, 4.0, 8.0, 16.0]
    x, y = style.smooth(few, [0.9, 0.5, 0.4, 0.3, 0.1], "x")
    assert (list(x), list(y)) == (few, [0.9, 0.5, 0.4, 0.3, 0.1])


@pytest.mark.parametrize("length", ["2", "10", "1-3"])
@pytest.mark.parametrize("task", ["spiked", "max"])
def test_curves_of_the_quick_form_are_accurate_to_the_eye(task, length):
    """The line of linear attention, whose risk has a closed form, between the computed points."""
    kind, law = {"spiked": ar.SpikedSLR, "max": ar.MaxSLR}[task], ar.parse_lengths(length)

    def exact(nu):
        return [float(ar.linear_risk(kind(float(each), law))) for each in nu]

    nu = figure2._QUICK_NU[task]
    low, high = np.log(figure2.TASKS[task])
    fine, risk = style.smooth(nu, exact(nu), "y")
    between = np.linspace(nu[0], nu[-1], 31)
    drawn = np.exp(np.interp(between, fine, np.log(risk)))
    off = np.abs(np.log(drawn) - np.log(exact(between))) / (high - low)
    assert off.max() < 0.01  # of the height of the panel


def test_an_unknown_figure_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one of " + ", ".join(figures.NAMES)):
        figures.draw("8", tmp_path)


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


def test_figure4_asks_for_every_panel():
    asked = figure4.ends(figure4._NU)
    assert {(q.task, q.attention) for q in asked} == {
        (task, name) for task in figure4.TASKS for name in figure4.ATTENTIONS
    }
    assert figure4.RUNS >= 20


def test_unconverged_runs_are_crosses():
    grid = {"spiked": (1.0, 2.0), "max": (1.0, 1.5)}
    drawn = figure4.plot(joined(figure4.ends(grid), ask))
    spiked, selected = np.split(np.array(drawn.axes), 2)
    assert all(len(crosses(axes)) == len(figure4.ATTENTIONS) for axes in spiked)
    assert not any(crosses(axes) for axes in selected)
    assert "runs not converged" in [text.get_text() for text in drawn.legends[0].texts]


def test_a_flow_that_escapes_is_not_joined_to_the_trap():
    grid = {"spiked": (1.0, 2.0, 3.0), "max": (1.0,)}

    def kinds(questions):
        outcomes = [("minimum" if q.nu > 1 else figure5.ESCAPED,) for q in questions]
        return list(map(made_up_figures.minima, questions, outcomes))

    figure = figure5.plot(joined(figure5.minima(figure5.ATTENTIONS, grid), kinds))
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [list(line.get_xdata()) for line in dashed] == [[2.0, 3.0]] * len(figure5.ATTENTIONS)
    named = [text.get_text() for text in figure.legends[0].texts]
    assert "escapes to the global minimum" in named
    assert "saddle" not in named


def test_starts_cover_every_column_of_the_basins():
    for grid in (basins._FULL, basins._QUICK):
        asked = basins.starts(grid)
        assert len({(q.task, q.attention) for q in asked}) == len(grid.runs)
        for task in basins.TASKS:
            rows = [q for q in asked if (q.task, q.attention) == (task, "linear")]
            columns = [[row for row in rows if basins._is_in(row, at)] for at in range(3)]
            points = (grid.nu[task], grid.length, grid.size)
            assert [len(column) for column in columns] == [len(part) for part in points]
            assert len(rows) == sum(map(len, points)) - 2  # the centre once


def test_a_fate_that_nobody_meets_is_not_drawn():
    def unfinished(questions):
        found = [made_up_figures.counts(q, 3 * (q.task == "max")) for q in questions]
        return [q.inputs | counts for q, counts in zip(questions, found, strict=True)]

    without = basins.plot(basins.compute(True, ask))
    with_some = basins.plot(basins.compute(True, unfinished))
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
    panels = flow.plot(flow.compute(True, ask)).axes
    assert [len(crosses(axes)) for axes in panels] == [0, 1, 0, 4]


def test_the_hard_phase_lies_between_the_thresholds(monkeypatch):
    found = Thresholds("spiked", 2.0, "3").answer()
    assert (found["information"], found["information_error"]) == (1.0, 0.0)
    assert found["algorithmic"] == pytest.approx(1.24, abs=3 * found["algorithmic_error"])
    monkeypatch.setattr(phases, "_QUICK_NU", {"spiked": (0.0, 1.0, 2.0, 4.0), "max": ()})
    (axes,) = phases.plot(phases.compute(True, ask)).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in dots] == [[1.0, 2.0, 4.0]]  # where there is a jump


def test_planes_mark_what_to_distrust(monkeypatch):
    grid = figure6.Grid((1.0, 8.0), (0.1, 1.0, 10.0), 6)
    monkeypatch.setattr(figure6, "_QUICK", grid)
    asked = figure6.planes(grid)
    figure = figure6.plot(figure6.compute(True, ask))
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
    monkeypatch.setattr(figure6, "_QUICK", figure6.Grid((4.0,), (0.1, 1.0, 10.0), 6))
    monkeypatch.setattr(figure6, "ATTENTIONS", ("softmax",))
    *rows, tuned = figure6.compute(True, Session())
    assert len(rows) == 9
    assert tuned.tuned
    assert not any(row.tuned for row in rows)
    assert tuned.risk <= min(row.risk for row in rows) + 3 * tuned.error


def test_learning_curves_cover_what_has_a_minimum():
    left_out = {"ssmax", "sigmoid-logL", "softpick", "clipped-softmax"}
    sensitive = {name for name in ar.CATALOGUE if ar.get_attention(name).is_scale_sensitive}
    assert set(figure7.ATTENTIONS) == sensitive - left_out
    axes = figure7.plot(figure7.compute(True, ask)).axes
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
    class Found:
        def __init__(self, learning_rate, validation_loss):
            self.learning_rate, self.validation_loss, self.loss = (
                learning_rate,
                validation_loss,
                -validation_loss,
            )

    rates = {0.1: (1.0, 2.0), 0.2: (1.2, 1.3), 0.3: (0.1, float("nan"))}
    every = [Found(rate, loss) for rate, losses in rates.items() for loss in losses]
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
