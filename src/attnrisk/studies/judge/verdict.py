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
from .bridge import Foreign
from .causes import MATTERS, Causes, Counterfactual, Gaps, best_change, find_causes
from .curves import REFERENCES, Point, curve, reference_curve
from .family import LIMIT, Clipped, attention_name, overflows, recognise
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
from .traits import Traits, family_at_each_length, traits

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
_PER_LENGTH = {
    "kernel": "Among sequences of one length it is a normalised kernel. Declare it as `ar.Kernel(lambda score, length: "
    "…)`, the logarithm of φ, and all tables are exact, up to a million tokens.",
    "element-wise": "Among sequences of one length it is element-wise. Declare it as `ar.Elementwise(lambda score, "
    "length: …)`, and all tables are exact, up to a million tokens.",
}
_NO_GRADIENT = ("flat", "undefined", "missing")
_FOREIGN = {
    "numpy": "Approximate: it was called through NumPy as it is, and its gradients are central differences.",
    "torch": "It was called through PyTorch as it is; values and gradients are its own, in double precision.",
}
_DRAWN = "Approximate: its risk comes from random points."
_CUT = "It is not a number for large scores, of size 300 and more, which were cut there."


@dataclass(frozen=True)
class Verdict:
    """What `judge` found.

    `gap` is the mean over `rows` of what the attention loses to Bayes with infinite data, as it is; `gap_with_bias` is
    the same with a free bias, over `biased_rows`, and the fair number to compare attentions by; of a quick verdict
    there is neither. `haystacks` and `biased_haystacks` are longer and longer sequences whose signal grows with them
    (`ν = 4 log L`); `fixed` and `varied` have ten tokens, always or on average. `floors` are what no element-wise
    attention can beat, on `fixed` and in the last haystack. `causes` are the changes that were tried, and what the
    attention lacks; where that is nothing, `at_worst` is the change that recovers most on the worst of `rows`, and how
    much. `curves` are learning curves, also those of softmax and linear, and `flow` tells where gradient
    flow goes from small starts; each is `None` where the attention allows no answer, and `notes` say why.
    """

    name: str
    traits: Traits
    gap: Estimate
    rows: tuple[Row, ...]
    gap_with_bias: Estimate | None
    biased_rows: tuple[Row, ...]
    haystacks: tuple[Row, ...]
    biased_haystacks: tuple[Row, ...]
    fixed: Row
    varied: Row
    floors: tuple[float, float]
    causes: Causes
    curves: tuple[Point, ...] | None
    flow: Basins | None
    notes: tuple[str, ...]
    at_worst: tuple[str, float] | None = None

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
    def worth_of_bias(self) -> Estimate | None:
        """What a free bias recovers of the mean gap to Bayes."""
        return None if self.gap_with_bias is None else self.gap - self.gap_with_bias

    @property
    def survival(self) -> str:
        """By what the needle is found in a long haystack, with the best bias (section 12)."""
        return survival(self.biased_haystacks or self.haystacks)

    @property
    def paragraph(self) -> str:
        """What this attention lacks, in words and numbers."""
        biased = bool(self.biased_haystacks)
        longest = (self.biased_haystacks or self.haystacks)[-1]
        worst = max(self.rows, key=lambda row: float(row.gap))
        known = self.gap, self.gaps, self.lacks, longest, self.floors[1]
        return paragraph(*known, worst, biased, self.at_worst)

    @property
    def gaps(self) -> Gaps:
        """What it loses on the tasks of the counterfactuals."""
        return Gaps(*(float(row.gap) for row in (self.fixed, self.varied, self.haystacks[1])))

    @property
    def lacks(self) -> tuple[Counterfactual, ...]:
        """The changes that recover what it loses, as far as that matters."""
        return self.causes.lacks


def judge(
    attention: Any,
    name: str | None = None,
    progress: Progress | None = None,
    limit: float = LIMIT,
    show: Callable[[Verdict], None] | None = None,
    quick: bool = False,
) -> Verdict:
    """Evaluate an attention: its gap to the Bayes risk, what it lacks, and what it learns.

    What the function prints goes to standard error.

    Args:
        attention: A name of the catalogue, an attention of this package, or a function of `L` scores that returns `L`
            weights, written with `jax.numpy`, NumPy or PyTorch.
        name: What to call it; by default its own name.
        progress: Called after each part with its name, the number of parts done and the number of all parts.
        limit: Seconds within which the function must answer its first calls.
        show: Called with the verdict as soon as its exact tables are there, without learning curves and flow.
        quick: Whether to compute the exact tables only, up to a thousand tokens; a free bias is then tried only as a
            counterfactual.

    Returns:
        A `Verdict`: `gap` is the mean gap to the Bayes risk, `lacks` the changes that would recover it, `rows`,
        `haystacks`, `fixed` and `varied` the exact tables, `curves` and `flow` what is learned.

    Examples:
        >>> verdict = ar.judge("softplus", quick=True)
        >>> [f"{each.what} recovers {each.recovers:.3f}" for each in verdict.lacks]
        ['bias recovers 0.904']
    """
    with redirect_stdout(sys.stderr):
        return _judge(attention, name or attention_name(attention), progress, limit, show, quick)


