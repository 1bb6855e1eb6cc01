"""The minimum of a smooth function of one number that is cheap to call and has no derivative at hand."""

import math
from collections.abc import Callable

_LONGEST_STEP = 3.0  # in units of the stencil
_SHRINK = 8.0
_FINEST = 1e-3  # of the first stencil: the third derivative then counts a millionth, and rounding still little
_MOST_ROUNDS = 60
_LEAST_GAIN = 1e-14  # less is rounding, on which a flat function would drift
_LAST_GAIN = 1e-13  # of a Newton step, after which the next gains less than rounding


def polish(function: Callable[[float], float], start: float, radius: float) -> tuple[float, float]:
    """Where the function is least near `start`, and its value there.

    Newton's method on central differences over a stencil of size `radius`, which shrinks once the steps are small
    against it. Some twenty calls; never worse than `start`.
    """
    x, lowest, size = start, function(start), radius
    for _ in range(_MOST_ROUNDS):
        ahead, behind = function(x + size), function(x - size)
        candidates = [(ahead, x + size), (behind, x - size)]
        curvature, step = ahead + behind - 2 * lowest, _LONGEST_STEP
        if 0 < curvature < math.inf:
            step = (behind - ahead) / (2 * curvature)
            step = max(-_LONGEST_STEP, min(_LONGEST_STEP, step))
            candidates.append((function(x + step * size), x + step * size))
        best = min(candidates)
        gain, moved = lowest - best[0], best[0] < lowest - _LEAST_GAIN
        if moved:
            lowest, x = best
            if abs(step) < 0.5 and gain < _LAST_GAIN:
                break
        if not moved or abs(step) < 0.5:
            if size <= _FINEST * radius:
                break
            size = max(size / _SHRINK, _FINEST * radius)
    return x, lowest
