"""Selected tasks: exact correlations from one-token integrals below and at the largest field (sections 4.1 to 4.3)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from ..attention import AbstractElementwise, AbstractKernel
from ..numerics.gaussian import BULK, REACH, AnyRule, Rule, feature_edges, normal_rule, subdivide
from ..numerics.laplace import (
    LARGEST_LOG,
    TRANSITION,
    crossing_of,
    integrate,
    log_complement,
    one_token,
    transform_rule,
    transforms_at,
)
from ..numerics.panels import merge
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

# A derivative of order k in a mean loses a factor deviation^-k of precision. A narrower score than this counts as so
# wide, at an error of the order of its variance: next to none where only the value is asked for.
_LEAST_VARIANCE = {2: 1e-14, 4: 1e-10, 6: 1e-8}

_AT_A_TIME = 32  # fields whose integrals over the rest of the score are held in memory together


class _Pairs(NamedTuple):
    """Which `Σ_f W[x, f] f^j ∂^k E[F | f]` are wanted, as pairs `(j, k)`: of `W = at, below`, of `F = first, lost`.

    `∂` is the derivative in the mean of the score, `m_kk f`. So `∂/∂m_kk` takes `(j, k)` to `(j+1, k+1)`, and the
    derivative in the variance of the score takes it to half of `(j, k+2)`: the set is closed under derivatives, and
    those of any order cost no more than a few matrix products.
    """

    at_first: tuple[tuple[int, int], ...] = ((0, 0), (0, 2), (1, 1))
    at_lost: tuple[tuple[int, int], ...] = ((0, 1),)
    below_first: tuple[tuple[int, int], ...] = ((0, 1), (1, 0))
    below_lost: tuple[tuple[int, int], ...] = ((0, 0),)

    @property
    def with_derivatives(self) -> "_Pairs":
        def widened(pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
            by_mean = {(j + 1, k + 1) for j, k in pairs}
            return tuple(sorted({*pairs, *by_mean, *((j, k + 2) for j, k in pairs)}))

        return _Pairs(*map(widened, self))

    @property
    def degree(self) -> int:
        """The highest derivative."""
        return max(k for pairs in self for _, k in pairs)


def kernel_correlations(
    task: AbstractSelected,
    attention: AbstractKernel,
    overlaps: Overlaps,
    rules: tuple[AnyRule, AnyRule],
    table: Selection,
) -> Correlations:
    """Normalised kernels: two Laplace transforms, of the student's denominator and of the teacher's.

    The rules are for a score, and for what its field leaves of it.

    Given its field `f` a token has score `m_kk f` plus a deviation, which is correlated with what `z` and `z*` have
    beyond the field; by Stein's lemma each such correlation turns an expectation into its derivative in the mean.
    """
    rule, noise_rule = rules
    token = (0.0, root(overlaps.q_kk))
    u, du = transform_nodes(attention, [token], task.length.longest, rule, _TRANSFORM_BULK)
    variance = overlaps.q_kk - overlaps.m_kk**2
    at_first, at_lost, below_first, below_lost = _sums(
        attention, noise_rule, _Pairs(), overlaps.m_kk, variance, u, table
    )
    with_value = overlaps.q_kv - overlaps.m_kk * overlaps.m_vk
    with_label = overlaps.m_kv
    own, own_twice, own_once = at_first
    relevant = overlaps.m_vv * own + with_label * (
        overlaps.m_vk * own_once + with_value * own_twice
    )
    other = with_value * below_first[0] + overlaps.m_vk * below_first[1]
    log_kept = log_complement(table.above[:, None] + below_lost[0])
    alone, beside = (task.length.powers(log_kept, k, drop=0) for k in (1, 2))
    label = relevant * alone - with_label * at_lost[0] * other * beside
    power = _kernel_power(task, attention, overlaps, rule, u, du)
    return Correlations(jnp.sum(table.weights[:, None] * du * label), power)


def _sums(
    attention: AbstractKernel,
    rule: AnyRule,
    pairs: _Pairs,
    m_kk: Any,
    variance: Any,
    u: Float[Array, " u"],
    table: Selection,
) -> tuple[Float[Array, "pairs x u"], ...]:
    """The sums over fields that `pairs` names, with derivatives in `m_kk` and in the variance."""

    @jax.custom_jvp
    def sums(m_kk: Array, variance: Array, u: Array, table: Selection) -> tuple[Array, ...]:
        return _summed(attention, rule, pairs, m_kk, variance, u, table)

    @sums.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        wider = pairs.with_derivatives
        higher = _sums(attention, rule, wider, *primals)

        def part(wanted: Any, known: Any, sums: Array) -> tuple[Array, Array]:
            place = {pair: sums[at] for at, pair in enumerate(known)}
            value = jnp.stack([place[pair] for pair in wanted])
            by_mean = jnp.stack([place[j + 1, k + 1] for j, k in wanted])
            by_variance = jnp.stack([place[j, k + 2] for j, k in wanted]) / 2.0
            return value, by_mean * tangents[0] + by_variance * tangents[1]

        values, slopes = zip(*map(part, pairs, wider, higher), strict=True)
        return tuple(values), tuple(slopes)

    return sums(jnp.asarray(m_kk, float), jnp.asarray(variance, float), u, table)


def _summed(
    attention: AbstractKernel,
    rule: AnyRule,
    pairs: _Pairs,
    m_kk: Array,
    variance: Array,
    u: Array,
    table: Selection,
) -> tuple[Float[Array, "pairs x u"], ...]:
    deviation = jnp.sqrt(jnp.maximum(variance, _LEAST_VARIANCE.get(pairs.degree, 1e-6)))
    lost, first = jax.lax.map(
        lambda mean: integrate(attention, rule, pairs.degree, mean, deviation, u)[:2],
        m_kk * table.fields,
        batch_size=_AT_A_TIME,
    )
    lost, first = (_derivatives(moments, deviation) for moments in (lost, first))

    def contract(weights: Any, derivatives: Array, wanted: Any) -> Array:
        terms = [table.fields[:, None] ** j * derivatives[:, k] for j, k in wanted]
        return jnp.moveaxis(jnp.tensordot(weights, jnp.stack(terms, 1), 1), 1, 0)

    return (
        contract(table.at, first, pairs.at_first),
        contract(table.at, lost, pairs.at_lost),
        contract(table.below, first, pairs.below_first),
        contract(table.below, lost, pairs.below_lost),
    )


def _derivatives(moments: Float[Array, "f k u"], deviation: Array) -> Float[Array, "f k u"]:
    """`∂^k E[F(mean + deviation·x)] = E[He_k(x) F]/deviation^k`, from `E[x^k F]`."""
    count = moments.shape[1]
    hermite = np.zeros((count, count))
    for k in range(count):
        hermite[k, : k + 1] = np.polynomial.hermite_e.herme2poly(np.eye(count)[k])[: k + 1]
    scaled = hermite / deviation ** np.arange(count)[:, None]
    return jnp.einsum("ki,fiu->fku", scaled, moments)


def kernel_profile(
    task: AbstractSelected, attention: AbstractKernel, m_kk: Any, rule: AnyRule, table: Selection
) -> Correlations:
    """`A` and `B` at `k = m_kk k*`, where a score is a function of the field."""
    token = (0.0, jnp.abs(m_kk))
    u, du = transform_nodes(attention, [token], task.length.longest, rule, _TRANSFORM_BULK)
    lost, first, second = transforms_at(attention, m_kk * table.fields[:, None], u)

    def alone(lost: Array) -> Array:
        return task.length.powers(log_complement(lost), 1, drop=0)

    found = (table.at @ first) * alone(table.above[:, None] + table.below @ lost)
    power = (table.mass @ second) * alone(table.mass @ lost)
    return Correlations(jnp.sum(table.weights[:, None] * du * found), jnp.sum(du * power))


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
    rule: AnyRule,
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
    rule: AnyRule,
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
    rule: AnyRule,
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
