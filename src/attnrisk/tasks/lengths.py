"""Distributions of the number of tokens in a sequence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._check import Refusal, real, refuse, shown
from .._results import AbstractValue

LONGEST, MOST_LENGTHS = 10**12, 10**6
_BLOCK = 512  # lengths summed at a time, so that a law over 10^6 lengths needs little memory


class LengthLaw(AbstractValue):
    """Distribution of the number of tokens in a sequence, with finite support.

    Tasks accept it as `length`, or an integer for a fixed length.

    Args:
        lengths: An integer, a list of `n` distinct integers, or another `LengthLaw`.
        probabilities: A list of `n` probabilities; may be left out for a single length.

    Examples:
        >>> law = ar.LengthLaw([1, 8], [0.25, 0.75])
        >>> print(law, law.mean())
        1:0.25,8:0.75 6.25
    """

    lengths: Any
    probabilities: Any

    def __init__(self, lengths: Any, probabilities: Any = None):
        if isinstance(lengths, LengthLaw) and probabilities is None:
            self.lengths, self.probabilities = lengths.lengths, lengths.probabilities
            return
        allowed = f"made of whole numbers from 1 to {LONGEST:g}"
        try:
            sizes = np.atleast_1d(lengths).astype(float)
            weights = np.atleast_1d(1.0 if probabilities is None else probabilities).astype(float)
        except OverflowError:  # a whole number of hundreds of digits
            raise refuse("length", "[beyond 1e308]", allowed) from None
        except (TypeError, ValueError):
            raise refuse("length", repr((lengths, probabilities)), allowed) from None
        if sizes.size == 0 or sizes.ndim > 1 or sizes.shape != weights.shape:
            given = f"{sizes.size} lengths, {weights.size} probabilities"
            raise refuse("length", given, "a non-empty list of lengths, each with a probability")
        few = ", ".join(f"{size:g}" for size in sizes[:4]) + (", …" if sizes.size > 4 else "")
        whole = np.isfinite(sizes) & (sizes == np.floor(sizes))
        if not np.all(whole & (sizes >= 1) & (sizes <= LONGEST)):
            raise refuse("length", f"[{few}]", allowed)
        if len(np.unique(sizes)) < len(sizes):
            raise refuse("length", f"[{few}]", "a list without repetition")
        if not np.all(weights >= 0) or not abs(weights.sum() - 1) <= 1e-9:
            allowed = "numbers ≥ 0 of sum one"
            few = ", ".join(f"{each:g}" for each in weights[:4])
            given = f"[{few}{', …' * (weights.size > 4)}] (sum {weights.sum():g})"
            raise refuse("length probabilities", given, allowed)
        order = np.argsort(sizes)
        self.lengths, self.probabilities = sizes[order].astype(np.int64), weights[order]

    def __str__(self) -> str:
        if len(self.lengths) == 1:
            return str(self.lengths[0])
        if np.ptp(self.probabilities) < 1e-12 and np.all(np.diff(self.lengths) == 1):
            return f"{self.lengths[0]}-{self.lengths[-1]}"
        pairs = zip(self.lengths, self.probabilities, strict=True)
        return ",".join(f"{length}:{probability:g}" for length, probability in pairs)

    def __repr__(self) -> str:
        return f"LengthLaw({self})"

    @property
    def longest(self) -> Any:
        """The largest length."""
        return self.lengths[-1]

    def mean(self, values: Any = None) -> Any:
        """`E[values(L)]` for an array with one value per length; `E[L]` without an argument."""
        return (self.probabilities * (self.lengths if values is None else values)).sum()

    def powers(self, log_base: Float[Any, "*batch"], order: int, drop: int) -> Float[Any, "*batch"]:
        """`E[(L−drop)!/(L−drop−order)! · base^(L−drop−order)]`, a derivative of the generating function.

        What `L − drop` equal tokens contribute when `order` of them are singled out; zero where there
        are not that many.
        """
        xp, base = log_base.__array_namespace__(), log_base[..., None]
        count = xp.asarray(self.lengths, float) - drop
        ways = xp.asarray(self.probabilities, float) * xp.where(count >= order, 1.0, 0.0)
        for others in range(order):
            ways = ways * xp.maximum(count - others, 0.0)
        exponent = xp.maximum(count - order, 0.0)
        if count.size <= _BLOCK:
            return xp.sum(ways * xp.exp(exponent * base), -1)
        blocks = [
            jnp.pad(each, (0, -count.size % _BLOCK)).reshape(-1, _BLOCK)
            for each in (ways, exponent)
        ]
        return jax.lax.scan(
            lambda total, block: (total + jnp.sum(block[0] * jnp.exp(block[1] * base), -1), None),
            jnp.zeros_like(log_base),
            blocks,
        )[0]


def fixed(length: int) -> LengthLaw:
    """Fixed sequence length.

    Args:
        length: Number of tokens, at least 1.

    Returns:
        The distribution, a `LengthLaw`.

    Examples:
        >>> ar.fixed(10)
        LengthLaw(10)
    """
    return LengthLaw(length)


def uniform(shortest: int, longest: int) -> LengthLaw:
    """Uniform distribution of the sequence length.

    Args:
        shortest: Smallest length, included.
        longest: Largest length, included.

    Returns:
        The distribution, a `LengthLaw`.

    Examples:
        >>> ar.uniform(1, 3).mean()
        np.float64(2.0)
    """
    allowed = f"a range of 1 to {MOST_LENGTHS:g} lengths, the shortest first"
    try:
        first, last = real("shortest", shortest), real("longest", longest)
    except Refusal:
        first, last = 1.0, 0.0
    if not first <= last < first + MOST_LENGTHS:
        raise refuse("length", f"{shown(shortest)}-{shown(longest)}", allowed)
    lengths = np.arange(first, last + 1)
    return LengthLaw(lengths, np.full(lengths.size, 1 / lengths.size))


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
    parts = str(text).split(",")
    try:
        if ":" in parts[0]:
            pairs = [part.split(":") for part in parts]
            lengths, probabilities = [int(a) for a, _ in pairs], [float(b) for _, b in pairs]
        else:
            lengths = [int(each) for each in str(text).replace("-", " -", 1).split(" -")]
    except ValueError:
        raise refuse("length", repr(text), "like 10, 1-3 or 1:0.25,8:0.75") from None
    if ":" in parts[0]:
        return LengthLaw(lengths, probabilities)
    return uniform(*lengths) if len(lengths) == 2 else LengthLaw(lengths)
