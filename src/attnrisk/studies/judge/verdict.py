"""The verdict on an attention: what it loses with infinite data, with finite data, and on the way there."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import jax

from ..._results import Estimate
from ...attention import AbstractAttention, AbstractElementwise, Elementwise
from ...flow import Basins, basins
from ...population import elementwise_floor, population_minimum
from ...population.risk import is_exact
from .curves import REFERENCES, Point, curve, groups
from .family import Clipped, recognise
from .paragraph import paragraph
from .tasks import FIXED, GRID, VARIED, WORKBENCH, Question, Row, answer, haystacks, mean_gap
from .traits import Traits, traits

Progress = Callable[[str, int, int], None]

_STARTS, _SIZE = 5, 0.1  # of the runs of gradient flow, and of the components of their starts
_THREADS = 2  # compilation and what is compiled leave the interpreter to others

_NO_FLOW = (
    "Gradient flow was not followed: its risk comes from random points, which the flow cannot use."
)
_FLAT = "Nothing is learned by descent: its weights do not change when scores change a little, and k has no gradient."
_UNDEFINED = "Learning was not looked at: its derivative is not a number at some scores."
_SCALELESS = (
    "There is nothing to learn with a ridge: it ignores the scale of its scores, so that a shorter k costs less and is "
    "as good, and the empirical risk has no minimum."
)
_CUT = "It is not a number for large scores, of size 300 and more, which were cut there."


@dataclass(frozen=True)
class Verdict:
    """What `judge` found.

    `gap` is the mean over `rows` of what the attention loses to Bayes with infinite data. `haystacks` are longer and
    longer sequences whose signal grows with them (`ν = 4 log L`); `fixed` and `varied` have ten tokens, always or on
    average. `floors` are what no element-wise attention can beat, on `fixed` and in the last haystack, and `with_bias`
    is the risk on `fixed` of an element-wise attention if it were given a free bias. `curves` are learning curves, also
    those of softmax and linear, and `flow` tells where gradient flow goes from small starts; each is `None` where the
    attention allows no answer, and `notes` say why.
    """

    name: str
    traits: Traits
    gap: Estimate
    rows: tuple[Row, ...]
    haystacks: tuple[Row, ...]
    fixed: Row
    varied: Row
    floors: tuple[float, float]
    with_bias: Estimate | None
    curves: tuple[Point, ...] | None
    flow: Basins | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.traits.words}.\nMean gap to Bayes: {self.gap}.\n{self.paragraph}"
        )

    @property
    def cost_of_lengths(self) -> Estimate:
        """What the gap to Bayes grows by when lengths vary."""
        fixed, varied = self.fixed.gap, self.varied.gap
        return Estimate(varied.value - fixed.value, varied.error + fixed.error)

    @property
    def growth(self) -> Estimate:
        """What the gap to Bayes grows by from the shortest haystack to the longest."""
        first, last = self.haystacks[0].gap, self.haystacks[-1].gap
        return Estimate(last.value - first.value, first.error + last.error)

    @property
    def paragraph(self) -> str:
        """What this attention lacks, in words and numbers."""
        return paragraph(
            self.traits,
            self.gap,
            self.fixed,
            self.haystacks[-1],
            self.floors,
            self.with_bias,
            self.cost_of_lengths,
        )


def judge(attention: Any, name: str | None = None, progress: Progress | None = None) -> Verdict:
    """The verdict on an attention: a name of the catalogue, one of this package's, or a function of `L` scores that
    returns `L` weights, written with `jax.numpy`. Takes most of a minute; `progress` is told of each part done."""
    given = name or _name(attention)
    student = recognise(attention, given)
    label, found = _told_apart(given, student), traits(student)
    deep = haystacks(student)
    spiked = [question for question in GRID if question.task == "spiked"]
    selected = [question for question in GRID if question.task == "max"]
    with ThreadPoolExecutor(_THREADS) as pool:
        learners: list[Future] = []
        if found.slope == "fine":
            learners = [pool.submit(_learned, group) for group in groups(student, label)]
        planted = pool.submit(_answers, student, dict.fromkeys([*spiked, FIXED, VARIED, *deep]))
        flow = pool.submit(_flow, student, found)
        others = pool.submit(_answers, student, selected)
        bias = pool.submit(_with_bias, student)
        parts = {"learning": learners, "spiked task": [planted], "gradient flow": [flow]}
        _wait(parts | {"max task": [others, bias]}, progress)
    rows = planted.result() | others.result()
    return Verdict(
        name=label,
        traits=found,
        gap=mean_gap([rows[question] for question in GRID]),
        rows=tuple(rows[question] for question in GRID),
        haystacks=tuple(rows[question] for question in deep),
        fixed=rows[FIXED],
        varied=rows[VARIED],
        floors=(elementwise_floor(FIXED.problem), elementwise_floor(deep[-1].problem)),
        with_bias=bias.result(),
        curves=tuple(point for part in learners for point in part.result()) or None,
        flow=flow.result(),
        notes=_notes(student, found),
    )


def _name(attention: Any) -> str:
    if isinstance(attention, str):
        return attention
    return str(getattr(attention, "name", getattr(attention, "__name__", repr(attention))))


def _told_apart(name: str, attention: AbstractAttention) -> str:
    """A name that is not that of another curve."""
    taken = name in REFERENCES and type(attention) is not type(REFERENCES[name])
    return f"your {name}" if taken else name


def _notes(attention: AbstractAttention, found: Traits) -> tuple[str, ...]:
    """Why there is no learning curve or no flow, and what was done to the function."""
    cut = isinstance(getattr(attention, "function", None), Clipped)
    return (*_obstacles(attention, found), *[_CUT] * cut)


def _obstacles(attention: AbstractAttention, found: Traits) -> tuple[str, ...]:
    if found.slope == "flat":
        return (_FLAT,)
    if found.slope == "undefined":
        return (_UNDEFINED,)
    flows = is_exact(WORKBENCH.problem, attention)
    return (*[_SCALELESS] * (found.slope == "scaleless"), *[_NO_FLOW] * (not flows))


def _learned(group: Mapping[str, AbstractAttention]) -> list[Point]:
    """The learning curves of attentions that share compiled code."""
    task = WORKBENCH.problem
    return [point for name, member in group.items() for point in curve(task, member, name)]


def _answers(attention: AbstractAttention, questions: Iterable[Question]) -> dict[Question, Row]:
    return {question: answer(attention, question) for question in questions}


def _flow(attention: AbstractAttention, found: Traits) -> Basins | None:
    if found.slope in ("flat", "undefined") or not is_exact(WORKBENCH.problem, attention):
        return None
    return basins(WORKBENCH.problem, attention, jax.random.key(0), _STARTS, _SIZE)


def _with_bias(attention: AbstractAttention) -> Estimate | None:
    """The least risk on `FIXED` with a bias, of an element-wise attention that has none."""
    if not isinstance(attention, AbstractElementwise) or attention.free_bias:
        return None
    biased = Elementwise(attention.weight, free_bias=True, features=attention.features)
    return population_minimum(FIXED.problem, biased).risk


def _wait(parts: Mapping[str, list[Future]], progress: Progress | None) -> None:
    """Until all are done, or the first has failed."""
    names = {part: name for name, futures in parts.items() for part in futures}
    for done, part in enumerate(as_completed(names), start=1):
        part.result()
        if progress is not None:
            progress(names[part], done, len(names))
