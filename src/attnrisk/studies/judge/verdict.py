"""The verdict on an attention: its gap to the Bayes risk, learning curves and gradient flow."""

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
from ...learning.scope import scaleless_bias
from ...population import elementwise_floor
from ...population.plan import is_exact
from ..execute import Progress, in_threads
from .bridge import Foreign
from .causes import MATTERS, AtWorst, Causes, Counterfactual, Gaps, best_change, find_causes
from .curves import REFERENCES, Point, curve, reference_curve
from .family import LIMIT, Clipped, RecognisedPartialKernel, attention_name, overflows, recognise
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

_NO_FLOW = "Gradient flow was not computed: the risk is an average over random points."
_NO_BIAS = (
    "A free bias was not tried, because the risk is an average over random points: the numbers with a free bias are "
    "those without."
)
_NO_LEARNED_BIAS = (
    "There is no learning curve with a learned bias: with one of {:g} the scale of the scores has no effect, so that "
    "ridge penalties shrink k and the bias together, and the empirical risk has no minimum."
)
_OBSTACLES = {
    "flat": "It cannot be learned by gradient descent: its weights are piecewise constant in the scores, so that k has "
    "no gradient.",
    "missing": "Learning and gradient flow were not computed: they take second derivatives, which a function with "
    "`lax.while_loop`, of NumPy or of PyTorch does not have in jax.",
    "undefined": "Learning was not computed: the derivative is NaN at some scores.",
    "scaleless": "Learning was not computed: the weights do not depend on the scale of the scores, or only through a "
    "small number beside it, so that a ridge penalty shrinks k without changing the loss, and the empirical risk has "
    "no minimum, or one where the scores are as small as that number.",
}
_PER_LENGTH = {
    "kernel": "At each fixed length it is a normalised kernel. Declare it as `ar.Kernel(lambda score, length: "
    "…)`, the logarithm of φ, and all tables are exact, up to a million tokens.",
    "element-wise": "At each fixed length it is element-wise. Declare it as `ar.Elementwise(lambda score, "
    "length: …)`, and all tables are exact, up to a million tokens.",
}
_NO_GRADIENT = ("flat", "undefined", "missing")
_FOREIGN = {
    "numpy": "Approximate: the NumPy function was called unchanged, and its gradients are central differences.",
    "torch": "The PyTorch function was called unchanged; values and gradients are PyTorch's, in double precision.",
}
_DRAWN = "Approximate: risks are averages over random points, with standard errors."
_LEFT_OUT = "Approximate: a small constant in its denominator was left out; it changes weights by less than 1e-4."
_CUT = "It is not finite for large scores: scores of size 300 and more were clipped."


