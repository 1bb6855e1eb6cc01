"""The figures: their numbers agree with what is known, and their files are what they say."""

import csv
from functools import cache
from math import log

import made_up_figures
import numpy as np
import pytest
from made_up_figures import ask
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from matplotlib.text import Text

import attnrisk as ar
from attnrisk._rows import BAYES, FLOOR
from attnrisk.studies import Session, figures
from attnrisk.studies.figures import (
    figure2,
    figure3,
    figure7,
    haystack,
    samples,
    style,
)
from attnrisk.studies.figures.rows import least, least_risks
from attnrisk.studies.questions import Optimal, RiskCrossing

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
    "prediction": "task attention width length pairs accuracy lowest highest accuracies gap gap_without_bias bias "
    "result attained correlation_gap correlation_gap_low correlation_gap_high correlation_gap_without_bias "
    "correlation_gap_without_bias_low correlation_gap_without_bias_high",
    "heads": HEADS,
    "flipped": f"signal tokens {HEADS}",
    "pruning": "curve result pruned heads risk error",
    "stages": "curve time risk risk_error bayes_risk head feature overlap overlap_error found",
    "specialise": "alpha ridge_k separation test_risk test_risk_error train_error replicon minima growth growth_error "
    "warning result fitted_separation fitted_spread fitted_train_error fitted_test_risk fitted_result",
}

# A few points of both figures, in little time.
FIGURE2 = {"spiked": (0.0, 2.0), "max": (1.0,)}
HAYSTACK = [(name, "default", (1000,)) for name in ("linear", "sigmoid", "softmax")]
HAYSTACK += [("relu", "free", (1000,))]


@pytest.fixture(scope="module")
def rows():
    """Rows of figure 2 and of the haystack."""
    asked = figure2.curves(figure2.ATTENTIONS, FIGURE2)
    asked = [q for q in asked if (q.task, q.length) in (("spiked", "1-3"), ("max", "10"))]
    asked += [q for q in haystack.curves(HAYSTACK) if round(haystack.signal_of(q)) == 4]
    chosen = ("linear", "sigmoid", "softmax", "relu, bias free")
    return least_risks([q for q in asked if q.name in chosen], Session())


def task_of(row):
    kind = {"spiked": ar.SpikedSLR, "max": ar.MaxSLR}[row.task]
    return kind(row.nu, ar.parse_lengths(row.length))


def test_softmax_lies_on_the_bayes_risk(rows):
    checked = [row for row in rows if row.attention == "softmax"]
    assert len(checked) == 4
    for row in checked:
        assert abs(row.excess) <= row.error + row.bayes_error, row


def test_nobody_beats_the_bayes_risk(rows):
    for row in rows:
        assert row.excess >= -row.error - row.bayes_error, row


def test_linear_agrees_with_its_closed_form(rows):
    checked = [row for row in rows if row.attention == "linear"]
    assert len(checked) == 4
    for row in checked:
        assert row.risk == pytest.approx(float(ar.linear_risk(task_of(row))), abs=1e-9), row


def test_sigmoid_lies_on_the_element_wise_floor(rows):
    checked = [row for row in rows if row.attention == "sigmoid"]
    assert len(checked) == 1
    for row in checked:
        assert row.risk == pytest.approx(float(ar.elementwise_floor(task_of(row))), abs=1e-9), row


def test_references_need_no_minimum():
    asked = [least("spiked", 5.0, "10", name) for name in (BAYES, FLOOR)]
    bayes, floor = least_risks(asked, Session())
    assert bayes.risk == pytest.approx(0.359807983557, abs=1e-11)
    assert bayes.risk == bayes.bayes_risk
    assert floor.risk == float(ar.elementwise_floor(ar.SpikedSLR(5.0, 10)))
    assert bayes.m_kk is floor.m_kk is None


def test_questions_cover_every_panel():
    panels = {(q.name, q.task, q.length) for q in figure2.FULL}
    assert len(panels) == (len(figure2.ATTENTIONS) + 1) * 6
    exact = {n for n, entry in ar.CATALOGUE.items() if entry.attention.family != "general"}
    assert set(haystack.ATTENTIONS) == exact - {"ssmax", "sigmoid-logL", "softpick"}
    for question in haystack.FULL:
        signal = question.nu / log(int(question.length))
        assert min(abs(signal - c) for c in haystack.SIGNALS) < 1e-12


def test_rows_tell_what_bias_was_asked(rows):
    (relu,) = [row for row in rows if row.attention == "relu"]
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
    drawn = haystack.plot(haystack.compute(haystack.FULL, ask))
    colour = style.line("relu").colour
    for bias, axes in zip(("default", "free"), (drawn.axes[0], drawn.axes[3]), strict=True):
        asked = [q for q in haystack.FULL if q.name.startswith("relu,") or q.name == "relu"]
        (curve,) = [
            line for line in axes.lines if line.get_color() == colour and line.get_xdata().size
        ]
        here = [q for q in asked if q.bias == bias and q.nu == log(int(q.length))]
        ends = [made_up_figures.least(q)["risk"] for q in (here[-1], here[0])]
        assert [curve.get_ydata()[at] for at in (0, -1)] == pytest.approx(ends)


@cache
def made(name, quick):
    """A figure of made-up rows, which tests only look at, and all that it asked."""
    asked = []

    def note(questions):
        questions = list(questions)
        asked.extend(questions)
        return ask(questions)

    return figures.make(name, quick, note), asked


