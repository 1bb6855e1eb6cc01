"""Needle tasks with several features and heads: exact correlations at any length (section 10).

Given the component `j` of the needle's shift, the scores of one token, `z` and `z*` are jointly Gaussian. A head that
is normalised by itself has a transform of its own, and two heads meet in a double transform over `(u, u')`.
Bayes-softmax has one transform, of a token's strength `Σ_h e^{χ_h + b_h}`. Integrands are analytic, and all rules have
equal steps.
"""

from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...attention import AbstractKernel, BayesSoftmax, Heads
from ...numerics.linalg import cholesky, solve_lower
from ...numerics.quadrature import LARGEST_LOG, Trapezoid, log_complement
from ...tasks import AbstractNeedle
from ..overlaps import Overlaps
from .base import AbstractEngine, Correlations

# Added to the variance of a score given the others: at minima it vanishes, and its root has no derivative there. The
# risk moves by half as much, 5e-13; a derivative in the variance loses a factor 10^6 of precision.
_LEAST_VARIANCE = 1e-12
_CHUNK = 4096  # nodes of a token's scores that are held in memory for all transform nodes


class TokenLaws(NamedTuple):
    """The fields of student vectors in one token: means and covariances, covariances with `z*`, for the components of
    the needle's law (with weights), and last for noise."""

    mean: Float[Array, "J+1 P"]
    covariance: Float[Array, "J+1 P P"]
    label: Float[Array, "J+1 P"]
    weights: Float[Array, " J"]

    def average(self, values: Float[Array, "J+1 ..."]) -> tuple[Array, Array]:
        """Over the components of the needle, and for noise."""
        return jnp.tensordot(self.weights, values[:-1], 1), values[-1]


def token_laws(task: AbstractNeedle, overlaps: Overlaps) -> TokenLaws:
    """Of a needle task with these overlaps; of `Q` the lower triangle is read."""
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
    """The token of law `at` given the scores of these keys."""
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


def _transforms(log_strength: Any, u: Any) -> tuple[Array, Array, Array]:
    """`1 − e^{-w}`, `w e^{-w}` and `w² e^{-w}` of `w = e^{log_strength − u}`."""
    w = jnp.exp(jnp.minimum(log_strength - u, LARGEST_LOG))
    lost = -jnp.expm1(-w)
    first = w * (1.0 - lost)
    return lost, first, w * first


class OneTransform(NamedTuple):
    """What one token contributes to a single transform, for each `u`: `E[1 − e^{-w}]`, `E[(1 − e^{-w}) z*]`,
    `E[w e^{-w} z]`, `E[w e^{-w} z z*]`, `E[w² e^{-w} z²]`."""

    lost: Array
    label_lost: Array
    value: Array
    product: Array
    square: Array


def one_transform(
    log_strength: Float[Array, " n"],
    g: Float[Array, "n d"],
    mass: Float[Array, " n"],
    u: Float[Array, " u"],
    given: GivenScores,
) -> OneTransform:
    """From nodes `g` of the scores of a token and its strength at each."""
    value, label = given.value + g @ given.slope, g @ given.label_slope
    square, product = value**2 + given.variance, value * label + given.covariance
    lost, first, second = _transforms(log_strength[:, None], u)
    return OneTransform(
        mass @ lost,
        (mass * label) @ lost,
        (mass * value) @ first,
        (mass * product) @ first,
        (mass * square) @ second,
    )


def _correlations(
    length: Any, needle: OneTransform, noise: OneTransform, du: Float[Array, " u"]
) -> Correlations:
    """Section 4.1 after one transform."""
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
    """Heads of an analytic kernel, each normalised by itself; a plain kernel is one head.

    The cost grows with the number of pairs of heads, and does not depend on the length.
    """

    rule: Trapezoid

    def correlations(
        self, task: AbstractNeedle, attention: AbstractKernel | Heads, overlaps: Overlaps
    ) -> Correlations:
        label, power = self.by_head(task, attention, overlaps)
        if isinstance(attention, Heads):
            weights = jnp.asarray(attention.head_weights)
            return Correlations(weights @ label, weights @ power @ weights)
        return Correlations(label[0], power[0, 0])

    def by_head(
        self, task: AbstractNeedle, attention: AbstractKernel | Heads, overlaps: Overlaps
    ) -> Correlations:
        """`E[y σ_h·z]` of each head and `E[(σ_h·z)(σ_h'·z)]` of each pair."""
        if isinstance(attention, Heads):
            kernel: Any = attention.attention
            biases = jnp.asarray(kernel.bias) + jnp.asarray(attention.bias)
        else:
            kernel, biases = attention, jnp.reshape(attention.bias, (1,))
        laws, count = token_laws(task, overlaps), attention.keys
        tokens = jnp.arange(len(laws.mean))
        x, mass = jnp.asarray(self.rule.x), jnp.asarray(self.rule.mass)

        def nodes(head: Array) -> tuple[Array, Array]:
            low, top = _range(kernel, biases[head], laws, head, self.rule, task.length.longest)
            return jax.lax.stop_gradient(self.rule.between(low, top, kernel.constant))

        def alone(head: Array) -> Correlations:
            u, du = nodes(head)

            def token(at: Array) -> OneTransform:
                given = given_scores(laws, head[None], at)
                scores = biases[head] + given.mean[0] + given.factor[0, 0] * x
                return one_transform(kernel.log_phi(scores), x[:, None], mass, u, given)

            found = jax.vmap(token)(tokens)
            needle, noise = (
                OneTransform(*each) for each in zip(*map(laws.average, found), strict=True)
            )
            return _correlations(task.length, needle, noise, du)

        def together(pair: Array) -> Array:
            (u, du), (other_u, other_du) = nodes(pair[0]), nodes(pair[1])
            token = partial(_pair_transform, kernel, biases[pair], x, mass, u, other_u)
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