@dataclass(frozen=True)
class Verdict:
    """The result of `judge`.

    `gap` is the mean over `rows` of the risk minus the Bayes risk, with infinite data and the bias of the attention;
    `gap_with_bias` is the same with a free bias, over `biased_rows`, and is the number to compare attentions by (`None`
    for a quick verdict). `haystacks` and `biased_haystacks` are sequences of growing length with `ν = 4 log L`; `fixed`
    and `varied` have ten tokens, always or on average. `floors` are the lowest risks of any element-wise attention, on
    `fixed` and in the longest sequence. `causes` are the counterfactuals that were computed, and what the attention
    lacks; if it lacks nothing, `at_worst` are the changes on the task with the largest gap. `curves` are learning
    curves, with the bias of the attention and with a learned one, and those of softmax and linear attention, whose bias
    has no effect; `flow` counts the end points of gradient flow from small initialisations. Both are `None` where they
    are not defined, and `notes` say why.
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
    at_worst: AtWorst | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.traits.words}.\nMean gap to the Bayes risk: {self.gap}.\n{self.paragraph}"

    @property
    def cost_of_lengths(self) -> Estimate:
        """Increase of the gap from a fixed to a random length."""
        return self.varied.gap - self.fixed.gap

    @property
    def growth(self) -> Estimate:
        """Increase of the gap from the shortest to the longest of `haystacks`."""
        return self.haystacks[-1].gap - self.haystacks[0].gap

    @property
    def worth_of_normalisation(self) -> float:
        """Gap of the best element-wise attention on `fixed`."""
        return self.floors[0] - float(self.fixed.bayes)

    @property
    def worth_of_bias(self) -> Estimate | None:
        """Decrease of the mean gap with a free bias."""
        return None if self.gap_with_bias is None else self.gap - self.gap_with_bias

    @property
    def survival(self) -> str:
        """How the relevant token of a long sequence is found with the best bias (section 12)."""
        return survival(self.biased_haystacks or self.haystacks)

    @property
    def paragraph(self) -> str:
        """The verdict in words and numbers."""
        biased = bool(self.biased_haystacks)
        longest = (self.biased_haystacks or self.haystacks)[-1]
        known = self.gap, self.gaps, self.lacks, longest, self.floors[1]
        return paragraph(*known, self.worst, biased, self.at_worst)

    @property
    def worst(self) -> Row:
        """The task of `rows` with the largest gap."""
        return max(self.rows, key=lambda row: float(row.gap))

    @property
    def gaps(self) -> Gaps:
        """The gaps on the tasks of the counterfactuals."""
        return Gaps(*(float(row.gap) for row in (self.fixed, self.varied, self.haystacks[1])))

    @property
    def lacks(self) -> tuple[Counterfactual, ...]:
        """The changes that recover at least 0.01 of the gap, in order."""
        return self.causes.lacks


def judge(
    attention: Any,
    name: str | None = None,
    progress: Progress | None = None,
    limit: float = LIMIT,
    show: Callable[[Verdict], None] | None = None,
    quick: bool = False,
) -> Verdict:
    """Evaluate an attention: its gap to the Bayes risk, which property it lacks, and how it learns.

    Output that the function prints goes to standard error.

    Args:
        attention: A name of the catalogue, an attention of this package, or a function of `L` scores that returns `L`
            weights, written with `jax.numpy`, NumPy or PyTorch.
        name: Name shown in tables; by default that of the function.
        progress: Called after each part with its name, the number of parts done and the number of all parts.
        limit: Seconds within which the function must answer its first calls; 60 by default.
        show: Called with the verdict as soon as its exact tables are known, without learning curves and flow.
        quick: Whether to compute the exact tables only, up to a thousand tokens; a free bias is then tried only as a
            counterfactual.

    Returns:
        A `Verdict`. `gap` is the mean gap to the Bayes risk, `lacks` the changes that would recover it, `rows`,
        `haystacks`, `fixed` and `varied` the exact tables, `curves` and `flow` the results on learning.

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
    tunable = _is_tunable(student)
    if tunable and not quick:
        biased = student.with_free_bias()
        exact["spiked task, free bias"] = partial(answer, biased, planted)
        exact["max task, free bias"] = partial(answer, biased, selected)
    later: dict[str, Callable[[], Any]] = {}
    if not quick:  # the longest first
        for learner in reversed(_learners(student, found)):
            part = "learning, free bias" if tunable and learner.free_bias else "learning"
            later[part] = partial(curve, _TASK, learner, label)
        later["gradient flow"] = partial(_flow, student, found)
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
        notes=_family_notes(student)
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
        learned = done["learning"], done.get("learning, free bias", [])
        curves = tuple(point for each in (*references, *learned) for point in each)
    return replace(verdict, curves=curves, flow=done.get("gradient flow"))


def _is_tunable(student: AbstractAttention) -> bool:
    return has_tunable_bias(student) and is_exact(_FIXED, student)


def _learners(student: AbstractAttention, found: Traits) -> list[AbstractAttention]:
    """The attentions that have a learning curve: with the bias it has, and with a learned one."""
    if found.slope != "fine":
        return []
    learns = _is_tunable(student) and scaleless_bias(student) is None
    return [student, *[student.with_free_bias()] * learns]


def _told_apart(name: str, attention: AbstractAttention) -> str:
    """The name, changed if it is that of a reference curve."""
    taken = name in REFERENCES and type(attention) is not type(REFERENCES[name])
    return f"your {name}" if taken else name


def _notes(attention: AbstractAttention, found: Traits, cut: bool) -> tuple[str, ...]:
    """Why there is no learning curve or no flow, and whether scores were clipped."""
    notes = []
    if found.slope in _OBSTACLES:
        notes.append(_OBSTACLES[found.slope])
    if found.slope not in _NO_GRADIENT and not is_exact(_TASK, attention):
        notes.append(_NO_FLOW)
    scaleless = (
        scaleless_bias(attention) if found.slope == "fine" and _is_tunable(attention) else None
    )
    if scaleless is not None:
        notes.append(_NO_LEARNED_BIAS.format(scaleless))
    return (*notes, *[_CUT] * cut)


def _family_notes(student: AbstractAttention) -> tuple[str, ...]:
    """Which of its risks are approximate, and why."""
    left_out = isinstance(student, RecognisedPartialKernel) and student.approximate
    return (
        *_foreign_notes(student),
        *[_DRAWN] * (not is_exact(_FIXED, student)),
        *_length_notes(student),
        *[_LEFT_OUT] * left_out,
    )


def _foreign_notes(student: Any) -> tuple[str, ...]:
    """A note if the function is written with NumPy or PyTorch."""
    function = getattr(student, "function", None)
    function = (
        getattr(function, "function", function) if isinstance(function, Clipped) else function
    )
    if not isinstance(function, Foreign):
        return ()
    return (_FOREIGN[function.library],)


def _length_notes(student: AbstractAttention) -> tuple[str, ...]:
    """How to declare a function of the score and the length that was not recognised as one."""
    family = family_at_each_length(student) if student.family == "general" else None
    return () if family is None else (_PER_LENGTH[family],)


def _flow(attention: AbstractAttention, found: Traits) -> Basins | None:
    if found.slope in _NO_GRADIENT or not is_exact(_TASK, attention):
        return None
    return basins(_TASK, attention, jax.random.key(0), _STARTS, _SIZE)
