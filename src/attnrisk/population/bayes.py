"""The Bayes risk: what a predictor that knows `k*` and `v*` cannot beat (section 3)."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._check import check_double_precision
from .._results import Estimate
from ..attention import Softmax
from ..numerics.arrays import as_arrays
from ..numerics.laplace import log_complement, one_token, transform_nodes, transforms_at
from ..numerics.qmc import across
from ..numerics.rules import AbstractRule, panels, trapezoid, window_for
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask, AbstractWeighted
from .engines import PlantedKernel
from .plan import ORDERS, by_kind, weighted_engine
from .risk import ROUNDING, compared

# Where equal steps of NumPy's arrays take some tenths of a second: scales of the fields, and lengths of the law.
_MODERATE, _FEW_LENGTHS = 20.0, 64
_FINENESS = 1.6, 2.0


def bayes_risk(task: AbstractTask, seed: int = 0) -> Estimate:
    """`Δ² + 1 − E[p_ε]`, with `p` the posterior of the location given the fields.

    `seed` is that of the Sobol points of a weighted task; elsewhere the risk is exact.
    """
    check_double_precision()
    if isinstance(task, AbstractWeighted):
        _, found = weighted_engine(task, seed).mean_tilt(task)
        return across(task.label_variance - found)
    missed = location_missed(task)
    value = float(task.noise) ** 2 + missed.value
    return Estimate(value, missed.error + ROUNDING * value)


def location_missed(task: AbstractTask) -> Estimate:
    """`1 − E[p_ε]`."""
    scale, by_steps, by_panels = by_kind(_METHODS, task, "the Bayes risk")
    scale, longest = scale(task), float(task.length.longest)
    if math.isinf(scale):
        return Estimate(0.0, 0.0)
    if scale <= _MODERATE and task.length.lengths.size <= _FEW_LENGTHS:
        return compared(*(by_steps(task, scale, longest, fineness) for fineness in _FINENESS))
    rules = (panels(scale, longest, order, transform_cells=4) for order in ORDERS)
    return compared(*(by_panels(*as_arrays((task, rule))) for rule in rules))


def _planted_scale(task: AbstractPlanted) -> float:
    """Of the log odds; infinite where the location is known, as by the norm of a token for `D → ∞`."""
    return float(task.shift) if task.spread == 1.0 else math.inf


def _selected_scale(task: AbstractSelected) -> float:
    return float(task.sharpness)


def _planted_by_steps(task: Any, scale: float, longest: float, fineness: float) -> float:
    """With NumPy alone: most of what panels take at first is the time to compile them."""
    shift = scale**2
    window = window_for(fineness) * scale
    width = 2.0 * window + shift + math.log(longest)
    rule = trapezoid(scale, width, (1.0, longest), fineness)
    u, du = rule.between(-window - rule.before, shift + window + np.log(longest))
    lost, first, _ = transforms_at(Softmax(), scale * rule.x, u[:, None])
    needle_lost, *_ = transforms_at(Softmax(), shift + scale * rule.x, u[:, None])
    beside = task.length.powers(log_complement(lost @ rule.mass), 1, drop=1)
    return float(du @ ((first @ rule.mass) * (1.0 - needle_lost @ rule.mass) * beside))


def _selected_by_steps(task: Any, scale: float, longest: float, fineness: float) -> float:
    """As `E[1 − Σp²]`, equal to it by the Nishimori identity."""
    window = window_for(fineness) * scale
    rule = trapezoid(scale, 2.0 * window + math.log(longest), (1.0, longest), fineness)
    u, du = rule.between(-window - rule.before, window + np.log(longest))
    lost, first, _ = transforms_at(Softmax(), scale * rule.x, u[:, None])
    pairs = task.length.powers(log_complement(lost @ rule.mass), 2, drop=0)
    return float(du @ ((first @ rule.mass) ** 2 * pairs))


@eqx.filter_jit
def _planted_by_panels(task: Any, rule: AbstractRule) -> Any:
    return PlantedKernel(rule).needle_missed(task, Softmax(), task.shift)


@eqx.filter_jit
def _selected_by_panels(task: Any, rule: AbstractRule) -> Any:
    token = 0.0, task.sharpness
    u, du = transform_nodes(Softmax(), [token], task.length.longest, rule)
    transforms = one_token(Softmax(), *token, u, rule, 0)
    pairs = task.length.powers(transforms.log_kept, 2, drop=0)
    return jnp.sum(du * transforms.first[0] ** 2 * pairs)


_METHODS: dict[Any, tuple[Callable, Callable, Callable]] = {
    AbstractPlanted: (_planted_scale, _planted_by_steps, _planted_by_panels),
    AbstractSelected: (_selected_scale, _selected_by_steps, _selected_by_panels),
}
