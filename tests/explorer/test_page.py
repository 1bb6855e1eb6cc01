"""Every position of the controls gives a picture or a sentence, whatever has been answered so far."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip(
    "streamlit", reason="the explorer is an extra: pip install 'attnrisk[explorer]'"
)

from streamlit.testing.v1 import AppTest

import attnrisk as ar
from attnrisk._rows import BAYES
from attnrisk.explorer import pictures, views
from attnrisk.explorer.answers import (
    OPTIMUM,
    REACHABLE,
    SWAPPED,
    FlowRow,
    Followed,
    Learned,
    LearnedRow,
    Least,
    LeastRow,
    Optimum,
    TokenRow,
    Weights,
)
from attnrisk.explorer.desk import Answer
from attnrisk.explorer.state import NU, TASKS, VIEWS, State, to_query
from attnrisk.tasks import parse_lengths

SCRIPT = Path(views.__file__).with_name("script.py")
SENTENCE = "length = 7 is not allowed: [here](http://example.org) is <b>why</b>"


def made_up(question):
    """Rows of the right kind, without their science."""
    place = question.task, question.nu, question.length
    match question:
        case Least():
            risk = 0.3 if question.attention == BAYES else 0.4
            found = LeastRow(*place, question.attention, risk, 1e-9, risk < 0.4, 2.0, 0.5, -1.0)
            return (found,)
        case Weights():
            token = 0.5, 0.3, 1.0, 0.9, int(parse_lengths(question.length).longest), 0.3, 0.27
            return tuple(TokenRow(question.attention, at, at == 2, *token) for at in (1, 2))
        case Followed():
            starts = ("random 1", SWAPPED)
            path = [(0.1, 1.0, 0.0), (10.0, 0.5, 1.0)]
            return tuple(
                FlowRow(start, result, 5.0, time, risk, 1e-9, m, 0.0, 0.0, m, 1.0, 1.0)
                for start, result in zip(starts, ("converged", "time over"), strict=True)
                for time, risk, m in path
            )
        case Optimum():
            known = *place, question.alpha
            rows = [LearnedRow(*known, name, 0.5, 1e-3, True) for name in (OPTIMUM, REACHABLE)]
            return tuple(rows)
        case Learned():
            known = *place, question.alpha, question.attention
            return (LearnedRow(*known, 0.7, 1e-3, question.alpha > 1.0, "approximate", 1.0, 1.0),)


class Fake:
    """A desk that answers everything at once, in one way."""

    def __init__(self, answer: Callable[[object], Answer | None]):
        self.find = answer
        self.asked = []

    def ask(self, visitor, questions):
        self.asked = list(questions)

    def wait(self, questions, seconds):
        pass


DESKS = {
    "nothing": lambda question: None,
    "all": lambda question: Answer(made_up(question)),
    "sentences": lambda question: Answer((), SENTENCE),
}


@pytest.fixture
def opened(monkeypatch):
    """`opened("all", state)`: the page, with this kind of answers."""

    def opened(kind, state=None, **parameters):
        desk = Fake(DESKS[kind])
        monkeypatch.setattr(views, "desk", lambda: desk)
        app = AppTest.from_file(str(SCRIPT), default_timeout=60)
        for name, value in (to_query(state or State()) | parameters).items():
            app.query_params[name] = value
        return app.run(), desk

    yield opened
    for picture in (pictures.risks, pictures.weights, pictures.flow, pictures.learning):
        picture.cache_clear()


def is_fine(app):
    return not app.exception and app.title[0].value.startswith("How well")


CORNERS = [
    State(view, task, nu, length, attentions, alpha)
    for (view, task), (length, attentions, alpha) in product(
        product(VIEWS, TASKS),
        [("1", ("softmax", "relu", "sparsemax"), 0.25), ("1:0.25,100:0.75", ("erf",), 8.0)],
    )
    for nu in (NU[task][-1],)
]


@pytest.mark.parametrize("kind", list(DESKS))
def test_corners(opened, kind):
    for state in CORNERS:
        app, desk = opened(kind, state)
        assert is_fine(app), state
        assert desk.asked or not state.attentions
        if kind == "nothing":
            assert len(app.get("progress")) == 1, state
        else:
            assert not app.get("progress"), state
        if kind == "sentences":
            assert app.warning, state
        if kind == "all":
            assert app.get("image"), state


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_all_positions_of_the_signal(opened, task):
    for view, nu in product(VIEWS, NU[task]):
        app, _ = opened("all", State(view, task, nu, "2-5", ("softmax", "top-k")))
        assert is_fine(app), (view, nu)
        assert app.get("image")


def test_no_attention(opened):
    app, _ = opened("all")
    app.multiselect(key="attentions").set_value([]).run()
    assert is_fine(app)
    assert [info.value for info in app.info] == ["Choose an attention on the left."]


def test_a_law_that_cannot_be(opened):
    app, _ = opened("all", State(length="1:0.25,8:0.75"))
    app.text_input(key="any").set_value("3:*2*").run()
    assert is_fine(app)
    (warning,) = app.warning
    assert r"\*2\*" in warning.value  # shown as it was written, not as markdown


def test_a_foreign_link(opened):
    app, _ = opened("all", length="![x](http://example.org/x.png)", nu="5.1")
    assert is_fine(app)
    assert app.select_slider(key="nu").value == 5.0
    assert len(app.info) == 2
    assert all("http://" not in info.value for info in app.info)
    app.select_slider(key="nu").set_value(6.0).run()
    assert not app.info  # not any more


def test_a_link_is_kept_up_to_date(opened):
    state = State("weights", "max", math.inf, "1-3", ("erf", "relu"), 4.0, 7, "linear")
    app, _ = opened("all", state)
    assert is_fine(app)
    assert dict(app.query_params) == to_query(state)
    assert "task=max" in app.code[0].value
    app.select_slider(key="nu").set_value(2.0).run()
    assert app.query_params["nu"] == "2"


def test_a_signal_that_the_other_task_has_not(opened):
    app, desk = opened("all", State(task="max", nu=math.inf))
    app.segmented_control(key="task").set_value("spiked").run()
    assert is_fine(app)
    assert desk.asked[0].nu == 12.0


def test_another_sequence(opened):
    app, desk = opened("all", State(view="weights"))
    before = {question.seed for question in desk.asked if isinstance(question, Weights)}
    app.button[0].click().run()
    after = {question.seed for question in desk.asked if isinstance(question, Weights)}
    assert (before, after) == ({0}, {1})
    assert app.query_params["seed"] == "1"


def test_learning_waits_for_the_button(opened):
    app, desk = opened("nothing", State(view="learning", attentions=("softmax", "erf")))
    assert not [question for question in desk.asked if isinstance(question, Learned)]
    app.button[0].click().run()
    assert is_fine(app)
    learned = [question for question in desk.asked if isinstance(question, Learned)]
    assert {question.attention for question in learned} == {"softmax", "erf"}
    assert learned[0].alpha == State.alpha  # the chosen one first
    assert not app.button
    app.select_slider(key="nu").set_value(6.0).run()
    assert not [question for question in desk.asked if isinstance(question, Learned)]
    assert app.button


def test_what_is_most_urgent_comes_first(opened):
    _, desk = opened("nothing", State(nu=5.25))
    first = desk.asked[: 2 + len(State.attentions)]
    assert {(question.nu, question.length) for question in first} == {(5.25, "10")}


def test_numbers_are_those_of_the_rows(opened):
    app, _ = opened("all", State(attentions=("erf",)))
    assert [metric.value for metric in app.metric] == ["0.3000", "0.4000"]
    assert app.metric[1].delta == "+0.1000 to Bayes"


def test_an_answer_that_did_not_converge_is_not_shown_as_good(opened):
    app, _ = opened("all", State(view="learning", attentions=("erf",), alpha=1.0))
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["erf"] == "not converged"
    assert shown[OPTIMUM] == "0.5000"


def test_every_attention_has_a_line():
    rows = tuple(LeastRow("spiked", 1.0, "2", name, 0.5, 0.0, True) for name in ar.CATALOGUE)
    assert pictures.risks(rows, rows, ("spiked", 1.0, "2")).startswith("<svg")
