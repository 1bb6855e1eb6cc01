"""The fixed point that a monotone map of two numbers ≥ 0 reaches from a given start."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MOST_STEPS = 400
TOLERANCE = 1e-9  # of a step; the points are fixed, so that only rounding is in the way
# The longest step in plain ones, and in all where it is longer than a plain one: enough to pass a bottleneck, too
# little to pass a pair of fixed points unseen.
_LONGEST_RATIO, _LONGEST_STEP = 10.0, 0.25
_LEAST_PROGRESS = 0.5  # of a step along the plain one


class Iteration(NamedTuple):
    """A point, the plain step `T(x) − x` from it, and how many steps led there."""

    point: Float[np.ndarray, "2"]
    step: Float[np.ndarray, "2"]
    steps: int

    @property
    def residual(self) -> float:
        """The larger component of the plain step."""
        return float(np.max(np.abs(self.step)))

    @property
    def converged(self) -> bool:
        """Whether the point is a fixed point."""
        return self.residual <= TOLERANCE


def find_fixed_point(
    function: Callable[[np.ndarray], np.ndarray], start: Float[np.ndarray, "2"]
) -> Iteration:
    """Iterate `x → function(x)` with Broyden's method, restricted to stay close to the plain iteration.

    Not a library's root finder: from below a monotone map climbs to its lowest fixed point, from above it descends to
    its highest, and the answer has to be that one. Hence a step has to agree in direction with the plain one, and may
    not be much longer.
    """
    now = Iteration(start, function(start) - start, 0)
    inverse = np.eye(2)  # an estimate of `(1 − T')⁻¹`
    while now.residual > TOLERANCE and now.steps < MOST_STEPS:
        ahead, plain = inverse @ now.step, now.step
        longest = min(_LONGEST_RATIO * now.residual, _LONGEST_STEP)
        if ahead @ plain >= _LEAST_PROGRESS * plain @ plain:
            ahead /= max(np.max(np.abs(ahead)) / max(now.residual, longest), 1.0)
        else:
            ahead = plain
        point = np.maximum(now.point + ahead, 0.0)
        ahead, step = point - now.point, function(point) - point
        change = inverse @ (plain - step)
        if ahead @ change > 0:
            inverse = inverse + np.outer(ahead - change, ahead @ inverse) / (ahead @ change)
        else:  # plain steps do not shrink: twice the last ratio of step to plain step
            inverse = 2.0 * np.max(np.abs(ahead)) / now.residual * np.eye(2)
        now = Iteration(point, step, now.steps + 1)
    return now
