"""What a figure asks of each attention, and the answers: the rows of its data."""

import csv
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from ...attention import attention
from ...population import bayes_risk, elementwise_floor, population_minimum
from ...tasks import AbstractPlanted, AbstractSelected, MaxSLR, SpikedSLR, parse_lengths

Progress = Callable[[str, int, int], None]
_Asked = TypeVar("_Asked", bound="Question")
_Answer = TypeVar("_Answer")

# Two lines that are not attentions: what nobody can beat, and what nobody who looks at one token at a time can.
BAYES, FLOOR = "bayes", "element-wise floor"

_TASKS: dict[str, Callable[..., AbstractPlanted | AbstractSelected]] = {
    "spiked": SpikedSLR,
    "max": MaxSLR,
}

# Threads, since compiled code runs outside the interpreter's lock, and threads share what they compile. An integral
# keeps one core busy, and more of them would compete for memory.
_THREADS = 2

_CLOSED_FORM_ERROR = 1e-14  # rounding, in the formula of the element-wise floor


@dataclass(frozen=True)
class Question:
    """The least risk of an attention, or one of the two reference lines; `length` as in `parse_lengths`."""

    task: str
    nu: float
    length: str
    attention: str

    @property
    def problem(self) -> AbstractPlanted | AbstractSelected:
        """The task itself."""
        return _TASKS[self.task](self.nu, parse_lengths(self.length))

    @property
    def compiled_with(self) -> tuple[str, str, bool]:
        """Questions that agree in this share compiled code."""
        return self.task, self.attention, self.length.isdigit()


@dataclass(frozen=True)
class Row:
    """A question and its answer.

    `excess` is what the risk lies above the Bayes risk. Where `attained` is false the risk is a limit as the keys grow
    without bound, and `m_kk` is the longest that was looked at. Reference lines have no `m_kk` and no `bias`.
    """

    task: str
    nu: float
    length: str
    attention: str
    risk: float
    error: float
    attained: bool
    bayes_risk: float
    bayes_error: float
    excess: float
    m_kk: float | None = None
    bias: float | None = None


def answer(question: Question) -> Row:
    """The least risk, and the Bayes risk beside it."""
    task = question.problem
    bayes = bayes_risk(task)
    found: tuple[float | None, float | None] = (None, None)
    attained = True
    if question.attention == BAYES:
        risk, error = float(bayes.value), float(bayes.error)
    elif question.attention == FLOOR:
        risk, error = elementwise_floor(task), _CLOSED_FORM_ERROR
    else:
        minimum = population_minimum(task, attention(question.attention))
        risk, error = float(minimum.risk.value), float(minimum.risk.error)
        attained = minimum.attained
        found = float(minimum.overlaps.m_kk), float(getattr(minimum.attention, "bias", 0.0))
    references = float(bayes.value), float(bayes.error), risk - float(bayes.value)
    inputs = question.task, question.nu, question.length, question.attention
    return Row(*inputs, risk, error, attained, *references, *found)


def answers(questions: Iterable[Question], progress: Progress | None = None) -> list[Row]:
    """The rows, in the order of the questions."""
    return answered(answer, questions, progress)


def answered(
    work: Callable[[_Asked], _Answer],
    questions: Iterable[_Asked],
    progress: Progress | None = None,
) -> list[_Answer]:
    """What `work` makes of each question, in their order, two at a time."""
    questions = list(questions)
    pool = ThreadPoolExecutor(_THREADS)
    try:
        jobs = {pool.submit(work, question): question for question in _interleaved(questions)}
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            if progress is not None:
                progress(_label(jobs[job]), done, len(jobs))
    finally:
        pool.shutdown(cancel_futures=True)
    found = {question: job.result() for job, question in jobs.items()}
    return [found[question] for question in questions]


def _interleaved(questions: Iterable[_Asked]) -> list[_Asked]:
    """Neighbours that share no compiled code, so that two threads do not compile the same at the same time."""
    groups: dict[tuple[str, str, bool], list[_Asked]] = {}
    for question in questions:
        groups.setdefault(question.compiled_with, []).append(question)
    rounds = chain.from_iterable(zip_longest(*groups.values()))
    return [question for question in rounds if question is not None]


def _label(question: Question) -> str:
    return f"{question.attention}, {question.task}"


def write_csv(rows: Sequence[Any], path: Path) -> None:
    """One line per row, with all digits of every number; the rows are of one dataclass."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(field.name for field in fields(rows[0]))
        table.writerows(map(astuple, rows))
