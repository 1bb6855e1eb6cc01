"""The tasks on which every attention is judged, the same for all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from statistics import fmean

from ..._results import ErrorKind, Estimate, Result
from ...attention import DEFAULT_BIAS, FREE_BIAS, AbstractAttention, get_attention
from ...population import bayes_risk
from ...population.plan import is_exact
from ...population.sampled import sampled_minimum
from ...population.uncompiled import uncompiled_minima
from ..execute import Ask
from ..questions import Bayes, Population

# Both tasks from faint to clear, over few tokens and many.
GRID = tuple(
    Bayes(task, nu, length)
    for task, signals in {"spiked": (2.0, 5.0, 10.0), "max": (1.0, 2.0)}.items()
    for nu in signals
    for length in ("3", "10")
)

_TOLERANCE = 1e-3  # of a quick verdict, a tenth of what counts in it

# As many tokens and a signal that grows with them, so that the needle can be found in any haystack.
SIGNAL = 4.0  # of ν = c log L, twice what the needle needs to be found in a long sequence
_HAYSTACKS, _DRAWN_HAYSTACKS = (10, 1000, 10**6), (10, 50)

# The same number of tokens on average, at a fixed length and at two very different ones.
FIXED, VARIED = Bayes("spiked", 5.0, "10"), Bayes("spiked", 5.0, "2:0.5,18:0.5")

# Where learning and gradient flow are looked at.
WORKBENCH = Bayes("spiked", 5.0, "3")


# All lengths of these tasks.
JUDGED = sorted(
    {
        int(length)
        for each in (*GRID, FIXED, VARIED, WORKBENCH)
        for length in each.problem.length.lengths
    }
    | {*_HAYSTACKS, *_DRAWN_HAYSTACKS}
)


@dataclass(frozen=True)
class Row:
    """The lowest risk of an attention on a task, and the Bayes risk; a risk that is not `attained` is a limit."""

    task: str
    nu: float
    length: str
    risk: Estimate
    bayes: Estimate
    result: Result

    @property
    def attained(self) -> bool:
        """Whether finite vectors attain this risk."""
        return not self.result.is_infimum

    @property
    def gap(self) -> Estimate:
        """The risk minus the Bayes risk."""
        return self.risk - self.bayes.as_kind(self.risk.kind)


def haystacks(attention: AbstractAttention) -> tuple[Bayes, ...]:
    """Sequences of growing length, up to the limit of the method for this attention."""
    exact = is_exact(FIXED.problem, attention)
    lengths = _HAYSTACKS if exact else _DRAWN_HAYSTACKS
    return tuple(Bayes("spiked", SIGNAL * log(length), str(length)) for length in lengths)


def answer(
    attention: AbstractAttention, places: Iterable[Bayes], quick: bool = False
) -> dict[Bayes, Row]:
    """Lowest risks with infinite data; without a compiled search where possible.

    If `quick`, with few random points, and with errors up to `1e-3` of limits and of kernels with kinks.
    """
    places = list(dict.fromkeys(places))
    problems = [place.problem for place in places]
    if quick and not is_exact(FIXED.problem, attention):
        found = [sampled_minimum(problem, attention) for problem in problems]
    else:
        found = uncompiled_minima(problems, attention, _TOLERANCE if quick else 0.0)
    return {
        at: Row(at.task, at.nu, at.length, each.risk, _bayes_risk(at), each.result)
        for at, each in zip(places, found, strict=True)
    }


@cache  # tables with and without a free bias are of the same tasks
def _bayes_risk(at: Bayes) -> Estimate:
    return bayes_risk(at.problem)


def has_tunable_bias(attention: AbstractAttention) -> bool:
    """Whether the bias is not free yet and has an effect."""
    return not attention.free_bias and not attention.bias_is_void


def asked_of(name: str, places: Sequence[Bayes], biased: bool) -> list[Population]:
    """Questions for the lowest risks of an attention of the catalogue, with its own bias or with a free one."""
    free = biased and has_tunable_bias(get_attention(name))
    bias = FREE_BIAS if free else DEFAULT_BIAS
    return [Population(each.task, each.nu, each.length, name, bias=bias) for each in places]


def rows_of(name: str, places: Sequence[Bayes], ask: Ask, biased: bool) -> tuple[Row, ...]:
    """The rows of these questions, computed by `ask`."""
    asked = asked_of(name, places, biased)
    return tuple(
        Row(
            **{column: found[column] for column in ("task", "nu", "length")},
            result=Result(found["result"]),
            risk=Estimate(found["risk"], found["risk_error"], _kind(question)),
            bayes=Estimate(bayes["risk"], bayes["risk_error"]),
        )
        for question, found, bayes in zip(asked, ask(asked), ask(places), strict=True)
    )


def _kind(question: Population) -> ErrorKind:
    exact = is_exact(question.problem, question.student)
    return ErrorKind.BOUND if exact else ErrorKind.STANDARD


def mean_gap(rows: Sequence[Row]) -> Estimate:
    """The mean gap over the tasks of the grid, with equal weights.

    Tasks share their random points, so that standard errors are not independent, and add like bounds.
    """
    gaps = [row.gap for row in rows]
    value, error = (fmean(float(getattr(gap, name)) for gap in gaps) for name in ("value", "error"))
    random = any(gap.kind is ErrorKind.STANDARD for gap in gaps)
    return Estimate(value, error, ErrorKind.STANDARD if random else ErrorKind.BOUND)
