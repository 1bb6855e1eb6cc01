"""The verdict in words: what an attention lacks, with the number that says so."""

from ..._results import Estimate
from .tasks import Row
from .traits import BOUNDED, EXPONENTIAL, SPARSE, Traits

_NOTHING = 1e-4  # a gap that is smaller, or within three errors, is none
_ALL_BUT = 0.01  # a risk this near to a floor is as good as on it


def paragraph(
    traits: Traits,
    gap: Estimate,
    fixed: Row,
    longest: Row,
    floors: tuple[float, float],
    with_bias: Estimate | None,
    cost_of_lengths: Estimate,
) -> str:
    """A few sentences."""
    if is_none(gap):
        return _lacks_nothing(traits, longest)
    if traits.family == "element-wise":
        sentences = _alone(traits, fixed, longest, floors, with_bias)
    else:
        sentences = _compared(traits, gap, longest)
    return " ".join([*sentences, _lengths(cost_of_lengths)])


def is_none(gap: Estimate) -> bool:
    """Whether there is no gap, as far as can be seen."""
    return abs(float(gap.value)) <= max(_NOTHING, 3 * float(gap.error))


def _lacks_nothing(traits: Traits, longest: Row) -> str:
    has = "compares tokens" if traits.normalised else "is not normalised, yet"
    grows = ", its weights grow exponentially" if traits.growth == EXPONENTIAL else ""
    return f"It lacks nothing: it {has}{grows}, and its risk is that of Bayes on every task of the grid. {_in(longest)}"


def _alone(
    traits: Traits,
    fixed: Row,
    longest: Row,
    floors: tuple[float, float],
    with_bias: Estimate | None,
) -> list[str]:
    """An element-wise attention lacks normalisation, and then what separates it from the best of its kind."""
    risk, bayes = float(fixed.risk), float(fixed.bayes)
    sentences = [
        f"It lacks normalisation: no token sees another, and no such attention gets below a risk of {floors[0]:.4f} "
        f"on the {_words(fixed)}, where Bayes has {bayes:.4f}: {floors[0] - bayes:.4f} is the price."
    ]
    if risk - floors[0] < _ALL_BUT:
        return [*sentences, f"It comes close to the best of its kind, with {risk:.4f}."]
    shape = f"It pays {risk - floors[0]:.4f} more for the shape of its weights"
    if traits.growth == BOUNDED:
        sentences.append(f"{shape}, which are bounded and have their threshold in a fixed place.")
    elif traits.growth == EXPONENTIAL:
        sentences.append(f"{shape}, which grow exponentially with nothing to hold them.")
    else:
        sentences.append(
            f"It also lacks exponential growth: its weights grow only {_how(traits)}, for which it pays "
            f"{risk - floors[0]:.4f} more."
        )
    if with_bias is not None and risk - float(with_bias) > _ALL_BUT:
        sentences.append(f"A bias that is learned would bring it to {float(with_bias):.4f}.")
    best = f"the best of its kind {floors[1]:.4f}"
    return [*sentences, _in(longest, best)]


def _compared(traits: Traits, gap: Estimate, longest: Row) -> list[str]:
    """An attention that compares tokens lacks exponential growth, or what it does to the odds that this gives."""
    lost = f"{float(gap):.2g} on average over the grid"
    if traits.slope == "scaleless":
        begin = (
            "It lacks a scale: its weights do not change when all scores are stretched, so that it cannot learn how "
            f"sharp to be. It loses {lost}."
        )
    elif not traits.normalised:
        begin = f"It lacks normalisation: its weights do not sum to one. It loses {lost}."
    elif traits.growth == SPARSE:
        begin = (
            f"It is normalised, but in place of odds that fall exponentially it gives no weight at all to tokens whose "
            f"score is much lower than the highest. It loses {lost}."
        )
    elif traits.growth == EXPONENTIAL and traits.constant > 0:
        begin = f"It grows exponentially, but the constant beside its sum spoils the comparison. It loses {lost}."
    elif traits.growth == EXPONENTIAL:
        begin = (
            "It is normalised and grows exponentially, but its weights are not the odds that Bayes uses. "
            f"It loses {lost}."
        )
    else:
        begin = (
            f"It lacks exponential growth: it is normalised, but its weights grow only {_how(traits)}, and the many "
            f"tokens that are not the needle drown the one that is. It loses {lost}."
        )
    return [begin, _in(longest)]


def _how(traits: Traits) -> str:
    return {BOUNDED: "up to a bound", "linear": "linearly", "quadratic": "quadratically"}.get(
        traits.growth, traits.growth
    )


def _in(row: Row, beside: str = "") -> str:
    """The longest haystack."""
    beside = f", {beside}," if beside else ""
    return (
        f"Among {int(row.length):,} tokens with a signal to match (spiked, ν = {row.nu:.3g}) its risk is "
        f"{abs(float(row.risk)):.4f}{beside} where Bayes has {float(row.bayes):.4f}."
    )


def _words(row: Row) -> str:
    return f"{row.task} task with ν = {row.nu:g} and L = {row.length}"


def _lengths(cost: Estimate) -> str:
    if is_none(cost):
        return "Lengths that vary cost it nothing more."
    verb = "widen" if float(cost) > 0 else "narrow"
    return f"Lengths that vary {verb} its gap to Bayes by {abs(float(cost)):.2g}."
