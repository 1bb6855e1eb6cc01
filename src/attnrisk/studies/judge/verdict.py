"""The verdict on an attention: what it loses with infinite data, with finite data, and on the way there."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from ..._results import Estimate
from ...attention import AbstractAttention, Elementwise
from ...flow import Basins, basins
from ...population import elementwise_floor, population_minimum
from ...population.plan import is_exact
from ..execute import Progress, in_threads
from .curves import REFERENCES, Point, curve
from .family import LIMIT, overflows, recognise
from .paragraph import paragraph
from .tasks import FIXED, GRID, VARIED, WORKBENCH, Row, answer, haystacks, mean_gap
from .traits import Traits, traits

_TASK, _FIXED = WORKBENCH.problem, FIXED.problem
_STARTS, _SIZE = 5, 0.1  # of the runs of gradient flow, and of the components of their starts

_NO_FLOW = (
    "Gradient flow was not followed: its risk comes from random points, which the flow cannot use."
)
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
        return self.varied.gap - self.fixed.gap

    @property
    def growth(self) -> Estimate:
        """What the gap to Bayes grows by from the shortest haystack to the longest."""
        return self.haystacks[-1].gap - self.haystacks[0].gap

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
        return _judge(attention, name or _name(attention), progress, limit, show)


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
        "bias": partial(_with_bias, student),
    }
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
    rows = done["spiked task"] | done["max task"]
    verdict = Verdict(
        name=label,
        traits=found,
        gap=mean_gap([rows[place] for place in GRID]),
        rows=tuple(rows[place] for place in GRID),
        haystacks=tuple(rows[place] for place in deep),
        fixed=rows[FIXED],
        varied=rows[VARIED],
        floors=(float(elementwise_floor(_FIXED)), float(elementwise_floor(deep[-1].problem))),
        with_bias=done["bias"],
        curves=None,
        flow=None,
        notes=_notes(student, found, overflows(attention)),
    )
    if show is not None:
        show(verdict)
    work(later)
    curves = [point for key in learners for point in done[f"learning, {key}"]]
    return replace(verdict, curves=tuple(curves) or None, flow=done["gradient flow"])


def _name(attention: Any) -> str:
    if isinstance(attention, str):
        return attention
    return str(getattr(attention, "name", getattr(attention, "__name__", repr(attention))))


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


def _with_bias(attention: Any) -> Estimate | None:
    """The least risk on `FIXED` with a bias, of an element-wise attention that has none."""
    if attention.family != "element-wise" or attention.free_bias:
        return None
    biased = Elementwise(attention.weight, free_bias=True, features=attention.features)
    return population_minimum(_FIXED, biased).risk
