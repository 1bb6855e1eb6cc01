"""What one labelled sample says about the two directions, given how well they are known (section 7).

The overlaps `q` enter as `depth = −log(1−q)`, which keeps every digit of `1 − q`. All means are over one set of
points per randomisation, the same at all overlaps, so that they are smooth functions of them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..numerics.noisy_argmax import select, tabulate
from ..tasks import AbstractPlanted, AbstractSelected


class Points(NamedTuple):
    """Sequences: a length each, and normal variables for the fields of `k`, the fields of `v` and the label."""

    lengths: Float[Array, "r n"]
    normals: Float[Array, "r n dimension"]


class Evidence(NamedTuple):
    """`E[Σ(∂_ω log Z)²]` for the fields of `k` and of `v`, `E[log Z]`, and `E[p_ε]` of a sample without its label."""

    signal_k: Any
    signal_v: Any
    log_evidence: Any
    found: Any


class Knowledge(NamedTuple):
    """`q_k`, `q_v`, what they leave unknown of `k`, and the variance of a label given its field."""

    q_k: Any
    q_v: Any
    left_k: Any
    label_variance: Any


def knowledge(depth: Float[Array, "2"], noise: Any) -> Knowledge:
    """The overlaps at a depth."""
    q, left = -jnp.expm1(-depth), jnp.exp(-depth)
    return Knowledge(q[0], q[1], left[0], noise**2 + left[1])


def evidence(
    task: AbstractPlanted | AbstractSelected, depth: Float[Array, "2"], points: Points
) -> Evidence:
    """The evidence per randomisation, averaged over its points."""
    known = knowledge(depth, task.noise)
    at_point = (
        _planted(task, known) if isinstance(task, AbstractPlanted) else _selected(task, known)
    )
    means = jax.lax.map(lambda each: jax.tree.map(jnp.mean, jax.vmap(at_point)(*each)), points)
    # By the Nishimori identity the excess has mean zero. Weighted as below it cancels the noise of the signal both
    # where the location is known and where all locations are equally likely.
    signal_v = means.signal_v - means.certainty * means.excess / known.label_variance
    log_evidence = means.log_evidence + means.excess / 2
    return Evidence(means.signal_k, signal_v, log_evidence, means.found)


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


def _planted(task: AbstractPlanted, known: Knowledge) -> Any:
    """A sequence whose first token is the relevant one, as good as any."""

    def at_point(length: Array, normals: Array) -> _Sample:
        fields, values, noise, present = _parts(length, normals)
        mean = jnp.where(jnp.arange(fields.size) == 0, task.shift * known.q_k, 0.0)
        log_odds = task.shift * (mean + jnp.sqrt(known.q_k) * fields)
        log_odds = jnp.where(present, log_odds, -jnp.inf)
        square = _misfit(values[0], values, noise, known)
        fitting = log_odds - square / 2
        posterior = jax.nn.softmax(fitting)
        certainty = jnp.sum(posterior**2)
        norm = task.shift**2 * known.q_k / 2 + jnp.log(length) + _log_width(known)
        return _Sample(
            task.shift**2 * certainty,
            jnp.sum(posterior**2 * square) / known.label_variance,
            jax.nn.logsumexp(fitting) - norm,
            jnp.sum(jax.nn.softmax(log_odds) ** 2),
            certainty,
            jnp.sum(posterior * square) - 1.0,
        )

    return at_point


def _selected(task: AbstractSelected, known: Knowledge) -> Any:
    """A sequence averaged over its location, whose law given the fields is known, and over the sign of the noise.

    The law of the location is what takes time, and two labels for each nearly halve the error.
    """
    slope = 1.0 / jnp.sqrt(known.left_k + 1.0 / task.sharpness**2)
    table = tabulate(slope * jnp.sqrt(known.left_k))

    def labelled(noise: Array, values: Array, law: Array, rivalry: Array) -> _Sample:
        square = _misfit(values[:, None], values, noise, known)
        fitting = jnp.log(law) - square / 2
        posterior = jax.nn.softmax(fitting)
        odds = jnp.where(law > 0, posterior / law, 0.0)
        score = odds * jnp.sum(rivalry, 0) - odds @ rivalry
        return _Sample(
            slope**2 * law @ jnp.sum(score**2, -1),
            law @ jnp.sum(posterior**2 * square, -1) / known.label_variance,
            law @ jax.nn.logsumexp(fitting, -1) - _log_width(known),
            jnp.sum(law**2),
            law @ jnp.sum(posterior**2, -1),
            law @ jnp.sum(posterior * square, -1) - 1.0,
        )

    def at_point(length: Array, normals: Array) -> _Sample:
        fields, values, noise, present = _parts(length, normals)
        law, rivalry = select(slope * jnp.sqrt(known.q_k) * fields, present, table)
        noises = jnp.stack([noise, -noise])
        return jax.vmap(labelled, (0, None, None, None))(noises, values, law, rivalry)

    return at_point


def _parts(length: Array, normals: Array) -> tuple[Array, Array, Array, Bool[Array, " L"]]:
    """Fields of `k`, fields of `v`, noise of the label, and which tokens the sequence has."""
    longest = normals.size // 2
    present = jnp.arange(longest) < length
    return normals[:longest], normals[longest:-1], normals[-1], present


def _misfit(own: Array, values: Array, noise: Array, known: Knowledge) -> Array:
    """`(y − ω_z)²/(Δ² + 1 − q_v)` of all tokens, for a label that belongs to `own`."""
    apart = jnp.sqrt(known.q_v / known.label_variance) * (own - values)
    return (apart + noise) ** 2


def _log_width(known: Knowledge) -> Array:
    """Minus the logarithm of the height of the law of a label."""
    return jnp.log(2 * np.pi * known.label_variance) / 2
