"""The two thresholds in `α` at which the Bayes optimum and message passing jump (section 7)."""

from typing import ClassVar

import equinox as eqx
import numpy as np

from .._results import ErrorKind, Estimate
from ..numerics.minimise import bisect
from ..tasks import AbstractSamplable, AbstractTask
from .evidence import Points
from .optimal import FixedPoint, draw, informed, reachable
from .scope import optimisable

_LOWEST, _HIGHEST, _COARSE = 2.0**-3, 2.0**10, 14  # the α searched, and how many to begin with
_RATIO = 1.005  # of the ends of the bracket in which a threshold is left
_FEWER = 2  # halvings of the points
_SAMPLING = 0.003  # relative spread of thresholds between seeds, seen at L = 3 and 10
_LEAST_JUMP = 0.1  # of q_k + q_v; less, within the tolerance of α, is steep but continuous
_APART = 0.01  # in q_k + q_v: branches closer than this are one

Bracket = tuple[float, float]


class Thresholds(eqx.Module):
    """Values of `α` above which the optimum (`information`) and message passing (`algorithmic`) have jumped.

    `None` if there is no jump. The hard phase lies between the two. The errors include the final bracket of the search
    and the sampling.
    """

    recorded: ClassVar[tuple[str, ...]] = ("information", "algorithmic")
    information: Estimate | None
    algorithmic: Estimate | None


def optimal_thresholds(task: AbstractTask, seed: int = 0) -> Thresholds:
    """Values of `α` at which the Bayes optimum and message passing jump, to one percent.

    Without noise the jump is the exact recovery of `v*`. It is the optimum as soon as it exists, for `α > 1`: the free
    entropy near it grows like `½(α−1) log 1/(1−q_v)`, without bound. With noise the two branches cross at a finite free
    entropy, or there is one branch and no jump; if there are several jumps, the largest is returned.

    Args:
        task: As in `optimal_asymptotics`.
        seed: Seed of the Sobol points.

    Returns:
        A `Thresholds` with `information` and `algorithmic`, each an `Estimate` of a scalar or `None`.

    Examples:
        >>> jumps = ar.optimal_thresholds(ar.SpikedSLR(nu=2.0, length=3))
        >>> print(f"{jumps.information:.0f} {jumps.algorithmic:.2f}")
        1 1.24
    """
    task = optimisable(task)
    points = draw(task, seed, _FEWER)
    if task.noise == 0.0:
        return Thresholds(Estimate(1.0, 0.0), _middle(_recovery(task, points)))
    algorithmic = _fold(task, points)
    if algorithmic is None:
        return Thresholds(None, None)
    return Thresholds(_middle(_crossing(task, points, algorithmic)), _middle(algorithmic))


def _middle(bracket: Bracket | None) -> Estimate | None:
    if bracket is None:
        return None
    low, high = bracket
    error = (high - low) / 2 + _SAMPLING * high
    return Estimate((low + high) / 2, error, ErrorKind.STANDARD)


def _recovery(task: AbstractSamplable, points: Points) -> Bracket | None:
    """A bracket of the smallest `α` at which message passing recovers `v*` exactly."""

    def recovers(alpha: float) -> bool:
        return float(reachable(task, alpha, points).q_v) == 1.0

    low, high = 1.0, 2.0
    while not recovers(high):
        low, high = high, 2 * high
        if high > _HIGHEST:
            return None
    return bisect(recovers, low, high, _RATIO)


def _fold(task: AbstractSamplable, points: Points) -> Bracket | None:
    """A bracket of the `α` at which the branch of message passing ends.

    The interval over which the overlaps change most is halved until it is short enough. If the change is a jump, the
    branch that it leads to exists before it.
    """
    curve = {
        alpha: reachable(task, alpha, points) for alpha in np.geomspace(_LOWEST, _HIGHEST, _COARSE)
    }
    while True:
        intervals = zip(sorted(curve)[:-1], sorted(curve)[1:], strict=True)
        low, high = max(intervals, key=lambda ends: _distance(*(curve[end] for end in ends)))
        if _distance(curve[low], curve[high]) < _LEAST_JUMP:
            return None
        if high <= _RATIO * low:
            break
        middle = np.sqrt(low * high)
        curve[middle] = reachable(task, middle, points)
    return (low, high) if _distance(curve[low], informed(task, low, points)) > _APART else None


def _crossing(task: AbstractSamplable, points: Points, fold: Bracket) -> Bracket:
    """A bracket of the `α` below the fold at which the informed branch gets the larger free entropy."""

    def crossed(alpha: float) -> bool:
        low, high = (branch(task, alpha, points) for branch in (reachable, informed))
        better = float(high.free_entropy) > float(low.free_entropy)
        return better and _distance(low, high) > _APART

    return bisect(crossed, _LOWEST, fold[0], _RATIO) if crossed(fold[0]) else fold


def _distance(left: FixedPoint, right: FixedPoint) -> float:
    return sum(abs(float(a) - float(b)) for a, b in ((left.q_k, right.q_k), (left.q_v, right.q_v)))
