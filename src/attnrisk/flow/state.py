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
from ..numerics.quadrature import ROUNDING
from ..population.engines import AbstractEngine
from ..population.overlaps import Overlaps, overlaps_of, vectors_of
from ..population.plan import SHARPEST, is_exact, light_plan, plan, steepest
from ..tasks import AbstractTask

# Lengths of keys that plans are made for, each at a higher price than the one before. A longer key leaves the domain.
REACHES = (2.0, 2.8, 4.0, 8.0, SHARPEST, 2 * SHARPEST)
FEW_REACHES = (2.8, 8.0, SHARPEST, 2 * SHARPEST)  # so that problems share compiled code
_ELEMENTWISE_REACHES = (4.0, SHARPEST, 2 * SHARPEST)  # where integrals are one-dimensional
_SHARP = 8.0  # a longer key is not planned for before it comes
_QUIET = 1.0  # noise of keys that follow the teacher's
MARGIN = 0.9  # of a reach, for the step that passes it
_FINER = 1.25  # fineness of the rule that gives a reported risk; its distance from that of fineness 1 is the error
# Noise of vectors where random points are used: it moves the risk by some 10^-4, less than the error of the points.
SMOOTHING = 0.02


class Extent(NamedTuple):
    """Norms of keys, of each the largest over the keys: the whole `length`, the `noise` outside the teacher's key
    directions, and the `overlap` with them."""

    length: Any
    noise: Any
    overlap: Any


