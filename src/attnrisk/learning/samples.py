"""What a sample of the training set looks like to a student with given overlaps (sections 6 and 10).

Only the cavity fields `ω_χ`, `ω_z` and the label matter; the teacher's fields are integrated out. Given the location
`ε` and a shift `θ` of its token, `ω_χ,ε ~ N(Mθ, Q)`, and the other tokens follow `N(0, Q)`. Then the teacher's fields
follow `N(MᵀQ⁻¹ω, 1 − MᵀQ⁻¹M)`, so that the law of the location and its score `∂ log G_ε` depend on the unknowns
through the correlation `C⁻¹M` with `Q = C Cᵀ` alone. Each length of a law has points of its own.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtri

from ..numerics.qmc import sobol
from ..tasks import AbstractSamplable, AbstractTask, AbstractWeighted
from .proximal import Sample
from .unknowns import Unknowns, lower_factor

_PROBE = 1e-4  # step of the differences in the correlation


class Points(NamedTuple):
    """Random numbers for `n` sequences of one length: normal ones, and the shift of the relevant token.

    Those of the `teacher` stand for what is not known of its fields, where the law of the location given the known
    part has no formula.
    """

    weight: float
    keys: Float[np.ndarray, "n H L"]
    values: Float[np.ndarray, "n L"]
    label: Float[np.ndarray, " n"]
    shift: Float[np.ndarray, "n F"]
    teacher: Float[np.ndarray, "n T"]


def draw(
    task: AbstractTask, heads: int, log2_points: int, randomisations: int, seed: int
) -> list[tuple[Points, ...]]:
    """For each randomisation, points for each length of the law.

    The label is taken positive, which loses nothing by symmetry. Where a sequence visits each of its locations, there
    are fewer sequences.
    """
    law = zip(task.length.lengths.tolist(), task.length.probabilities.tolist(), strict=True)
    sampled, uniform, visited = not isinstance(task, AbstractSamplable), 0, int
    if isinstance(task, AbstractSamplable):
        location = eqx.filter_eval_shape(task.location_given, np.eye(task.features))
        uniform, visited = task.shift_uniforms, location.visited
    by_length = []
    for length, probability in law:
        fewer = int(np.log2(visited(length)))
        ends = np.cumsum([heads * length, length, sampled * length, 1])
        points = sobol(ends[-1] + uniform, max(log2_points - fewer, 0), randomisations, seed)
        keys, values, teacher = np.split(ndtri(points[..., : ends[2]]), ends[:2], -1)
        keys = keys.reshape(*points.shape[:2], heads, length)
        label = ndtri((1.0 + points[..., ends[2]]) / 2)
        shift = np.asarray(_draw_shifts(task, points[..., ends[-1] :]))
        each = zip(keys, values, label, shift, teacher, strict=True)
        by_length.append([Points(probability, *numbers) for numbers in each])
    return list(zip(*by_length, strict=True))


@eqx.filter_jit
def _draw_shifts(task: AbstractTask, uniforms: Float[Any, "r n u"]) -> Float[Array, "r n F"]:
    if not isinstance(task, AbstractSamplable):
        return jnp.zeros((*uniforms.shape[:2], task.features))
    return jax.vmap(jax.vmap(task.draw_shift))(uniforms)


class Locations(NamedTuple):
    """The law of the location `n e` and its score `∂ log G` `n e F L`, to first order around a correlation.

    They take most of the time of a selected task: derivatives, along leading axes `H F`, are differences.
    """

    correlation: Float[Any, "H F"]
    law: Float[Any, "n e"]
    score: Float[Any, "n e F L"]
    law_slope: Float[Any, "H F n e"]
    score_slope: Float[Any, "H F n e F L"]

    def at(self, correlation: Float[np.ndarray, "H F"]) -> tuple[Any, Any]:
        """Law and score at a correlation nearby."""
        away = correlation - self.correlation
        law = self.law + np.tensordot(away, self.law_slope, 2)
        return law, self.score + np.tensordot(away, self.score_slope, 2)


def locate(task: AbstractTask, correlation: Float[np.ndarray, "H F"], points: Points) -> Locations:
    """What the scores tell of the location."""
    step = np.where(correlation > 0, -_PROBE, _PROBE).ravel()  # towards zero
    moved = np.concatenate([[0.0 * step], np.diag(step)]).reshape(-1, *correlation.shape)
    given = points.keys, points.shift[..., None], points.teacher
    found = _locate(task, correlation + moved, *given)
    law, score = map(np.asarray, found)
    by_law, by_score = (
        ((each[1:] - each[0]) / step.reshape(-1, *[1] * (each.ndim - 1))).reshape(
            *correlation.shape, *each.shape[1:]
        )
        for each in (law, score)
    )
    return Locations(correlation, law[0], score[0], by_law, by_score)


@eqx.filter_jit
def _locate(
    task: AbstractTask,
    correlations: Float[Any, "c H F"],
    normals: Float[Any, "n H L"],
    shifts: Float[Any, "n F 1"],
    teacher: Float[Any, "n T"],
) -> tuple[Float[Array, "c n e"], Float[Array, "c n e F L"]]:
    """The law of the location and its score, at several correlations.

    Of a weighted task, at a draw of the teacher's fields in place of a mean over them: `∂ log G_ε` is the mean of
    `∂ log g(ε, χ*)` given the rest.
    """
    first = jnp.eye(normals.shape[-1])[0]

    def weigh(fields: Array) -> tuple[Array, Array]:
        assert isinstance(task, AbstractWeighted)
        weight = jax.value_and_grad(task.log_weight, 1)
        log, slope = jax.vmap(weight, (0, None))(jnp.arange(fields.size), fields)
        return jnp.exp(log) / fields.size, slope[:, None]

    def at(correlation: Array) -> tuple[Array, Array]:
        known = correlation.T @ correlation
        if isinstance(task, AbstractWeighted):
            fields = (correlation.T @ normals)[:, 0] + jnp.sqrt(1.0 - known[0]) * teacher
            return jax.vmap(weigh)(fields)
        assert isinstance(task, AbstractSamplable)
        location = task.location_given(jnp.eye(len(known)) - known)

        def visits(normals: Array, shift: Array) -> tuple[Array, Array]:
            return location.visits(correlation.T @ normals + known @ shift * first)

        return jax.vmap(visits)(normals, shifts)

    return jax.lax.map(at, correlations)


class CavitySamples(NamedTuple):
    """Sequences with axes `m n e`: unknowns, point, location.

    Their probability, the token of the location, the cavity fields and the label, the score `∂ log G` of the location,
    and `t = (ω_z,ε − m c y)/(q − m² c)` with `c = 1/(1+Δ²)`, all three over `γ` where the relevant token has a spread.
    """

    probability: Float[np.ndarray, "m n e"]
    location: Float[np.ndarray, "e L"]
    sample: Sample
    score: Float[np.ndarray, "m n e F L"]
    excess: Float[np.ndarray, "m n e"]


def cavity_samples(
    task: AbstractTask, unknowns: Unknowns, points: Points, locations: Locations
) -> CavitySamples:
    """All sequences of some points, at several unknowns."""
    probability, score = locations.at(unknowns.correlation)
    count, length = score.shape[-3], score.shape[-1]
    here = np.eye(count, length)
    m, q = (each[:, 0, 0, None] for each in unknowns.values[:2])
    first = np.eye(length)[0]  # where there is a shift, only the first location is visited
    shifted = np.einsum("mhf,nf,l->mnhl", unknowns.keys.M, points.shift, first)
    spread = float(task.spread)  # other than one only where the first location alone is visited
    keys = np.einsum("mhg,ngl->mnhl", lower_factor(unknowns.keys.Q), points.keys)
    keys = shifted + (1.0 + (spread - 1.0) * first) * keys
    if unknowns.bias.size:
        keys = keys + unknowns.bias[:, None, :, None]
    share = 1.0 / (1.0 + (float(task.noise) / spread) ** 2)
    left = np.sqrt(np.maximum(q - m**2 * share, 1e-14 * q))[..., None]
    label = points.label / np.sqrt(share)
    own = (m * share * label)[..., None] + left * points.values
    others = np.sqrt(q)[..., None] * points.values
    values = np.where(here > 0, spread * own[:, :, None], others[:, :, None])
    sample = Sample(
        np.broadcast_to(keys[:, :, None], (*values.shape[:3], *keys.shape[2:])),
        values,
        np.broadcast_to(spread * label[:, None], values.shape[:3]),
        np.broadcast_to(1.0 + (spread**2 - 1.0) * here, values.shape),
    )
    with np.errstate(divide="ignore"):  # an infinite excess ends in a refusal
        excess = points.values[:, :count] / left
    return CavitySamples(probability, here, sample, score, excess)
