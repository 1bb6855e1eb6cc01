"""The verdict in words: what an attention lacks, with the number that says so."""

from collections.abc import Sequence

from ..._results import Estimate, Result
from .tasks import Row
from .traits import BOUNDED, EXPONENTIAL, SPARSE, Traits

# By what an attention with the best bias finds the needle in a long haystack (section 12).
EXPONENTIAL_TAIL, THRESHOLD, NEITHER, UNKNOWN = "exponential", "threshold", "neither", "unknown"
_FOUND = 0.5  # a risk below this in the longest haystack, and lower than in the shortest
_LONG = 10**5  # tokens; shorter haystacks tell nothing

_NOTHING = 1e-4  # a gap that is smaller, or within three errors, is none
_ALL_BUT = 0.01  # a risk this near to a floor is as good as on it


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
    traits: Traits,
    gaps: tuple[Estimate, Estimate],
    fixed: tuple[Row, Row],
    longest: Row,
    survival: str,
    floors: tuple[float, float],
    cost_of_lengths: Estimate,
) -> str:
    """A few sentences; `gaps` and `fixed` are those without and with a free bias, `longest` the one with it."""
    gap, fair = gaps
    lengths = _lengths(cost_of_lengths)
    if is_none(gap):
        lacks = (
            "lacks nothing"
            if is_none(cost_of_lengths) and is_none(longest.gap)
            else "loses nothing at a fixed length"
        )
        return f"It {lacks}: its risk is that of Bayes on every task of the grid. {_in(longest)} {lengths}"
    recovered = float(gap) - float(fair)
    biased = not is_none(Estimate(recovered, fair.error, fair.kind))
    if is_none(fair):
        limit = ", where it becomes softmax" if longest.result is Result.BECOMES_SOFTMAX else ""
        return (
            f"It lacks a bias: without one it loses {float(gap):.2g} on average over the grid, with a free bias "
            f"nothing{limit}. {_in(longest)} {lengths}"
        )
    sentences = []
    if biased:
        sentences.append(
            f"It lacks a bias: one that is free recovers {recovered:.2g} of the {float(gap):.2g} that it loses on "
            "average over the grid."
        )
    else:
        sentences.append(f"It loses {float(gap):.2g} on average over the grid.")
    if traits.family == "element-wise":
        sentences += _alone(fixed[1], floors)
        return " ".join(
            [*sentences, _in(longest, f"the best of its kind {floors[1]:.4f}"), lengths]
        )
    return " ".join([*sentences, _compared(traits, survival), _in(longest), lengths])


def _alone(fixed: Row, floors: tuple[float, float]) -> list[str]:
    """An element-wise attention lacks normalisation, and then what separates it from the best of its kind."""
    risk, bayes = float(fixed.risk), float(fixed.bayes)
    price = (
        f"It lacks normalisation: no token sees another, and no such attention gets below a risk of {floors[0]:.4f} "
        f"on the {fixed.task} task with ν = {fixed.nu:g} and L = {fixed.length}, where Bayes has {bayes:.4f}: "
        f"{floors[0] - bayes:.4f} is the price."
    )
    if risk - floors[0] < _ALL_BUT:
        return [price, f"It comes close to the best of its kind, with {risk:.4f}."]
    return [price, f"The shape of its weights costs {risk - floors[0]:.4f} more."]


def _compared(traits: Traits, survival: str) -> str:
    """What an attention that compares tokens does wrong."""
    if not traits.normalised:
        return "It lacks normalisation: its weights do not sum to one."
    if traits.growth == SPARSE:
        return (
            "It gives no weight at all to tokens whose score is much lower than the highest, where the odds that Bayes "
            "uses fall exponentially."
        )
    if survival == NEITHER:
        bounded = "up to a bound" if traits.growth == BOUNDED else f"({traits.growth})"
        return (
            "It has neither an exponential tail nor a threshold: no bias makes the average weight of an ordinary token "
            f"small enough against that of the needle, whose weight grows only {bounded}, so that many tokens drown it."
        )
    if survival == THRESHOLD:
        return (
            "It acts as a threshold, which finds the needle in a long haystack, but the weights above it are not the "
            "odds that Bayes uses."
        )
    if traits.growth == EXPONENTIAL:
        return "Its weights grow exponentially, but they are not the odds that Bayes uses."
    return f"Its weights ({traits.growth} growth) are not the odds that Bayes uses."


def _in(row: Row, beside: str = "") -> str:
    """The longest haystack."""
    beside = f", {beside}," if beside else ""
    return (
        f"Among {int(row.length):,} tokens with a signal to match (spiked, ν = {row.nu:.3g}) its risk is "
        f"{abs(float(row.risk)):.4f}{beside} where Bayes has {float(row.bayes):.4f}."
    )


def _lengths(cost: Estimate) -> str:
    if is_none(cost):
        return "Lengths that vary cost it nothing more."
    verb = "widen" if float(cost) > 0 else "narrow"
    return f"Lengths that vary {verb} its gap to Bayes by {abs(float(cost)):.2g}."
