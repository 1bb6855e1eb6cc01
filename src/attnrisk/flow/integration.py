"""Runs of gradient flow (sections 5 and 10)."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from .._check import refuse
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.exponential import Paths, integrate
from ..population.overlaps import Overlaps
from .state import Problem, derivatives, evaluator

_LINES, _PARTS, _CUTS, _JUMP = 64, 16, 10, 1e-6  # the last parts are 10^-12 of a line


def follow(
    problem: Problem,
    starts: Overlaps,
    times: np.ndarray,
    tolerance: float,
    accuracy: float,
    fineness: float = 1.0,
) -> Paths:
    """Runs from each of the starts, until the gradient has a norm below `tolerance`, keys leave the domain, or the
    last of the times; `accuracy` is the relative error of a step, `fineness` that of the plans."""
    shape = problem.attention.keys + 1, problem.task.features + 1
    if np.shape(starts.M)[1:] != shape:
        allowed = f"of {shape[0]} student and {shape[1]} teacher vectors"
        raise refuse("start", f"(M of shape {np.shape(starts.M)[1:]})", allowed)
    if not problem.is_exact:
        _check_continuous(problem)
    evaluate = evaluator(problem, derivatives, partial(problem.plan, fineness=fineness))
    states, domain = problem.pack(starts), problem.is_inside
    return integrate(lambda at: evaluate(at)[1:], states, times, tolerance, accuracy, domain)


def _check_continuous(problem: Problem) -> None:
    """Refuse an attention that jumps: the gradient of an average over random points misses the jumps.

    On lines through random scores, the part with the largest change of a weight is cut again and again.
    """
    attention, longest = problem.attention, int(problem.task.length.longest)
    shape = _LINES, attention.keys, min(longest, _LINES)
    start, end = 3.0 * np.random.default_rng(0).standard_normal((2, *shape))
    for _ in range(_CUTS):
        parts = np.linspace(start, end, _PARTS + 1)
        change = np.abs(np.diff(_weights(attention, as_arrays(parts)), axis=0)).max(-1)
        cut, line = change.argmax(0), np.arange(_LINES)
        start, end = parts[cut, line], parts[cut + 1, line]
    if np.max(change) > _JUMP:
        allowed = "continuous in the scores where the risk is found from random points"
        raise refuse("attention", attention.name, allowed)


@eqx.filter_jit
def _weights(attention: AbstractAttention, scores: Array) -> Array:
    return jax.vmap(jax.vmap(attention.attend))(scores)