def _judge(
    attention: Any,
    given: str,
    progress: Progress | None,
    limit: float,
    show: Callable[[Verdict], None] | None,
    quick: bool,
) -> Verdict:
    student = recognise(attention, given, limit)
    label, found = _told_apart(given, student), traits(student)
    deep = haystacks(student)[: 2 if quick else None]
    planted = [*(each for each in GRID if each.task == "spiked"), FIXED, VARIED, *deep]
    selected = [each for each in GRID if each.task == "max"]
    exact: dict[str, Callable[[], Any]] = {
        "spiked task": partial(answer, student, planted, quick),
        "max task": partial(answer, student, selected, quick),
    }
    tunable = has_tunable_bias(student) and is_exact(_FIXED, student)
    if tunable and not quick:
        biased = student.with_free_bias()
        exact["spiked task, free bias"] = partial(answer, biased, planted)
        exact["max task, free bias"] = partial(answer, biased, selected)
    later: dict[str, Callable[[], Any]] = {}
    if not quick:
        later["gradient flow"] = partial(_flow, student, found)
        if found.slope == "fine":
            later["learning"] = partial(curve, _TASK, student, label)
    done: dict[str, Any] = {}

    def work(jobs: dict[str, Callable[[], Any]]) -> None:
        for part, answered in in_threads(jobs.items()):
            done[part] = answered
            if progress is not None:
                progress(part, len(done), len(exact) + 1 + len(later))

    work(exact)
    rows = biased_rows = done["spiked task"] | done["max task"]
    if tunable and not quick:
        biased_rows = done["spiked task, free bias"] | done["max task, free bias"]
    plain_gaps, biased_gaps = (
        Gaps(*(float(known[place].gap) for place in (FIXED, VARIED, deep[1])))
        for known in (rows, biased_rows)
    )
    tuned = biased_gaps if tunable and not quick else None
    work({"counterfactuals": partial(find_causes, student, plain_gaps, tuned, found)})
    gap, worst = mean_gap([rows[at] for at in GRID]), max(GRID, key=lambda at: float(rows[at].gap))
    at_worst = None
    if not done["counterfactuals"].lacks and float(gap) >= MATTERS:
        at_worst = best_change(student, worst, float(rows[worst].gap), found)
    verdict = Verdict(
        name=label,
        traits=found,
        gap=gap,
        at_worst=at_worst,
        rows=tuple(rows[place] for place in GRID),
        gap_with_bias=None if quick else mean_gap([biased_rows[place] for place in GRID]),
        biased_rows=tuple(biased_rows[place] for place in GRID if not quick),
        haystacks=tuple(rows[place] for place in deep),
        biased_haystacks=tuple(biased_rows[place] for place in deep if not quick),
        fixed=rows[FIXED],
        varied=rows[VARIED],
        floors=(float(elementwise_floor(_FIXED)), float(elementwise_floor(deep[-1].problem))),
        causes=done["counterfactuals"],
        curves=None,
        flow=None,
        notes=_foreign_notes(student)
        + _length_notes(student)
        + (
            (_CUT,) * overflows(attention)
            if quick
            else _notes(student, found, overflows(attention))
            + (_NO_BIAS,) * (has_tunable_bias(student) and not tunable)
        ),
    )
    if show is not None:
        show(verdict)
    work(later)
    curves = None
    if "learning" in done:
        references = [reference_curve(key) for key in REFERENCES if key != label]
        curves = tuple(point for each in (*references, done["learning"]) for point in each)
    return replace(verdict, curves=curves, flow=done.get("gradient flow"))


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


def _foreign_notes(student: Any) -> tuple[str, ...]:
    """That a function is called through a bridge, if it is."""
    function = getattr(student, "function", None)
    function = (
        getattr(function, "function", function) if isinstance(function, Clipped) else function
    )
    if not isinstance(function, Foreign):
        return ()
    return (_FOREIGN[function.library], *[_DRAWN] * (not is_exact(_FIXED, student)))


def _length_notes(student: AbstractAttention) -> tuple[str, ...]:
    """How to declare a function that knows the length, if it was not recognised for that alone."""
    family = family_at_each_length(student) if student.family == "general" else None
    return () if family is None else (_PER_LENGTH[family],)


def _flow(attention: AbstractAttention, found: Traits) -> Basins | None:
    if found.slope in _NO_GRADIENT or not is_exact(_TASK, attention):
        return None
    return basins(_TASK, attention, jax.random.key(0), _STARTS, _SIZE)
