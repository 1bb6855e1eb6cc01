"""Parsing of length and shift distributions from text, for the command line and study files."""

from .._check import Refusal, refuse
from .shifts import LARGEST_NU, MOST_FEATURES, SHIFT_LAWS, ShiftMixture
from .slr import LengthLaw, uniform


def parse_lengths(text: str) -> LengthLaw:
    """Read a length distribution from text, as the option `--length` does.

    Args:
        text: `10` (fixed), `1-3` (uniform) or `1:0.25,8:0.75` (lengths with probabilities).

    Returns:
        The distribution, a `LengthLaw`.

    Examples:
        >>> ar.parse_lengths("1-3").lengths
        array([1, 2, 3])
    """
    try:
        if ":" in str(text):
            pairs = [part.split(":") for part in str(text).split(",")]
            return LengthLaw([int(a) for a, _ in pairs], [float(b) for _, b in pairs])
        ends = [int(each) for each in str(text).replace("-", " -", 1).split(" -")]
        return uniform(*ends) if len(ends) == 2 else LengthLaw(ends)
    except Refusal:
        raise
    except ValueError:
        raise refuse("length", repr(text), "like 10, 1-3 or 1:0.25,8:0.75") from None


def parse_features(text: str) -> ShiftMixture:
    """Read the distribution of the shift from text, as the option `--features` does.

    Args:
        text: `flipped:9`, `one-of:9,6,4` or `gaussian:9,5,2`.

    Returns:
        The distribution, a `ShiftMixture`.

    Examples:
        >>> ar.parse_features("one-of:9,4").features
        2
    """
    allowed = "like flipped:9, one-of:9,6,4 or gaussian:9,5,2"
    name, _, listed = str(text).partition(":")
    try:
        given = [float(each) for each in listed.split(",")]
    except ValueError:
        raise refuse("features", repr(text), allowed) from None
    if name not in SHIFT_LAWS or (name == "flipped" and len(given) != 1):
        raise refuse("features", repr(text), allowed)
    allowed = f"{name} of numbers from 0 to {LARGEST_NU:g}, at most {MOST_FEATURES} of them"
    if len(given) > MOST_FEATURES or not all(0 <= each <= LARGEST_NU for each in given):
        raise refuse("features", repr(text), allowed)
    return SHIFT_LAWS[name](given)
