"""Which plan integrates the risk at which states, and the risks there."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import refuse
from .._results import ErrorKind, Estimate
from ..attention import AbstractAttention, AbstractElementwise
from ..numerics.arrays import as_arrays
from ..population.risk import ROUNDING, SHARPEST, Plan, is_exact, light_plan, plan
from ..tasks import AbstractSelected, AbstractTask
from .state import Extent, extent, risk_at, risks_at

# Lengths of keys that plans are made for, each at a higher price than the one before. A longer key leaves the domain.
REACHES = (2.0, 2.8, 4.0, 8.0, SHARPEST, 2 * SHARPEST)
FEW_REACHES = (2.8, 8.0, SHARPEST, 2 * SHARPEST)  # so that problems share compiled code
_ELEMENTWISE_REACHES = (4.0, SHARPEST, 2 * SHARPEST)  # where integrals are one-dimensional
MARGIN = 0.9  # of a reach, for the step that passes it
_SHARP = 8.0  # a longer key is not planned for before it comes
QUIET = 1.0  # noise of keys that follow the teacher's
_SEED = 1  # of the random points of a flow: others than those that its risks are reported with
_LINES, _PARTS, _CUTS, _JUMP = 64, 16, 10, 1e-6  # the last parts are 10^-12 of a line
_FINER = 1.25  # fineness of the rule that gives a reported risk; its distance from that of fineness 1 is the error


def reaches_of(
    task: AbstractTask, attention: AbstractAttention, known: tuple[float, ...] = REACHES
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Lengths of keys to make plans for, from one that will do if the student becomes as sharp as the teacher, and
    overlaps with the teacher's key directions, which the plans of a selected task depend on."""
    selected = isinstance(task, AbstractSelected)
    elementwise = isinstance(attention, AbstractElementwise)
    longest = SHARPEST if selected else 2 * SHARPEST
    if not is_exact(task, attention) or (elementwise and not selected):
        return (longest,), (longest,)
    least = min(float(task.strength) / MARGIN, _SHARP)
    lengths = _ELEMENTWISE_REACHES if elementwise else known
    return tuple(r for r in lengths if least <= r <= longest), known if selected else (longest,)


def check_continuous(task: AbstractTask, attention: AbstractAttention) -> None:
    """Refuse an attention that jumps, where random points are used: the gradient of their average misses the jumps.

    On lines through random scores, the part with the largest change of a weight is cut again and again.
    """
    if is_exact(task, attention):
        return
    shape = _LINES, attention.keys, min(int(task.length.longest), _LINES)
    start, end = 3.0 * np.random.default_rng(0).standard_normal((2, *shape))
    for _ in range(_CUTS):
        parts = np.linspace(start, end, _PARTS + 1)
        change = np.abs(np.diff(_weights(attention, parts), axis=0)).max(-1)
        cut, line = change.argmax(0), np.arange(_LINES)
        start, end = parts[cut, line], parts[cut + 1, line]
    if np.max(change) > _JUMP:
        allowed = "continuous in the scores where the risk is found from random points"
        raise refuse("attention", attention.name, allowed)


@eqx.filter_jit
def _weights(attention: AbstractAttention, scores: Any) -> Array:
    return jax.vmap(jax.vmap(attention.attend))(jnp.asarray(scores))


def flow_plan(
    task: AbstractTask,
    attention: AbstractAttention,
    limits: Extent,
    fineness: float = 1.0,
    seed: int = _SEED,
) -> Plan:
    """A plan for gradients: one randomisation where the risk is found from random points."""
    if is_exact(task, attention):
        return light_plan(task, attention, *limits, fineness)
    return plan(task, attention, seed=seed, randomisations=1)


def group_by_plan(
    task: AbstractTask, attention: AbstractAttention, states: Float[np.ndarray, "s n"]
) -> list[tuple[np.ndarray, Extent]]:
    """Indices of states that one plan serves, and its limits."""
    reaches, reached = reaches_of(task, attention, FEW_REACHES)[0], extent(states, task, attention)
    group = np.searchsorted(reaches[:-1], reached.length)
    found = []
    for index in np.unique(group):
        which, reach = np.flatnonzero(group == index), reaches[index]
        quiet = reached.noise[which].max() <= QUIET
        overlap = next((r for r in REACHES if reached.overlap[which].max() <= r), reach)
        found.append((which, Extent(reach, QUIET if quiet else reach, min(reach, overlap))))
    return found


def values_at(
    task: AbstractTask, attention: AbstractAttention, states: Float[np.ndarray, "*batch n"]
) -> tuple[Estimate, np.ndarray]:
    """Risks with their errors, and norms of the gradients that a flow follows."""
    flat = states.reshape(-1, states.shape[-1])
    value, error, norms = np.empty((3, len(flat)))
    exact = is_exact(task, attention)
    for which, limits in group_by_plan(task, attention, flat):
        here = as_arrays((flat[which], task, attention))
        rough, norms[which] = _risks_and_norms(*here, as_arrays(flow_plan(task, attention, limits)))
        fine = np.asarray(_risks(*here, as_arrays(light_plan(task, attention, *limits, _FINER))))
        value[which] = fine.mean(1)
        if exact:
            error[which] = np.abs(fine[:, 0] - rough) + ROUNDING * (1.0 + np.abs(fine[:, 0]))
        else:
            error[which] = fine.std(1, ddof=1) / np.sqrt(fine.shape[1])
    value, error, norms = (part.reshape(states.shape[:-1]) for part in (value, error, norms))
    return Estimate(value, error, ErrorKind.BOUND if exact else ErrorKind.STANDARD), norms


# One state after the other: memory is that of one, and a batch would be compiled twice, for its remainder as well.
@eqx.filter_jit
def _risks(states: Array, *problem: Any) -> Float[Array, "s randomisations"]:
    return jax.lax.map(lambda state: risks_at(state, *problem), states)


@eqx.filter_jit
def _risks_and_norms(states: Array, *problem: Any) -> tuple[Array, Array]:
    def at(state: Array) -> tuple[Array, Array]:
        value, gradient = jax.value_and_grad(risk_at)(state, *problem)
        return value, jnp.linalg.norm(gradient)

    return jax.lax.map(at, states)
