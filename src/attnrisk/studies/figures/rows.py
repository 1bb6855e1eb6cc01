"""Rows of the data of a figure, and rows with the lowest risk of each attention."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from ...attention import DEFAULT_BIAS
from ..execute import Ask as Ask
from ..question import AbstractQuestion, Record
from ..questions import AbstractTaskQuestion, Bayes, Floor, Population

JUMP = 1.0  # α at which the optimum of noiseless labels jumps
_NEAR = 0.005  # relative distance of the points on both sides of a jump


def beside(jump: float) -> tuple[float, float]:
    """The points on both sides of a jump."""
    return jump * (1 - _NEAR), jump * (1 + _NEAR)


class Row(SimpleNamespace):
    """One line of the data of a figure; its attributes are the columns."""


def least(
    task: str, nu: float, length: str, name: str, bias: str = DEFAULT_BIAS
) -> AbstractTaskQuestion:
    """The question for the lowest risk of an attention with this bias, or for one of the two reference lines."""
    if name in (Bayes.kind, Floor.kind):
        return (Bayes if name == Bayes.kind else Floor)(task, nu, length)
    return Population(task, nu, length, name, bias=bias)


def with_bayes(asked: Iterable[AbstractTaskQuestion]) -> list[AbstractTaskQuestion]:
    """The questions, then the Bayes risk at the point of each."""
    asked = list(asked)
    return [*asked, *(Bayes(each.task, each.nu, each.length) for each in asked)]


def least_risks(asked: Sequence[AbstractTaskQuestion], ask: Ask) -> list[Row]:
    """A row for each question.

    `bias` is what was asked, and `best_bias` what was found. `excess` is the risk less the Bayes risk. Where `attained`
    is false the risk is a limit as the keys or the bias grow without bound, and `m_kk` and `best_bias` are the last
    that were evaluated. Reference lines have no `bias`, `m_kk` and `best_bias`.
    """
    columns = "task nu length attention bias risk error attained bayes_risk bayes_error excess m_kk best_bias"
    absent = {"bias": None, "attained": True, "m_kk": None, "best_bias": None}
    answers, rows = ask(with_bayes(asked)), []
    for question, found, bayes in zip(asked, answers, answers[len(asked) :], strict=False):
        known = {"bayes_risk": bayes["risk"], "bayes_error": bayes["risk_error"]}
        known |= {"attention": question.kind, "excess": found["risk"] - bayes["risk"]}
        rows.append(risk_row(columns, absent | known, found))
    return rows


def make_row(columns: str, *records: Record, **others: Any) -> Row:
    """A row of these columns, each from the last of the records that has it, or from the others."""
    known = {name: value for each in (*records, others) for name, value in each.items()}
    return Row(**{name: known[name] for name in columns.split()})


def risk_row(columns: str, *records: Record, named: str = "risk", **others: Any) -> Row:
    """The same, where `risk` and `error` are those under this name of the last record."""
    found = records[-1]
    return make_row(columns, *records, risk=found[named], error=found[f"{named}_error"], **others)


def grouped(rows: Iterable[Any], *names: str) -> list[list[Any]]:
    """The rows that agree in these columns, together."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return list(groups.values())


def records(asked: Sequence[AbstractQuestion], ask: Ask) -> list[Row]:
    """A row for each record of questions that have several."""
    return [Row(**each) for found in ask(asked) for each in found]


def joined(asked: Sequence[AbstractTaskQuestion], ask: Ask) -> list[Row]:
    """The same, with task, signal, length and attention before each record."""
    place = "task", "nu", "length", "attention"
    return [
        Row(**{name: question.inputs[name] for name in place}, **each)
        for question, found in zip(asked, ask(asked), strict=True)
        for each in found
    ]
