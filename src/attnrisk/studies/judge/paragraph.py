"""The verdict in words: what an attention lacks, with the number that says so, and nothing below one per cent."""

from collections.abc import Sequence

from ..._results import Estimate, Result
from .causes import (
    BIAS,
    GROWTH,
    MATTERS,
    NORMALISATION,
    POSITIVITY,
    TEMPERATURE,
    Counterfactual,
    Gaps,
)
from .tasks import Row

# By what an attention with the best bias finds the needle in a long haystack (section 12).
EXPONENTIAL_TAIL, THRESHOLD, NEITHER, UNKNOWN = "exponential", "threshold", "neither", "unknown"
_FOUND = 0.5  # a risk below this in the longest haystack, and lower than in the shortest
_LONG = 10**5  # tokens; shorter haystacks tell nothing

_NOTHING = 1e-4  # a gap that is smaller, or within three errors, is none

_CHANGED = {
    NORMALISATION: "divided by their sum, its weights",
    POSITIVITY: "with an exponential tail where they vanish, its weights",
    TEMPERATURE: "with another temperature, it",
    BIAS: "with a free bias, it",
    GROWTH: "weights that grow like the exponential of the score",
}
_WHERE = {
    "fixed": "with ten tokens",
    "lengths": "where lengths vary",
    "haystack": "in a long haystack",
}


def is_none(gap: Estimate) -> bool:
    """Whether there is no gap, as far as can be seen."""
    return abs(float(gap.value)) <= max(_NOTHING, 3 * float(gap.error))


def survival(haystacks: Sequence[Row]) -> str:
    """By what the needle is found in haystacks that grow, if it is."""
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
    at_worst: tuple[str, float] | None = None,
) -> str:
    """A few sentences, of the mean gap over the grid and what counterfactuals say.

    `longest` is the longest haystack, with the best bias if `biased`, `floor` the best element-wise risk there; `worst`
    is the task of the grid with the largest gap, and `at_worst` the change that recovers most there.
    """
    sentences = []
    if max(abs(each) for each in (float(gap), *gaps)) <= _NOTHING:
        sentences.append("It lacks nothing: its risk is that of Bayes on every task.")
    elif float(gap) < MATTERS and not lacks:
        sentences.append(
            f"It lacks nothing that matters: it loses less than {MATTERS:g} to Bayes, on average over the grid, where "
            "lengths vary and in a long haystack."
        )
    elif float(gap) >= MATTERS:
        sentences.append(f"It loses {float(gap):.2g} on average over the grid.")
        if not lacks:
            sentences.append(
                f"It loses most on the {worst.task} task (ν = {worst.nu:.3g}, L = {worst.length}): "
                f"{float(worst.gap):.2g}."
            )
            if at_worst is not None:
                sentences.append(
                    f"There {_CHANGED[at_worst[0]]} would recover {at_worst[1]:.2g} of it."
                )
    for at, each in enumerate(lacks):
        lost = getattr(each.before, each.where)
        verb = "It lacks" if at == 0 else "It also lacks"
        rest = "all" if each.recovers > lost - MATTERS else f"{each.recovers:.2g}"
        of = f"of the {lost:.2g} that it loses" if at == 0 else f"of the {lost:.2g} that are left"
        noun = {BIAS: "a bias", GROWTH: "growth", TEMPERATURE: "a temperature"}.get(
            each.what, each.what
        )
        sentences.append(
            f"{verb} {noun}: {_CHANGED[each.what]} would recover {rest} {of} {_WHERE[each.where]}."
        )
    if any(each.what == BIAS for each in lacks) and longest.result is Result.BECOMES_SOFTMAX:
        sentences.append("As its bias grows it becomes softmax.")
    beside = (
        f", the best element-wise attention {floor:.4f},"
        if NORMALISATION in [each.what for each in lacks]
        else ""
    )
    sentences.append(
        f"Among {int(longest.length):,} tokens with a signal to match (spiked, ν = {longest.nu:.3g}) its risk "
        f"{'with the best bias ' if biased else ''}is {abs(float(longest.risk)):.4f}{beside} where Bayes has "
        f"{float(longest.bayes):.4f}."
    )
    return " ".join(sentences)
