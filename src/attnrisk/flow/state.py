"""The state of a gradient flow (student vectors and free biases as one array) and its risk.

Overlaps that move with a gradient flow of `P` vectors in `R^D` are those of `P` vectors in `T + P` coordinates, since
the gradient stays in the span of teacher and student (section 10).
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from .._results import ErrorKind, Estimate
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.minimise import compiled_map
from ..numerics.quadrature import estimate_from
from ..population.engines import AbstractEngine
from ..population.engines.base import SHARPEST
from ..population.engines.sobol import MOST_POINTS
from ..population.overlaps import Overlaps, overlaps_of, vectors_of
from ..population.plan import is_exact, light_plan, plan, steepest
from ..tasks import AbstractTask

# Lengths of keys that plans are made for, each at a higher cost than the one before. A longer key leaves the domain.
_REACHES = (2.8, 4.0, 8.0, SHARPEST, 2 * SHARPEST)
_ELEMENTWISE_REACHES = (4.0, SHARPEST, 2 * SHARPEST)  # where integrals are one-dimensional
_SHARP = 8.0  # longer keys of a teacher are planned for when a student has them
_QUIET = 1.0  # noise of keys that follow the teacher's
_MARGIN = 0.9  # of a reach that may be used: the end of a step may lie beyond
# Fineness of the rule that gives a reported risk, whose distance from that of fineness 1 is the error. At a kink rules
# converge slowly, and two of like order may agree by chance.
_FINER, _FINER_AT_KINKS = 1.25, 2.0
_BATCH = 16  # states in a compiled call
# Random points of a flow of several heads, whose Hessian has many rows; a power of two.
_FEWER_POINTS = 11
# Noise of vectors where random points are used: it moves the risk by some 10^-4, less than the error of the points.
SMOOTHING = 0.02


class Extent(NamedTuple):
    """Largest norms over the keys: the whole `length`, the `noise` outside the teacher's key
    directions, and the `overlap` with them."""

    length: Any
    noise: Any
    overlap: Any


class Problem(eqx.Module):
    """An attention on a task. States are rows of numbers, with any batch axes in front."""

    task: AbstractTask
    attention: AbstractAttention

    @property
    def is_exact(self) -> bool:
        """Whether risks come from deterministic quadrature."""
        return is_exact(self.task, self.attention)

    def pack(self, overlaps: Overlaps, spare: int = 0) -> Float[np.ndarray, "s n"]:
        """States with these overlaps, with `spare` coordinates outside the span of teacher and student."""
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
        return overlaps_of(self.unpack(states)[0], self.task.features + 1)

    @property
    def longest(self) -> float:
        """The largest norm of the keys for which the risk can be integrated."""
        return min(2 * SHARPEST, steepest(self.task, self.attention, aligned=False))

    def extent(self, states: Float[np.ndarray, "*batch n"]) -> Extent:
        keys, features = self.unpack(states)[0][..., :-1, :], self.task.features
        parts = keys, keys[..., features:], keys[..., :features]
        return Extent(*(np.linalg.norm(part, axis=-1).max(-1) for part in parts))

    def is_inside(self, states: Float[np.ndarray, "s n"]) -> np.ndarray:
        """Whether the risk can be integrated at a state and after a step from it."""
        return np.asarray(self.extent(states).length < _MARGIN * self.longest)

    def limits(self, states: Float[np.ndarray, "s n"]) -> list[Extent]:
        """For each state, the largest norms of the cheapest plan that is accurate there.

        The first plan reaches the norm at which the student is as sharp as the teacher. Plans with tables
        also depend on noise and overlap: keys along the teacher's have little noise, other keys a small overlap.
        """
        elementwise, longest = not self.attention.compares_tokens, self.longest
        is_tabulated = steepest(self.task, self.attention, aligned=False) < math.inf
        least = min(float(self.task.strength) / _MARGIN, _SHARP)
        if not self.is_exact or (elementwise and not is_tabulated):
            least = longest  # one plan for all: it costs the same
        reaches = _ELEMENTWISE_REACHES if elementwise else _REACHES
        found = []
        for length, noise, overlap in zip(*self.extent(states / _MARGIN), strict=True):
            reach = next((r for r in reaches if least <= r <= longest and length < r), longest)
            if not is_tabulated:
                found.append(Extent(reach, reach, reach))
            elif noise < _QUIET:
                found.append(Extent(reach, _QUIET, reach))
            else:
                blunt = next((r for r in _REACHES if overlap < r), reach)
                found.append(Extent(reach, reach, min(reach, blunt)))
        return found

    def plan(self, limits: Extent, fineness: float = 1.0, seed: int = 1) -> AbstractEngine:
        """A plan for gradients; with Sobol points, one randomisation with other points than those of the risks."""
        if self.is_exact:
            return light_plan(self.task, self.attention, *limits, fineness)
        several = self.attention.keys > 1 or self.task.features > 1
        points = _FEWER_POINTS if several else MOST_POINTS
        return plan(
            self.task,
            self.attention,
            limits.length,
            seed=seed,
            randomisations=1,
            log2_points=points,
        )

    def risks(self, state: Float[Array, " n"], engine: AbstractEngine, noise: float = 0.0) -> Any:
        """The risk of one state for each randomisation; `noise` is added to each vector."""
        student = self.attention.with_bias(self.unpack(state)[1])
        at = self.overlaps(state)
        noisy = Overlaps(at.M, at.Q + noise**2 * jnp.eye(len(at.Q)))
        return jnp.atleast_1d(engine.risk(self.task, student, noisy))

    def risk(self, state: Float[Array, " n"], engine: AbstractEngine) -> Float[Array, ""]:
        """The risk that a flow follows; with Sobol points their average, with a little noise added to each vector.

        That average contains a root of `Q` or `Q − M Mᵀ`, which is not smooth where they are singular, as at minima.
        """
        return jnp.mean(self.risks(state, engine, 0.0 if self.is_exact else SMOOTHING))

    def values(
        self,
        states: Float[np.ndarray, "*batch n"],
        fineness: float = 1.0,
        limits: Extent | None = None,
        hessians: bool = True,
    ) -> tuple[Estimate, Float[np.ndarray, "*batch n"]]:
        """Risks with their errors, and the gradients that a flow follows; with plans of these limits, if given.

        Gradients come from the compiled program that computes `hessians` too, which a flow has compiled already, or
        from one without.
        """
        flat, shape = states.reshape(-1, states.shape[-1]), states.shape[:-1]
        function = derivatives if hessians else gradients
        evaluate = evaluator(self, function, partial(self.plan, fineness=fineness))
        rough, slopes, *_ = evaluate(flat, limits)
        finest = _FINER if self.attention.analytic else _FINER_AT_KINKS
        finer = evaluator(
            self, risks, lambda at: light_plan(self.task, self.attention, *at, finest)
        )
        (fine,) = finer(flat, limits)
        value, kind = fine.mean(1), ErrorKind.STANDARD
        if self.is_exact:
            error, kind = estimate_from(rough, value).error, ErrorKind.BOUND
        else:
            error = fine.std(1, ddof=1) / np.sqrt(fine.shape[1])
        estimate = Estimate(value.reshape(shape), error.reshape(shape), kind)
        return estimate, slopes.reshape(states.shape)


_vectors = eqx.filter_jit(jax.vmap(vectors_of))


def derivatives(problem: Problem, engine: AbstractEngine, state: Array) -> tuple[Array, ...]:
    """The risk that a flow follows, its gradient and its Hessian."""
    found, tangent = jax.linearize(lambda at: jax.value_and_grad(problem.risk)(at, engine), state)
    # Row by row: memory is that of one.
    hessian = jax.lax.map(lambda direction: tangent(direction)[1], jnp.eye(state.size))
    return *found, (hessian + hessian.T) / 2


def gradients(problem: Problem, engine: AbstractEngine, state: Array) -> tuple[Array, ...]:
    """The risk that a flow follows and its gradient."""
    return jax.value_and_grad(problem.risk)(state, engine)


def risks(problem: Problem, engine: AbstractEngine, state: Array) -> tuple[Array, ...]:
    """The risk to report, for each randomisation."""
    return (problem.risks(state, engine),)


def evaluator(
    problem: Problem, function: Callable[..., Any], plan: Callable[[Extent], AbstractEngine]
) -> Callable[..., list[np.ndarray]]:
    """`function` of many states; each state uses the cheapest plan that is accurate there."""
    known = cache(lambda limits: Partial(function, *as_arrays((problem, plan(limits)))))

    def evaluate(
        states: Float[np.ndarray, "s n"], limits: Extent | None = None
    ) -> list[np.ndarray]:
        needed = problem.limits(states) if limits is None else [limits] * len(states)
        order: list[int] = []
        found = []
        for group in dict.fromkeys(needed):
            rows = np.array([row for row, each in enumerate(needed) if each == group])
            for some in np.split(rows, range(_BATCH, len(rows), _BATCH)):
                present = np.arange(_BATCH) < len(some)
                given = jax.device_put((states[np.resize(some, _BATCH)], present))
                values = compiled_map(known(group), *given)
                order.extend(some)
                found.append([np.asarray(each)[: len(some)] for each in values])
        return [np.concatenate(each)[np.argsort(order)] for each in zip(*found, strict=True)]

    return evaluate
