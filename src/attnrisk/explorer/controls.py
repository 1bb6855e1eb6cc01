"""The controls of the page: what is chosen is kept while a control is not shown, and restored from a link."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import streamlit as st

from .._check import Refusal
from ..attention import CATALOGUE
from . import words
from .state import (
    ALPHA,
    MOST_ATTENTIONS,
    NU,
    SEEDS,
    TASKS,
    VIEWS,
    State,
    from_query,
    nearest,
    read_law,
    to_query,
)

_FIXED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64, 100, 1000, 10_000, 100_000, 1_000_000)
_WIDEST = 32  # of the uniform laws on the slider
_LAWS = ("fixed", "uniform", "any")


def restore() -> None:
    """What the link says, when the page is opened."""
    if "kept" in st.session_state:
        return
    state, notes = from_query(st.query_params.to_dict())
    law = read_law(state.length)
    lengths = law.lengths.tolist()
    kept = {name: getattr(state, name) for name in ("view", "task", "nu", "alpha", "seed")}
    kept |= {"attentions": list(state.attentions), "followed": state.followed}
    kept |= {"fixed": 10, "uniform": (1, 3), "any": "1:0.25,8:0.75"}
    if lengths in [[length] for length in _FIXED]:
        kept |= {"law": _LAWS[0], "fixed": lengths[0]}
    elif "-" in state.length and lengths[-1] <= _WIDEST:
        kept |= {"law": _LAWS[1], "uniform": (lengths[0], lengths[-1])}
    else:
        kept |= {"law": _LAWS[2], "any": state.length}
    st.session_state.kept = kept
    st.session_state.visitor = uuid4().hex
    st.session_state.notes = state, notes


def show_notes(state: State) -> None:
    """What of the link was not understood, until something else is chosen."""
    opened, notes = st.session_state.notes
    for note in notes if state == opened else ():
        st.info(words.plain(note))


def keep(name: str, widget: Callable[[str], Any]) -> Any:
    """What the widget says; it is remembered while the widget is not on the page."""
    st.session_state.setdefault(name, st.session_state.kept[name])
    st.session_state.kept[name] = widget(name)
    return st.session_state.kept[name]


def controls() -> tuple[dict[str, Any], str]:
    """What is chosen, and a sentence if it cannot be."""
    st.subheader("attnrisk explorer")
    task = keep("task", _task_control)
    nu = nearest(NU[task], st.session_state.get("nu", st.session_state.kept["nu"]))
    st.session_state.nu = nu
    nu = keep("nu", lambda key: _nu_control(key, NU[task]))
    text, refusal = _length_controls(), ""
    try:
        length = str(read_law(text))
    except Refusal as error:
        length, refusal = State.length, f"{error}."
    attentions = tuple(keep("attentions", _attentions_control))
    alpha = keep("alpha", _alpha_control)
    chosen = {"task": task, "nu": nu, "length": length, "attentions": attentions, "alpha": alpha}
    return chosen, refusal


def _task_control(key: str) -> Any:
    meaning = "spiked: the needle is shifted along k*. max: it is the token most aligned with k*."
    return st.segmented_control(
        "Task", TASKS, key=key, required=True, help=meaning, width="stretch"
    )


def _nu_control(key: str, positions: Sequence[float]) -> Any:
    return st.select_slider(
        "Signal ν",
        positions,
        key=key,
        format_func=lambda nu: "∞" if math.isinf(nu) else f"{nu:g}",
        help="How clearly the needle stands out.",
    )


def _length_controls() -> str:
    """The law of the length, as words."""
    law = keep("law", _law_control)
    if law == _LAWS[0]:
        return str(keep("fixed", lambda key: st.select_slider("Length L", _FIXED, key=key)))
    if law == _LAWS[1]:
        shortest, longest = keep(
            "uniform", lambda key: st.slider("Length L, each as likely", 1, _WIDEST, key=key)
        )
        return f"{shortest}-{longest}" if shortest < longest else str(shortest)
    label = "Lengths and their chances"
    return str(keep("any", lambda key: st.text_input(label, key=key, max_chars=200)))


def _law_control(key: str) -> Any:
    label = "Tokens in a sequence"
    return st.segmented_control(label, _LAWS, key=key, required=True, width="stretch")


def _attentions_control(key: str) -> Any:
    return st.multiselect("Attentions", list(CATALOGUE), key=key, max_selections=MOST_ATTENTIONS)


def _alpha_control(key: str) -> Any:
    label = "Data α = N/D, for learning"
    return st.select_slider(label, ALPHA, key=key, format_func=lambda alpha: f"{alpha:g}")


def view_control(key: str) -> Any:
    """Which of the views."""
    return st.segmented_control(
        "View",
        VIEWS,
        key=key,
        required=True,
        format_func=words.NAMES.__getitem__,
        label_visibility="collapsed",
    )


def link(state: State) -> None:
    """What brings another visitor to the same state."""
    st.caption("A link to what you see")
    address = (st.context.url or "").split("?")[0]
    st.code(f"{address}?{urlencode(to_query(state), safe=',:')}", language=None, wrap_lines=True)


# --- what stands above a picture ---


def _nothing(state: State) -> State:
    return state


def _another(label: str) -> Callable[[State], State]:
    """A button for other random numbers."""

    def aside(state: State) -> State:
        if st.button(label):
            st.session_state.kept["seed"] = (state.seed + 1) % SEEDS
        return updated(state)

    return aside


def _followed(state: State) -> State:
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        label = "Attention that is trained"
        keep("followed", lambda key: st.selectbox(label, list(CATALOGUE), key=key))
    with right:
        return _another("Other random starts")(state)


def updated(state: State) -> State:
    """With what is chosen outside of the sidebar."""
    kept = st.session_state.kept
    return replace(state, followed=kept["followed"], seed=kept["seed"])


def _learn(state: State) -> State:
    """A button, since this takes minutes."""
    place = state.task, state.nu, state.length, state.attentions
    asked = st.session_state.get("learning") == place
    if not asked and st.button("Compute the learning curves of these attentions", type="primary"):
        st.session_state.learning = place
        st.rerun()
    if not asked:
        st.caption("It takes some minutes, once; the best possible risk is there in seconds.")
    return state


ASIDES: dict[str, Callable[[State], State]] = {
    "risk": _nothing,
    "weights": _another("Another sequence"),
    "flow": _followed,
    "learning": _learn,
}
