"""How many tokens a sequence has: any law with finite support."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import Refusal, refuse

LONGEST, MOST_LENGTHS = 10**12, 10**6
_BLOCK = 512  # lengths summed at a time, so that a law over 10^6 lengths needs little memory


class LengthLaw(eqx.Module):
    """A probability for each of finitely many lengths."""

    lengths: Any
    probabilities: Any

    def __init__(self, lengths: Any, probabilities: Any):
        try:
            lengths = np.atleast_1d(lengths).astype(float)
        except OverflowError:  # a whole number of hundreds of digits
            allowed = f"made of whole numbers from 1 to {LONGEST:g}"
            raise refuse("length", "[beyond 1e308]", allowed) from None
        probabilities = np.atleast_1d(probabilities).astype(float)
        if lengths.size == 0 or lengths.shape != probabilities.shape:
            given = f"{lengths.size} lengths, {probabilities.size} probabilities"
            raise refuse("length", given, "a non-empty list of lengths, each with a probability")
        whole = np.isfinite(lengths) & (lengths == np.floor(lengths))
        if not np.all(whole & (lengths >= 1) & (lengths <= LONGEST)):
            raise refuse("length", _few(lengths), f"made of whole numbers from 1 to {LONGEST:g}")
        if len(np.unique(lengths)) < len(lengths):
            raise refuse("length", _few(lengths), "a list without repetition")
        if not all(np.isfinite(probabilities)) or any(probabilities < 0):
            raise refuse("length probabilities", _few(probabilities), "numbers ≥ 0")
        if abs(probabilities.sum() - 1) > 1e-9:
            raise refuse("length probabilities", f"(sum {probabilities.sum():g})", "of sum one")
        order = np.argsort(lengths)
        self.lengths = lengths[order].astype(np.int64)
        self.probabilities = probabilities[order]

    def __hash__(self) -> int:
        return hash((self.lengths.tobytes(), self.probabilities.tobytes()))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, LengthLaw):
            return NotImplemented
        return np.array_equal(self.lengths, other.lengths) and np.array_equal(
            self.probabilities, other.probabilities
        )

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
        """The largest length of the law."""
        return self.lengths[-1]

    def mean(self, values: Any = None) -> Any:
        """`E[values(L)]` for values given per length; `E[L]` without any."""
        return (self.probabilities * (self.lengths if values is None else values)).sum()

    def powers(self, log_base: Float[Any, "*batch"], order: int, drop: int) -> Float[Any, "*batch"]:
        """`E[(L−drop)!/(L−drop−order)! · base^(L−drop−order)]`, a derivative of the generating function.

        What `L − drop` equal tokens contribute when `order` of them are singled out; zero where there
        are not that many.
        """
        xp = log_base.__array_namespace__()
        lengths, weights = (xp.asarray(a, float) for a in (self.lengths, self.probabilities))

        def summed(lengths: Any, weights: Any) -> Any:
            count = lengths - drop
            ways = weights * xp.where(count >= order, 1.0, 0.0)
            for taken in range(order):
                ways = ways * xp.maximum(count - taken, 0.0)
            exponent = xp.maximum(count - order, 0.0)
            return xp.sum(ways * xp.exp(exponent * log_base[..., None]), -1)

        if lengths.size <= _BLOCK:
            return summed(lengths, weights)
        padding = (0, -lengths.size % _BLOCK)
        lengths = jnp.pad(lengths, padding, constant_values=1).reshape(-1, _BLOCK)
        weights = jnp.pad(weights, padding).reshape(-1, _BLOCK)

        def add(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
            return total + summed(*block), None

        return jax.lax.scan(add, jnp.zeros_like(log_base), (lengths, weights))[0]


def fixed(length: int) -> LengthLaw:
    """Every sequence has `length` tokens."""
    return LengthLaw([length], [1.0])


def uniform(shortest: int, longest: int) -> LengthLaw:
    """Each length from `shortest` to `longest`, both included, equally likely."""
    if not shortest <= longest < shortest + MOST_LENGTHS:
        allowed = f"a range of 1 to {MOST_LENGTHS:g} lengths, the shortest first"
        raise refuse("length", f"{shortest}-{longest}", allowed)
    lengths = np.arange(shortest, longest + 1)
    return LengthLaw(lengths, np.full(lengths.size, 1 / lengths.size))


def parse_lengths(text: str) -> LengthLaw:
    """`10`, `1-3` (uniform) or `1:0.25,8:0.75` as a law."""
    try:
        if ":" in text:
            pairs = [part.split(":") for part in text.split(",")]
            return LengthLaw([int(a) for a, _ in pairs], [float(b) for _, b in pairs])
        if "-" in text[1:]:
            shortest, longest = text.split("-")
            return uniform(int(shortest), int(longest))
        return fixed(int(text))
    except Refusal:
        raise
    except ValueError:
        raise refuse("length", repr(text), "like 10, 1-3 or 1:0.25,8:0.75") from None


def as_law(length: Any) -> LengthLaw:
    """A `LengthLaw` from a law or a whole number."""
    return length if isinstance(length, LengthLaw) else LengthLaw([length], [1.0])


def _few(values: np.ndarray) -> str:
    """The first of many values, short enough for one line."""
    shown = ", ".join(f"{value:g}" for value in values[:4])
    return f"[{shown}{', …' if len(values) > 4 else ''}]"
