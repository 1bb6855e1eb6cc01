"""`attnrisk erm`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .options import (
    Alpha,
    Attentions,
    Json,
    Length,
    Noise,
    Nu,
    TaskName,
    read_attentions,
    read_task,
)
from .output import (
    facts,
    print_json,
    print_rich,
    significant,
    table,
    task_fields,
    task_words,
    with_error,
)
from .progress import Report, working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..attention import AbstractAttention
    from ..learning import ERMAsymptotics, OptimalAsymptotics
    from ..tasks import AbstractTask

    Learn = Callable[[AbstractTask, AbstractAttention], ERMAsymptotics]

_DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_UNCONVERGED = "NOT CONVERGED"
_MEASURED = ("m_k", "q_k", "V_k", "m_v", "q_v", "V_v")

RidgeK = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="Ridge on k, r_k > 0; 1 if not given.", show_default=False),
]
RidgeV = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="Ridge on v, r_v > 0; 1 if not given.", show_default=False),
]
Tune = Annotated[
    bool, typer.Option("--tune", help="Take the ridges of least test risk, in place of given ones.")
]


class Answer(NamedTuple):
    """What one attention learns."""

    attention: str
    found: ERMAsymptotics


def erm(
    alpha: Alpha,
    task: TaskName = "spiked",
    nu: Nu = "5",
    length: Length = "3",
    noise: Noise = "0",
    attention: Attentions = ["softmax"],  # noqa: B006 (typer copies it)
    ridge_k: RidgeK = None,
    ridge_v: RidgeV = None,
    tune: Tune = False,
    as_json: Json = False,
) -> None:
    """The test risk after learning from N = αD sequences, by empirical risk minimisation.

    Example: attnrisk erm --alpha 4 --attention softmax,linear --ridge-k 1 --ridge-v 1
    """
    with working("empirical risk minimisation") as report:
        from .._check import real
        from ..learning import optimal_asymptotics
        from ..learning.scope import learnable

        problem = learnable(read_task(task, nu, length, noise, None))
        students = read_attentions(attention, lambda each: each.is_scale_sensitive)
        samples = real("alpha", alpha, above=0.0)
        learn = _read_way(samples, ridge_k, ridge_v, tune)
        with ThreadPoolExecutor(1) as other:
            meanwhile = other.submit(optimal_asymptotics, problem, samples)
            answers = _answers(problem, students, learn, report)
        optimum = meanwhile.result()
    if as_json:
        _print_fields(problem, answers, optimum)
    elif len(answers) == 1:
        print_rich(_panel(problem, answers[0], optimum))
    else:
        print_rich(_table(problem, answers, optimum))


def _read_way(alpha: float, ridge_k: str | None, ridge_v: str | None, tune: bool) -> Learn:
    """How to learn: with the ridges given, or with the best."""
    from .._check import real, refuse
    from ..learning import Ridge, erm_asymptotics, tuned_erm_asymptotics

    words = {"ridge_k": ridge_k, "ridge_v": ridge_v}
    given = {name: word for name, word in words.items() if word is not None}
    if not tune:
        numbers = (real(name, given.get(name, 1.0), above=0.0) for name in words)
        ridge = Ridge(*numbers)
        return lambda task, attention: erm_asymptotics(task, attention, alpha, ridge)
    for name, word in given.items():
        raise refuse(name, word, "left out where the ridges are tuned")
    return lambda task, attention: tuned_erm_asymptotics(task, attention, alpha)


def _answers(
    task: AbstractTask, attentions: list[AbstractAttention], learn: Learn, report: Report
) -> list[Answer]:
    """The answers, best first."""
    answers = []
    for done, attention in enumerate(attentions):
        report(attention.name, done, len(attentions))
        answers.append(Answer(attention.name, learn(task, attention)))
    return sorted(answers, key=lambda answer: float(answer.found.test_risk))


def _print_fields(task: AbstractTask, answers: list[Answer], optimum: OptimalAsymptotics) -> None:
    common = {
        "alpha": answers[0].found.alpha,
        "optimal_risk": float(optimum.risk),
        "optimal_risk_error": float(optimum.risk.error),
        "reachable_risk": float(optimum.reachable_risk),
        "task": task_fields(task),
    }
    rows = [_fields(answer) for answer in answers]
    print_json((rows[0] if len(rows) == 1 else {"rows": rows}) | common)


def _fields(answer: Answer) -> dict[str, Any]:
    found = answer.found
    return {
        "attention": answer.attention,
        "test_risk": float(found.test_risk),
        "test_risk_error": float(found.test_risk.error),
        "train_error": float(found.train_error),
        "objective": float(found.objective),
        "converged": found.converged,
        "result": found.result,
        "start": found.start,
        "replicon": found.replicon,
        "jumps": found.jumps,
        "warning": found.warning or None,
        "overlaps": found.overlaps.as_dict(),
        "response": {"V_k": float(found.V_k), "V_v": float(found.V_v)},
        "ridge": {"k": float(found.ridge.k), "v": float(found.ridge.v)},
        "errors": {name: float(getattr(found, name).error) for name in _MEASURED},
        "rivals": [_rival_fields(rival) for rival in found.rivals],
    }


def _rival_fields(rival: ERMAsymptotics) -> dict[str, Any]:
    return {
        "test_risk": float(rival.test_risk),
        "objective": float(rival.objective),
        "start": rival.start,
    }


def _panel(task: AbstractTask, answer: Answer, optimum: OptimalAsymptotics) -> RenderableType:
    found = answer.found
    measured = [f"{name} = {with_error(getattr(found, name))}" for name in _MEASURED]
    rows = {
        "test risk": with_error(found.test_risk),
        "train error": with_error(found.train_error),
        "objective": with_error(found.objective),
        "result": _result(found),
        "best possible": with_error(optimum.risk),
        "best reachable": with_error(optimum.reachable_risk),
        "ridges": f"r_k = {found.ridge.k:.6g}, r_v = {found.ridge.v:.6g}",
        "overlaps": ", ".join(measured[:3]),
        "": ", ".join(measured[3:]),
    }
    rivals = [f"test risk {with_error(rival.test_risk)}" for rival in found.rivals]
    if found.warning:
        rows["beware"] = found.warning
    if rivals:
        rows["of higher objective"] = ", ".join(rivals)
    title = f"{answer.attention} on the {task_words(task)}, α = {found.alpha:g}"
    return facts(title, rows)


def _result(found: ERMAsymptotics) -> str:
    if found.converged:
        return f"converged (start: {found.start})"
    why = found.result.removeprefix("not converged: ")
    return f"{_UNCONVERGED}: {why}, still moving by {found.residual:.1g} a step"


def _table(
    task: AbstractTask, answers: list[Answer], optimum: OptimalAsymptotics
) -> RenderableType:
    title = f"Empirical risk minimisation, {task_words(task)}, α = {answers[0].found.alpha:g}"
    rows = table(title, "attention", "test risk", "train error", "r_k", "r_v", "result")
    rows.add_row("(best possible)", with_error(optimum.risk, _DIGITS))
    reached = with_error(optimum.reachable_risk, _DIGITS)
    rows.add_row("(best reachable)", reached, end_section=True)
    for attention, found in answers:
        rows.add_row(
            attention,
            with_error(found.test_risk, _DIGITS),
            significant(found.train_error, _DIGITS),
            f"{found.ridge.k:.4g}",
            f"{found.ridge.v:.4g}",
            _mark(found),
        )
    notes = [f"! {_UNCONVERGED}"] * any(not found.converged for _, found in answers)
    notes += sorted({f"* {found.warning}" for _, found in answers if found.warning})
    if notes:
        rows.caption, rows.caption_justify = "\n".join(notes), "left"
    return rows


def _mark(found: ERMAsymptotics) -> str:
    """The result, with a sign where it is not to be trusted."""
    return ("converged" if found.converged else "! stopped") + " *" * bool(found.warning)
