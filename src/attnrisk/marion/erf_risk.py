"""The population risk of `σ = erf`, the attention of Marion et al., in closed form (section 4.1)."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array

from ..numerics.linalg import root
from ..population.overlaps import Overlaps
from ..tasks import AbstractPlanted

# On [0, 1]. The integrand of Owen's function has its poles at ±i or beyond, so that n nodes leave an error of
# 4.6^(-2n); where its exponential is too steep for them, the integral is below 1e-16.
_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(16) + np.array([[1.0], [0.0]])) / 2


class _Smoothed(NamedTuple):
    """`E[F], E[F'], E[F'']` at a Gaussian score."""

    value: Any
    slope: Any
    curvature: Any


def erf_risk(task: AbstractPlanted, overlaps: Overlaps) -> Any:
    """The population risk of `σ = erf` in closed form but for Owen's function; the overlaps may be arrays.

    Section 4.1 with every `z` and `z*` integrated by parts: `E[F(χ) z] = E[z] E[F] + Cov(χ, z) E[F']`.
    """
    m_kv, m_vk, q_kv = overlaps.m_kv, overlaps.m_vk, overlaps.q_kv
    variance, value, crossed = task.spread**2, m_vk * task.shift, task.spread**2 * q_kv
    deviation = root(overlaps.q_kk)
    mean = overlaps.m_kk * task.shift
    h, h2 = _erf(mean, task.spread * deviation), _erf_squared(mean, task.spread * deviation)
    other, other2 = _erf(0.0, deviation), _erf_squared(0.0, deviation)
    beside, between = (task.length.powers(jnp.zeros(()), k, drop=1) for k in (1, 2))

    here, there = value * h.value + crossed * h.slope, q_kv * other.slope
    label = variance * (overlaps.m_vv * h.value + m_kv * (value * h.slope + crossed * h.curvature))
    power = (
        (value**2 + variance * overlaps.q_vv) * h2.value
        + crossed * (2.0 * value * h2.slope + crossed * h2.curvature)
        + beside * (overlaps.q_vv * other2.value + q_kv**2 * other2.curvature)
        + 2.0 * beside * here * there
        + between * there**2
    )
    return task.label_variance - 2.0 * label + power


def _erf(mean: Any, deviation: Any) -> _Smoothed:
    """`F = erf`: smoothing only widens it."""
    width = jnp.sqrt(1.0 + 2.0 * deviation**2)
    u = mean / width
    slope = erf_slope(u) / width
    return _Smoothed(erf(u), slope, -2.0 * u / width * slope)


def _erf_squared(mean: Any, deviation: Any) -> _Smoothed:
    """`F = erf²`: `1 − 8 T(√2 u, 1/w)` with Owen's `T`."""
    width, w = jnp.sqrt(1.0 + 2.0 * deviation**2), jnp.sqrt(1.0 + 4.0 * deviation**2)
    u = mean / width
    bell = 2.0 * erf_slope(u) / width
    curvature = bell / width * (erf_slope(u / w) / w - 2.0 * u * erf(u / w))
    return _Smoothed(1.0 - _owen(u, 1.0 / w), bell * erf(u / w), curvature)


def _owen(u: Any, a: Any) -> Array:
    """`8 T(√2 u, a) = (4/π) ∫_0^a exp(−u² (1 + x²))/(1 + x²) dx` for `a ≤ 1`."""
    a, u = jnp.asarray(a)[..., None], jnp.asarray(u)[..., None]
    stretch = 1.0 + (a * _NODES) ** 2
    return 4.0 / math.pi * jnp.sum(_WEIGHTS * a * jnp.exp(-(u**2) * stretch) / stretch, -1)


def erf_slope(x: Any) -> Any:
    return 2.0 / math.sqrt(math.pi) * jnp.exp(-(x**2))