@pytest.mark.parametrize("name", figures.NAMES)
def test_a_figure_can_be_drawn_from_rows_with_its_columns(name):
    (figure, _), head = made(name, True), COLUMNS[name].split()
    assert all(list(vars(row)) == head for row in figure.rows)
    canvas = FigureCanvasAgg(figure.picture)
    canvas.draw()
    assert colours(np.asarray(canvas.buffer_rgba())) > 200


def colours(picture):
    """How many there are, each as one number."""
    return len(np.unique(picture[..., :3].astype(int) @ [1, 2**8, 2**16]))


def test_draw_writes_the_picture_its_data_and_its_caption(tmp_path):
    name, module = "6", figures.FIGURES["6"]
    files = figures.draw(name, tmp_path / "new", quick=True, ask=ask)
    assert [path.suffix for path in files] == [".pdf", ".svg", ".png", ".csv", ".txt"]
    pdf, svg, png, data, caption = files
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"<svg" in svg.read_bytes()
    assert b"/FontFile2" in pdf.read_bytes()  # TrueType, embedded
    picture = np.rint(255 * imread(png))
    assert picture.shape[1] >= 1400
    assert colours(picture) > 200
    with data.open(encoding="utf-8") as file:
        head, *table = list(csv.reader(file))
    rows = module.compute(module.QUICK, ask)
    assert head == COLUMNS[name].split()
    assert table == [["" if x is None else str(x) for x in vars(row).values()] for row in rows]
    assert caption.read_text(encoding="utf-8") == figures.caption_of(module, True)


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        *(("1", "needle"), ("2", "softplus"), ("5", "four"), ("7", "L = 10"), ("7", "Top-k")),
        *(("samples", "rf of 1000"), ("haystack", "sigmoid"), ("basins", "100"), ("descent", "30")),
        *(("prediction", "other widths"), ("heads", "1000"), ("flipped", "c = 2")),
        *(("pruning", "more than three"), ("stages", "Middle")),
    ],
)
def test_the_caption_of_the_quick_form_names_what_it_shows(name, absent):
    full, quick = (figures.caption_of(figures.FIGURES[name], quick) for quick in (False, True))
    assert absent in full
    assert absent not in quick
    assert "[[" not in full + quick


def test_the_quick_haystack_names_the_attentions_that_it_shows():
    for asked, is_there in ((haystack.FULL, True), (haystack.QUICK, False)):
        drawn = haystack.plot(haystack.compute(asked, ask))
        said = " ".join(text.get_text() for text in drawn.findobj(Text))
        assert ("sigmoid" in said) is is_there
        assert "erf" in said


@pytest.mark.parametrize("name", figures.NAMES)
@pytest.mark.parametrize("quick", [True, False])
def test_what_a_figure_can_ask_at_once_it_does_ask(name, quick):
    _, asked = made(name, quick)
    assert set(figures.questions(name, quick)) <= set(asked)


def test_a_limit_that_is_not_attained_is_an_open_circle():
    grid = {"spiked": (0.0, 6.0), "max": (0.0, 1.0)}
    asked = figure2.curves(figure2.ATTENTIONS, grid)
    panels = figure2.plot(figure2.compute(asked, ask)).axes
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
    picture = made(name, quick)[0].picture
    pixels = 720 / (72 * picture.get_figwidth())  # of a point
    for text in texts(picture):
        assert text.get_fontsize() * pixels >= 9, text.get_text()


@pytest.mark.parametrize("name", [name for name in figures.NAMES if name not in ("1", "haystack")])
def test_every_panel_says_its_signal_and_its_length(name):
    picture = made(name, False)[0].picture
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

    nu = sorted({q.nu for q in figure2.QUICK if (q.task, q.name) == (task, "linear")})
    low, high = np.log(figure2.TASKS[task])
    fine, risk = style.smooth(nu, exact(nu), "y")
    between = np.linspace(nu[0], nu[-1], 31)
    drawn = np.exp(np.interp(between, fine, np.log(risk)))
    off = np.abs(np.log(drawn) - np.log(exact(between))) / (high - low)
    assert off.max() < 0.01  # of the height of the panel


def test_linear_attention_is_searched_where_infinite_data_halve_its_risk():
    """With infinite data its risk has a closed form."""
    searched = {each.length for each in samples.FULL if each.name == "linear"}
    tasks = {each.length: each.problem for each in samples.FULL}
    reached = {
        length for length, task in tasks.items() if float(ar.linear_risk(task)) < samples.HALF
    }
    assert reached == searched != set(tasks)


def test_a_search_ends_between_two_alphas_of_the_given_ratio():
    """On both sides of where the made-up risk `1/(1 + α)`, moved by the name, is one half."""
    for asked in (each for each in samples.QUICK if isinstance(each, RiskCrossing)):
        records = made_up_figures.searched(asked)
        row = samples.crossing(asked.inputs, asked.name, records, "test_risk")
        exact = 1 / (0.5 - 0.01 * len(asked.attention)) - 1
        below, above = (
            [it["alpha"] for it in records if (it["alpha"] < exact) is side]
            for side in (True, False)
        )
        assert min(above) <= asked.ratio * max(below)
        assert abs(row.alpha - exact) < row.alpha_error


def test_an_unknown_figure_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one of " + ", ".join(figures.NAMES)):
        figures.draw("8", tmp_path)