class Problem(eqx.Module):
    """What flows: an attention on a task. States are rows of numbers, with any batch axes in front."""

    task: AbstractTask
    attention: AbstractAttention

    @property
    def is_exact(self) -> bool:
        """Whether risks come from deterministic quadrature."""
        return is_exact(self.task, self.attention)

    def pack(self, overlaps: Overlaps, spare: int = 0) -> Float[np.ndarray, "s n"]:
        """A state for each of the overlaps, with `spare` coordinates outside the span of teacher and student."""
        vectors = np.pad(_vectors(as_arrays(overlaps)), ((0, 0), (0, 0), (0, spare)))
        bias, free = np.ravel(self.attention.bias), int(self.attention.free_bias)
        return np.concatenate(
            [vectors.reshape(len(vectors), -1), np.tile(bias, (len(vectors), free))], 1
        )

    def unpack(self, states: Any) -> tuple[Any, Any]:
        """Vectors, a row for each, and the bias."""
        batch, bias, xp = states.shape[:-1], self.attention.bias, states.__array_namespace__()
        shape = *batch, *jnp.shape(bias)
        end = states.shape[-1] - int(self.attention.free_bias) * jnp.size(bias)
        vectors = states[..., :end].reshape((*batch, self.attention.keys + 1, -1))
        if self.attention.free_bias:
            return vectors, states[..., end:].reshape(shape)
        return vectors, xp.broadcast_to(xp.asarray(bias), shape)

    def overlaps(self, states: Any) -> Overlaps:
        """The overlaps of states."""
        return overlaps_of(self.unpack(states)[0], self.task.features + 1)

    def extent(self, states: Any) -> Extent:
        """How far the keys of states reach."""
        keys, features = self.unpack(states)[0][..., :-1, :], self.task.features
        norm = states.__array_namespace__().linalg.norm
        parts = keys, keys[..., features:], keys[..., :features]
        return Extent(*(norm(part, axis=-1).max(-1) for part in parts))

    def limits(
        self, states: Float[np.ndarray, "s n"], known: tuple[float, ...], margin: float = 1.0
    ) -> list[Extent]:
        """Of each state, the limits of the plan that it needs; a key beyond the last is outside the domain.

        They begin with a length that will do if the student becomes as sharp as the teacher. Plans of a selected task
        depend on the rest too: while keys follow the teacher's they leave little noise, else their overlap is small.
        """
        selected = steepest(self.task, self.attention, aligned=False) == SHARPEST
        elementwise = not self.attention.compares_tokens
        longest = (1 if selected else 2) * SHARPEST
        least = min(float(self.task.strength) / MARGIN, _SHARP)
        if not self.is_exact or (elementwise and not selected):
            least = longest
        reaches = _ELEMENTWISE_REACHES if elementwise else known
        found = []
        for length, noise, overlap in zip(*self.extent(states / margin), strict=True):
            reach = next((r for r in reaches if least <= r <= longest and length < r), longest)
            if selected and noise < _QUIET:
                found.append(Extent(reach, _QUIET, reach))
            else:
                blunt = next((r for r in known if overlap < r), reach)
                found.append(Extent(reach, reach, min(reach, blunt) if selected else reach))
        return found

    def plan(self, limits: Extent, fineness: float = 1.0, seed: int = 1) -> AbstractEngine:
        """A plan for gradients: where random points are used, one randomisation, of other points than risks have."""
        if self.is_exact:
            return light_plan(self.task, self.attention, *limits, fineness)
        return plan(self.task, self.attention, limits.length, seed=seed, randomisations=1)

    def risks(self, state: Float[Array, " n"], engine: AbstractEngine, noise: float = 0.0) -> Any:
        """The risk of one state, for each randomisation; each vector has so much noise in addition."""
        student = self.attention.with_bias(self.unpack(state)[1])
        at = self.overlaps(state)
        noisy = Overlaps(at.M, at.Q + noise**2 * jnp.eye(len(at.Q)))
        return jnp.atleast_1d(engine.risk(self.task, student, noisy))

    def risk(self, state: Float[Array, " n"], engine: AbstractEngine) -> Float[Array, ""]:
        """The risk that a flow follows; from random points their average, with a little noise in each vector.

        That average depends on a root of `Q` or `Q − M Mᵀ`, not smooth where they are singular, as at minima.
        """
        return jnp.mean(self.risks(state, engine, 0.0 if self.is_exact else SMOOTHING))

    def values(
        self, states: Float[np.ndarray, "*batch n"], limits: Extent | None = None
    ) -> tuple[Estimate, Float[np.ndarray, "*batch n"]]:
        """Risks with their errors, and the gradients that a flow follows; with plans of these limits, if given."""
        flat = states.reshape(-1, states.shape[-1])
        value, error, gradients = np.empty(len(flat)), np.empty(len(flat)), np.empty_like(flat)
        needed = [limits] * len(flat) if limits else self.limits(flat, FEW_REACHES)
        for group in dict.fromkeys(needed):
            which = np.array([each == group for each in needed])
            here, finer = (self, flat[which]), light_plan(self.task, self.attention, *group, _FINER)
            rough, gradients[which] = gradients_at(*as_arrays((*here, self.plan(group))))
            fine = np.asarray(risks_at(*as_arrays((*here, finer))))
            mean = value[which] = fine.mean(1)
            if self.is_exact:
                error[which] = np.abs(mean - rough) + ROUNDING * (1.0 + np.abs(mean))
            else:
                error[which] = fine.std(1, ddof=1) / np.sqrt(fine.shape[1])
        shape, kind = states.shape[:-1], ErrorKind.BOUND if self.is_exact else ErrorKind.STANDARD
        risks = Estimate(value.reshape(shape), error.reshape(shape), kind)
        return risks, gradients.reshape(states.shape)


_vectors = eqx.filter_jit(jax.vmap(vectors_of))


# One state after the other: memory is that of one, and a batch would be compiled twice, for its remainder as well.
@eqx.filter_jit
def risks_at(
    problem: Problem, states: Array, engine: AbstractEngine
) -> Float[Array, "s randomisations"]:
    return jax.lax.map(lambda state: problem.risks(state, engine), states)


@eqx.filter_jit
def gradients_at(problem: Problem, states: Array, engine: AbstractEngine) -> tuple[Array, Array]:
    return jax.lax.map(lambda state: jax.value_and_grad(problem.risk)(state, engine), states)
