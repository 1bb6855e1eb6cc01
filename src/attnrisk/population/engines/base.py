"""Base class of engines, which compute the two correlations of the risk `E[y²] − 2 E[y σ·z] + E[(σ·z)²]`."""

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ...attention import AbstractAttention
from ...tasks import AbstractNeedle, AbstractTask
from ..overlaps import Overlaps, aligned

# A selected task tabulates fields for scores that change by up to this much per unit of field: at any overlaps, and
# for a kernel at aligned ones, which beyond it is integrated without a table. All else is extrapolated.
SHARPEST, STEEPEST = 16.0, 32.0
# Some of the biases that a search tries, relative to the widest score: a transform has nodes for all of them.
SEARCHED_BIASES = np.array([-8.0, -4.0, -2.0, -1.0, 0.0, 1.0])
_SHARED_SCALE = 1.2  # step between deviations that plans for heads are made for


class Correlations(NamedTuple):
    """`E[y σ·z]` and `E[(σ·z)²]`; where `k = m_kk k*` and `v = v*` they are `A` and `B`."""

    label: Any
    power: Any


class AbstractEngine(eqx.Module):
    """An integration method for one kind of task and attention, with its nodes as arrays; built by `plan`.

    With Sobol points, the correlations have an axis of randomisations.
    """

    @abstractmethod
    def correlations(self, task: Any, attention: Any, overlaps: Overlaps) -> Correlations:
        """The correlations at any overlaps; `plan` ensures that task and attention are of the kinds of the engine."""

    def profile(self, task: Any, attention: Any, m_kk: Any) -> Correlations:
        """`A` and `B` at `k = m_kk k*`, `v = v*`."""
        return self.correlations(task, attention, aligned(m_kk))

    def risk(self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps) -> Any:
        """The risk, noise included; can be compiled and differentiated."""
        label, power = self.correlations(task, attention, overlaps)
        return task.label_variance - 2.0 * label + power


class Range(NamedTuple):
    """Scores that a plan serves: their standard deviation, what a teacher field leaves of it, and by how much a score
    changes per unit of its teacher field, each at most so much; the least that a field leaves; and teacher fields at
    which a score passes a kink."""

    scale: float
    noise: float
    slope: float
    least_noise: float = 0.0
    kinks: tuple[float, ...] = (0.0,)

    def stretched(self, factor: float) -> "Range":
        """The range of scores multiplied by a factor."""
        scale, noise, slope, least_noise = (factor * each for each in self[:4])
        return Range(scale, noise, slope, least_noise, self.kinks)


class HeadRange(NamedTuple):
    """Scores that a plan for heads serves: the largest deviation and the largest mean of a token's score, the lowest
    and the highest bias, and whether the scores of different heads, and `z`, are independent."""

    deviation: float
    shift: float
    lowest_bias: float = 0.0
    highest_bias: float = 0.0
    independent: bool = False

    @property
    def shared_deviation(self) -> float:
        """The standard deviation rounded up, so that similar problems share compiled code."""
        steps = math.ceil(math.log(max(self.deviation, 1.0)) / math.log(_SHARED_SCALE) - 1e-9)
        return _SHARED_SCALE**steps

    def stretched(self, factor: float) -> "HeadRange":
        """The range of scores multiplied by a factor."""
        deviation, shift, low, high = (factor * each for each in self[:4])
        return HeadRange(deviation, shift, low, high)


def head_range(task: AbstractNeedle, attention: AbstractAttention, overlaps: Overlaps) -> HeadRange:
    """The scores at these overlaps."""
    law, features = task.shift_law, task.features
    M, Q, squares = (np.asarray(each) for each in (overlaps.M, overlaps.Q, np.diagonal(overlaps.Q)))
    along = M[:, :features]
    carried = np.einsum("pf,jfg,qg->jpq", along, np.asarray(law.all_covariances), along)
    spread = max(1.0, float(task.spread) ** 2)
    deviations = np.sqrt(spread * squares + np.diagonal(carried, axis1=1, axis2=2))[:, :-1]
    shift = float(np.abs(along[:-1] @ np.asarray(law.means).T).max())
    bias = np.asarray(attention.key_biases(jnp.asarray(squares[:-1])))
    crossed = np.abs(np.tril(Q, -1)).sum() + np.abs(np.tril(carried, -1)).sum()
    crossed += np.abs(M[:-1, features:]).sum() + np.abs(M[-1, :features]).sum()
    ends = float(bias.min()), float(bias.max())
    return HeadRange(float(deviations.max()), shift, *ends, independent=bool(crossed == 0.0))
