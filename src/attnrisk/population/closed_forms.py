"""Risks that have a formula (section 4.4), and the best that any element-wise attention can do."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from ..quadrature.gaussian import BULK, normal_rule, subdivide
from ..tasks import AbstractPlanted, AbstractSelected, LengthLaw
from .bayes import location_missed

_ORDER, _CELLS = 12, 4  # far below rounding for the largest of 10^6 Gaussians


def linear_risk(task: AbstractPlanted | AbstractSelected) -> float:
    """The least risk of linear attention `1 + χ`."""
    mean_length = float(task.length.mean())
    if isinstance(task, AbstractPlanted):
        if task.spread != 1.0:
            raise ValueError(f"spread = {task.spread} is not allowed: this formula is for spread 1")
        if mean_length == 1:
            return float(task.noise**2)
        precision = 1 + 1 / (mean_length - 1) + float(task.shift) ** 2 / mean_length
        return float(task.noise**2) + 1 / precision
    return float(task.noise**2) + 1 - (1 + mean_relevant_field(task) ** 2) / mean_length


def linear_scale(task: AbstractPlanted | AbstractSelected) -> float:
    """The `m_kk` at which linear attention reaches its least risk."""
    mean_length = float(task.length.mean())
    if isinstance(task, AbstractPlanted):
        return float(task.shift) * (mean_length - 1) / mean_length
    return mean_relevant_field(task)


def mean_relevant_field(task: AbstractSelected) -> float:
    """`E[χ*_ε]`, the mean teacher field of the relevant token, averaged over lengths."""
    if np.isinf(task.sharpness):
        return mean_of_largest(task.length)
    return float(task.sharpness * location_missed(task).value)


def mean_of_largest(law: LengthLaw) -> float:
    """The mean of the largest of `L` standard Gaussians, averaged over `L`."""
    x, weights = normal_rule(jnp.asarray(subdivide(BULK, _CELLS)), _ORDER)
    return float(jnp.sum(weights * x * law.powers(log_ndtr(x), 1, drop=0)))


def elementwise_floor(task: Any) -> float:
    """The risk below which no element-wise attention can go on the spiked task.

    `A²/B` is largest for `h = f_ε/(f_ε + (L̄−1) n)`, the chance that a token seen alone is the needle: a sigmoid of its
    field with slope `√ν` and bias `−ν/2 − log(L̄−1)`. What is left, `1 − E[h(χ_ε)]`, is the price of
    not comparing tokens.
    """
    others = float(task.length.mean()) - 1
    x, weights = normal_rule(jnp.asarray(subdivide(BULK, _CELLS)), _ORDER)
    log_ratio = (
        task.shift * x + task.shift**2 / 2 - jnp.log(others) if others > 0 else jnp.inf * (x + 20)
    )
    return float(task.noise**2 + jnp.sum(weights / (1 + jnp.exp(log_ratio))))
