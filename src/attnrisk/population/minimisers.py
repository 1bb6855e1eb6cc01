"""The result type of a minimum, and minima in closed form (sections 3 and 4.4)."""

import math
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from .._check import LARGEST, refuse
from .._results import Estimate, Result
from ..attention import AbstractAttention, Linear, Softmax
from ..attention.base import refuse_weights
from ..tasks import AbstractTask
from .bayes import bayes_risk
from .closed_forms import linear_risk, linear_scale, mean_relevant_field
from .overlaps import Overlaps, aligned

LONGEST_VALUE = math.sqrt(LARGEST)  # of v, whose square is an overlap
_LONGEST = 1e3  # the key that is reported where only ever longer ones attain the risk


class Minimum(eqx.Module):
    """Lowest risk of an attention with one head, and where it is attained.

    If it is not `attained`, the risk is the limit as `k` diverges, or as `v` diverges because the weights vanish
    (`result` says which), and the overlaps are those of the largest norm evaluated. `attention` has the optimised bias.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        "risk",
        "overlaps",
        "bias",
        "attained",
        "result",
        "converged",
    )

    risk: Estimate
    overlaps: Overlaps
    attention: AbstractAttention
    result: Result = eqx.field(static=True, default=Result.CONVERGED)

    @property
    def bias(self) -> float:
        """The bias: the optimised one if it is free."""
        return float(self.attention.bias)

    @property
    def attained(self) -> bool:
        """Whether finite vectors attain the lowest risk."""
        return not self.result.is_infimum

    @property
    def converged(self) -> bool:
        """Whether the search converged."""
        return self.result.converged


def value_norm(attention: AbstractAttention, label: Any, power: Any) -> float:
    """`m_vv = A/B` of the best `v`; 0 where all weights vanish. It is refused if it is not a number or too large."""
    a, b = float(np.mean(label)), float(np.mean(power))
    if a == 0 and b >= 0:
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        raise refuse_weights(attention, "whose weights, or their squares, are not finite numbers")
    if not abs(a) <= LONGEST_VALUE * b:
        raise refuse_weights(
            attention, f"whose weights are so small that v would be longer than {LONGEST_VALUE:g}"
        )
    return a / b


def linear_minimum(task: AbstractTask) -> Minimum:
    """The minimum of linear attention `1 + χ`: at the best `v` the risk is `E[y²] − m_vv A` with `A = E[σ_ε]`."""
    risk, m_kk = linear_risk(task), float(linear_scale(task))
    found = 1.0 + m_kk * float(mean_relevant_field(task))
    m_vv = (float(task.label_variance) - float(risk)) / found
    return Minimum(risk, aligned(m_kk, m_vv), Linear())


def softmax_minimum(task: AbstractTask) -> Minimum:
    """The minimum of softmax, which at `k = strength · k*` is the posterior of the location and has the Bayes risk."""
    if task.spread != 1.0:
        raise refuse("spread", task.spread, "1 for this formula")
    strength = float(task.strength)
    if math.isinf(strength):
        return Minimum(bayes_risk(task), aligned(_LONGEST), Softmax(), Result.K_DIVERGES)
    return Minimum(bayes_risk(task), aligned(strength), Softmax())


def at_one_length(task: AbstractTask, attention: AbstractAttention, found: Minimum) -> Minimum:
    """The minimum at a fixed length of an attention whose formula contains the length."""
    _, stretch = attention.at_length(task.length.longest)
    overlaps = found.overlaps.stretched(1.0 / float(stretch))
    if not attention.free_bias:
        return Minimum(found.risk, overlaps, attention, found.result)
    unbiased, _ = attention.with_bias(0.0).at_length(task.length.longest)
    bias = (found.bias - float(unbiased.bias)) / float(stretch)
    return Minimum(found.risk, overlaps, attention.with_bias(bias), found.result)


def at_unit_scale(attention: Any) -> AbstractAttention | None:
    """The attention to solve in place of a kernel beside a small constant, by stretching its scores; or `None`."""
    return (
        attention.at_unit_scale
        if attention.family == "kernel" and not attention.knows_length
        else None
    )


def from_unit_scale(attention: AbstractAttention, found: Minimum) -> Minimum:
    """The minimum of the attention, from that at unit scale."""
    scale = attention.score_scale
    known = attention.with_bias(scale * found.bias) if attention.free_bias else attention
    return Minimum(found.risk, found.overlaps.stretched(scale), known, found.result)
