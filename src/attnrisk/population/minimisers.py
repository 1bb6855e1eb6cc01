"""Least risks whose minimiser has a formula (sections 3 and 4.4)."""

import math

from .._check import refuse
from .._results import Estimate
from ..attention import get_attention
from ..tasks import AbstractPlanted, AbstractSelected
from .bayes import bayes_risk
from .closed_forms import linear_risk, linear_scale, mean_relevant_field
from .minimum import Minimum
from .overlaps import aligned

_ROUNDING = 1e-14  # of a formula
_LONGEST = 1e3  # the key that is reported where only ever longer ones attain the risk


def linear_minimum(task: AbstractPlanted | AbstractSelected) -> Minimum:
    """That of linear attention `1 + χ`: at the best `v` the risk is `E[y²] − m_vv A` with `A = E[σ_ε]`."""
    risk, m_kk = linear_risk(task), linear_scale(task)
    field = task.shift if isinstance(task, AbstractPlanted) else mean_relevant_field(task)
    m_vv = (float(task.label_variance) - risk) / (1.0 + m_kk * float(field))
    return Minimum(Estimate(risk, _ROUNDING), aligned(m_kk, m_vv), get_attention("linear"), True)


def softmax_minimum(task: AbstractPlanted | AbstractSelected) -> Minimum:
    """That of softmax, which at `k = strength · k*` is the posterior of the location and has the Bayes risk."""
    if task.spread != 1.0:
        raise refuse("spread", task.spread, "1 for this formula")
    strength = float(task.strength)
    attained = math.isfinite(strength)
    overlaps = aligned(strength if attained else _LONGEST)
    return Minimum(bayes_risk(task), overlaps, get_attention("softmax"), attained)
