"""The page: controls on the left, one view at a time, and nothing that waits for a slow computation."""

import streamlit as st

from . import words
from .controls import ASIDES, controls, keep, link, restore, show_notes, updated, view_control
from .state import State, to_query
from .views import watch

_STYLE = """<style>
.block-container { padding-top: 2rem; padding-bottom: 2rem; max-width: 1280px; }
h1 { font-size: 1.7rem !important; padding-bottom: 0.1rem !important; }
[data-testid="stSidebarHeader"] { height: 2.2rem; margin: 0; }
[data-testid="stMetricValue"] { font-size: 1.45rem; }
</style>"""


def show() -> None:
    """The whole page."""
    st.set_page_config(page_title="attnrisk", layout="wide", initial_sidebar_state="expanded")
    st.html(_STYLE)
    restore()
    with st.sidebar:
        chosen, refusal = controls()
    st.title(words.TITLE)
    st.markdown(words.LEAD)
    chosen["view"] = keep("view", view_control)
    state = updated(State(**chosen))
    show_notes(state)
    if refusal:
        st.warning(words.plain(refusal))
    elif not state.attentions and state.view != "flow":
        st.info("Choose an attention on the left.")
    else:
        state = ASIDES[state.view](state)
        watch(state)
        _formulas(state)
    st.query_params.from_dict(to_query(state))
    with st.sidebar:
        link(state)


def _formulas(state: State) -> None:
    with st.expander("The formulas"):
        st.latex(words.TASKS[state.task])
        for formula in words.FORMULAS[state.view]:
            st.latex(formula)
