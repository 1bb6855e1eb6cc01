"""Needle tasks with several features and heads: exact correlations at any length (section 10).

Given the component `j` of the needle's shift, the scores of one token, `z` and `z*` are jointly Gaussian. A head that
is normalised by itself has its own transform, and a pair of heads has a double transform over `(u, u')`. Integrands
are analytic except where a score passes a kink of the kernel: there the steps shrink geometrically.
"""

import math
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...attention import AbstractAttention, AbstractKernel
from ...numerics.clusters import Clusters, clusters
from ...numerics.linalg import cholesky, solve_lower
from ...numerics.quadrature import Trapezoid, log_complement, transforms_at, trapezoid
from ...tasks import AbstractNeedle
from ..overlaps import Overlaps
from .base import AbstractEngine, Correlations, HeadRange

# Added to the variance of a score given the others: at minima it vanishes, and its root has no derivative there. The
# risk moves by half as much, 5e-13; a derivative in the variance loses a factor 10^6 of precision.
_LEAST_VARIANCE = 1e-12
_SMOOTHED = 0.3  # slope of a score in a variable, over its noise of its own, below which its kinks are smooth in that
_FINEST_AT_KINKS = 1.0  # clusters of a finer rule cost more than they gain
_NODES_PER_UNIT = 2.4  # of `u` at fineness 1, as in `trapezoid`


class TokenLaws(NamedTuple):
    """The fields of student vectors in one token: means and covariances, covariances with `z*`, for the components of
    the needle's law (with weights), and last for noise."""

    mean: Float[Array, "J+1 P"]
    covariance: Float[Array, "J+1 P P"]
    label: Float[Array, "J+1 P"]
    weights: Float[Array, " J"]

    def average(self, values: Float[Array, "J+1 ..."]) -> tuple[Array, Array]:
        """Averages over the components of the relevant token, and for the other tokens."""
        return jnp.tensordot(self.weights, values[:-1], 1), values[-1]


def token_laws(task: AbstractNeedle, overlaps: Overlaps) -> TokenLaws:
    """The distributions for a needle task with these overlaps; only the lower triangle of `Q` is read."""
    law, spread = task.shift_law, jnp.asarray(task.spread)
    means, weights = jnp.asarray(law.means), jnp.asarray(law.weights)
    Q = jnp.tril(overlaps.Q) + jnp.tril(overlaps.Q, -1).T
    along, label = overlaps.M[:, :-1], overlaps.M[:, -1]
    carried = jnp.einsum("pf,jfg,qg->jpq", along, jnp.asarray(law.all_covariances), along)
    scales = jnp.append(jnp.full(len(means), spread**2), 1.0)
    zero = jnp.zeros_like(label)
    return TokenLaws(
        jnp.concatenate([means @ along.T, zero[None]]),
        scales[:, None, None] * Q + jnp.concatenate([carried, jnp.zeros_like(Q)[None]]),
        scales[:, None] * label,
        weights,
    )


class GivenScores(NamedTuple):
    """One token given some of its scores, `χ = mean + factor·g` with independent normal `g`.

    `E[z|g] = value + slope·g`, `E[z*|g] = label_slope·g`, with the variance of `z` and its covariance with `z*`."""

    mean: Float[Array, " n"]
    factor: Float[Array, "n n"]
    value: Float[Array, ""]
    slope: Float[Array, " n"]
    label_slope: Float[Array, " n"]
    variance: Float[Array, ""]
    covariance: Float[Array, ""]


def given_scores(laws: TokenLaws, keys: Array, at: Array) -> GivenScores:
    """The token with distribution `at` given the scores of these keys."""
    mean, covariance, label = laws.mean[at], laws.covariance[at], laws.label[at]
    factor = cholesky(covariance[keys][:, keys] + _LEAST_VARIANCE * jnp.eye(len(keys)))
    slope, label_slope = solve_lower(factor, covariance[-1][keys]), solve_lower(factor, label[keys])
    return GivenScores(
        mean[keys],
        factor,
        mean[-1],
        slope,
        label_slope,
        covariance[-1, -1] - slope @ slope,
        label[-1] - slope @ label_slope,
    )


