"""The verdict on an attention: what it loses with infinite data, with finite data, and on the way there."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from ..._results import Estimate
from ...attention import AbstractAttention
from ...flow import Basins, basins
from ...population import elementwise_floor
from ...population.plan import is_exact
from ..execute import Progress, in_threads
from .curves import REFERENCES, Point, curve
from .family import LIMIT, attention_name, overflows, recognise
from .paragraph import paragraph, survival
from .tasks import (
    FIXED,
    GRID,
    VARIED,
    WORKBENCH,
    Row,
    answer,
    has_tunable_bias,
    haystacks,
    mean_gap,
)
from .traits import Traits, traits

_TASK, _FIXED = WORKBENCH.problem, FIXED.problem
_STARTS, _SIZE = 5, 0.1  # of the runs of gradient flow, and of the components of their starts

_NO_FLOW = (
    "Gradient flow was not followed: its risk comes from random points, which the flow cannot use."
)
_NO_BIAS = "No bias was tried: its risk comes from random points. Numbers with a free bias are those without."
_OBSTACLES = {
    "flat": "Nothing is learned by descent: its weights do not change when scores change a little, and k has no "
    "gradient.",
    "missing": "Learning was not looked at: jax cannot differentiate it in both modes, as with `lax.while_loop`.",
    "undefined": "Learning was not looked at: its derivative is not a number at some scores.",
    "scaleless": "There is nothing to learn with a ridge: it ignores the scale of its scores, so that a shorter k "
    "costs less and is as good, and the empirical risk has no minimum.",
}
_NO_GRADIENT = ("flat", "undefined", "missing")
_CUT = "It is not a number for large scores, of size 300 and more, which were cut there."


@dataclass(frozen=True)
class Verdict:
    """What `judge` found.

    `gap` is the mean over `rows` of what the attention loses to Bayes with infinite data, as it is; `gap_with_bias` is
    the same with a free bias, over `biased_rows`, and the fair number to compare attentions by. `haystacks` and
    `biased_haystacks` are longer and longer sequences whose signal grows with them (`ν = 4 log L`); `fixed` and
    `varied` have ten tokens, always or on average. `floors` are what no element-wise attention can beat, on `fixed` and
    in the last haystack. `curves` are learning curves, also those of softmax and linear, and `flow` tells where
    gradient flow goes from small starts; each is `None` where the attention allows no answer, and `notes` say why.
    """

    name: str
    traits: Traits
    gap: Estimate
    rows: tuple[Row, ...]
    gap_with_bias: Estimate
    biased_rows: tuple[Row, ...]
    haystacks: tuple[Row, ...]
    biased_haystacks: tuple[Row, ...]
    fixed: Row
    biased_fixed: Row
    varied: Row
    biased_varied: Row
    floors: tuple[float, float]
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
        return self.varied.gap - self.fixed.gap

    @property
    def growth(self) -> Estimate:
        """What the gap to Bayes grows by from the shortest haystack to the longest."""
        return self.haystacks[-1].gap - self.haystacks[0].gap

    @property
    def worth_of_normalisation(self) -> float:
        """What the best element-wise attention loses to Bayes on `fixed`."""
        return self.floors[0] - float(self.fixed.bayes)

    @property
    def worth_of_bias(self) -> Estimate:
        """What a free bias recovers of the mean gap to Bayes."""
        return self.gap - self.gap_with_bias

    @property
    def survival(self) -> str:
        """By what the needle is found in a long haystack, with the best bias (section 12)."""
        return survival(self.biased_haystacks)

    @property
    def paragraph(self) -> str:
        """What this attention lacks, in words and numbers."""
        gaps, fixed = (self.gap, self.gap_with_bias), (self.fixed, self.biased_fixed)
        longest, cost = self.biased_haystacks[-1], self.biased_varied.gap - self.biased_fixed.gap
        return paragraph(self.traits, gaps, fixed, longest, self.survival, self.floors, cost)


def judge(
    attention: Any,
    name: str | None = None,
    progress: Progress | None = None,
    limit: float = LIMIT,
    show: Callable[[Verdict], None] | None = None,
) -> Verdict:
    """The verdict on an attention: a name of the catalogue, one of this package's, or a function of `L` scores that
    returns `L` weights, written with `jax.numpy`.

    Takes most of a minute; `progress` is told of each part done, and `show` is given the verdict as soon as its exact
    rows are there, without learning curves and gradient flow. A function that has not answered its first calls after
    `limit` seconds is refused. What it prints goes to standard error.
    """
    with redirect_stdout(sys.stderr):
        return _judge(attention, name or attention_name(attention), progress, limit, show)


def _judge(
    attention: Any,
    given: str,
    progress: Progress | None,
    limit: float,
    show: Callable[[Verdict], None] | None,
) -> Verdict:
    student = recognise(attention, given, limit)
    label, found = _told_apart(given, student), traits(student)
    deep = haystacks(student)
    planted = [*(each for each in GRID if each.task == "spiked"), FIXED, VARIED, *deep]
    selected = [each for each in GRID if each.task == "max"]
    exact: dict[str, Callable[[], Any]] = {
        "spiked task": partial(answer, student, planted),
        "max task": partial(answer, student, selected),
    }
    tunable = has_tunable_bias(student) and is_exact(_FIXED, student)
    if tunable:
        biased = student.with_free_bias()
        exact["spiked task, free bias"] = partial(answer, biased, planted)
        exact["max task, free bias"] = partial(answer, biased, selected)
    later: dict[str, Callable[[], Any]] = {"gradient flow": partial(_flow, student, found)}
    learners = {**REFERENCES, label: student} if found.slope == "fine" else {}
    later |= {f"learning, {key}": partial(curve, _TASK, it, key) for key, it in learners.items()}
    done: dict[str, Any] = {}

    def work(jobs: dict[str, Callable[[], Any]]) -> None:
        for part, answered in in_threads(jobs.items()):
            done[part] = answered
            if progress is not None:
                progress(part, len(done), len(exact) + len(later))

    work(exact)
    rows = biased_rows = done["spiked task"] | done["max task"]
    if tunable:
        biased_rows = done["spiked task, free bias"] | done["max task, free bias"]
    verdict = Verdict(
        name=label,
        traits=found,
        gap=mean_gap([rows[place] for place in GRID]),
        rows=tuple(rows[place] for place in GRID),
        gap_with_bias=mean_gap([biased_rows[place] for place in GRID]),
        biased_rows=tuple(biased_rows[place] for place in GRID),
        haystacks=tuple(rows[place] for place in deep),
        biased_haystacks=tuple(biased_rows[place] for place in deep),
        fixed=rows[FIXED],
        biased_fixed=biased_rows[FIXED],
        varied=rows[VARIED],
        biased_varied=biased_rows[VARIED],
        floors=(float(elementwise_floor(_FIXED)), float(elementwise_floor(deep[-1].problem))),
        curves=None,
        flow=None,
        notes=_notes(student, found, overflows(attention))
        + (_NO_BIAS,) * (has_tunable_bias(student) and not tunable),
    )
    if show is not None:
        show(verdict)
    work(later)
    curves = [point for key in learners for point in done[f"learning, {key}"]]
    return replace(verdict, curves=tuple(curves) or None, flow=done["gradient flow"])


def _told_apart(name: str, attention: AbstractAttention) -> str:
    """A name that is not that of another curve."""
    taken = name in REFERENCES and type(attention) is not type(REFERENCES[name])
    return f"your {name}" if taken else name


def _notes(attention: AbstractAttention, found: Traits, cut: bool) -> tuple[str, ...]:
    """Why there is no learning curve or no flow, and what was done to the function."""
    notes = []
    if found.slope in _OBSTACLES:
        notes.append(_OBSTACLES[found.slope])
    if found.slope not in _NO_GRADIENT and not is_exact(_TASK, attention):
        notes.append(_NO_FLOW)
    return (*notes, *[_CUT] * cut)


def _flow(attention: AbstractAttention, found: Traits) -> Basins | None:
    if found.slope in _NO_GRADIENT or not is_exact(_TASK, attention):
        return None
    return basins(_TASK, attention, jax.random.key(0), _STARTS, _SIZE)
