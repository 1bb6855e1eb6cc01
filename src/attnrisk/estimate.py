"""The one way a number leaves this package: with its error."""

import math
from typing import Any

import equinox as eqx
import numpy as np

from ._check import is_traced


def _plain(number: Any) -> Any:
    """A float where the number is known."""
    return number if is_traced(number) or np.ndim(number) else float(number)


class Estimate(eqx.Module):
    """A value and its error.

    From a deterministic rule the error bounds the distance to the exact number; from random points it
    is one standard error.
    """

    value: Any = eqx.field(converter=_plain)
    error: Any = eqx.field(converter=_plain)

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        value, error = float(self.value), float(self.error)
        if not error > 0:
            return f"{value:.12g}"
        digits = min(14, max(1, 1 - math.floor(math.log10(error))))
        return f"{value:.{digits}f} ± {error:.1g}"