class OneTransform(NamedTuple):
    """The contribution of one token to a single transform, for each `u`: `E[1 − e^{-w}]`, `E[(1 − e^{-w}) z*]`,
    `E[w e^{-w} z]`, `E[w e^{-w} z z*]`, `E[w² e^{-w} z²]`."""

    lost: Array
    label_lost: Array
    value: Array
    product: Array
    square: Array


def one_transform(
    transformed: tuple[Array, ...],
    g: Float[Array, "n d"],
    mass: Float[Array, " n"],
    given: GivenScores,
) -> OneTransform:
    """The contribution from nodes `g` of the scores of a token and the values of `transforms_at` there."""
    value, label = given.value + g @ given.slope, g @ given.label_slope
    square, product = value**2 + given.variance, value * label + given.covariance
    lost, first, second = transformed
    return OneTransform(
        mass @ lost,
        (mass * label) @ lost,
        (mass * value) @ first,
        (mass * product) @ first,
        (mass * square) @ second,
    )


def correlate(
    length: Any, needle: OneTransform, noise: OneTransform, du: Float[Array, " u"]
) -> Correlations:
    """The correlations of section 4.1 from a single transform."""
    alone, beside, between = (
        length.powers(log_complement(noise.lost), k, drop=1) for k in range(3)
    )
    kept = 1.0 - needle.lost
    label = needle.product * alone - needle.label_lost * noise.value * beside
    power = (
        needle.square * alone
        + (noise.square * kept + 2.0 * needle.value * noise.value) * beside
        + noise.value**2 * kept * between
    )
    return Correlations(jnp.sum(du * label), jnp.sum(du * power))


