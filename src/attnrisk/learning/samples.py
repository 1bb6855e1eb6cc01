"""What a sample of the training set looks like to a student with given overlaps (sections 6 and 10).

Only the cavity fields `ω_χ`, `ω_z` and the label matter; the teacher's fields are integrated out. Given the location
`ε` and a shift `θ` of its token, `ω_χ,ε ~ N(Mθ, Q)`, and the other tokens follow `N(0, Q)`. Then the teacher's fields
follow `N(MᵀQ⁻¹ω, 1 − MᵀQ⁻¹M)`, so that the law of the location and its score `∂ log G_ε` depend on the unknowns
through the correlation `C⁻¹M` with `Q = C Cᵀ` alone. Each length of a law has points of its own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from ..numerics.linalg import cholesky
from ..numerics.qmc import sobol
from ..tasks import AbstractSamplable
from .proximal import Sample
from .unknowns import Unknowns

_PROBE = 1e-4  # step of the differences in the correlation


class Points(NamedTuple):
    """Random numbers for sequences of one length, per randomisation: normal ones, and uniform ones for the shift."""

    weight: float
    keys: Float[Array, "r n H L"]
    values: Float[Array, "r n L"]
    label: Float[Array, "r n"]
    uniforms: Float[Array, "r n u"]


def draw(
    task: AbstractSamplable, heads: int, log2_points: int, randomisations: int, seed: int
) -> tuple[Points, ...]:
    """Points for each length of the law; the label is taken positive, which loses nothing by symmetry.

    Where a sequence visits each of its locations, there are fewer sequences.
    """
    law = zip(task.length.lengths.tolist(), task.length.probabilities.tolist(), strict=True)
    location = task.location_given(np.eye(task.features))
    drawn = []
    for length, probability in law:
        fewer = int(np.log2(location.visited(length)))
        normal, shift = (heads + 1) * length, task.shift_uniforms
        points = jnp.asarray(sobol(normal + 1 + shift, log2_points - fewer, randomisations, seed))
        normals = ndtri(points[..., :normal])
        keys = normals[..., : heads * length].reshape(*points.shape[:2], heads, length)
        label = ndtri((1.0 + points[..., normal]) / 2)
        values, uniforms = normals[..., heads * length :], points[..., normal + 1 :]
        drawn.append(Points(probability, keys, values, label, uniforms))
    return tuple(drawn)


def _shifts(task: AbstractSamplable, points: Points) -> Float[Array, "r n F 1"]:
    return jax.vmap(jax.vmap(task.draw_shift))(points.uniforms)[..., None]


class Locations(NamedTuple):
    """The law of the location `r n e` and its score `∂ log G` `r n e F L`, to first order around a correlation.

    They take most of the time of a selected task: derivatives, along leading axes `H F`, are differences.
    """

    correlation: Float[Array, "H F"]
    law: Float[Array, "r n e"]
    score: Float[Array, "r n e F L"]
    law_slope: Float[Array, "H F r n e"]
    score_slope: Float[Array, "H F r n e F L"]

    def at(self, correlation: Float[Array, "H F"]) -> tuple[Array, Array]:
        """Law and score at a correlation nearby."""
        away = correlation - self.correlation
        law = self.law + jnp.tensordot(away, self.law_slope, 2)
        return law, self.score + jnp.tensordot(away, self.score_slope, 2)


def locate(task: AbstractSamplable, correlation: Float[Array, "H F"], points: Points) -> Locations:
    """What the scores tell of the location."""
    first = jnp.eye(points.keys.shape[-1])[0]
    shifts = _shifts(task, points)

    def at(correlation: Array) -> tuple[Array, Array]:
        known = correlation.T @ correlation
        location = task.location_given(jnp.eye(len(known)) - known)

        def visits(normals: Array, shift: Array) -> tuple[Array, Array]:
            return location.visits(correlation.T @ normals + known @ shift * first)

        return jax.lax.map(lambda each: jax.vmap(visits)(*each), (points.keys, shifts))

    here = at(correlation)

    def slopes(entry: Array) -> tuple[Array, Array]:
        step = _PROBE * jnp.where(jnp.sum(entry * correlation) > 0, -1.0, 1.0)  # towards zero
        ahead = at(correlation + step * entry)
        return jax.tree.map(lambda new, old: (new - old) / step, ahead, here)

    entries = jnp.eye(correlation.size).reshape(*correlation.shape, *correlation.shape)
    found = [[slopes(entry) for entry in row] for row in entries]
    by_law, by_score = (
        jnp.stack([jnp.stack([e[i] for e in row]) for row in found]) for i in (0, 1)
    )
    return Locations(correlation, *here, by_law, by_score)


class CavitySamples(NamedTuple):
    """Sequences with axes `r n e`: randomisation, point, location.

    Their probability, the token of the location, the cavity fields and the label, the score `∂ log G` of the location,
    and `t = (ω_z,ε − m c y)/(q − m² c)` with `c = 1/(1+Δ²)`.
    """

    probability: Float[Array, "r n e"]
    location: Float[Array, "e L"]
    sample: Sample
    score: Float[Array, "r n e F L"]
    excess: Float[Array, "r n e"]


def cavity_samples(
    task: AbstractSamplable, unknowns: Unknowns, points: Points, locations: Locations
) -> CavitySamples:
    """All sequences of some points."""
    probability, score = locations.at(unknowns.correlation)
    count, length = score.shape[-3], score.shape[-1]
    here = jnp.eye(count, length)
    M, Q, _ = unknowns.keys
    (m,), (q,) = unknowns.values.M[0], unknowns.values.Q[0]
    first = jnp.eye(length)[0]  # where there is a shift, only the first location is visited
    shifted = jnp.sum(M[..., None] * _shifts(task, points)[..., None, :, :], -2) * first
    factor = cholesky(Q)
    keys = shifted + jnp.sum(factor[..., None] * points.keys[..., None, :, :], -2)
    share = 1.0 / (1.0 + task.noise**2)
    left = q - m**2 * share
    label = points.label / jnp.sqrt(share)
    own = (m * share * label)[..., None] + jnp.sqrt(left) * points.values
    values = jnp.where(here > 0, own[:, :, None], jnp.sqrt(q) * points.values[:, :, None])
    batch = values.shape[:-1]
    sample = Sample(
        jnp.broadcast_to(keys[:, :, None], (*batch, *keys.shape[2:])),
        values,
        jnp.broadcast_to(label[..., None], batch),
    )
    return CavitySamples(
        probability, here, sample, score, points.values[..., :count] / jnp.sqrt(left)
    )
