"""The index of the largest of several noisy fields: the posterior of the location in a selected task (section 7).

Given the mean `ω_ℓ` of each field, the location of max-SLR is the argmax of `θ_ℓ + n_ℓ`: `θ = slope·ω`, and the noise
`n = a g + b Gumbel` contains the uncertainty of the field and the softness of the task, scaled to `a² + b² = 1`. With
`F` the cdf of `n` and `F'/F` its hazard, an integral over the value `x` of the largest gives

    p_ε = ∫dx hazard(x−θ_ε) ∏_ℓ F(x−θ_ℓ) ,    −∂p_ε/∂θ_ℓ = ∫dx hazard(x−θ_ε) hazard(x−θ_ℓ) ∏ F    (ℓ ≠ ε).

`F` is tabulated once for all tokens and points; the trapezoid rule in `x` is placed by the largest `θ`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float

from .quadrature import normal_density

# In units of the noise: the trapezoid rule errs by e^{-π²/step} for a Gumbel law, and by far less for a Gaussian.
_STEP = 0.6
# F(−6) is 1e-9, and the largest of L Gumbel variables exceeds 18 with probability L e^{-18}.
_BELOW, _ABOVE = 6.0, 18.0
_NODES = round((_BELOW + _ABOVE) / _STEP) + 1
_FARTHEST = 36.0  # so far below the largest a token has a probability under e^{-35}
_PHASES = 16  # of the table in one step; the slope of the cubic between them is right to 1e-6
_COLUMNS = _NODES + round(_FARTHEST / _STEP) + 1

_GUMBEL_NODES, _GUMBEL_STEP = np.arange(-5.0, 36.0, 0.4), 0.4
_NORMAL_NODES, _NORMAL_STEP = np.arange(-8.0, 8.1, 0.3), 0.3
_TINY = 1e-290
_UNLIKELY = 1e-14  # a probability that rounding in the table leaves unknown


class NoiseTable(NamedTuple):
    """`log F` and the hazard, its derivative; rows are phases within a step, columns are steps."""

    log_cdf: Float[Array, "phases columns"]
    hazard: Float[Array, "phases columns"]


class Selection(NamedTuple):
    """The law `p` of the location, and the hazards and masses at the nodes in `x`, for its derivatives."""

    probability: Float[Array, " L"]
    hazard: Float[Array, "L x"]
    mass: Float[Array, " x"]

    def pull(self, odds: Float[Array, " L"]) -> Float[Array, " L"]:
        """`∂/∂θ_ℓ Σ_ε odds_ε p_ε`, in a time that grows like `L`."""
        gains = self.hazard @ (self.mass * jnp.sum(self.hazard, 0))
        return odds * gains - self.hazard @ (self.mass * (odds @ self.hazard))


def tabulate(gaussian: Any) -> NoiseTable:
    """The law of `a g + b Gumbel` with `a = gaussian`."""
    gumbel = jnp.sqrt(jnp.maximum(1.0 - gaussian**2, 0.0))
    phases = np.arange(_PHASES + 1)[:, None] / _PHASES + np.arange(_COLUMNS)
    x = jnp.asarray(_STEP * phases - _BELOW)[..., None]
    cdf, density = jax.lax.cond(gaussian > gumbel, _over_gumbel, _over_normal, gaussian, gumbel, x)
    cdf = jnp.maximum(cdf, _TINY)
    return NoiseTable(jnp.log(cdf), density / cdf)


def _over_gumbel(gaussian: Array, gumbel: Array, x: Array) -> tuple[Array, Array]:
    """Cdf and density as a convolution over the Gumbel variable."""
    mass = _GUMBEL_STEP * np.exp(-_GUMBEL_NODES - np.exp(-_GUMBEL_NODES))
    z = (x - gumbel * _GUMBEL_NODES) / gaussian
    return ndtr(z) @ mass, normal_density(z) @ mass / gaussian


def _over_normal(gaussian: Array, gumbel: Array, x: Array) -> tuple[Array, Array]:
    """Cdf and density as a convolution over the Gaussian variable."""
    mass = _NORMAL_STEP * normal_density(_NORMAL_NODES)
    z = jnp.exp(-(x - gaussian * _NORMAL_NODES) / gumbel)
    cdf = jnp.exp(-z)
    return cdf @ mass, (z * cdf) @ mass / gumbel


def select(theta: Float[Array, " L"], present: Bool[Array, " L"], table: NoiseTable) -> Selection:
    """The law of the location among the tokens that are present."""
    gap = jnp.max(theta, where=present, initial=-jnp.inf) - theta
    log_cdf, hazard = jax.vmap(lambda each: _interpolate(table, each))(
        jnp.clip(gap, 0.0, _FARTHEST)
    )
    hazard = jnp.where(present[:, None], jnp.maximum(hazard, 0.0), 0.0)
    mass = _STEP * jnp.exp(jnp.sum(log_cdf, 0, where=present[:, None]))
    probability = jnp.where(present, jnp.maximum(hazard @ mass, _UNLIKELY), 0.0)
    total = jnp.sum(probability)
    return Selection(probability / total, hazard, mass / total)


def _interpolate(table: NoiseTable, gap: Array) -> tuple[Float[Array, " x"], Float[Array, " x"]]:
    """`log F` and its derivative at all nodes for a token that is `gap` below the largest, by Hermite's cubic."""
    column = jnp.floor(gap / _STEP)
    phase = _PHASES * (gap / _STEP - column)
    row = jnp.minimum(jnp.floor(phase), _PHASES - 1)
    corner = row.astype(int), column.astype(int)
    (left, right), slopes = (jax.lax.dynamic_slice(part, corner, (2, _NODES)) for part in table)
    t, width = phase - row, _STEP / _PHASES
    rise, (start, end) = right - left, width * slopes
    quadratic = 3.0 * rise - 2.0 * start - end
    cubic = start + end - 2.0 * rise
    value = left + t * (start + t * (quadratic + t * cubic))
    return value, (start + t * (2.0 * quadratic + 3.0 * t * cubic)) / width
