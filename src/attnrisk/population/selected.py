"""Selected tasks: exact correlations from one-token integrals below and at the largest field (sections 4.1 to 4.3)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from ..attention import AbstractElementwise, AbstractKernel
from ..quadrature.gaussian import BULK, REACH, Rule, feature_edges, normal_rule, subdivide
from ..quadrature.laplace import (
    LARGEST_LOG,
    TRANSITION,
    crossing_of,
    log_complement,
    one_token,
    transform_rule,
    transforms_at,
)
from ..quadrature.panels import merge
from ..tasks import AbstractSelected, LengthLaw
from .correlations import Correlations, given_field_and_score, given_score, left_by_field, root
from .onetoken import transform_nodes, weight_moments
from .overlaps import Overlaps
from .teacher import Selection

# Once the teacher's transform is done, the integrand of the student's is smooth on the scale of one deviation, or of
# the largest of many tokens.
_TRANSFORM_BULK = subdivide(BULK, 2)

_COARSE_BULK = np.concatenate(
    [BULK[:1], BULK[1::2], BULK[-1:]]
)  # with 0, where kernels have their kinks

_AT_A_TIME = 32  # fields whose integrals over the rest of the score are held in memory together


def kernel_correlations(
    task: AbstractSelected,
    attention: AbstractKernel,
    overlaps: Overlaps,
    rule: Rule,
    table: Selection,
) -> Correlations:
    """Normalised kernels: two Laplace transforms, of the student's denominator and of the teacher's."""
    deviation = left_by_field(overlaps)
    token = (0.0, root(overlaps.q_kk))
    u, du = transform_nodes(attention, [token], task.length.longest, rule, _TRANSFORM_BULK)
    lost, first = jax.lax.map(
        lambda mean: one_token(attention, mean, deviation, u, rule, 2)[:2],
        overlaps.m_kk * table.fields,
        batch_size=_AT_A_TIME,
    )
    given = given_field_and_score(overlaps, table.fields[:, None])
    lost, first = (jnp.moveaxis(moments, 1, 0) for moments in (lost, first))
    log_kept = log_complement(table.above[:, None] + table.below @ lost[0])
    alone, beside = (task.length.powers(log_kept, k, drop=0) for k in (1, 2))
    own = table.at @ given.expect_product(first)
    missed = table.at @ (-given.label_slope * lost[1])
    label = own * alone + missed * (table.below @ given.expect_value(first)) * beside
    power = _kernel_power(task, attention, overlaps, rule, u, du)
    return Correlations(jnp.sum(table.weights[:, None] * du * label), power)


def kernel_profile(
    task: AbstractSelected, attention: AbstractKernel, m_kk: Any, rule: Rule, table: Selection
) -> Correlations:
    """`A` and `B` at `k = m_kk k*`, where a score is a function of the field."""
    token = (0.0, jnp.abs(m_kk))
    u, du = transform_nodes(attention, [token], task.length.longest, rule, _TRANSFORM_BULK)
    lost, first, _ = transforms_at(attention, m_kk * table.fields[:, None], u)
    log_kept = log_complement(table.above[:, None] + table.below @ lost)
    alone = task.length.powers(log_kept, 1, drop=0)
    label = jnp.sum(table.weights[:, None] * du * (table.at @ first) * alone)
    overlaps = Overlaps(m_kk=m_kk, m_vv=1.0, q_kk=m_kk**2, q_vv=1.0)
    return Correlations(label, _kernel_power(task, attention, overlaps, rule, u, du))


def sharp_kernel_profile(
    task: AbstractSelected, attention: AbstractKernel, m_kk: Any, rule: Rule, hard: bool
) -> Correlations:
    """The same for a `k` of any length and a selection of any sharpness, `hard` for an infinite one; it takes longer.

    No grid of fields serves all nodes here: each pair of nodes of the two transforms gets its own, which meets at the
    fields where the student and where the teacher pass from one token to the next.
    """
    u, du = transform_nodes(
        attention, [(0.0, jnp.abs(m_kk))], task.length.longest, rule, _TRANSFORM_BULK
    )
    reach = REACH * jnp.abs(m_kk)
    crossing, width = crossing_of(attention.log_phi, -reach, reach, u)
    attend = _attend_hard if hard else _attend_soft
    label = jax.lax.map(
        lambda node: attend(task, attention, m_kk, rule.order, *node),
        (u, crossing / m_kk, width / m_kk),
        batch_size=8,
    )
    overlaps = Overlaps(m_kk=m_kk, m_vv=1.0, q_kk=m_kk**2, q_vv=1.0)
    power = _kernel_power(task, attention, overlaps, rule, u, du)
    return Correlations(jnp.sum(du * label), power)


def _attend_soft(
    task: AbstractSelected,
    attention: AbstractKernel,
    m_kk: Any,
    order: int,
    u: Array,
    field: Array,
    width: Array,
) -> Array:
    """The integrand of `A` at one `u`, where the student passes around `field`."""
    sharpness = task.sharpness
    student = jnp.sort(jnp.clip(field + width * TRANSITION, -REACH, REACH))
    blunt = jnp.maximum(jnp.abs(width), 1.0 / jnp.maximum(sharpness, 1.0))
    blunted = jnp.clip(field + blunt * TRANSITION, -REACH, REACH)
    x, dx = transform_rule(sharpness * jnp.concatenate([BULK, blunted]), task.length.longest, order)
    teacher = (x[:, None] + TRANSITION) / jnp.maximum(sharpness, 1e-12)
    common = jnp.sort(jnp.concatenate([_COARSE_BULK, _knees(attention, m_kk), student]))
    edges = merge(jnp.broadcast_to(common, (x.size, common.size)), jnp.clip(teacher, -REACH, REACH))
    chi, mass = normal_rule(edges, order)
    selecting = jnp.exp(jnp.minimum(sharpness * chi - x[:, None], LARGEST_LOG))
    attending = jnp.exp(jnp.minimum(attention.log_phi(m_kk * chi) - u, LARGEST_LOG))
    lost = -jnp.expm1(-selecting - attending)
    found = jnp.sum(mass * selecting * attending * (1.0 - lost), -1)
    log_kept = log_complement(jnp.sum(mass * lost, -1))
    return jnp.sum(dx * found * task.length.powers(log_kept, 1, drop=0))


def _attend_hard(
    task: AbstractSelected,
    attention: AbstractKernel,
    m_kk: Any,
    order: int,
    u: Array,
    field: Array,
    width: Array,
) -> Array:
    """The same where the largest field `x` is the relevant one, and all others lie below it."""
    student = jnp.clip(field + width * TRANSITION, -REACH, REACH)
    common = jnp.sort(jnp.concatenate([BULK, _knees(attention, m_kk), student]))
    x, mass = normal_rule(common, order)
    chi, below = normal_rule(jnp.minimum(common, x[:, None]), order)
    missed, *_ = transforms_at(attention, m_kk * chi, u)
    _, found, _ = transforms_at(attention, m_kk * x, u)
    log_kept = log_complement(ndtr(-x) + jnp.sum(below * missed, -1))
    return jnp.sum(mass * found * task.length.powers(log_kept, 1, drop=0))


def _knees(attention: AbstractKernel, m_kk: Any) -> Array:
    """Fields at which the score passes a feature of the kernel."""
    return jnp.clip(feature_edges(attention.features, 4) / m_kk, -REACH, REACH)


def _kernel_power(
    task: AbstractSelected,
    attention: AbstractKernel,
    overlaps: Overlaps,
    rule: Rule,
    u: Float[Array, " u"],
    du: Float[Array, " u"],
) -> Array:
    """`E[(σ·z)²]`, in which the location plays no part."""
    token = one_token(attention, 0.0, root(overlaps.q_kk), u, rule, 2)
    given = given_score(overlaps)
    one, two = (task.length.powers(token.log_kept, k, drop=0) for k in (1, 2))
    square, value = given.expect_square(token.second), given.expect_value(token.first)
    return jnp.sum(du * (square * one + value**2 * two))


def elementwise_profile(
    task: AbstractSelected,
    attention: AbstractElementwise,
    m_kk: Any,
    rule: Rule,
    table: Selection,
) -> Correlations:
    """`A` and `B` at `k = m_kk k*`, where a score is a function of the field."""
    _, second = weight_moments(attention, 0.0, jnp.abs(m_kk), rule)
    power = second[0] * task.length.powers(jnp.zeros(()), 1, drop=0)
    label = relevant_fields(table, task.length) @ attention(m_kk * table.fields)
    return Correlations(label, power)


def relevant_fields(table: Selection, law: LengthLaw) -> Float[Array, " c"]:
    """Weights on the grid of fields that integrate over the field of the relevant token."""
    return table.weights * law.powers(log_complement(table.above), 1, drop=0) @ table.at


def elementwise_correlations(
    task: AbstractSelected,
    attention: AbstractElementwise,
    overlaps: Overlaps,
    rule: Rule,
    table: Selection,
) -> Correlations:
    """Element-wise attentions: the label sees the relevant token alone."""
    deviation = left_by_field(overlaps)
    relevant = relevant_fields(table, task.length)
    first, _ = jax.vmap(lambda mean: weight_moments(attention, mean, deviation, rule))(
        overlaps.m_kk * table.fields
    )
    given = given_field_and_score(overlaps, table.fields)
    label = relevant @ given.expect_product(first.T)
    any_first, any_second = weight_moments(attention, 0.0, root(overlaps.q_kk), rule)
    anywhere = given_score(overlaps)
    one, two = (task.length.powers(jnp.zeros(()), k, drop=0) for k in (1, 2))
    power = anywhere.expect_square(any_second) * one + anywhere.expect_value(any_first) ** 2 * two
    return Correlations(label, power)
