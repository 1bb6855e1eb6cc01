"""Bayes-softmax on needle tasks: one transform of the kernel `Σ_h e^{χ_h + b_h}` of a token (section 10)."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...attention import BayesSoftmax, Softmax
from ...numerics.quadrature import Trapezoid, log_complement, transforms_at, trapezoid
from ...tasks import AbstractNeedle
from ..overlaps import Overlaps
from .base import AbstractEngine, Correlations, HeadRange
from .heads import (
    GivenScores,
    OneTransform,
    TokenLaws,
    correlate,
    given_scores,
    one_transform,
    reach_in_deviations,
    token_laws,
    transform_ends,
)

MOST_JOINT_HEADS = 3  # whose grid has a dimension for each
_SOFTMAX = Softmax()  # of the logarithm of a token's strength
_CHUNK = 4096  # nodes of a token's scores that are held in memory for all transform nodes


class NeedleBayesSoftmax(AbstractEngine):
    """Softmax over tokens and heads: a kernel that is a function of all scores of a token.

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
        u, du = self._nodes(laws, biases, task)
        integrate = self._product if self.independent else self._joint

        def token(at: Array) -> OneTransform:
            return integrate(given_scores(laws, keys, at), biases, u)

        found = jax.lax.map(token, tokens)
        needle, noise = (
            OneTransform(*each) for each in zip(*map(laws.average, found), strict=True)
        )
        return correlate(task.length, needle, noise, du)

    def _nodes(self, laws: TokenLaws, biases: Array, task: AbstractNeedle) -> tuple[Array, Array]:
        """In `u`: a sum over heads lies between the largest term and `H` times it."""
        heads = jnp.arange(len(biases))
        low, top = jax.vmap(
            lambda head: transform_ends(
                _SOFTMAX, biases[head], laws, head, self.rule, task.length.longest
            )
        )(heads)
        return self.rule.between(jnp.max(low), jnp.max(top) + jnp.log(len(biases)))

    def _joint(self, given: GivenScores, biases: Array, u: Array) -> OneTransform:
        @jax.checkpoint
        def chunk(nodes: tuple[Array, Array]) -> OneTransform:
            g, mass = nodes
            scores = biases + given.mean + g @ given.factor.T
            transformed = transforms_at(_SOFTMAX, jax.nn.logsumexp(scores, -1)[:, None], u)
            return one_transform(transformed, g, mass, given)

        parts = jax.lax.map(chunk, (jnp.asarray(self.g), jnp.asarray(self.mass)))
        return OneTransform(*(jnp.sum(part, 0) for part in parts))

    def _product(self, given: GivenScores, biases: Array, u: Array) -> OneTransform:
        """Polynomials `E[e^{-w_h}] + E[w_h e^{-w_h}] s + E[w_h² e^{-w_h}] s²/2` of each head, multiplied."""
        x, mass = jnp.asarray(self.rule.x), jnp.asarray(self.rule.mass)
        deviations = jnp.diagonal(given.factor)

        def head(mean: Array, deviation: Array) -> tuple[Array, Array, Array]:
            lost, first, second = transforms_at(_SOFTMAX, (mean + deviation * x)[:, None], u)
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


def _score_nodes(
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


def needle_bayes_softmax(
    task: AbstractNeedle,
    attention: BayesSoftmax,
    within: HeadRange,
    fineness: float,
    widened: float,
) -> NeedleBayesSoftmax:
    """The engine with equal steps. Independent scores need no product grid."""
    deviation = within.shared_deviation
    lengths = float(task.length.lengths[0]), float(task.length.longest)
    # A sum over heads lies up to log H above the largest, and no head is needed to reach as low as the lowest.
    tokens = [(math.log(attention.keys) + within.shift, deviation)]
    tokens += [(-within.shift, deviation), (-within.shift * (lengths[0] == 1), deviation)]
    rule = trapezoid(deviation, lengths, fineness, widened, _SOFTMAX, tokens)
    near = np.abs(rule.x) <= widened * reach_in_deviations(fineness, lengths[1]) * (1.0 + 1e-9)
    rule = eqx.tree_at(lambda at: (at.x, at.mass), rule, (rule.x[near], rule.mass[near]))
    g, mass = _score_nodes(rule.x, rule.mass, 1 if within.independent else attention.keys)
    return NeedleBayesSoftmax(rule, g, mass, within.independent)
