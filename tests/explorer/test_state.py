"""The link that restores the page: what is foreign in it becomes a sentence, never an error."""

import math
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnrisk as ar
from attnrisk.explorer.state import (
    ALPHA,
    NU,
    VIEWS,
    State,
    from_query,
    nearest,
    read_law,
    to_query,
)

LENGTHS = st.sampled_from(["1", "10", "1-3", "1:0.25,8:0.75", "1000000", "7"])
NAMES = st.lists(st.sampled_from(list(ar.CATALOGUE)), max_size=6, unique=True)


@st.composite
def states(draw):
    task = draw(st.sampled_from(list(NU)))
    return State(
        view=draw(st.sampled_from(VIEWS)),
        task=task,
        nu=draw(st.sampled_from(NU[task])),
        length=draw(LENGTHS),
        attentions=tuple(draw(NAMES)),
        alpha=draw(st.sampled_from(ALPHA)),
        seed=draw(st.integers(0, 10**6 - 1)),
        followed=draw(st.sampled_from(list(ar.CATALOGUE))),
    )


@settings(max_examples=40)
@given(states())
def test_a_link_restores_the_state(state):
    parameters = dict(parse_qsl(urlencode(to_query(state)), keep_blank_values=True))
    assert from_query(parameters) == (state, [])


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from([*to_query(State()), "other"]), st.text(max_size=30)))
def test_anything_in_a_link_gives_a_page(parameters):
    state, notes = from_query(parameters)
    again, more = from_query(to_query(state))
    assert again == state
    assert more == []
    assert all(notes)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("view", "settings"),
        ("task", "spiky"),
        ("nu", "5.1"),
        ("nu", "nan"),
        ("nu", "-1"),
        ("nu", "inf"),  # on the spiked task
        ("length", "0"),
        ("length", "1:0.5"),
        ("length", "__import__('os')"),
        ("length", "1-100000"),
        ("length", "1000000000"),
        ("attentions", "softmax,"),
        ("attentions", "softmax,hard"),
        ("attentions", ",".join(ar.CATALOGUE)),
        ("alpha", "0"),
        ("seed", "-1"),
        ("seed", "²"),
        ("seed", "1" * 5000),
        ("followed", "erf,linear"),
    ],
)
def test_what_is_foreign_is_named(name, word):
    state, notes = from_query({name: word})
    assert state == State()
    (note,) = notes
    assert note.startswith(name)
    assert "not allowed" in note


def test_unknown_parameters_are_named():
    assert from_query({"color": "red"}) == (State(), ["color is no parameter of this page."])


def test_infinite_signals_are_for_the_max_task():
    assert from_query({"nu": "inf", "task": "max"})[0].nu == math.inf


def test_a_slider_keeps_its_place_where_it_can():
    assert nearest(NU["max"], 12.0) == 6.0
    assert nearest(NU["spiked"], math.inf) == 12.0
    assert nearest(NU["spiked"], 0.3) == 0.25
    assert nearest(NU["max"], math.inf) == math.inf


def test_laws_that_are_not_quick_are_refused():
    with pytest.raises(ValueError, match="on this page"):
        read_law("1-2000")
    assert str(read_law("1-1000")) == "1-1000"
