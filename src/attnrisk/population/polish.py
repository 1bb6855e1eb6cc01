"""The minimum of a smooth function of one number that takes long to call and has no derivative at hand."""

import math
from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np

_THROUGH = 5  # points that a polynomial goes through
_LONGEST_STEP = 3.0  # in units of the stencil
_SHRINK = 8.0
_FINEST = 1e-3  # of the first stencil
_MOST_ROUNDS = 60
_LEAST_GAIN = 1e-14  # less is rounding, on which a flat function would drift
_LAST_GAIN = 1e-13  # a promise this small is kept as far as rounding allows
_ROUNDING = 1e-15  # and one this small is none


_Y = TypeVar("_Y")
_S = TypeVar("_S")


def polish(
    function: Callable[[float], Generator[_Y, _S, float]], start: float, radius: float
) -> Generator[_Y, _S, tuple[float, float]]:
    """Where the function is least near `start`, and its value there; what the function yields, this yields.

    Each step goes to the minimum of the polynomial through the nearest points, and adds one more. A stencil around the
    best of them, of size `radius` at first, is there for a function that is no polynomial, as at a kink: it shrinks
    once steps do not help. Some eight calls; never worse than `start`.
    """
    seen = {start: (yield from function(start))}
    x, size = start, radius
    for _ in range(_MOST_ROUNDS):
        for side in (x + size, x - size):
            if side not in seen:
                seen[side] = yield from function(side)
        before, step = seen[x], math.inf
        x = min(seen, key=lambda at: (seen[at], at))
        while (found := _lowest(seen, x, size)) is not None:
            ahead, promise = found
            if promise < _ROUNDING:
                return x, seen[x]
            seen[ahead] = yield from function(ahead)
            step = abs(ahead - x) / size
            gain = seen[x] - seen[ahead]
            if promise < _LAST_GAIN and gain <= 0:
                return x, seen[x]
            if promise >= _LAST_GAIN and gain <= _LEAST_GAIN:
                break
            x = ahead
        if step < 0.5 or seen[x] >= before - _LEAST_GAIN:
            if size <= _FINEST * radius:
                break
            size = max(size / _SHRINK, _FINEST * radius)
    return x, seen[x]


def _lowest(seen: dict[float, float], best: float, size: float) -> tuple[float, float] | None:
    """Where the polynomial through the points around the best is least, and by how much; if it is anywhere near."""
    near = sorted((x for x in seen if math.isfinite(seen[x])), key=lambda x: abs(x - best))
    places = (np.array(near[:_THROUGH]) - best) / size
    if places.size < 3:
        return None
    heights = np.array([seen[x] for x in near[:_THROUGH]]) - seen[best]
    powers = np.vander(places, increasing=True)
    through = np.polynomial.Polynomial(np.linalg.lstsq(powers, heights, rcond=None)[0])
    flat = through.deriv().roots()
    flat = flat.real[np.abs(flat.imag) < 1e-9]
    minima = [float(t) for t in flat if through.deriv(2)(t) > 0 and abs(t) <= _LONGEST_STEP]
    lowest = min(minima, key=through, default=math.nan)
    promise = -float(through(lowest))
    return (best + size * lowest, promise) if promise >= 0 else None
