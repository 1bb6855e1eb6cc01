"""Any attention on any task, by averages over Sobol points of the fields of all tokens (sections 4.3 and 10).

Given the scores, `z` and `z*` are Gaussian and integrated exactly (section 4.1), and so is the location where the
task selects it: only the scores, and the fields that select, are drawn. Any number of key vectors and features.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float

from ..._check import refuse, whole
from ...attention import AbstractAttention
from ...numerics.linalg import cholesky, solve_lower
from ...numerics.qmc import sobol
from ...tasks import AbstractNeedle, AbstractTask
from ..overlaps import Overlaps
from .base import AbstractEngine, Correlations

LONGEST = 4096
MOST_LENGTHS = 64
_MOST_COORDINATES = 21201  # of Sobol points in SciPy
RANDOMISATIONS = 16
MOST_POINTS, _MOST_NUMBERS = 14, 24  # powers of two: points a randomisation, and numbers in all


class _Blocks(NamedTuple):
    """Blocks of the overlaps: keys (`k`) and value vector (`v`), features (`f`) and `v*` (`s`)."""

    m_kf: Any
    m_ks: Any
    m_vf: Any
    m_vs: Any
    q_kk: Any
    q_vk: Any
    q_vv: Any


def _blocks(overlaps: Overlaps) -> _Blocks:
    M, Q = overlaps.M, overlaps.Q
    of_teacher = M[:-1, :-1], M[:-1, -1], M[-1, :-1], M[-1, -1]
    return _Blocks(*of_teacher, Q[:-1, :-1], Q[-1, :-1], Q[-1, -1])


class AbstractSobol(AbstractEngine):
    """Averages over scrambled Sobol points, `[randomisation, point, coordinate]` for each length of the task."""

    points: tuple[Any, ...]

    @staticmethod
    @abstractmethod
    def dimension(task: Any, keys: int, length: int) -> int:
        """Coordinates of one point."""

    @abstractmethod
    def at_point(
        self, task: Any, attention: AbstractAttention, overlaps: Overlaps, point: Array
    ) -> Correlations:
        """The correlations of one sequence."""

    def correlations(
        self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        """The correlations of each randomisation."""
        return self.average(task, lambda point: self.at_point(task, attention, overlaps, point))

    def average(self, task: AbstractTask, at_point: Callable[[Array], Any]) -> Any:
        """The mean over points and over the lengths of the task, per randomisation."""

        def one_randomisation(points: tuple[Array, ...]) -> Any:
            means = [jax.tree.map(jnp.mean, jax.vmap(at_point)(each)) for each in points]
            stacked = jax.tree.map(lambda *values: jnp.stack(values), *means)
            return jax.tree.map(task.length.mean, stacked)

        return jax.lax.map(one_randomisation, self.points)


class NeedleSequence(NamedTuple):
    """One sequence of a needle task: which token is relevant, the deviation of the fields of each token, the shift of
    the relevant one along the features, and independent normal numbers for each token."""

    relevant: Bool[Array, " L"]
    deviations: Float[Array, " L"]
    shift: Float[Array, " F"]
    normals: Float[Array, "L n"]


def needle_sequence(task: AbstractNeedle, point: Float[Array, " d"], count: int) -> NeedleSequence:
    """The sequence of a point of the unit cube, with `count` normal numbers for each token.

    The location is drawn, since a general attention need not be equivariant. The relevant token has its own
    coordinates, the first ones, which Sobol points cover best.
    """
    drawn = 1 + task.shift_uniforms
    own = ndtri(point[drawn:]).reshape(-1, count)  # the relevant token first
    places, location = jnp.arange(len(own)), jnp.floor(len(own) * point[0])
    relevant = places == location
    normals = jnp.where(relevant[:, None], own[0], own[places + (places < location)])
    deviations = jnp.where(relevant, task.spread, 1.0)
    return NeedleSequence(relevant, deviations, task.draw_shift(point[1:drawn]), normals)


class SobolScores(AbstractSobol):
    """Needle tasks: the location, the shift of the relevant token and the scores are drawn."""

    @staticmethod
    def dimension(task: AbstractNeedle, keys: int, length: int) -> int:
        return 1 + task.shift_uniforms + keys * length

    def at_point(
        self, task: AbstractNeedle, attention: AbstractAttention, overlaps: Overlaps, point: Array
    ) -> Correlations:
        attention = attention.given_norms(jnp.diagonal(overlaps.Q)[:-1])
        drawn, m = needle_sequence(task, point, attention.keys), _blocks(overlaps)
        x, relevant, scale = drawn.normals, drawn.relevant[:, None], drawn.deviations[:, None]
        factor = cholesky(m.q_kk)
        slope, label_slope = (solve_lower(factor, each) for each in (m.q_vk, m.m_ks))
        scores = jnp.where(relevant, m.m_kf @ drawn.shift, 0.0) + scale * (x @ factor.T)
        value = jnp.where(relevant, m.m_vf @ drawn.shift, 0.0) + scale * (x @ slope)[:, None]
        return _given_scores(
            attention.attend(scores.T),
            value[:, 0],
            scale[:, 0] * (x @ label_slope),
            scale[:, 0] ** 2 * (m.q_vv - slope @ slope),
            scale[:, 0] ** 2 * (m.m_vs - slope @ label_slope),
            relevant[:, 0].astype(float),
        )


class SobolFields(AbstractSobol):
    """Selected and weighted tasks: fields and scores are drawn, and the location is averaged over."""

    @staticmethod
    def dimension(task: AbstractTask, keys: int, length: int) -> int:
        return (1 + keys) * length

    def at_point(
        self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps, point: Array
    ) -> Correlations:
        length, m = point.size // (1 + attention.keys), _blocks(overlaps)
        attention = attention.given_norms(jnp.diagonal(overlaps.Q)[:-1])
        fields, x = ndtri(point[:length]), ndtri(point[length:]).reshape(length, -1)
        own, along = m.m_kf[:, 0], m.m_vf[0]  # of keys and value vector, with the feature
        factor = cholesky(m.q_kk - own[:, None] * own)
        slope = solve_lower(factor, m.q_vk - along * own)
        label_slope = solve_lower(factor, m.m_ks)
        label, power = _given_scores(
            attention.attend((fields[:, None] * own + x @ factor.T).T),
            along * fields + x @ slope,
            x @ label_slope,
            jnp.full(length, m.q_vv - along**2 - slope @ slope),
            jnp.full(length, m.m_vs - slope @ label_slope),
            task.posterior(fields),
        )
        tilt = jnp.exp(task.log_tilt(fields))
        return Correlations(tilt * label, tilt * power)

    def mean_tilt(self, task: AbstractTask, keys: int = 1) -> tuple[Array, Array]:
        """`E[g]` and `E[g Σp²]`, per randomisation; the first must be one."""

        def at_point(point: Array) -> tuple[Array, Array]:
            fields = ndtri(point[: point.size // (1 + keys)])
            tilt = jnp.exp(task.log_tilt(fields))
            return tilt, tilt * jnp.sum(task.posterior(fields) ** 2)

        return self.average(task, at_point)


def _given_scores(
    weights: Float[Array, " L"],
    value: Float[Array, " L"],
    label: Float[Array, " L"],
    variance: Float[Array, " L"],
    covariance: Float[Array, " L"],
    location: Float[Array, " L"],
) -> Correlations:
    """`E[y σ·z]` and `E[(σ·z)²]` given the scores: from `E[z]`, `E[z*]`, `Var z`, `Cov(z, z*)` of each token, and the
    law of the location."""
    output = weights @ value
    own = weights * covariance + label * output
    return Correlations(location @ own, output**2 + weights**2 @ variance)


def draw_points(
    engine: type[AbstractSobol],
    task: AbstractTask,
    keys: int,
    seed: int,
    randomisations: int,
    log2_points: int = MOST_POINTS,
) -> tuple[np.ndarray, ...]:
    """Uniform points for each length of the task, at most `2^log2_points`."""
    law, seed = task.length, whole("seed", seed, minimum=0)
    if law.longest > LONGEST or len(law.lengths) > MOST_LENGTHS:
        allowed = f"at most {LONGEST} long and of at most {MOST_LENGTHS} lengths where random points are used"
        raise refuse("length", str(law), allowed + " (a general attention, or a weighted task)")
    points = []
    for length in law.lengths:
        dimension = engine.dimension(task, keys, int(length))
        if dimension > _MOST_COORDINATES:
            allowed = f"such that a sequence has at most {_MOST_COORDINATES} random coordinates"
            raise refuse("length", str(law), f"{allowed}, not {dimension} with {keys} keys")
        room = _MOST_NUMBERS - int(np.ceil(np.log2(RANDOMISATIONS * dimension)))
        points.append(sobol(dimension, min(log2_points, room), randomisations, seed))
    return tuple(points)
