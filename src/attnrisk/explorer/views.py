"""The views: what each asks, the most urgent first, and how it draws the answers that are there."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, NamedTuple

import streamlit as st

from .._rows import BAYES, FLOOR, as_csv
from ..attention import CATALOGUE
from . import pictures, words
from .answers import (
    QUICK,
    AbstractQuestion,
    Followed,
    Learned,
    Least,
    LeastRow,
    Optimum,
    Weights,
)
from .desk import Desk
from .state import ALPHA, CURVE_LENGTHS, CURVE_NU, State

_PATIENCE = 0.2  # seconds that a picture waits for answers that are quick
_LOOK_AGAIN = 0.6  # seconds until it is drawn with what has come meanwhile
_LONGEST_RANDOM = 10  # tokens in the curves of attentions that take random points


@st.cache_resource(show_spinner=False)
def desk() -> Desk:
    """One for all visitors."""
    return Desk()


class _View(NamedTuple):
    questions: Callable[[State], Iterable[AbstractQuestion]]
    draw: Callable[[State], None]


def watch(state: State) -> None:
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
    random = name in CATALOGUE and CATALOGUE[name].attention.family == "general"
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
