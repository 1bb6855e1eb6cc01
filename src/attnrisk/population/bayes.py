"""The Bayes risk: what a predictor that knows `k*` and `v*` cannot beat (section 3)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..attention import Softmax
from ..estimate import Estimate
from ..quadrature.gaussian import BULK, Rule, rule_for, subdivide
from ..quadrature.laplace import one_token
from ..quadrature.qmc import across
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask
from . import general
from .onetoken import transform_nodes
from .planted import needle_missed
from .risk import ROUNDING, as_arrays, check_weight, estimate


def bayes_risk(task: AbstractTask, seed: int = 0) -> Estimate:
    """`Δ² + 1 − E[p_ε]`, with `p` the posterior of the location given the fields."""
    if not isinstance(task, AbstractPlanted | AbstractSelected):
        return _weighted_bayes_risk(task, seed)
    missed = location_missed(task)
    value = task.noise**2 + missed.value
    return Estimate(value, missed.error + ROUNDING * value)


def location_missed(task: AbstractPlanted | AbstractSelected) -> Estimate:
    """`1 − E[p_ε]`."""
    arrays = as_arrays(task)
    if isinstance(task, AbstractPlanted):
        if task.spread != 1.0:  # the norm of a token gives the location away as D grows
            return Estimate(0.0, 0.0)
        scale = float(task.shift)
        return estimate(lambda order: _planted_missed(arrays, rule_for(scale, order)))
    if np.isinf(task.sharpness):
        return Estimate(0.0, 0.0)
    scale = float(task.sharpness)
    return estimate(lambda order: _selected_missed(arrays, rule_for(scale, order)))


@eqx.filter_jit
def _planted_missed(task: AbstractPlanted, rule: Rule) -> Any:
    return needle_missed(task, Softmax(), task.shift, rule)


@eqx.filter_jit
def _selected_missed(task: AbstractSelected, rule: Rule) -> Any:
    """`E[1 − Σp²]`, equal to `1 − E[p_ε]` by the Nishimori identity, as a sum over pairs of tokens."""
    bulk = subdivide(BULK, 4)  # the largest of many is sharper than any one
    u, du = transform_nodes(Softmax(), [(0.0, task.sharpness)], task.length.longest, rule, bulk)
    token = one_token(Softmax(), 0.0, task.sharpness, u, rule, 0)
    return jnp.sum(du * token.first[0] ** 2 * task.length.powers(token.log_kept, 2, drop=0))


def _weighted_bayes_risk(task: AbstractTask, seed: int) -> Estimate:
    check_weight(task, seed)
    _, found = general.mean_tilt(task, general.draw(task, seed))
    return across(task.label_variance - found)
