"""Any attention on any task, over random points of the fields of all tokens (section 4.3).

Given the scores, `z` and `z*` are Gaussian and integrated exactly (section 4.1), and so is the location where the
task selects it: only the scores, and the fields that select, are drawn.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from .._check import refuse
from ..attention import AbstractAttention
from ..numerics.qmc import sobol
from ..tasks import AbstractPlanted, AbstractTask, AbstractWeighted
from .correlations import (
    Conditional,
    Correlations,
    given_field_and_score,
    given_score,
    left_by_field,
    root,
)
from .overlaps import Overlaps

LONGEST = 4096
MOST_LENGTHS = 64
RANDOMISATIONS = 16
_MOST_POINTS, _MOST_NUMBERS = 14, 24  # powers of two: points a randomisation, and numbers in all


def draw(
    task: AbstractTask, seed: int = 0, randomisations: int = RANDOMISATIONS
) -> tuple[np.ndarray, ...]:
    """Uniform points for each length of the task: `[randomisation, point, coordinate]`."""
    law = task.length
    if law.longest > LONGEST or len(law.lengths) > MOST_LENGTHS:
        allowed = f"at most {LONGEST} long and of at most {MOST_LENGTHS} lengths where random points are used"
        raise refuse("length", str(law), allowed + " (a general attention, or a weighted task)")
    dimensions = (dimension(task, int(length)) for length in law.lengths)
    return tuple(_points(each, seed, randomisations) for each in dimensions)


def dimension(task: AbstractTask, length: int) -> int:
    """Coordinates of one point: a planted task needs the scores and the location, others the fields and scores."""
    return length + 1 if isinstance(task, AbstractPlanted) else 2 * length


def _points(dimension: int, seed: int, randomisations: int) -> np.ndarray:
    room = _MOST_NUMBERS - int(np.ceil(np.log2(RANDOMISATIONS * dimension)))
    return sobol(dimension, min(_MOST_POINTS, room), randomisations, seed)


def correlations(
    task: AbstractTask,
    attention: AbstractAttention,
    overlaps: Overlaps,
    points: tuple[Float[Array, "n dimension"], ...],
) -> Correlations:
    """The correlations from one randomisation of the points of each length."""

    def at_point(point: Array) -> Correlations:
        if isinstance(task, AbstractPlanted):
            return _planted(task, attention, overlaps, point)
        return _weighted(task, attention, overlaps, point)

    def at_length(uniforms: Array) -> Correlations:
        return jax.tree.map(jnp.mean, jax.vmap(at_point)(uniforms))

    per_length = [at_length(uniforms) for uniforms in points]
    stacked = jax.tree.map(lambda *values: jnp.stack(values), *per_length)
    return jax.tree.map(task.length.mean, stacked)


def _planted(
    task: AbstractPlanted, attention: AbstractAttention, overlaps: Overlaps, point: Array
) -> Correlations:
    """One sequence whose location is drawn, since a general attention need not treat all alike.

    The relevant token has a coordinate of its own, the one that matters most and that Sobol points cover best.
    """
    length = point.size - 1
    places, location = jnp.arange(length), jnp.floor(length * point[0])
    relevant = places == location
    x = ndtri(jnp.where(relevant, point[1], point[1 + places + (places < location)]))
    here, there = given_score(overlaps, task.shift, task.spread), given_score(overlaps)
    deviation = jnp.where(relevant, task.spread, 1.0) * root(overlaps.q_kk)
    mean = jnp.where(relevant, overlaps.m_kk * task.shift, 0.0)
    given = Conditional(*(jnp.where(relevant, a, b) for a, b in zip(here, there, strict=True)))
    weights = attention(mean + deviation * x)
    return _given_scores(weights, x, given, jnp.where(relevant, 1.0, 0.0))


def _weighted(
    task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps, point: Array
) -> Correlations:
    """One sequence of plain Gaussian fields, weighted by the task, averaged over the location."""
    fields, x = jnp.split(ndtri(point), 2)
    log_odds = task.log_odds(fields)
    given = given_field_and_score(overlaps, fields)
    weights = attention(overlaps.m_kk * fields + left_by_field(overlaps) * x)
    values = _given_scores(weights, x, given, jax.nn.softmax(log_odds))
    if not isinstance(task, AbstractWeighted):
        return values
    tilt = jnp.exp(jax.nn.logsumexp(log_odds)) / fields.size
    return jax.tree.map(lambda value: tilt * value, values)


def _given_scores(
    weights: Float[Array, " L"],
    x: Float[Array, " L"],
    given: Conditional,
    location: Float[Array, " L"],
) -> Correlations:
    """`E[y σ·z]` and `E[(σ·z)²]` given the scores and the law of the location."""
    output = jnp.sum(weights * (given.value + given.slope * x))
    own = weights * given.covariance + given.label_slope * x * output
    return Correlations(jnp.sum(location * own), output**2 + jnp.sum(weights**2 * given.variance))


def mean_tilt(task: AbstractTask, points: tuple[Any, ...]) -> tuple[Array, Array]:
    """`E[g]` and `E[g Σp²]` of a weighted task, per randomisation; the first must be one."""

    def at_point(point: Array) -> tuple[Array, Array]:
        log_odds = task.log_odds(ndtri(point[: point.size // 2]))
        tilt = jnp.exp(jax.nn.logsumexp(log_odds)) * 2 / point.size
        return tilt, tilt * jnp.sum(jax.nn.softmax(log_odds) ** 2)

    def one_randomisation(*uniforms: Array) -> tuple[Array, Array]:
        means = [jax.tree.map(jnp.mean, jax.vmap(at_point)(each)) for each in uniforms]
        stacked = jax.tree.map(lambda *values: jnp.stack(values), *means)
        return jax.tree.map(task.length.mean, stacked)

    return jax.lax.map(lambda uniforms: one_randomisation(*uniforms), points)
