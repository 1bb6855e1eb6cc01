"""Rows of the data of a figure, and rows with the lowest risk of each attention."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import NamedTuple

from ...attention import DEFAULT_BIAS
from ..execute import Ask as Ask
from ..question import Record
from ..questions import AbstractTaskQuestion, Bayes, Floor, Population

JUMP = 1.0  # α at which the optimum of noiseless labels jumps
_NEAR = 0.005  # relative distance of the points on both sides of a jump


def beside(jump: float) -> tuple[float, float]:
    """The points on both sides of a jump."""
    return jump * (1 - _NEAR), jump * (1 + _NEAR)


Signals = dict[str, tuple[float, ...]]  # by task


class Grid(NamedTuple):
    """Attentions, and the signals that they meet on each task."""

    attentions: tuple[str, ...]
    nu: Signals


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


def least_risks(ask: Ask, asked: Sequence[AbstractTaskQuestion]) -> list[Row]:
    """A row for each question.

    `bias` is what was asked, and `best_bias` what was found. `excess` is the risk less the Bayes risk. Where `attained`
    is false the risk is a limit as the keys or the bias grow without bound, and `m_kk` and `best_bias` are the last
    that were evaluated. Reference lines have no `bias`, `m_kk` and `best_bias`.
    """
    found = ask(with_bayes(asked))
    return [
        _row(question.kind, *pair)
        for question, *pair in zip(asked, found, found[len(asked) :], strict=False)
    ]


def _row(kind: str, found: Record, bayes: Record) -> Row:
    return Row(
        **place(found),
        attention=found.get("attention", kind),
        bias=found.get("bias"),
        risk=found["risk"],
        error=found["risk_error"],
        attained=found.get("attained", True),
        bayes_risk=bayes["risk"],
        bayes_error=bayes["risk_error"],
        excess=found["risk"] - bayes["risk"],
        m_kk=found.get("m_kk"),
        best_bias=found.get("best_bias"),
    )


def place(found: Record) -> Record:
    """The columns that say where: task, signal and length."""
    return {name: found[name] for name in ("task", "nu", "length")}


def placed(found: Record, *columns: str) -> Row:
    """A row of the place and some columns of a record."""
    return Row(**place(found), **{name: found[name] for name in columns})


def joined(asked: Sequence[AbstractTaskQuestion], ask: Ask) -> list[Row]:
    """A row for each record of questions that have several: task, signal, length and attention before it."""
    return [
        Row(**place(question.inputs), attention=question.name, **each)
        for question, found in zip(asked, ask(asked), strict=True)
        for each in found
    ]
