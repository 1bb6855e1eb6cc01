"""Risks that have a formula (section 4.4), and the best that any element-wise attention can do."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float

from .._check import refuse
from ..attention import Softmax
from ..numerics.gaussian import BULK, normal_rule, rule_for, subdivide
from ..numerics.laplace import PASSAGE, one_token
from ..numerics.panels import composite
from ..tasks import AbstractPlanted, AbstractSelected, LengthLaw
from .bayes import location_missed

_ORDER, _CELLS = 12, 4  # far below rounding for the largest of 10^6 Gaussians


def linear_risk(task: AbstractPlanted | AbstractSelected) -> float:
    """The least risk of linear attention `1 + χ`."""
    mean_length = float(task.length.mean())
    if isinstance(task, AbstractPlanted):
        if task.spread != 1.0:
            raise refuse("spread", task.spread, "1 for this formula")
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


def elementwise_floor(task: AbstractPlanted | AbstractSelected) -> float:
    """The risk below which no element-wise attention can go.

    `A²/B` is largest where the weight of a token is the chance that it is the needle, judged by its own field alone.
    On the spiked task this is a sigmoid of the field with slope `√ν` and bias `−ν/2 − log(L̄−1)`. What is left is the
    price of not comparing tokens.
    """
    x, weights = normal_rule(jnp.asarray(subdivide(BULK, _CELLS)), _ORDER)
    mean_length, noise = float(task.length.mean()), float(task.noise)
    if isinstance(task, AbstractSelected):
        x, weights = normal_rule(jnp.asarray(BULK), _ORDER)
        return noise**2 + 1 - float(jnp.sum(weights * _relevance(task, x) ** 2)) / mean_length
    if mean_length == 1:
        return noise**2
    field = task.shift + task.spread * x
    log_density = -0.5 * x**2 - jnp.log(task.spread) + 0.5 * field**2
    missed = 1 / (1 + jnp.exp(log_density + 2 * jnp.log(task.spread)) / (mean_length - 1))
    return noise**2 + float(task.spread**2 * jnp.sum(weights * missed))


def _relevance(task: AbstractSelected, x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Density of the relevant token's field at `x` over that of any token's."""
    law = task.length
    if np.isinf(task.sharpness):
        return law.powers(log_ndtr(x), 1, drop=0)
    sharpness = jnp.asarray(float(task.sharpness))
    gumbel, weights = composite(PASSAGE, _ORDER)
    weights = weights * np.exp(-gumbel - np.exp(-gumbel))
    u = sharpness * x[:, None] + gumbel
    token = one_token(Softmax(), 0.0, sharpness, u.ravel(), rule_for(float(sharpness), 8), 0)
    return law.powers(token.log_kept, 1, drop=0).reshape(u.shape) @ weights
