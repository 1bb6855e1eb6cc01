"""What a figure asks of each attention, and the answers: the rows of its data."""

from dataclasses import dataclass

from ..._rows import BAYES, FLOOR
from ...attention import get_attention
from ...population import bayes_risk, elementwise_floor, population_minimum
from ...tasks import TASKS, MaxSLR, SpikedSLR, parse_lengths

_CLOSED_FORM_ERROR = 1e-14  # rounding, in the formula of the element-wise floor


@dataclass(frozen=True)
class Question:
    """The least risk of an attention, or one of the two reference lines; `length` as in `parse_lengths`."""

    task: str
    nu: float
    length: str
    attention: str

    @property
    def problem(self) -> SpikedSLR | MaxSLR:
        """The task itself."""
        return TASKS[self.task](self.nu, parse_lengths(self.length))

    @property
    def label(self) -> str:
        """What someone who waits is told."""
        return f"{self.attention}, {self.task}"

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


@dataclass(frozen=True)
class Curve(Question):
    """What becomes of an attention, or of the optimum, at these samples per dimension.

    Learners are averaged over `2**log2_points` points; the optimum has none.
    """

    alphas: tuple[float, ...]
    log2_points: int = 0


def answer(question: Question) -> list[Row]:
    """The least risk, and the Bayes risk beside it, as one row."""
    task = question.problem
    bayes = bayes_risk(task)
    found: tuple[float | None, float | None] = (None, None)
    attained = True
    if question.attention == BAYES:
        risk, error = float(bayes.value), float(bayes.error)
    elif question.attention == FLOOR:
        risk, error = elementwise_floor(task), _CLOSED_FORM_ERROR
    else:
        minimum = population_minimum(task, get_attention(question.attention))
        risk, error = float(minimum.risk.value), float(minimum.risk.error)
        attained = minimum.attained
        found = float(minimum.overlaps.m_kk), float(getattr(minimum.attention, "bias", 0.0))
    references = float(bayes.value), float(bayes.error), risk - float(bayes.value)
    inputs = question.task, question.nu, question.length, question.attention
    return [Row(*inputs, risk, error, attained, *references, *found)]
