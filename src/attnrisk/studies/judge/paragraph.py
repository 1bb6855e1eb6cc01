"""The verdict in words: what an attention lacks, with numbers; changes below one per cent are not mentioned."""

from collections.abc import Sequence

from ..._results import Estimate, Result
from .causes import (
    BIAS,
    GROWTH,
    MATTERS,
    NORMALISATION,
    POSITIVITY,
    TEMPERATURE,
    AtWorst,
    Counterfactual,
    Gaps,
)
from .tasks import Row

# How an attention with the best bias finds the relevant token of a long sequence (section 12).
EXPONENTIAL_TAIL, THRESHOLD, NEITHER, UNKNOWN = "exponential", "threshold", "neither", "unknown"
_FOUND = 0.5  # a risk below this in the longest sequence, and lower than in the shortest
_LONG = 10**5  # tokens; shorter sequences do not decide

_NOTHING = 1e-4  # a smaller gap, or one within three errors, counts as none

_CHANGED = {
    NORMALISATION: "dividing the weights by their sum",
    POSITIVITY: "an exponential tail where the weights vanish",
    TEMPERATURE: "another temperature",
    BIAS: "a free bias",
    GROWTH: "exponential growth of the weights",
}
_WHERE = {
    "fixed": "with ten tokens",
    "lengths": "with random lengths",
    "haystack": "in a long sequence",
}


def is_none(gap: Estimate) -> bool:
    """Whether a gap is zero within its error."""
    return abs(float(gap.value)) <= max(_NOTHING, 3 * float(gap.error))


def survival(haystacks: Sequence[Row]) -> str:
    """How the relevant token is found in sequences of growing length, if it is."""
    first, last = haystacks[0], haystacks[-1]
    if int(last.length) < _LONG:
        return UNKNOWN
    if is_none(last.gap):
        return EXPONENTIAL_TAIL
    falls = float(last.risk) < min(_FOUND, float(first.risk))
    return THRESHOLD if falls else NEITHER


def paragraph(
    gap: Estimate,
    gaps: Gaps,
    lacks: Sequence[Counterfactual],
    longest: Row,
    floor: float,
    worst: Row,
    biased: bool = True,
    at_worst: AtWorst | None = None,
) -> str:
    """A few sentences on the mean gap over the grid and on the counterfactuals.

    `longest` is the longest sequence, with the best bias if `biased`, `floor` the lowest element-wise risk there;
    `worst` is the task of the grid with the largest gap, and `at_worst` the change that recovers most there.
    """
    sentences = []
    if max(abs(each) for each in (float(gap), *gaps)) <= _NOTHING:
        sentences.append("It lacks nothing: its risk is the Bayes risk on every task.")
    elif float(gap) < MATTERS and not lacks:
        sentences.append(
            f"It lacks nothing that matters: its gap to the Bayes risk is below {MATTERS:g}, on average over the grid, "
            "with random lengths and in a long sequence."
        )
    elif float(gap) >= MATTERS:
        sentences.append(f"Its mean gap to the Bayes risk is {float(gap):#.2g}.")
        if not lacks:
            sentences.append(
                f"The largest gap, {float(worst.gap):#.2g}, is on the {worst.task} task (ν = {worst.nu:.3g}, "
                f"L = {worst.length})."
            )
            if at_worst is not None:
                sentences.append(
                    f"There, {_CHANGED[at_worst.what]} recovers {at_worst.recovers:#.2g}."
                )
    for at, each in enumerate(lacks):
        lost = getattr(each.before, each.where)
        verb, gap_words = ("It lacks", "gap") if at == 0 else ("It also lacks", "remaining gap")
        part = "the whole" if each.recovers > lost - MATTERS else f"{each.recovers:#.2g} of the"
        noun = {BIAS: "a bias", GROWTH: "growth", TEMPERATURE: "a temperature"}.get(
            each.what, each.what
        )
        sentences.append(
            f"{verb} {noun}: {_CHANGED[each.what]} recovers {part} {gap_words} of {lost:#.2g} {_WHERE[each.where]}."
        )
    if any(each.what == BIAS for each in lacks) and longest.result is Result.BECOMES_SOFTMAX:
        sentences.append("As its bias diverges it becomes softmax.")
    where = f"With {int(longest.length):,} tokens (spiked task, ν = {longest.nu:.3g}) its risk"
    where += " with the best bias" * biased
    if is_none(longest.gap):
        sentences.append(
            f"{where} is the Bayes risk, {float(longest.bayes):.4f}, within its error."
        )
        return " ".join(sentences)
    beside = (
        f", the lowest of any element-wise attention is {floor:.4f}"
        if NORMALISATION in [each.what for each in lacks]
        else ""
    )
    sentences.append(
        f"{where} is {float(longest.risk):.4f}{beside}, and the Bayes risk is {float(longest.bayes):.4f}."
    )
    return " ".join(sentences)
