"""What a sample of the training set looks like to a student with given overlaps (section 6).

Only the cavity fields `ω_χ`, `ω_z` and the label matter; the teacher's fields are integrated out. With `G_ε(x)` the
weight of location `ε` when `χ* ~ N(x, 1 − m²/q)` and `x = mω/q`, Gaussian integration by parts gives for any task

    m̂_k = α E[Σ_ℓ ∂_ℓ log G_ε f_ℓ] ,   V̂_k = −α E[Σ ω f]/q + (m/q) m̂_k

and for `v`, with `c = 1/(1+Δ²)`, `t = (ω_ε − m c y)/(q − m² c)`,

    m̂_v = α c E[f_ε (y − m t)] ,   V̂_v = −α E[t f_ε] − α E[Σ_{ℓ≠ε} ω f]/q .

Lengths of a law are handled one by one, each with points of its own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from ..numerics.noisy_argmax import select, tabulate
from ..numerics.qmc import sobol
from ..tasks import AbstractPlanted, AbstractSelected
from .proximal import Fitted, Response, Sample

_PROBE = 1e-4  # step of the differences in the correlation


class Order(NamedTuple):
    """`m`, `q` and `V` of one of the two directions."""

    m: Any
    q: Any
    V: Any


class Student(NamedTuple):
    """The six unknowns of the fixed point."""

    k: Order
    v: Order

    @property
    def response(self) -> Response:
        return Response(self.k.V, self.v.V)


class Hats(NamedTuple):
    """`m̂/α`, `q̂/α`, `V̂/α` of both directions, and the training error."""

    m_k: Any
    q_k: Any
    V_k: Any
    m_v: Any
    q_v: Any
    V_v: Any
    train: Any


class Sequences(NamedTuple):
    """Points for sequences of one length: normal numbers for scores, values and the label, per randomisation."""

    weight: float
    scores: Float[Array, "r n L"]
    values: Float[Array, "r n L"]
    label: Float[Array, "r n"]


def draw(
    task: AbstractPlanted | AbstractSelected, log2_points: int, randomisations: int, seed: int
) -> tuple[Sequences, ...]:
    """Points for each length of the law; the label is taken positive, which loses nothing by symmetry.

    A selected task visits each location of a sequence, so that fewer sequences do.
    """
    law = zip(task.length.lengths.tolist(), task.length.probabilities.tolist(), strict=True)
    drawn = []
    for length, probability in law:
        size = int(length)
        fewer = int(np.log2(size)) if isinstance(task, AbstractSelected) else 0
        points = sobol(2 * size + 1, log2_points - fewer, randomisations, seed)
        normals = ndtri(jnp.asarray(points[..., :-1]))
        label = ndtri(jnp.asarray((1.0 + points[..., -1]) / 2))
        drawn.append(Sequences(probability, normals[..., :size], normals[..., size:], label))
    return tuple(drawn)


class Located(NamedTuple):
    """The law of the location `r n e` and its score `∂ log G` `r n e L`, around a correlation of teacher and student.

    They depend on nothing else, and take most of the time of a selected task: derivatives are differences.
    """

    correlation: Any
    law: Array
    tilt: Array
    law_slope: Array
    tilt_slope: Array

    def at(self, correlation: Any) -> tuple[Array, Array]:
        """To first order."""
        away = correlation - self.correlation
        return self.law + away * self.law_slope, self.tilt + away * self.tilt_slope


def locate(task: AbstractPlanted | AbstractSelected, order: "Order", points: Sequences) -> Located:
    """What the scores tell of the location."""
    correlation = order.m / jnp.sqrt(order.q)
    if isinstance(task, AbstractPlanted):  # the first token is as good as any
        law = jnp.ones((*points.label.shape, 1))
        first = jnp.zeros(points.scores.shape[-1]).at[0].set(task.shift)
        tilt = jnp.broadcast_to(first, points.scores.shape)[:, :, None]
        return Located(correlation, law, tilt, jnp.zeros_like(law), jnp.zeros_like(tilt))
    step = _PROBE * jnp.where(correlation > 0.5, -1.0, 1.0)
    here, there = (_selected(task, at, points) for at in (correlation, correlation + step))
    slopes = jax.tree.map(lambda new, old: (new - old) / step, there, here)
    return Located(correlation, *here, *slopes)


def _selected(task: AbstractSelected, correlation: Array, points: Sequences) -> tuple[Array, Array]:
    length = points.scores.shape[-1]
    left = 1.0 - correlation**2
    slope = 1.0 / jnp.sqrt(left + 1.0 / task.sharpness**2)
    table = tabulate(slope * jnp.sqrt(left))

    def at_point(normals: Array) -> tuple[Array, Array]:
        law, rivalry = select(slope * correlation * normals, jnp.ones(length, bool), table)
        rivalry = rivalry * (1.0 - jnp.eye(length))
        score = jnp.diag(jnp.sum(rivalry, 1)) - rivalry
        return law, slope * score / law[:, None]

    return jax.lax.map(jax.vmap(at_point), points.scores)


class Seen(NamedTuple):
    """One sequence with one location: how likely it is, its cavity fields, the score of its location, and `t`."""

    probability: Any
    location: Any
    sample: Sample
    tilt: Float[Array, " L"]
    excess: Any


def sequences(
    task: AbstractPlanted | AbstractSelected, student: Student, points: Sequences, located: Located
) -> Seen:
    """All sequences of some points, with axes `r n e`: randomisation, point, location."""
    k, (m, q, _) = student.k, student.v
    probability, tilt = located.at(k.m / jnp.sqrt(k.q))
    count, length = tilt.shape[-2:]
    here = jnp.eye(count, length)
    shift = task.shift if isinstance(task, AbstractPlanted) else 0.0
    scores = k.m * shift * here + jnp.sqrt(k.q) * points.scores[:, :, None]
    share = 1.0 / (1.0 + task.noise**2)
    left = q - m**2 * share
    label = points.label / jnp.sqrt(share)
    own = (m * share * label)[..., None] + jnp.sqrt(left) * points.values
    values = jnp.where(here > 0, own[:, :, None], jnp.sqrt(q) * points.values[:, :, None])
    sample = Sample(scores, values, jnp.broadcast_to(label[..., None], values.shape[:-1]))
    excess = points.values[..., :count] / jnp.sqrt(left)
    return Seen(probability, here, sample, tilt, excess)


def hats(
    task: AbstractPlanted | AbstractSelected, student: Student, seen: Seen, fitted: Fitted
) -> Hats:
    """The means over the points of each randomisation, for pulls of any kind."""
    k, v = student.k, student.v
    share = 1.0 / (1.0 + task.noise**2)

    def mean(values: Array) -> Array:
        return jnp.mean(jnp.sum(seen.probability * values, -1), -1)

    own = jnp.sum(seen.location * fitted.pull_v, -1)
    others = jnp.sum((1.0 - seen.location) * seen.sample.values * fitted.pull_v, -1)
    m_k = mean(jnp.sum(seen.tilt * fitted.pull_k, -1))
    drag = mean(jnp.sum(seen.sample.scores * fitted.pull_k, -1))
    return Hats(
        m_k,
        mean(jnp.sum(fitted.pull_k**2, -1)),
        (k.m * m_k - drag) / k.q,
        share * mean(own * (seen.sample.label - v.m * seen.excess)),
        mean(jnp.sum(fitted.pull_v**2, -1)),
        -mean(seen.excess * own) - mean(others) / v.q,
        mean(fitted.loss),
    )
