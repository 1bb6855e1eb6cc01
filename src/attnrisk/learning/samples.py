"""The distribution of a training sample given the overlaps of the student (sections 6 and 10).

Only the cavity fields `ω_χ`, `ω_z` and the label matter. Where the relevant token is shifted by `θ`, `ω_χ,ε ~ N(Mθ, Q)`
given the location, the other tokens follow `N(0, Q)`, and the teacher's fields are integrated out. Else these are drawn
first and `ω_χ` given them. The equations need the score `∂ log G_ε` of the location, or anything of the same mean given
`ω_χ`; it depends on the unknowns through the correlation `C⁻¹M` with `Q = C Cᵀ` alone. Tokens are exchangeable: the
relevant one comes first, except for weights that depend on the position. Each length of a law has points of its own.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtri

from ..numerics.qmc import sobol
from ..tasks import AbstractTask
from .energy import Sample
from .unknowns import Unknowns, lower_factor

_PROBE = 1e-4  # step of the differences in the correlation


class Points(NamedTuple):
    """Random numbers for `n` sequences of one length: normal ones, the shift of the relevant token, teacher fields."""

    weight: float
    keys: Float[np.ndarray, "n H L"]
    values: Float[np.ndarray, "n L"]
    label: Float[np.ndarray, " n"]
    shift: Float[np.ndarray, "n F"]
    teacher: Float[np.ndarray, "n T"]


def draw(
    task: AbstractTask, heads: int, log2_points: int, randomisations: int, seed: int
) -> list[tuple[Points, ...]]:
    """For each randomisation, points for each length of the distribution.

    Labels are positive, without loss of generality by symmetry. If a sequence visits each of its locations, there
    are fewer sequences.
    """
    law = zip(task.length.lengths.tolist(), task.length.probabilities.tolist(), strict=True)
    by_length = []
    for length, probability in law:
        ends = np.cumsum([heads * length, length, task.teacher_uniforms(length), 1])
        count = max(log2_points - int(np.log2(task.visited(length))), 0)
        points = sobol(ends[-1] + task.shift_uniforms, count, randomisations, seed)
        keys, values = np.split(ndtri(points[..., : ends[1]]), ends[:1], -1)
        keys = keys.reshape(*points.shape[:2], heads, length)
        of_teacher, label = np.split(points[..., ends[1] : ends[3]], [ends[2] - ends[1]], -1)
        lengths = np.full(points.shape[1], length)
        teacher = [task.draw_teacher(each, lengths) for each in of_teacher]
        shift = np.asarray(_draw_shifts(task, points[..., ends[-1] :]))
        each = zip(keys, values, ndtri((1.0 + label[..., 0]) / 2), shift, teacher, strict=True)
        by_length.append([Points(probability, *numbers) for numbers in each])
    return list(zip(*by_length, strict=True))


@eqx.filter_jit
def _draw_shifts(task: AbstractTask, uniforms: Float[Any, "r n u"]) -> Float[Array, "r n F"]:
    return jax.vmap(jax.vmap(task.draw_shift))(uniforms)


def normals_given(
    correlation: Float[Any, "*m H F"], keys: Float[Any, "n H L"], teacher: Float[Any, "n T"]
) -> Float[Any, "*m n H L"]:
    """Fields in units of `Q`, with this correlation to the teacher's if these are known (then `F = 1`).

    `c χ* + (1 − c cᵀ)^½ ζ`; the root is `1 − c cᵀ/(1 + √(1 − |c|²))`.
    """
    if teacher.shape[-1] == 0:
        return keys
    along = correlation[..., None, :, :]
    length = (along**2).sum(-2, keepdims=True)
    along = along / length.clip(1.0) ** 0.5  # noise of few points can make it longer than 1
    left = (1.0 - length).clip(0.0)
    known = (along * keys).sum(-2, keepdims=True) / (1.0 + left**0.5)
    return keys + along * (teacher[:, None] - known)


class Locations(NamedTuple):
    """The probability of each location `n e`, and its score `n e F L` to first order around a correlation.

    Scores take most of the time of a selected task: derivatives, along leading axes `H F`, are differences.
    """

    correlation: Float[Any, "H F"]
    probability: Float[Any, "n e"]
    score: Float[Any, "n e F L"]
    slope: Float[Any, "H F n e F L"]


def locate(task: AbstractTask, correlation: Float[np.ndarray, "H F"], points: Points) -> Locations:
    """The distribution of the location given the fields."""
    step = np.where(correlation > 0, -_PROBE, _PROBE).ravel()  # towards zero
    moved = np.concatenate([[0.0 * step], np.diag(step)]).reshape(-1, *correlation.shape)
    given = points.keys, points.shift, points.teacher
    probability, score = map(np.asarray, _locate(task, correlation + moved, *given))
    slope = (score[1:] - score[0]) / step.reshape(-1, *[1] * (score.ndim - 1))
    slope = slope.reshape(*correlation.shape, *score.shape[1:])
    return Locations(correlation, probability[0], score[0], slope)


@eqx.filter_jit
def _locate(
    task: AbstractTask,
    correlations: Float[Any, "c H F"],
    keys: Float[Any, "n H L"],
    shifts: Float[Any, "n F"],
    teacher: Float[Any, "n T"],
) -> tuple[Float[Array, "c n e"], Float[Array, "c n e F L"]]:
    """The probability of the visited locations and their scores, at several correlations."""

    def at(correlation: Array) -> tuple[Array, Array]:
        normals = normals_given(correlation, keys, teacher)
        return jax.vmap(task.visit, (None, 0, 0, 0))(correlation, normals, shifts, teacher)

    return jax.lax.map(at, correlations)


class CavitySamples(NamedTuple):
    """Sequences with axes `m n e`: unknowns, point, location.

    Their probability, the token of the location, the cavity fields and the label, the score `∂ log G` of the location,
    and `t = (ω_z,ε − m c y)/(q − m² c)` with `c = 1/(1+Δ²)`, all three over `γ` where the relevant token has a spread.
    """

    probability: Float[np.ndarray, "n e"]
    location: Float[np.ndarray, "e L"]
    sample: Sample
    score: Float[np.ndarray, "m n e F L"]
    excess: Float[np.ndarray, "m n e"]


def cavity_samples(
    task: AbstractTask, unknowns: Unknowns, points: Points, locations: Locations
) -> CavitySamples:
    """All sequences of some points, at several unknowns."""
    away = unknowns.correlation - locations.correlation
    score = locations.score + np.tensordot(away, locations.slope, 2)
    count, length = score.shape[-3], score.shape[-1]
    here = np.eye(count, length)
    m, q = (each[:, 0, 0, None] for each in unknowns.values[:2])
    first = np.eye(length)[0]  # where there is a shift, only the first location is visited
    shifted = np.einsum("mhf,nf,l->mnhl", unknowns.keys.M, points.shift, first)
    spread = float(task.spread)  # other than one only where the first location alone is visited
    normals = normals_given(unknowns.correlation, points.keys, points.teacher)
    keys = lower_factor(unknowns.keys.Q)[:, None] @ normals
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
    return CavitySamples(locations.probability, here, sample, score, excess)