def _range(
    kernel: Any, bias: Array, laws: TokenLaws, head: Array, rule: Trapezoid, longest: Any
) -> tuple[Array, Array]:
    """As `transform_range`; the denominator of a single token is that of the needle."""
    x = jnp.linspace(-1.0, 1.0, 65) * rule.window
    deviations = jnp.sqrt(laws.covariance[:, head, head] + _LEAST_VARIANCE)
    values = kernel.log_phi(bias + laws.mean[:, head, None] + deviations[:, None] * x)
    # The lowest values of noise that have a probability of at least `rare` together.
    mass = jnp.exp(-0.5 * x**2)
    below = jnp.sum(jnp.where(values[-1] <= values[-1][:, None], mass, 0.0), 1) / jnp.sum(mass)
    low = jnp.min(jnp.where(below >= rule.rare, values[-1], jnp.inf))
    low = jnp.where(rule.rare > 0, low, jnp.min(values))
    top = jnp.max(values) + jnp.log(longest)
    if kernel.constant > 0:
        level = jnp.log(kernel.constant)
        low, top = jnp.minimum(low, level), jnp.maximum(top, level)
    return low, top


class PairTransform(NamedTuple):
    """What one token contributes to a double transform, for each `(u, u')`: `E[1 − e^{-w-w'}]`, `E[w e^{-w-w'} z]`,
    `E[w' e^{-w-w'} z]`, `E[w w' e^{-w-w'} z²]`."""

    lost: Array
    first: Array
    second: Array
    square: Array


def _pair_transform(
    kernel: AbstractKernel,
    biases: Float[Array, " 2"],
    x: Float[Array, " n"],
    mass: Float[Array, " n"],
    u: Float[Array, " u"],
    other_u: Float[Array, " v"],
    given: GivenScores,
) -> PairTransform:
    """The second score depends on both normal variables, the first on one: sums over the second come first."""
    moments = jnp.stack([mass, mass * x, mass * x**2])

    @jax.checkpoint
    def inner(g: Array) -> tuple[Array, Array]:
        """`E[(1 − e^{-w'}) x^k]` and `E[w' e^{-w'} x^k]` over the second variable."""
        scores = biases[1] + given.mean[1] + given.factor[1, 0] * g + given.factor[1, 1] * x
        lost, first, _ = _transforms(kernel.log_phi(scores)[:, None], other_u)
        return moments[:2] @ lost, moments @ first

    other_lost, other_first = jax.lax.map(inner, x, batch_size=8)
    scores = biases[0] + given.mean[0] + given.factor[0, 0] * x
    lost, first, _ = _transforms(kernel.log_phi(scores)[:, None], u)
    kept, value = 1.0 - lost, given.value + given.slope[0] * x
    slope, total = given.slope[1], jnp.sum(mass)
    # E[z e^{-w'}] and E[z w' e^{-w'}], E[z² w' e^{-w'}] given the first variable.
    value_kept = value[:, None] * (total - other_lost[:, 0]) - slope * other_lost[:, 1]
    value_first = value[:, None] * other_first[:, 0] + slope * other_first[:, 1]
    square_first = (
        (value**2 + given.variance)[:, None] * other_first[:, 0]
        + 2.0 * slope * value[:, None] * other_first[:, 1]
        + slope**2 * other_first[:, 2]
    )

    def integrate(left: Array, right: Array) -> Array:
        return (mass[:, None] * left).T @ right

    return PairTransform(
        (mass @ lost)[:, None] * total + integrate(kept, other_lost[:, 0]),
        integrate(first, value_kept),
        integrate(kept, value_first),
        integrate(first, square_first),
    )


