"""The information of one labelled sample about the two directions, given their present overlaps (section 7).

The overlaps `q` enter as `depth = −log(1−q)`, which keeps every digit of `1 − q`. All means are over one set of
points per randomisation, the same at all overlaps, so that they are smooth functions of them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..tasks import AbstractSamplable

_TOKENS_AT_A_TIME = 4096
_VISITS = 256  # tokens of all sequences that are made of one point


class Points(NamedTuple):
    """Sequences: a length, uniform numbers for the shift, teacher fields, and normal ones for `k`, `v` and the label.

    There are teacher fields where the law of the fields of `k` given the location is not Gaussian, and not all
    locations are visited.
    """

    lengths: Float[Array, "r n"]
    uniforms: Float[Array, "r n u"]
    teacher: Float[Array, "r n T"]
    normals: Float[Array, "r n dimension"]


class Evidence(NamedTuple):
    """`E[Σ(∂_ω log Z)²]` for the fields of `k` and of `v`, `E[log Z]`, and `E[p_ε]` of a sample without its label."""

    signal_k: Any
    signal_v: Any
    log_evidence: Any
    found: Any


class Uncertainty(NamedTuple):
    """`q_k`, `q_v`, the remaining variance of `k`, and the variance of a label given its field."""

    q_k: Any
    q_v: Any
    unknown_k: Any
    label_variance: Any


def uncertainty(depth: Float[Any, "2"], noise: Any) -> Uncertainty:
    xp = depth.__array_namespace__()
    q, left = -xp.expm1(-depth), xp.exp(-depth)
    return Uncertainty(q[0], q[1], left[0], noise**2 + left[1])


class _Sample(NamedTuple):
    """The contribution of one sequence, with the posterior `w` of its location given the label.

    `certainty` is `Σw²`, and `excess` is `Σ w (y−ω_z)²/(Δ² + 1 − q_v) − 1`.
    """

    signal_k: Any
    signal_v: Any
    log_evidence: Any
    found: Any
    certainty: Any
    excess: Any


def _visits(law: Float[Array, " L"], several: bool) -> tuple[Int[Array, " e"], Float[Array, " e"]]:
    """Locations to average over, and their weights: the first token, which is the relevant one.

    With `several`, the likeliest with their probabilities and, if these are not all, the relevant one if it is not
    among them. That has the same mean, with less noise.
    """
    first = jnp.zeros(1, int)
    if not several:
        return first, jnp.ones(1)
    chance, likeliest = jax.lax.top_k(law, min(law.size, max(_VISITS // law.size, 1)))
    if visits_all(law.size):
        return likeliest, chance
    missed = jnp.all(likeliest > 0)
    return jnp.concatenate([likeliest, first]), jnp.concatenate([chance, missed[None]])


def visits_all(length: int) -> bool:
    """Whether every location of a selected task is visited, so that no teacher fields are needed to draw one."""
    return length**2 <= _VISITS


@eqx.filter_jit
def evidence(task: AbstractSamplable, depth: Float[Array, "2"], points: Points) -> Evidence:
    """The evidence per randomisation, averaged over its points, whose relevant token is the first."""
    given = uncertainty(depth, task.noise)
    location = task.location_given(given.unknown_k)
    longest = points.normals.shape[-1] // 2
    has_teacher, several = points.teacher.shape[-1] > 0, task.teacher_uniforms(longest) > 0
    # There the law of the location takes most of the time, and labels with both signs of the noise are averaged.
    signs = jnp.array([1.0, -1.0])[: 1 + several]
    log_height = -jnp.log(2 * np.pi * given.label_variance) / 2

    def at_point(length: Array, uniforms: Array, teacher: Array, normals: Array) -> _Sample:
        fields, values, noise = normals[:longest], normals[longest:-1], normals[-1]
        if has_teacher:
            fields = jnp.sqrt(given.q_k) * teacher + jnp.sqrt(given.unknown_k) * fields
        shift = jnp.outer(task.draw_shift(uniforms), jnp.eye(longest)[0])
        means = jnp.sqrt(given.q_k) * fields + given.q_k * shift
        weights = location.weigh(means, jnp.arange(longest) < length)
        law = jax.nn.softmax(weights.log)
        at, chance = _visits(law, several)
        apart = jnp.sqrt(given.q_v / given.label_variance) * (values[at, None] - values)

        def labelled(noise: Array) -> _Sample:
            square = (apart + noise) ** 2
            found = jax.vmap(location.posterior, (None, 0))(weights, -square / 2)
            probability = found.probability
            return _Sample(
                chance @ jnp.sum(found.score**2, (1, 2)),
                chance @ jnp.sum(probability**2 * square, 1) / given.label_variance,
                chance @ found.log_evidence + jnp.sum(chance) * log_height,
                jnp.sum(law**2),
                chance @ jnp.sum(probability**2, 1),
                chance @ (jnp.sum(probability * square, 1) - 1.0),
            )

        return jax.vmap(labelled)(noise * signs)

    # Few at a time: larger arrays would be spread over threads, which costs more than they gain.
    few = max(_TOKENS_AT_A_TIME // longest, 1)
    samples = jax.lax.map(
        lambda each: jax.lax.map(lambda it: at_point(*it), each, batch_size=few), points
    )
    means = jax.tree.map(lambda each: jnp.mean(each, (1, 2)), samples)
    # By the Nishimori identity the excess has mean zero. Weighted as below it cancels the noise of the signal both
    # where the location is known and where all locations are equally likely.
    signal_v = means.signal_v - means.certainty * means.excess / given.label_variance
    log_evidence = means.log_evidence + means.excess / 2
    return Evidence(means.signal_k, signal_v, log_evidence, means.found)
