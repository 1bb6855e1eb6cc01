"""The state of a gradient flow: student vectors and free biases as one row of numbers (sections 5 and 10).

Overlaps that move with a gradient flow of `P` vectors in `R^D` are those of `P` vectors in `T + P` coordinates: the
gradient stays in the span of teacher and student.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps, overlaps_of, vectors_of
from ..population.risk import Plan, risk
from ..tasks import AbstractTask


class Extent(NamedTuple):
    """Norms of key vectors, of each the largest over the keys: the whole `length`, the `noise` outside the teacher's
    key directions, and the `overlap` with them."""

    length: Any
    noise: Any
    overlap: Any


def pack(attention: AbstractAttention, overlaps: Overlaps, spare: int = 0) -> np.ndarray:
    """A state for each of these overlaps, with `spare` coordinates outside the span of teacher and student."""
    vectors = np.pad(_vectors(as_arrays(overlaps)), ((0, 0), (0, 0), (0, spare)))
    states = vectors.reshape(len(vectors), -1)
    biases = np.tile(np.ravel(attention.bias), (len(states), 1))
    return np.concatenate([states, biases], 1) if attention.free_bias else states


_vectors = eqx.filter_jit(jax.vmap(vectors_of))


def unpack(states: Float[Any, "*batch n"], attention: AbstractAttention) -> tuple[Any, Any]:
    """Vectors, a row for each, and the bias."""
    xp, batch, shape = states.__array_namespace__(), states.shape[:-1], jnp.shape(attention.bias)
    end = states.shape[-1] - (jnp.size(attention.bias) if attention.free_bias else 0)
    vectors = states[..., :end].reshape((*batch, attention.keys + 1, -1))
    if not attention.free_bias:
        return vectors, xp.broadcast_to(xp.asarray(attention.bias), (*batch, *shape))
    return vectors, states[..., end:].reshape((*batch, *shape))


def extent(states: Float[Any, "*batch n"], task: AbstractTask, attention: AbstractAttention) -> Extent:
    """How far the keys of these states reach."""
    keys = unpack(states, attention)[0][..., :-1, :]
    inside, outside = keys[..., : task.features], keys[..., task.features :]
    norm = states.__array_namespace__().linalg.norm
    return Extent(*(norm(part, axis=-1).max(-1) for part in (keys, outside, inside)))


def overlaps_at(
    states: Float[Any, "*batch n"], task: AbstractTask, attention: AbstractAttention
) -> Overlaps:
    """The overlaps of these states."""
    return overlaps_of(unpack(states, attention)[0], task.features + 1)


def risks_at(
    state: Float[Array, " n"], task: AbstractTask, attention: AbstractAttention, plan: Plan
) -> Float[Array, " randomisations"]:
    """The risk of a state; one number, unless the plan has random points."""
    student = attention.with_bias(unpack(state, attention)[1])
    return jnp.atleast_1d(risk(task, student, overlaps_at(state, task, attention), plan))


def risk_at(state: Float[Array, " n"], *problem: Any) -> Float[Array, ""]:
    """The average over randomisations."""
    return jnp.mean(risks_at(state, *problem))