class NeedleBayesSoftmax(AbstractEngine):
    """Softmax over tokens and heads: a kernel of all scores of a token.

    `g` and `mass` are nodes for as many independent normal variables as there are heads. Where scores are
    `independent`, and `z` is independent of them, a product over heads of integrals over one variable.
    """

    rule: Trapezoid
    g: Float[Any, "n H"]
    mass: Float[Any, " n"]
    independent: bool = eqx.field(static=True, default=False)

    def correlations(
        self, task: AbstractNeedle, attention: BayesSoftmax, overlaps: Overlaps
    ) -> Correlations:
        attention = attention.given_norms(jnp.diagonal(overlaps.Q)[:-1])
        laws, keys = token_laws(task, overlaps), jnp.arange(attention.keys)
        biases, tokens = jnp.asarray(attention.bias), jnp.arange(len(laws.mean))
        u, du = jax.lax.stop_gradient(self._nodes(laws, biases, task))
        integrate = self._product if self.independent else self._joint

        def token(at: Array) -> OneTransform:
            return integrate(given_scores(laws, keys, at), biases, u)

        found = jax.lax.map(token, tokens)
        needle, noise = (
            OneTransform(*each) for each in zip(*map(laws.average, found), strict=True)
        )
        return _correlations(task.length, needle, noise, du)

    def _nodes(self, laws: TokenLaws, biases: Array, task: AbstractNeedle) -> tuple[Array, Array]:
        """In `u`: a sum over heads lies between the largest term and `H` times it."""
        heads = jnp.arange(len(biases))
        low, top = jax.vmap(
            lambda head: _range(_SOFTMAX, biases[head], laws, head, self.rule, task.length.longest)
        )(heads)
        return self.rule.between(jnp.max(low), jnp.max(top) + jnp.log(len(biases)))

    def _joint(self, given: GivenScores, biases: Array, u: Array) -> OneTransform:
        @jax.checkpoint
        def chunk(nodes: tuple[Array, Array]) -> OneTransform:
            g, mass = nodes
            scores = biases + given.mean + g @ given.factor.T
            return one_transform(jax.nn.logsumexp(scores, -1), g, mass, u, given)

        parts = jax.lax.map(chunk, (jnp.asarray(self.g), jnp.asarray(self.mass)))
        return OneTransform(*(jnp.sum(part, 0) for part in parts))

    def _product(self, given: GivenScores, biases: Array, u: Array) -> OneTransform:
        """Polynomials `E[e^{-w_h}] + E[w_h e^{-w_h}] s + E[w_h² e^{-w_h}] s²/2` of each head, multiplied."""
        x, mass = jnp.asarray(self.rule.x), jnp.asarray(self.rule.mass)
        deviations = jnp.diagonal(given.factor)

        def head(mean: Array, deviation: Array) -> tuple[Array, Array, Array]:
            lost, first, second = _transforms((mean + deviation * x)[:, None], u)
            return mass @ lost, mass @ first, mass @ second

        losts, firsts, seconds = jax.vmap(head)(biases + given.mean, deviations)
        log_kept = log_complement(losts)
        lost, kept = -jnp.expm1(jnp.sum(log_kept, 0)), jnp.ones_like(u)
        first, second = jnp.zeros_like(u), jnp.zeros_like(u)
        for own in zip(1.0 - losts, firsts, seconds, strict=True):
            second = second * own[0] + 2.0 * first * own[1] + kept * own[2]
            first, kept = first * own[0] + kept * own[1], kept * own[0]
        zero = jnp.zeros_like(u)
        return OneTransform(lost, zero, zero, first * given.covariance, second * given.variance)


class _Exponential(NamedTuple):
    """The strength of a token as a kernel of its logarithm."""

    features: tuple[float, ...] = ()
    constant: float = 0.0

    def log_phi(self, argument: Array) -> Array:
        return argument

    def share(self, argument: Array) -> float:
        return 1.0


_SOFTMAX = _Exponential()


def score_nodes(
    x: Float[np.ndarray, " n"], mass: Float[np.ndarray, " n"], count: int
) -> tuple[Float[np.ndarray, "c k H"], Float[np.ndarray, "c k"]]:
    """A product of equal steps for `count` normal variables, within the ball of the largest step, in chunks."""
    axes = np.meshgrid(*[x] * count, indexing="ij")
    g = np.stack([axis.ravel() for axis in axes], -1)
    weights = np.prod(np.stack(np.meshgrid(*[mass] * count, indexing="ij")), 0).ravel()
    inside = (g**2).sum(1) <= x[-1] ** 2 * (1.0 + 1e-12)
    g, weights = g[inside], weights[inside]
    spare = -len(g) % _CHUNK
    g, weights = np.pad(g, ((0, spare), (0, 0))), np.pad(weights, (0, spare))
    return g.reshape(-1, _CHUNK, count), weights.reshape(-1, _CHUNK)
