"""Selected tasks: exact correlations from one-token integrals below and at the largest field (sections 4.1 to 4.3)."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from ...attention import AbstractElementwise, AbstractKernel
from ...numerics.linalg import root
from ...numerics.panels import (
    TRANSITION,
    Panels,
    crossing_of,
    feature_edges,
    merge,
    normal_rule,
    transform_panels,
)
from ...numerics.quadrature import (
    LARGEST_LOG,
    AbstractRule,
    integrate_token,
    log_complement,
    moments_by_parts,
    transforms_at,
)
from ...tasks import AbstractSelected
from ..conditionals import given_field_and_score, given_score, left_by_field
from ..overlaps import Overlaps, aligned
from .base import AbstractEngine, Correlations
from .planted import weight_moments
from .selection import HardSelection, Selection

# A derivative of order k in a mean loses a factor deviation^-k of precision. A narrower score than this counts as so
# wide, at an error of the order of its variance: next to none where only the value is asked for.
_LEAST_VARIANCE = {2: 1e-14, 4: 1e-10, 6: 1e-8}

_AT_A_TIME = 32  # fields whose integrals over the rest of the score are held in memory together


class SelectedKernel(AbstractEngine):
    """Normalised kernels: two Laplace transforms, of the student's denominator and of the teacher's.

    `rule` is for a score, `noise_rule` for a score given its field, `table` for the selection.
    """

    rule: AbstractRule
    noise_rule: AbstractRule
    table: Selection | HardSelection

    def correlations(
        self, task: AbstractSelected, attention: AbstractKernel, overlaps: Overlaps
    ) -> Correlations:
        """Given its field `f` a token has score `m_kk f` plus a deviation, which is correlated with what `z` and `z*`
        have beyond the field; by Stein's lemma each such correlation turns an expectation into its derivative in the
        mean."""
        token = attention.bias, root(overlaps.q_kk)
        u, du = self.rule.for_transform(attention, [token], task.length.longest)
        variance = overlaps.q_kk - overlaps.m_kk**2
        at_first, at_lost, below_first, below_lost = _sums(
            attention,
            _Pairs(),
            self.noise_rule,
            (overlaps.m_kk, attention.bias, variance),
            u,
            self.table,
        )
        with_value = overlaps.q_kv - overlaps.m_kk * overlaps.m_vk
        with_label = overlaps.m_kv
        own, own_twice, own_once = at_first
        relevant = overlaps.m_vv * own + with_label * (
            overlaps.m_vk * own_once + with_value * own_twice
        )
        other = with_value * below_first[0] + overlaps.m_vk * below_first[1]
        log_kept = log_complement(self.table.above[:, None] + below_lost[0])
        alone, beside = (task.length.powers(log_kept, k, drop=0) for k in (1, 2))
        label = relevant * alone - with_label * at_lost[0] * other * beside
        power = _kernel_power(task, attention, overlaps, self.rule, u, du)
        return Correlations(jnp.sum(self.table.weights[:, None] * du * label), power)

    def profile(self, task: AbstractSelected, attention: AbstractKernel, m_kk: Any) -> Correlations:
        """At `k = m_kk k*` a score is a function of the field."""
        token = attention.bias, abs(m_kk)
        u, du = self.rule.for_transform(attention, [token], task.length.longest)
        table, arguments = self.table, attention.bias + m_kk * self.table.fields
        lost, first, second = transforms_at(attention, arguments[:, None], u)

        def alone(lost: Array) -> Array:
            return task.length.powers(log_complement(lost), 1, drop=0)

        found = table.integrate_at(first) * alone(
            table.above[:, None] + table.integrate_below(lost)
        )
        power = (table.mass @ second) * alone(table.mass @ lost)
        return Correlations((table.weights[:, None] * du * found).sum(), (du * power).sum())


class SharpSelectedKernel(AbstractEngine):
    """Normalised kernels at `k = m_kk k*` of any norm, and a selection of any sharpness (`hard` if infinite).

    No single grid of fields is accurate at all nodes: each pair of nodes of the two transforms has panels around the
    fields where the student and where the teacher pass from one token to the next. It takes seconds.
    """

    rule: Panels
    hard: bool = eqx.field(static=True)

    def correlations(
        self, task: AbstractSelected, attention: AbstractKernel, overlaps: Overlaps
    ) -> Correlations:
        """Only for `k` along `k*` and `v` orthogonal to `k*` and `k`, which `plan` ensures."""
        a, b = self.profile(task, attention, overlaps.m_kk)
        return Correlations(overlaps.m_vv * a, overlaps.q_vv * b)

    def profile(self, task: AbstractSelected, attention: AbstractKernel, m_kk: Any) -> Correlations:
        token, edges = (attention.bias, jnp.abs(m_kk)), self.rule.edges
        u, du = self.rule.for_transform(attention, [token], task.length.longest)
        reach = edges[-1] * jnp.abs(m_kk)
        ends = attention.bias - reach, attention.bias + reach
        crossing, width = crossing_of(attention.log_phi, *ends, u)
        attend = _attend_hard if self.hard else _attend_soft
        label = jax.lax.map(
            lambda node: attend(task, attention, m_kk, edges, self.rule.order, *node),
            (u, (crossing - attention.bias) / m_kk, width / m_kk),
            batch_size=8,
        )
        power = _kernel_power(task, attention, aligned(m_kk), self.rule, u, du)
        return Correlations(jnp.sum(du * label), power)


class SelectedElementwise(AbstractEngine):
    """Element-wise attentions: the label depends on the relevant token only.

    `relevant` and `mass` are weights on the grid `fields`: for the field of the relevant token, and for that of any.
    `rule` is for scores, alone and given the field.
    """

    rule: AbstractRule
    fields: Any
    relevant: Any
    mass: Any

    def correlations(
        self, task: AbstractSelected, attention: AbstractElementwise, overlaps: Overlaps
    ) -> Correlations:
        deviation = left_by_field(overlaps)
        first, _ = jax.vmap(lambda mean: weight_moments(attention, mean, deviation, self.rule))(
            overlaps.m_kk * self.fields
        )
        given = given_field_and_score(overlaps, self.fields)
        label = self.relevant @ given.expect_product(first.T)
        any_first, any_second = weight_moments(attention, 0.0, root(overlaps.q_kk), self.rule)
        anywhere = given_score(overlaps)
        one, two = (task.length.powers(jnp.zeros(()), k, drop=0) for k in (1, 2))
        power = anywhere.expect_square(any_second) * one
        return Correlations(label, power + anywhere.expect_value(any_first) ** 2 * two)

    def profile(
        self, task: AbstractSelected, attention: AbstractElementwise, m_kk: Any
    ) -> Correlations:
        weight = attention.weight(attention.bias + m_kk * self.fields)
        mean_length = task.length.powers(weight.__array_namespace__().zeros(()), 1, drop=0)
        label, power = (self.relevant * weight).sum(-1), (self.mass * weight**2).sum(-1)
        return Correlations(label, mean_length * power)


class _Pairs(NamedTuple):
    """Pairs `(j, k)` of the sums `Σ_f W[x, f] f^j ∂^k E[F | f]` to compute, for `W = at, below` and `F = first, lost`.

    `∂` is the derivative in the mean of the argument, `bias + m_kk f`. So `∂/∂m_kk` takes `(j, k)` to `(j+1, k+1)`,
    `∂/∂bias` to `(j, k+1)`, and the derivative in the variance of the score to half of `(j, k+2)`: the set is closed
    under derivatives, and those of any order cost no more than a few matrix products.
    """

    at_first: tuple[tuple[int, int], ...] = ((0, 0), (0, 2), (1, 1))
    at_lost: tuple[tuple[int, int], ...] = ((0, 1),)
    below_first: tuple[tuple[int, int], ...] = ((0, 1), (1, 0))
    below_lost: tuple[tuple[int, int], ...] = ((0, 0),)

    def with_derivatives(self, in_bias: bool) -> "_Pairs":
        def widened(pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
            steps = ((1, 1), (0, 2), (0, 1)) if in_bias else ((1, 1), (0, 2))
            higher = {(j + dj, k + dk) for j, k in pairs for dj, dk in steps}
            return tuple(sorted({*pairs, *higher}))

        return _Pairs(*map(widened, self))

    @property
    def degree(self) -> int:
        """The highest derivative."""
        return max(k for pairs in self for _, k in pairs)


def _sums(
    attention: AbstractKernel,
    pairs: _Pairs,
    rule: AbstractRule,
    means: tuple[Any, Any, Any],
    u: Float[Array, " u"],
    table: Selection | HardSelection,
) -> tuple[Float[Array, "pairs x u"], ...]:
    """The sums over fields that `pairs` names, with derivatives in the `means`: `m_kk`, bias and variance."""

    @jax.custom_jvp
    def sums(
        rule: AbstractRule, means: tuple[Array, ...], u: Array, table: Selection | HardSelection
    ) -> tuple[Array, ...]:
        m_kk, bias, variance = means
        deviation = jnp.sqrt(jnp.maximum(variance, _LEAST_VARIANCE.get(pairs.degree, 1e-6)))
        lost, first = jax.lax.map(
            lambda mean: integrate_token(attention, pairs.degree, mean, deviation, u, rule)[:2],
            bias + m_kk * table.fields,
            batch_size=_AT_A_TIME,
        )
        lost, first = (_derivatives(moments, deviation) for moments in (lost, first))

        def contract(integrate: Any, derivatives: Array, wanted: Any) -> Array:
            terms = [table.fields[:, None] ** j * derivatives[:, k] for j, k in wanted]
            return jnp.moveaxis(integrate(jnp.stack(terms, 1)), 1, 0)

        return (
            contract(table.integrate_at, first, pairs.at_first),
            contract(table.integrate_at, lost, pairs.at_lost),
            contract(table.integrate_below, first, pairs.below_first),
            contract(table.integrate_below, lost, pairs.below_lost),
        )

    @sums.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        wider = pairs.with_derivatives(attention.free_bias)
        higher = _sums(attention, wider, *primals)
        by_m_kk, by_bias, by_variance = tangents[1]

        def part(wanted: Any, known: Any, sums: Array) -> tuple[Array, Array]:
            place = {pair: sums[at] for at, pair in enumerate(known)}
            value = jnp.stack([place[pair] for pair in wanted])
            slope = by_m_kk * jnp.stack([place[j + 1, k + 1] for j, k in wanted])
            slope += by_variance / 2.0 * jnp.stack([place[j, k + 2] for j, k in wanted])
            if attention.free_bias:
                slope += by_bias * jnp.stack([place[j, k + 1] for j, k in wanted])
            return value, slope

        values, slopes = zip(*map(part, pairs, wider, higher), strict=True)
        return tuple(values), tuple(slopes)

    return sums(rule, tuple(jnp.asarray(each, float) for each in means), u, table)


def _derivatives(moments: Float[Array, "f k u"], deviation: Array) -> Float[Array, "f k u"]:
    """`∂^k E[F(mean + deviation·x)] = E[He_k(x) F]/deviation^k`, from `E[x^k F]`."""
    count = moments.shape[1]
    hermite = np.zeros((count, count))
    for k in range(count):
        hermite[k, : k + 1] = np.polynomial.hermite_e.herme2poly(np.eye(count)[k])[: k + 1]
    scaled = hermite / deviation ** np.arange(count)[:, None]
    return jnp.einsum("ki,fiu->fku", scaled, moments)


def _attend_soft(
    task: AbstractSelected,
    attention: AbstractKernel,
    m_kk: Any,
    edges: Array,
    order: int,
    u: Array,
    field: Array,
    width: Array,
) -> Array:
    """The integrand of `A` at one `u`, with the step of the student around `field`."""
    sharpness, reach = task.sharpness, edges[-1]
    student = jnp.sort(jnp.clip(field + width * TRANSITION, -reach, reach))
    blunt = jnp.maximum(jnp.abs(width), 1.0 / jnp.maximum(sharpness, 1.0))
    blunted = jnp.clip(field + blunt * TRANSITION, -reach, reach)
    knots = sharpness * jnp.concatenate([edges, blunted])
    x, dx = transform_panels(knots, task.length.longest, order)
    teacher = (x[:, None] + TRANSITION) / jnp.maximum(sharpness, 1e-12)
    coarse = jnp.concatenate(
        [edges[:1], edges[1::2], edges[-1:]]
    )  # with 0, where kernels have kinks
    common = jnp.sort(jnp.concatenate([coarse, _knees(attention, m_kk, reach), student]))
    rows = jnp.broadcast_to(common, (x.size, common.size))
    chi, mass = normal_rule(merge(rows, jnp.clip(teacher, -reach, reach)), order)
    selecting = jnp.exp(jnp.minimum(sharpness * chi - x[:, None], LARGEST_LOG))
    argument = attention.bias + m_kk * chi
    attending = jnp.exp(jnp.minimum(attention.log_phi(argument) - u, LARGEST_LOG))
    lost = -jnp.expm1(-selecting - attending)
    own = attention.share(argument) * attending
    found = jnp.sum(mass * selecting * own * (1.0 - lost), -1)
    log_kept = log_complement(jnp.sum(mass * lost, -1))
    return jnp.sum(dx * found * task.length.powers(log_kept, 1, drop=0))


def _attend_hard(
    task: AbstractSelected,
    attention: AbstractKernel,
    m_kk: Any,
    edges: Array,
    order: int,
    u: Array,
    field: Array,
    width: Array,
) -> Array:
    """The same at infinite sharpness: the relevant token has the largest field `x`, and all others lie below it."""
    reach = edges[-1]
    student = jnp.clip(field + width * TRANSITION, -reach, reach)
    common = jnp.sort(jnp.concatenate([edges, _knees(attention, m_kk, reach), student]))
    x, mass = normal_rule(common, order)
    chi, below = normal_rule(jnp.minimum(common, x[:, None]), order)
    missed, *_ = transforms_at(attention, attention.bias + m_kk * chi, u)
    _, found, _ = transforms_at(attention, attention.bias + m_kk * x, u)
    log_kept = log_complement(ndtr(-x) + jnp.sum(below * missed, -1))
    return jnp.sum(mass * found * task.length.powers(log_kept, 1, drop=0))


def _knees(attention: AbstractKernel, m_kk: Any, reach: Any) -> Array:
    """Fields at which the argument passes a feature of the kernel."""
    knees = (feature_edges(attention.features, 4) - attention.bias) / m_kk
    return jnp.clip(knees, -reach, reach)


def _kernel_power(
    task: AbstractSelected,
    attention: AbstractKernel,
    overlaps: Overlaps,
    rule: AbstractRule,
    u: Float[Array, " u"],
    du: Float[Array, " u"],
) -> Array:
    """`E[(σ·z)²]`, which does not depend on the location."""
    integrate, deviation = partial(integrate_token, attention), root(overlaps.q_kk)
    lost, first, second = moments_by_parts(integrate, 2, attention.bias, deviation, u, rule)
    given = given_score(overlaps)
    log_kept = log_complement(lost[0])
    one, two = (task.length.powers(log_kept, k, drop=0) for k in (1, 2))
    square, value = given.expect_square(second), given.expect_value(first)
    return jnp.sum(du * (square * one + value**2 * two))
