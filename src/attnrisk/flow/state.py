"""The state of a gradient flow, student vectors and free biases as one row of numbers, and its risk.

Overlaps that move with a gradient flow of `P` vectors in `R^D` are those of `P` vectors in `T + P` coordinates, since
the gradient stays in the span of teacher and student (section 10).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._results import ErrorKind, Estimate
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.engines import AbstractEngine
from ..population.overlaps import Overlaps, overlaps_of, vectors_of
from ..population.plan import SHARPEST, is_exact, light_plan, plan, steepest
from ..population.risk import ROUNDING
from ..tasks import AbstractTask

# Lengths of keys that plans are made for, each at a higher price than the one before. A longer key leaves the domain.
REACHES = (2.0, 2.8, 4.0, 8.0, SHARPEST, 2 * SHARPEST)
FEW_REACHES = (2.8, 8.0, SHARPEST, 2 * SHARPEST)  # so that problems share compiled code
_ELEMENTWISE_REACHES = (4.0, SHARPEST, 2 * SHARPEST)  # where integrals are one-dimensional
_SHARP = 8.0  # a longer key is not planned for before it comes
_QUIET = 1.0  # noise of keys that follow the teacher's
MARGIN = 0.9  # of a reach, for the step that passes it
_FINER = 1.25  # fineness of the rule that gives a reported risk; its distance from that of fineness 1 is the error
_SEED = 1  # of the random points of a flow: others than those that its risks are reported with
# Noise of vectors where random points are used: it moves the risk by some 10^-4, less than the error of the points.
SMOOTHING = 0.02


class Extent(NamedTuple):
    """Norms of keys, of each the largest over the keys: the whole `length`, the `noise` outside the teacher's key
    directions, and the `overlap` with them."""

    length: Any
    noise: Any
    overlap: Any


def pack(attention: AbstractAttention, overlaps: Overlaps, spare: int = 0) -> np.ndarray:
    """A state for each of these overlaps, with `spare` coordinates outside the span of teacher and student."""
    vectors = np.pad(_vectors(as_arrays(overlaps)), ((0, 0), (0, 0), (0, spare)))
    biases = np.tile(np.ravel(attention.bias), (len(vectors), int(attention.free_bias)))
    return np.concatenate([vectors.reshape(len(vectors), -1), biases], 1)


_vectors = eqx.filter_jit(jax.vmap(vectors_of))


def unpack(states: Float[Any, "*batch n"], attention: AbstractAttention) -> tuple[Any, Any]:
    """Vectors, a row for each, and the bias."""
    xp, batch, shape = states.__array_namespace__(), states.shape[:-1], jnp.shape(attention.bias)
    end = states.shape[-1] - int(attention.free_bias) * jnp.size(attention.bias)
    vectors = states[..., :end].reshape((*batch, attention.keys + 1, -1))
    if attention.free_bias:
        return vectors, states[..., end:].reshape((*batch, *shape))
    return vectors, xp.broadcast_to(xp.asarray(attention.bias), (*batch, *shape))


def extent(
    states: Float[Any, "*batch n"], task: AbstractTask, attention: AbstractAttention
) -> Extent:
    """How far the keys of these states reach."""
    keys, norm = unpack(states, attention)[0][..., :-1, :], states.__array_namespace__().linalg.norm
    parts = keys, keys[..., task.features :], keys[..., : task.features]
    return Extent(*(norm(part, axis=-1).max(-1) for part in parts))


def overlaps_at(
    states: Float[Any, "*batch n"], task: AbstractTask, attention: AbstractAttention
) -> Overlaps:
    """The overlaps of these states."""
    return overlaps_of(unpack(states, attention)[0], task.features + 1)


def limits_of(
    task: AbstractTask,
    attention: AbstractAttention,
    states: Float[np.ndarray, "s n"],
    known: tuple[float, ...],
    margin: float = 1.0,
) -> list[Extent]:
    """Of each state, the limits of the plan that it needs; a longer key than the longest is outside the domain.

    They begin with a length that will do if the student becomes as sharp as the teacher. Plans of a selected task
    depend on the rest too: while keys follow the teacher's they leave little noise, elsewhere their overlap is small.
    """
    selected = steepest(task, attention, aligned=False) == SHARPEST
    elementwise = not attention.compares_tokens
    longest, least = (1 if selected else 2) * SHARPEST, min(float(task.strength) / MARGIN, _SHARP)
    if not is_exact(task, attention) or (elementwise and not selected):
        least = longest
    lengths = [r for r in (_ELEMENTWISE_REACHES if elementwise else known) if least <= r <= longest]
    found = []
    for length, noise, overlap in zip(*extent(states / margin, task, attention), strict=True):
        reach = next((r for r in lengths if length < r), longest)
        blunt = next((r for r in known if overlap < r), reach)
        if selected and noise < _QUIET:
            found.append(Extent(reach, _QUIET, reach))
        else:
            found.append(Extent(reach, reach, min(reach, blunt) if selected else reach))
    return found


def flow_plan(
    task: AbstractTask,
    attention: AbstractAttention,
    limits: Extent,
    fineness: float = 1.0,
    seed: int = _SEED,
) -> AbstractEngine:
    """A plan for gradients: one randomisation where the risk is found from random points."""
    if is_exact(task, attention):
        return light_plan(task, attention, *limits, fineness)
    return plan(task, attention, limits.length, seed=seed, randomisations=1)


def _risks_at(
    state: Array,
    task: AbstractTask,
    attention: AbstractAttention,
    engine: AbstractEngine,
    noise: float = 0.0,
) -> Float[Array, " randomisations"]:
    student, at = (
        attention.with_bias(unpack(state, attention)[1]),
        overlaps_at(state, task, attention),
    )
    noisy = Overlaps(at.M, at.Q + noise**2 * jnp.eye(attention.keys + 1))
    return jnp.atleast_1d(engine.risk(task, student, noisy))


def risk_at(
    state: Float[Array, " n"],
    task: AbstractTask,
    attention: AbstractAttention,
    engine: AbstractEngine,
) -> Float[Array, ""]:
    """The risk that a flow follows; from random points their average, with a little noise in each vector.

    That average depends on a root of `Q` or `Q − M Mᵀ`, which is not smooth where they are singular, as at minima.
    """
    noise = 0.0 if is_exact(task, attention) else SMOOTHING
    return jnp.mean(_risks_at(state, task, attention, engine, noise))


def values_at(
    task: AbstractTask, attention: AbstractAttention, states: Float[np.ndarray, "*batch n"]
) -> tuple[Estimate, np.ndarray]:
    """Risks with their errors, and norms of the gradients that a flow follows."""
    flat, exact = states.reshape(-1, states.shape[-1]), is_exact(task, attention)
    value, error, norms = np.empty((3, len(flat)))
    needed = limits_of(task, attention, flat, FEW_REACHES)
    for limits in dict.fromkeys(needed):
        which = np.array([each == limits for each in needed])
        here = as_arrays((flat[which], task, attention))
        rough, norms[which] = _risks_and_norms(*here, as_arrays(flow_plan(task, attention, limits)))
        fine = np.asarray(_risks(*here, as_arrays(light_plan(task, attention, *limits, _FINER))))
        value[which] = fine.mean(1)
        if exact:
            error[which] = np.abs(value[which] - rough) + ROUNDING * (1.0 + np.abs(value[which]))
        else:
            error[which] = fine.std(1, ddof=1) / np.sqrt(fine.shape[1])
    value, error, norms = (part.reshape(states.shape[:-1]) for part in (value, error, norms))
    return Estimate(value, error, ErrorKind.BOUND if exact else ErrorKind.STANDARD), norms


# One state after the other: memory is that of one, and a batch would be compiled twice, for its remainder as well.
@eqx.filter_jit
def _risks(states: Array, *problem: Any) -> Float[Array, "s randomisations"]:
    return jax.lax.map(lambda state: _risks_at(state, *problem), states)


@eqx.filter_jit
def _risks_and_norms(states: Array, *problem: Any) -> tuple[Array, Array]:
    def at(state: Array) -> tuple[Array, Array]:
        value, gradient = jax.value_and_grad(risk_at)(state, *problem)
        return value, jnp.linalg.norm(gradient)

    return jax.lax.map(at, states)
