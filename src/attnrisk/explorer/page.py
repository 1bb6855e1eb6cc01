"""The page: controls on the left, one view at a time, and nothing that waits for a slow computation."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import uuid4

import streamlit as st

from .._check import Refusal
from ..attention import CATALOGUE, family
from . import pictures, words
from .answers import (
    BAYES,
    FLOOR,
    QUICK,
    AbstractQuestion,
    Followed,
    Learned,
    Least,
    LeastRow,
    Optimum,
    Weights,
    as_csv,
)
from .desk import Desk
from .state import (
    ALPHA,
    CURVE_LENGTHS,
    CURVE_NU,
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

_PATIENCE = 0.2  # seconds that a picture waits for answers that are quick
_LOOK_AGAIN = 0.6  # seconds until it is drawn with what has come meanwhile

_FIXED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64, 100, 1000, 10_000, 100_000, 1_000_000)
_WIDEST = 32  # of the uniform laws on the slider
_LAWS = ("fixed", "uniform", "any")

_LONGEST_RANDOM = 10  # tokens in the curves of attentions that take random points

_STYLE = """<style>
.block-container { padding-top: 2rem; padding-bottom: 2rem; max-width: 1280px; }
h1 { font-size: 1.7rem !important; padding-bottom: 0.1rem !important; }
[data-testid="stSidebarHeader"] { height: 2.2rem; margin: 0; }
[data-testid="stMetricValue"] { font-size: 1.45rem; }
</style>"""


@st.cache_resource(show_spinner=False)
def desk() -> Desk:
    """One for all visitors."""
    return Desk()


def show() -> None:
    """The whole page."""
    st.set_page_config(page_title="attnrisk", layout="wide", initial_sidebar_state="expanded")
    st.html(_STYLE)
    _restore()
    with st.sidebar:
        chosen, refusal = _controls()
    st.title(words.TITLE)
    st.markdown(words.LEAD)
    chosen["view"] = _keep("view", _view_control)
    state = _updated(State(**chosen))
    _show_notes(state)
    if refusal:
        st.warning(words.plain(refusal))
    elif not state.attentions and state.view != "flow":
        st.info("Choose an attention on the left.")
    else:
        state = _ASIDES[state.view](state)
        _watch(state)
        _formulas(state)
    st.query_params.from_dict(to_query(state))
    with st.sidebar:
        _link(state)


def _restore() -> None:
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


def _show_notes(state: State) -> None:
    """What of the link was not understood, until something else is chosen."""
    opened, notes = st.session_state.notes
    for note in notes if state == opened else ():
        st.info(words.plain(note))


def _keep(name: str, widget: Callable[[str], Any]) -> Any:
    """What the widget says; it is remembered while the widget is not on the page."""
    st.session_state.setdefault(name, st.session_state.kept[name])
    st.session_state.kept[name] = widget(name)
    return st.session_state.kept[name]


def _controls() -> tuple[dict[str, Any], str]:
    """What is chosen, and a sentence if it cannot be."""
    st.subheader("attnrisk explorer")
    task = _keep("task", _task_control)
    nu = nearest(NU[task], st.session_state.get("nu", st.session_state.kept["nu"]))
    st.session_state.nu = nu
    nu = _keep("nu", lambda key: _nu_control(key, NU[task]))
    text, refusal = _length_controls(), ""
    try:
        length = str(read_law(text))
    except Refusal as error:
        length, refusal = State.length, f"{error}."
    attentions = tuple(_keep("attentions", _attentions_control))
    alpha = _keep("alpha", _alpha_control)
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
    law = _keep("law", _law_control)
    if law == _LAWS[0]:
        return str(_keep("fixed", lambda key: st.select_slider("Length L", _FIXED, key=key)))
    if law == _LAWS[1]:
        shortest, longest = _keep(
            "uniform", lambda key: st.slider("Length L, each as likely", 1, _WIDEST, key=key)
        )
        return f"{shortest}-{longest}" if shortest < longest else str(shortest)
    label = "Lengths and their chances"
    return str(_keep("any", lambda key: st.text_input(label, key=key, max_chars=200)))


def _law_control(key: str) -> Any:
    label = "Tokens in a sequence"
    return st.segmented_control(label, _LAWS, key=key, required=True, width="stretch")


def _attentions_control(key: str) -> Any:
    return st.multiselect("Attentions", list(CATALOGUE), key=key, max_selections=MOST_ATTENTIONS)


def _alpha_control(key: str) -> Any:
    label = "Data α = N/D, for learning"
    return st.select_slider(label, ALPHA, key=key, format_func=lambda alpha: f"{alpha:g}")


def _view_control(key: str) -> Any:
    return st.segmented_control(
        "View",
        VIEWS,
        key=key,
        required=True,
        format_func=words.NAMES.__getitem__,
        label_visibility="collapsed",
    )


def _link(state: State) -> None:
    st.caption("A link to what you see")
    address = (st.context.url or "").split("?")[0]
    st.code(f"{address}?{urlencode(to_query(state), safe=',:')}", language=None, wrap_lines=True)


def _formulas(state: State) -> None:
    with st.expander("The formulas"):
        st.latex(words.TASKS[state.task])
        for formula in words.FORMULAS[state.view]:
            st.latex(formula)


# --- what stands above a picture ---


def _nothing(state: State) -> State:
    return state


def _another(label: str) -> Callable[[State], State]:
    """A button for other random numbers."""

    def aside(state: State) -> State:
        if st.button(label):
            st.session_state.kept["seed"] = (state.seed + 1) % SEEDS
        return _updated(state)

    return aside


def _followed(state: State) -> State:
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        label = "Attention that is trained"
        _keep("followed", lambda key: st.selectbox(label, list(CATALOGUE), key=key))
    with right:
        return _another("Other random starts")(state)


def _updated(state: State) -> State:
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


_ASIDES: dict[str, Callable[[State], State]] = {
    "risk": _nothing,
    "weights": _another("Another sequence"),
    "flow": _followed,
    "learning": _learn,
}


# --- views: what each asks, the most urgent first, and how it draws the answers that are there ---


class _View(NamedTuple):
    questions: Callable[[State], Iterable[AbstractQuestion]]
    draw: Callable[[State], None]


def _watch(state: State) -> None:
    """The view, drawn again and again while answers are on their way."""
    last = monotonic() + _PATIENCE
    for _ in range(2):  # some questions follow from answers
        _ask(state)
        quick = [question for question in _missing(state) if question.lane == QUICK]
        desk().wait(quick, max(last - monotonic(), 0.0))
    waiting = bool(_missing(state))
    st.fragment(_show_view, run_every=_LOOK_AGAIN if waiting else None)(state, waiting)


def _ask(state: State) -> None:
    desk().ask(st.session_state.visitor, list(_VIEWS[state.view].questions(state)))


def _missing(state: State) -> list[AbstractQuestion]:
    return [q for q in _VIEWS[state.view].questions(state) if desk().find(q) is None]


def _show_view(state: State, waiting: bool) -> None:
    _ask(state)
    asked, missing = list(_VIEWS[state.view].questions(state)), _missing(state)
    progress, sentences = st.container(), st.container()  # places, so that what is below stays
    if missing:
        done = len(asked) - len(missing)
        progress.progress(done / len(asked), text=_waiting_words(missing, done, len(asked)))
    elif waiting:
        st.rerun()
    for sentence in _sentences(asked):
        sentences.warning(words.plain(sentence))
    _VIEWS[state.view].draw(state)


def _waiting_words(missing: Sequence[AbstractQuestion], done: int, total: int) -> str:
    names = dict.fromkeys(getattr(question, "attention", "the optimum") for question in missing)
    what = "Gradient flow" if isinstance(missing[0], Followed) else f"{done} of {total} computed"
    return f"{what}: {', '.join(names)} on the way. The first of a kind takes up to a minute."


def _sentences(asked: Iterable[AbstractQuestion]) -> list[str]:
    """Why some have no answer, each reason once."""
    found: dict[str, list[str]] = {}
    for question in asked:
        answer = desk().find(question)
        if answer is not None and answer.sentence:
            who = getattr(question, "attention", "the optimum")
            found.setdefault(answer.sentence, []).append(who)
    return [f"{', '.join(dict.fromkeys(who))}: {why}" for why, who in found.items()]


def _rows(questions: Iterable[AbstractQuestion]) -> tuple[Any, ...]:
    """The rows that are there."""
    answers = [desk().find(question) for question in questions]
    return tuple(row for answer in answers if answer is not None for row in answer.rows)


def _download(label: str, rows: Sequence[Any], name: str) -> None:
    if rows:
        st.download_button(label, as_csv(rows), f"{name}.csv", "text/csv", on_click="ignore")


def _picture(svg: str, caption: str) -> None:
    st.image(svg, width="stretch")
    st.caption(caption)


def _here(state: State) -> list[Least]:
    names = (BAYES, FLOOR, *state.attentions)
    return [Least(state.task, state.nu, state.length, name) for name in names]


def _along_nu(state: State) -> list[Least]:
    signals = sorted({*CURVE_NU[state.task], state.nu})
    return [
        Least(state.task, nu, state.length, name)
        for name in (BAYES, FLOOR, *state.attentions)
        for nu in signals
    ]


def _along_length(state: State) -> list[Least]:
    return [
        Least(state.task, state.nu, str(length), name)
        for name in (BAYES, FLOOR, *state.attentions)
        for length in _curve_lengths(state, name)
    ]


def _curve_lengths(state: State, name: str) -> list[int]:
    random = name in CATALOGUE and family(CATALOGUE[name].attention) == "general"
    longest = _LONGEST_RANDOM if random else math.inf
    lengths = {length for length in CURVE_LENGTHS[state.task] if length <= longest}
    return sorted(lengths | ({int(state.length)} if state.length.isdigit() else set()))


def _risk_questions(state: State) -> Iterator[Least]:
    return iter(dict.fromkeys([*_here(state), *_along_nu(state), *_along_length(state)]))


def _draw_risk(state: State) -> None:
    _metrics(state)
    by_nu, by_length = _rows(_along_nu(state)), _rows(_along_length(state))
    place = state.task, state.nu, state.length
    _picture(pictures.risks(by_nu, by_length, place), words.CAPTIONS["risk"])
    left, right = st.columns(2)
    with left:
        _download("Data against ν (CSV)", by_nu, "risk_against_nu")
    with right:
        _download("Data against L (CSV)", by_length, "risk_against_length")


def _metrics(state: State) -> None:
    """The numbers at the sliders."""
    found = {row.attention: row for row in _rows(_here(state))}
    names = (BAYES, *state.attentions)
    for column, name in zip(st.columns(len(names)), names, strict=True):
        row, bayes = found.get(name), found.get(BAYES)
        label = "Bayes" if name == BAYES else name
        shown = "…" if row is None else f"{row.risk:.4f}"
        column.metric(label, shown, _excess(row, bayes), delta_color="off", delta_arrow="off")


def _excess(row: LeastRow | None, bayes: LeastRow | None) -> str | None:
    if row is None or bayes is None or row is bayes:
        return None
    excess = max(row.risk - bayes.risk, 0.0)
    return f"{excess:+.4f} to Bayes" if excess > row.error + bayes.error else "optimal"


def _weights_questions(state: State) -> Iterator[AbstractQuestion]:
    yield from _here(state)
    for row in _rows(_here(state)):
        if row.attention in state.attentions:
            place = row.m_kk, row.m_vv, row.bias
            yield Weights(state.task, state.nu, state.length, row.attention, *place, state.seed)


def _draw_weights(state: State) -> None:
    asked = [question for question in _weights_questions(state) if isinstance(question, Weights)]
    rows = _rows(asked)
    if rows:
        _picture(pictures.weights(rows), words.CAPTIONS["weights"])
        _download("Data (CSV)", rows, "weights")


def _flow_question(state: State) -> Followed:
    return Followed(state.task, state.nu, state.length, state.followed, state.seed)


def _bayes_question(state: State) -> Least:
    return Least(state.task, state.nu, state.length, BAYES)


def _flow_questions(state: State) -> Iterator[AbstractQuestion]:
    yield _flow_question(state)
    yield _bayes_question(state)


def _draw_flow(state: State) -> None:
    rows = _rows([_flow_question(state)])
    if rows:
        bayes = _rows([_bayes_question(state)])
        _picture(pictures.flow(rows, bayes[0] if bayes else None), words.CAPTIONS["flow"])
        _download("Data (CSV)", rows, "flow")


def _learning_questions(state: State) -> Iterator[AbstractQuestion]:
    """The chosen `α` first; attentions only where they were asked for, or are there already."""
    place = state.task, state.nu, state.length
    alphas = dict.fromkeys([state.alpha, *ALPHA])
    yield from (Optimum(*place, alpha) for alpha in alphas)
    yield from (question for question in _here(state) if question.attention in state.attentions)
    asked = st.session_state.get("learning") == (*place, state.attentions)
    for alpha in alphas:
        for name in state.attentions:
            question = Learned(*place, name, alpha)
            if asked or desk().find(question) is not None:
                yield question


def _draw_learning(state: State) -> None:
    asked = list(_learning_questions(state))
    rows = _rows(question for question in asked if isinstance(question, Optimum | Learned))
    limits = _rows(question for question in asked if isinstance(question, Least))
    _learning_metrics(state, rows)
    if rows:
        _picture(pictures.learning(rows, limits, state.alpha), words.CAPTIONS["learning"])
        _download("Data (CSV)", rows, "learning")
    for warning in dict.fromkeys(row.warning for row in rows if row.warning):
        names = dict.fromkeys(row.predictor for row in rows if row.warning == warning)
        st.caption(words.plain(f"{', '.join(names)}: {warning}."))


def _learning_metrics(state: State, rows: Sequence[Any]) -> None:
    """The numbers at the chosen `α`."""
    here = [row for row in rows if row.alpha == state.alpha]
    for column, row in zip(st.columns(max(len(here), 5)), here, strict=False):
        shown = f"{row.risk:.4f}" if row.converged else "not converged"
        error = f"± {row.error:.0e}" if row.converged else None
        column.metric(row.predictor, shown, error, delta_color="off", delta_arrow="off")


_VIEWS = {
    "risk": _View(_risk_questions, _draw_risk),
    "weights": _View(_weights_questions, _draw_weights),
    "flow": _View(_flow_questions, _draw_flow),
    "learning": _View(_learning_questions, _draw_learning),
}
