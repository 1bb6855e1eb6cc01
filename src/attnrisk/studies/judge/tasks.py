"""The tasks on which every attention is judged, the same for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from ..._results import Estimate
from ...attention import AbstractAttention
from ...population import bayes_risk, population_minimum
from ...population.risk import is_exact
from ...tasks import TASKS, MaxSLR, SpikedSLR, parse_lengths


@dataclass(frozen=True)
class Question:
    """A task by its name, its ν and its law of the length."""

    task: str
    nu: float
    length: str

    @property
    def problem(self) -> SpikedSLR | MaxSLR:
        """The task itself."""
        return TASKS[self.task](self.nu, parse_lengths(self.length))


# Both tasks from faint to clear, over few tokens and many.
GRID = tuple(
    Question(task, nu, length)
    for task, signals in {"spiked": (2.0, 5.0, 10.0), "max": (1.0, 2.0)}.items()
    for nu in signals
    for length in ("3", "10")
)

# As many tokens and a signal that grows with them, so that the needle can be found in any haystack.
_SIGNAL = 4.0
_HAYSTACKS, _DRAWN_HAYSTACKS = (10, 1000, 10**6), (10, 50)

# The same number of tokens on average, at a fixed length and at two very different ones.
FIXED, VARIED = Question("spiked", 5.0, "10"), Question("spiked", 5.0, "2:0.5,18:0.5")

# Where learning and gradient flow are looked at.
WORKBENCH = Question("spiked", 5.0, "3")


@dataclass(frozen=True)
class Row:
    """The least risk of an attention on a task, and that of Bayes; a risk that is not `attained` is a limit."""

    task: str
    nu: float
    length: str
    risk: Estimate
    bayes: Estimate
    attained: bool

    @property
    def gap(self) -> Estimate:
        """What the attention loses to Bayes."""
        return Estimate(self.risk.value - self.bayes.value, self.risk.error + self.bayes.error)


def haystacks(attention: AbstractAttention) -> tuple[Question, ...]:
    """Longer and longer, as far as the method of this attention goes."""
    exact = is_exact(FIXED.problem, attention)
    lengths = _HAYSTACKS if exact else _DRAWN_HAYSTACKS
    return tuple(Question("spiked", _SIGNAL * log(length), str(length)) for length in lengths)


def answer(attention: AbstractAttention, question: Question) -> Row:
    """With infinite data."""
    task = question.problem
    found = population_minimum(task, attention)
    inputs = question.task, question.nu, question.length
    return Row(*inputs, found.risk, bayes_risk(task), found.attained)


def mean_gap(rows: Sequence[Row]) -> Estimate:
    """Of the tasks of the grid, each with the same weight."""
    gaps = [row.gap for row in rows]
    value = sum(float(gap.value) for gap in gaps) / len(gaps)
    return Estimate(value, sum(float(gap.error) for gap in gaps) / len(gaps))
