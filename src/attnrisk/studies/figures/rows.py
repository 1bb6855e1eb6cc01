"""The rows of a figure's data, and those with the least risk of each attention."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

from ..execute import Ask as Ask
from ..questions import AbstractTaskQuestion, Bayes, Floor, Population, Record

JUMP = 1.0  # α at which the optimum of noiseless labels jumps
_NEAR = 0.005  # relative distance of the points on both sides of a jump


def beside(jump: float) -> tuple[float, float]:
    """The points on both sides of a jump."""
    return jump * (1 - _NEAR), jump * (1 + _NEAR)


class Row(SimpleNamespace):
    """One line of the data of a figure; its attributes are the columns."""


def least(task: str, nu: float, length: str, name: str) -> AbstractTaskQuestion:
    """The least risk of an attention, or one of the two reference lines."""
    if name in (Bayes.kind, Floor.kind):
        return (Bayes if name == Bayes.kind else Floor)(task, nu, length)
    return Population(task, nu, length, name)


def with_bayes(asked: Iterable[AbstractTaskQuestion]) -> list[AbstractTaskQuestion]:
    """The questions, then the Bayes risk at the point of each."""
    asked = list(asked)
    return [*asked, *(Bayes(each.task, each.nu, each.length) for each in asked)]


def least_risks(ask: Ask, asked: Sequence[AbstractTaskQuestion]) -> list[Row]:
    """A row for each question.

    `excess` is the risk less the Bayes risk. Where `attained` is false the risk is a limit as the keys grow without
    bound, and `m_kk` is the longest that was evaluated. Reference lines have no `m_kk` and no `bias`.
    """
    found = ask(with_bayes(asked))
    return [
        _row(question.name, *pair)
        for question, *pair in zip(asked, found, found[len(asked) :], strict=False)
    ]


def _row(name: str, found: Record, bayes: Record) -> Row:
    return Row(
        **place(found),
        attention=name,
        risk=found["risk"],
        error=found["risk_error"],
        attained=found.get("attained", True),
        bayes_risk=bayes["risk"],
        bayes_error=bayes["risk_error"],
        excess=found["risk"] - bayes["risk"],
        m_kk=found.get("m_kk"),
        bias=found.get("best_bias"),
    )


def place(found: Record) -> Record:
    """The columns that say where: task, signal and length."""
    return {name: found[name] for name in ("task", "nu", "length")}


def joined(asked: Sequence[AbstractTaskQuestion], ask: Ask) -> list[Row]:
    """A row for each record of questions that have several: task, signal, length and attention before it."""
    return [
        Row(**place(question.inputs), attention=question.name, **each)
        for question, found in zip(asked, ask(asked), strict=True)
        for each in found
    ]
