"""What one labelled sample says about the two directions, given how well they are known (section 7).

The overlaps `q` enter as `depth = −log(1−q)`, which keeps every digit of `1 − q`. All means are over one set of
points per randomisation, the same at all overlaps, so that they are smooth functions of them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..tasks import AbstractSamplable

_AT_A_TIME = 1024


class Points(NamedTuple):
    """Sequences: a length, uniform numbers for the shift, normal ones for the fields of `k`, of `v` and the label."""

    lengths: Float[Array, "r n"]
    uniforms: Float[Array, "r n u"]
    normals: Float[Array, "r n dimension"]


class Evidence(NamedTuple):
    """`E[Σ(∂_ω log Z)²]` for the fields of `k` and of `v`, `E[log Z]`, and `E[p_ε]` of a sample without its label."""

    signal_k: Any
    signal_v: Any
    log_evidence: Any
    found: Any


class Uncertainty(NamedTuple):
    """`q_k`, `q_v`, what they leave unknown of `k`, and the variance of a label given its field."""

    q_k: Any
    q_v: Any
    unknown_k: Any
    label_variance: Any


def uncertainty(depth: Float[Any, "2"], noise: Any) -> Uncertainty:
    """The overlaps at a depth."""
    xp = depth.__array_namespace__()
    q, left = -xp.expm1(-depth), xp.exp(-depth)
    return Uncertainty(q[0], q[1], left[0], noise**2 + left[1])


class _Sample(NamedTuple):
    """What one sequence adds to the evidence, with the posterior `w` of its location given the label.

    `certainty` is `Σw²`, and `excess` is `Σ w (y−ω_z)²/(Δ² + 1 − q_v) − 1`.
    """

    signal_k: Any
    signal_v: Any
    log_evidence: Any
    found: Any
    certainty: Any
    excess: Any


@eqx.filter_jit
def evidence(task: AbstractSamplable, depth: Float[Array, "2"], points: Points) -> Evidence:
    """The evidence per randomisation, averaged over its points, the locations they visit and the sign of the noise."""
    given = uncertainty(depth, task.noise)
    location = task.location_given(given.unknown_k)
    longest = points.normals.shape[-1] // 2
    count = location.visited(longest)
    # Where many locations are visited the law of the location takes most of the time, and two labels for each nearly
    # halve the error.
    signs = jnp.array([1.0, -1.0])[: min(count, 2)]
    log_height = -jnp.log(2 * np.pi * given.label_variance) / 2

    def at_point(length: Array, uniforms: Array, normals: Array) -> _Sample:
        fields, values, noise = normals[:longest], normals[longest:-1], normals[-1]
        shift = jnp.outer(task.draw_shift(uniforms), jnp.eye(longest)[0])
        means = jnp.sqrt(given.q_k) * fields + given.q_k * shift
        weights = location.weigh(means, jnp.arange(longest) < length)
        law, chance = jax.nn.softmax(weights.log), jax.nn.softmax(weights.log[:count])
        apart = jnp.sqrt(given.q_v / given.label_variance) * (values[:count, None] - values)

        def labelled(noise: Array) -> _Sample:
            square = (apart + noise) ** 2
            found = jax.vmap(location.posterior, (None, 0))(weights, -square / 2)
            probability = found.probability
            return _Sample(
                chance @ jnp.sum(found.score**2, (1, 2)),
                chance @ jnp.sum(probability**2 * square, 1) / given.label_variance,
                chance @ found.log_evidence + log_height,
                jnp.sum(law**2),
                chance @ jnp.sum(probability**2, 1),
                chance @ jnp.sum(probability * square, 1) - 1.0,
            )

        return jax.vmap(labelled)(noise * signs)

    # Few at a time: larger arrays would be spread over threads, which costs more than they gain.
    samples = jax.lax.map(
        lambda each: jax.lax.map(lambda it: at_point(*it), each, batch_size=_AT_A_TIME), points
    )
    means = jax.tree.map(lambda each: jnp.mean(each, (1, 2)), samples)
    # By the Nishimori identity the excess has mean zero. Weighted as below it cancels the noise of the signal both
    # where the location is known and where all locations are equally likely.
    signal_v = means.signal_v - means.certainty * means.excess / given.label_variance
    log_evidence = means.log_evidence + means.excess / 2
    return Evidence(means.signal_k, signal_v, log_evidence, means.found)