class NeedleHeads(AbstractEngine):
    """Heads of a kernel, each normalised separately; a plain kernel is one head.

    `rule` has the nodes of transforms and `clusters` those of a token's scores. The cost grows with the number of pairs
    of heads, and does not depend on the length.
    """

    rule: Trapezoid
    clusters: Clusters
    vanishes: bool = eqx.field(static=True)

    def correlations(
        self, task: AbstractNeedle, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        label, power = self.by_head(task, attention, overlaps)
        weights = jnp.ones(1) if attention.head_weights is None else attention.head_weights
        weights = jnp.asarray(weights)
        return Correlations(weights @ label, weights @ power @ weights)

    def by_head(
        self, task: AbstractNeedle, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        """`E[y σ_h·z]` of each head and `E[(σ_h·z)(σ_h'·z)]` of each pair."""
        kernel: Any = attention.one_head
        biases = jnp.asarray(attention.key_biases(jnp.diagonal(overlaps.Q)[:-1]))
        laws, count = token_laws(task, overlaps), attention.keys
        tokens = jnp.arange(len(laws.mean))

        def nodes(head: Array) -> tuple[Array, Array]:
            at_kinks = self.clusters if self.vanishes else None
            longest = task.length.longest
            ends = transform_ends(kernel, biases[head], laws, head, self.rule, longest, at_kinks)
            return self.rule.between(*ends, kernel.constant)

        def alone(head: Array) -> Correlations:
            u, du = nodes(head)

            def token(at: Array) -> OneTransform:
                given = given_scores(laws, head[None], at)
                mean, deviation = biases[head] + given.mean[0], given.factor[0, 0]
                x, mass = self.clusters.around(_kinks(kernel, mean, deviation))
                transformed = transforms_at(kernel, (mean + deviation * x)[:, None], u)
                return one_transform(transformed, x[:, None], mass, given)

            found = jax.vmap(token)(tokens)
            needle, noise = (
                OneTransform(*each) for each in zip(*map(laws.average, found), strict=True)
            )
            return correlate(task.length, needle, noise, du)

        def together(pair: Array) -> Array:
            (u, du), (other_u, other_du) = nodes(pair[0]), nodes(pair[1])
            token = partial(_pair_transform, kernel, biases[pair], self.clusters, u, other_u)
            found = jax.vmap(lambda at: token(given_scores(laws, pair, at)))(tokens)
            needle, noise = (
                PairTransform(*each) for each in zip(*map(laws.average, found), strict=True)
            )
            log_kept = log_complement(noise.lost)
            ways = [task.length.powers(log_kept, k, drop=1) for k in range(3)]
            kept = 1.0 - needle.lost
            met = needle.first * noise.second + noise.first * needle.second
            power = (
                needle.square * ways[0]
                + (noise.square * kept + met) * ways[1]
                + noise.first * noise.second * kept * ways[2]
            )
            return du @ power @ other_du

        label, own = jax.lax.map(alone, jnp.arange(count))
        power = jnp.diag(own)
        if count > 1:
            pairs = np.array(list(combinations(range(count), 2)))
            across = jax.lax.map(together, jnp.asarray(pairs))
            power = power.at[pairs[:, 0], pairs[:, 1]].set(across)
            power = power.at[pairs[:, 1], pairs[:, 0]].set(across)
        return Correlations(label, power)


def _kinks(kernel: AbstractKernel, mean: Any, slope: Any) -> Array:
    """Values of `x` at which a score `mean + slope·x` passes a kink; far away if it does not depend on `x`."""
    if kernel.analytic:
        return jnp.zeros(0)
    apart = jnp.asarray(kernel.features) - mean
    return apart / jnp.where(slope == 0.0, 1e-30, slope)


def transform_ends(
    kernel: Any,
    bias: Array,
    laws: TokenLaws,
    head: Array,
    rule: Trapezoid,
    longest: Any,
    at_kinks: Clusters | None = None,
) -> tuple[Array, Array]:
    """As `transform_range`; a sequence of one token has only the relevant token.

    For a kernel that vanishes at its kinks, the lower bound is its value at the nodes next to them.
    """
    x = jnp.linspace(-1.0, 1.0, 65) * rule.window
    deviations = jnp.sqrt(laws.covariance[:, head, head] + _LEAST_VARIANCE)
    means = bias + laws.mean[:, head]
    values = kernel.log_phi(means[:, None] + deviations[:, None] * x)
    top = jnp.max(values) + jnp.log(longest)
    if at_kinks is not None:
        around = jax.vmap(lambda mean, slope: at_kinks.around(_kinks(kernel, mean, slope))[0])
        near = kernel.log_phi(means[:, None] + deviations[:, None] * around(means, deviations))
        return jnp.min(jnp.where(jnp.isfinite(near), near, jnp.inf)), top
    # The lowest values of noise that have a probability of at least `rare` together.
    mass = jnp.exp(-0.5 * x**2)
    below = jnp.sum(jnp.where(values[-1] <= values[-1][:, None], mass, 0.0), 1) / jnp.sum(mass)
    low = jnp.min(jnp.where(below >= rule.rare, values[-1], jnp.inf))
    low = jnp.where(rule.rare > 0, low, jnp.min(values))
    if kernel.constant > 0:
        level = jnp.log(kernel.constant)
        low, top = jnp.minimum(low, level), jnp.maximum(top, level)
    return low, top


class PairTransform(NamedTuple):
    """The contribution of one token to a double transform, for each `(u, u')`: `E[1 − e^{-w-w'}]`, `E[w e^{-w-w'} z]`,
    `E[w' e^{-w-w'} z]`, `E[w w' e^{-w-w'} z²]`."""

    lost: Array
    first: Array
    second: Array
    square: Array


def _pair_transform(
    kernel: AbstractKernel,
    biases: Float[Array, " 2"],
    clusters: Clusters,
    u: Float[Array, " u"],
    other_u: Float[Array, " v"],
    given: GivenScores,
) -> PairTransform:
    """The second score depends on both normal variables, the first on one: sums over the second come first."""
    (mean, other_mean), factor = biases + given.mean, given.factor
    # Where the second score has little noise of its own, it passes its kinks with the first variable. Elsewhere that
    # noise smooths them, and kinks at a ratio of two small numbers would have large derivatives of no effect.
    smooth = jnp.abs(factor[1, 0]) < _SMOOTHED * jnp.abs(factor[1, 1])
    along = _kinks(kernel, other_mean, jnp.where(smooth, 1.0, factor[1, 0]))
    passed = [_kinks(kernel, mean, factor[0, 0]), jnp.where(smooth, clusters.reach, along)]
    x, mass = clusters.around(jnp.concatenate(passed))

    @jax.checkpoint
    def inner(g: Array) -> tuple[Array, Array]:
        """`E[(1 − e^{-w'}) y^k]` and `E[w' e^{-w'} y^k]` over the second variable `y`."""
        here = other_mean + factor[1, 0] * g
        y, own = clusters.around(_kinks(kernel, here, factor[1, 1]))
        lost, first, _ = transforms_at(kernel, (here + factor[1, 1] * y)[:, None], other_u)
        moments = jnp.stack([own, own * y, own * y**2])
        return moments[:2] @ lost, moments @ first

    other_lost, other_first = jax.lax.map(inner, x, batch_size=8)
    lost, first, _ = transforms_at(kernel, (mean + factor[0, 0] * x)[:, None], u)
    kept, value = 1.0 - lost, given.value + given.slope[0] * x
    slope = given.slope[1]
    # E[z e^{-w'}] and E[z w' e^{-w'}], E[z² w' e^{-w'}] given the first variable.
    value_kept = value[:, None] * (1.0 - other_lost[:, 0]) - slope * other_lost[:, 1]
    value_first = value[:, None] * other_first[:, 0] + slope * other_first[:, 1]
    square_first = (
        (value**2 + given.variance)[:, None] * other_first[:, 0]
        + 2.0 * slope * value[:, None] * other_first[:, 1]
        + slope**2 * other_first[:, 2]
    )

    def integrate(left: Array, right: Array) -> Array:
        return (mass[:, None] * left).T @ right

    return PairTransform(
        (mass @ lost)[:, None] + integrate(kept, other_lost[:, 0]),
        integrate(first, value_kept),
        integrate(kept, value_first),
        integrate(first, square_first),
    )


def reach_in_deviations(fineness: float, longest: float) -> float:
    """Standard deviations beyond which the largest score of this number of tokens is negligible."""
    return math.sqrt(2.0 * (18.4 * fineness + 4.0 + math.log(longest)))


def needle_heads(
    task: AbstractNeedle,
    attention: AbstractAttention,
    within: HeadRange,
    fineness: float,
    widened: float,
) -> NeedleHeads:
    """The engine with equal steps, which shrink towards the kinks of a kernel."""
    kernel: Any = attention.one_head.with_bias(0.0)
    fineness = fineness if kernel.analytic else min(fineness, _FINEST_AT_KINKS)
    deviation, shift, low, high = within.shared_deviation, *within[1:4]
    lengths = float(task.length.lengths[0]), float(task.length.longest)
    if kernel.exponential and not kernel.constant:
        low = high = 0.0
    needle = -shift if lengths[0] == 1 else 0.0
    tokens = [(high + shift, deviation), (low - shift, deviation), (low + needle, deviation)]
    rule = trapezoid(deviation, lengths, fineness, widened, kernel, tokens)
    reach = reach_in_deviations(fineness, lengths[1])
    nodes = clusters(deviation, reach, fineness, widened, kernel.kink_power)
    if kernel.vanishes:
        depth = kernel.kink_power * float(nodes.tail) / widened
        more = 16 * math.ceil(depth * fineness * _NODES_PER_UNIT / 16)
        rule = replace(rule, nodes=rule.nodes + more)
    return NeedleHeads(rule, nodes, kernel.vanishes)
