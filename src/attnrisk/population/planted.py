"""Planted tasks: exact correlations from one-token integrals (sections 4.1 to 4.3)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..attention import AbstractElementwise, AbstractKernel
from ..numerics.gaussian import AnyRule
from ..numerics.laplace import OneToken, one_token
from ..tasks import AbstractPlanted
from .correlations import Correlations, given_score, root
from .onetoken import transform_nodes, weight_moments
from .overlaps import Overlaps, aligned


def kernel_correlations(
    task: AbstractPlanted, attention: AbstractKernel, overlaps: Overlaps, rule: AnyRule
) -> Correlations:
    """Normalised kernels: one Laplace transform."""
    du, relevant, other = _transforms(task, attention, overlaps, rule, degree=2)
    here, there = given_score(overlaps, task.shift, task.spread), given_score(overlaps)
    kept, value = 1.0 - relevant.lost[0], there.expect_value(other.first)
    alone, beside, between = (task.length.powers(other.log_kept, k, drop=1) for k in range(3))
    label = (
        here.expect_product(relevant.first) * alone
        - here.label_slope * relevant.lost[1] * value * beside
    )
    power = (
        here.expect_square(relevant.second) * alone
        + there.expect_square(other.second) * kept * beside
        + 2.0 * here.expect_value(relevant.first) * value * beside
        + value**2 * kept * between
    )
    return Correlations(jnp.sum(du * label), jnp.sum(du * power))


def kernel_profile(
    task: AbstractPlanted, attention: AbstractKernel, m_kk: Any, rule: AnyRule
) -> Correlations:
    """`A` and `B` at `k = m_kk k*`, in less time."""
    du, relevant, other = _transforms(task, attention, aligned(m_kk), rule, degree=0)
    kept = 1.0 - relevant.lost[0]
    alone, beside = (task.length.powers(other.log_kept, k, drop=1) for k in range(2))
    label = task.spread**2 * relevant.first[0] * alone
    power = task.spread**2 * relevant.second[0] * alone + other.second[0] * kept * beside
    return Correlations(jnp.sum(du * label), jnp.sum(du * power))


def needle_missed(
    task: AbstractPlanted, attention: AbstractKernel, m_kk: Any, rule: AnyRule
) -> Array:
    """`E[Σ_{ℓ≠ε} σ_ℓ]` at `k = m_kk k*`: `1 − A` without the loss of digits where it is small."""
    du, relevant, other = _transforms(task, attention, aligned(m_kk), rule, degree=0)
    beside = task.length.powers(other.log_kept, 1, drop=1)
    return jnp.sum(du * other.first[0] * (1.0 - relevant.lost[0]) * beside)


def _transforms(
    task: AbstractPlanted, attention: AbstractKernel, overlaps: Overlaps, rule: AnyRule, degree: int
) -> tuple[Float[Array, " u"], OneToken, OneToken]:
    """The measure in `u`, and the transforms of the relevant token and of any other."""
    deviation = root(overlaps.q_kk)
    tokens = ((overlaps.m_kk * task.shift, task.spread * deviation), (0.0, deviation))
    u, du = transform_nodes(attention, tokens, task.length.longest, rule)
    relevant, other = (one_token(attention, m, d, u, rule, degree) for m, d in tokens)
    return du, relevant, other


def elementwise_correlations(
    task: AbstractPlanted, attention: AbstractElementwise, overlaps: Overlaps, rule: AnyRule
) -> Correlations:
    """Element-wise attentions: products of one-token integrals."""
    deviation = root(overlaps.q_kk)
    here, there = given_score(overlaps, task.shift, task.spread), given_score(overlaps)
    mean = overlaps.m_kk * task.shift
    first, second = weight_moments(attention, mean, task.spread * deviation, rule)
    other_first, other_second = weight_moments(attention, 0.0, deviation, rule)
    value = there.expect_value(other_first)
    beside, between = (task.length.powers(jnp.zeros(()), k, drop=1) for k in (1, 2))
    power = (
        here.expect_square(second)
        + there.expect_square(other_second) * beside
        + 2.0 * here.expect_value(first) * value * beside
        + value**2 * between
    )
    return Correlations(here.expect_product(first), power)
