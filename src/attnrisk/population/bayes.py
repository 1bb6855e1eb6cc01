"""The Bayes risk: what a predictor that knows `k*` and `v*` cannot beat (section 3)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._results import Estimate
from ..attention import Softmax
from ..numerics.arrays import as_arrays
from ..numerics.gaussian import (
    BULK,
    Rule,
    equal_steps,
    rule_for,
    runaway_steps,
    subdivide,
    trapezoid_for,
)
from ..numerics.laplace import log_complement, one_token, transforms_at
from ..numerics.qmc import across
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask
from . import general
from .onetoken import transform_nodes
from .planted import needle_missed
from .risk import ROUNDING, check_weight, compared, estimate

# Where equal steps of NumPy's arrays take some hundredths of a second: scales of the fields, and lengths of the law.
_MODERATE, _FEW_LENGTHS = 8.0, 64
_FINENESS = 1.6, 2.0


def bayes_risk(task: AbstractTask, seed: int = 0) -> Estimate:
    """`Δ² + 1 − E[p_ε]`, with `p` the posterior of the location given the fields."""
    if not isinstance(task, AbstractPlanted | AbstractSelected):
        return _weighted_bayes_risk(task, seed)
    missed = location_missed(task)
    value = task.noise**2 + missed.value
    return Estimate(value, missed.error + ROUNDING * value)


def location_missed(task: AbstractPlanted | AbstractSelected) -> Estimate:
    """`1 − E[p_ε]`."""
    if isinstance(task, AbstractPlanted):
        scale = float(task.shift)
        known = task.spread != 1.0  # the norm of a token gives the location away as D grows
    else:
        scale = float(task.sharpness)
        known = np.isinf(scale)
    if known:
        return Estimate(0.0, 0.0)
    if scale <= _MODERATE and task.length.lengths.size <= _FEW_LENGTHS:
        return compared(*(_missed_by_steps(task, scale, fineness) for fineness in _FINENESS))
    arrays = as_arrays(task)
    return estimate(lambda order: _missed_by_panels(arrays, rule_for(scale, order)))


def _missed_by_steps(
    task: AbstractPlanted | AbstractSelected, scale: float, fineness: float
) -> float:
    """The same with NumPy alone: most of what panels take at first is the time to compile them."""
    planted, longest = isinstance(task, AbstractPlanted), task.length.longest
    shift = scale**2 if planted else 0.0
    rule = trapezoid_for(scale, shift, longest, fineness)
    window = rule.window * scale
    u, du = runaway_steps(-window - rule.before, shift + window + np.log(longest), rule)
    x, mass = equal_steps(rule.step)
    lost, first, _ = transforms_at(Softmax(), scale * x, u[:, None])
    log_kept = log_complement(lost @ mass)
    if not planted:
        return float(du @ ((first @ mass) ** 2 * task.length.powers(log_kept, 2, drop=0)))
    needle_lost, *_ = transforms_at(Softmax(), shift + scale * x, u[:, None])
    beside = task.length.powers(log_kept, 1, drop=1)
    return float(du @ ((first @ mass) * (1.0 - needle_lost @ mass) * beside))


@eqx.filter_jit
def _missed_by_panels(task: AbstractPlanted | AbstractSelected, rule: Rule) -> Any:
    """The same at any scale; a selected task's as `E[1 − Σp²]`, equal to it by the Nishimori identity."""
    if isinstance(task, AbstractPlanted):
        return needle_missed(task, Softmax(), task.shift, rule)
    bulk = subdivide(BULK, 4)  # the largest of many is sharper than any one
    u, du = transform_nodes(Softmax(), [(0.0, task.sharpness)], task.length.longest, rule, bulk)
    token = one_token(Softmax(), 0.0, task.sharpness, u, rule, 0)
    return jnp.sum(du * token.first[0] ** 2 * task.length.powers(token.log_kept, 2, drop=0))


def _weighted_bayes_risk(task: AbstractTask, seed: int) -> Estimate:
    check_weight(task, seed)
    _, found = general.mean_tilt(task, general.draw(task, seed))
    return across(task.label_variance - found)
