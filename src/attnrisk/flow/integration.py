"""Runs of gradient flow, integrated by diffrax (sections 5 and 10)."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._check import refuse
from .._results import Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.exponential import ExponentialRosenbrock, Moving
from ..population.overlaps import Overlaps
from .state import MARGIN, REACHES, Extent, Problem

_LINES, _PARTS, _CUTS, _JUMP = 64, 16, 10, 1e-6  # the last parts are 10^-12 of a line
_MOST_STEPS = 4000


class Settings(NamedTuple):
    """The norm of a gradient at rest, the relative error per step, and of the plans the fineness and the reaches."""

    tolerance: float
    accuracy: float
    fineness: float = 1.0
    reaches: tuple[float, ...] = REACHES


class Runs(NamedTuple):
    """Of each run its state, its time, its states at the recorded times, and why it stopped."""

    state: np.ndarray
    time: np.ndarray
    path: np.ndarray
    result: np.ndarray


def follow(problem: Problem, starts: Overlaps, times: np.ndarray, settings: Settings) -> Runs:
    """Runs from each of the starts, until they rest, leave the domain or reach the last of the times."""
    shape = problem.attention.keys + 1, problem.task.features + 1
    if np.shape(starts.M)[1:] != shape:
        allowed = f"of {shape[0]} student and {shape[1]} teacher vectors"
        raise refuse("start", f"(M of shape {np.shape(starts.M)[1:]})", allowed)
    if not problem.is_exact:
        _check_continuous(problem)
    states = problem.pack(starts)
    result = np.array([Result.LEFT_DOMAIN] * len(states), object)  # `np.full` would make strings
    runs = Runs(states, np.zeros(len(states)), np.repeat(states[:, None], times.size, 1), result)
    while True:
        stages: dict[
            Extent, list[int]
        ] = {}  # runs inside the domain that have left the plan that they had
        lengths = problem.extent(runs.state).length
        for run, limits in enumerate(problem.limits(runs.state, settings.reaches, MARGIN)):
            if result[run] is Result.LEFT_DOMAIN and lengths[run] < MARGIN * limits.length:
                stages.setdefault(limits, []).append(run)
        if not stages:
            return runs
        for limits, which in stages.items():
            known = as_arrays((problem, problem.plan(limits, settings.fineness), limits, times))
            _advance(runs, np.array(which), times, (*known, settings[:2]))


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


def _advance(runs: Runs, which: np.ndarray, times: np.ndarray, known: Any) -> None:
    """Follow some of the runs as far as the plan reaches.

    On a CPU one after the other: a batch would wait for its slowest run, and one compiled run serves any number.
    """
    begin = as_arrays((runs.state[which], np.minimum(runs.time[which], times[-1])))
    if jax.default_backend() == "cpu":
        each = [_run(start, known) for start in zip(*begin, strict=True)]
        found = [np.stack(part) for part in zip(*each, strict=True)]
    else:
        found = [
            np.asarray(part) for part in eqx.filter_vmap(_run, in_axes=(0, None))(begin, known)
        ]
    saved, state, time, converged, left = found
    here = np.isfinite(saved).all(-1) & (times >= runs.time[which][:, None])
    path = np.where(here[..., None], saved, runs.path[which])
    finite = np.isfinite(state).all(-1)
    state = np.where(finite[:, None], state, runs.state[which])
    runs.path[which] = np.where((times > time[:, None])[..., None], state[:, None], path)
    runs.state[which], runs.time[which] = state, time
    for place, run in enumerate(which):
        if not finite[place]:
            runs.result[run] = Result.DIVERGED
        elif converged[place] or left[place]:
            runs.result[run] = Result.CONVERGED if converged[place] else Result.LEFT_DOMAIN
        else:
            early = time[place] < times[-1]
            runs.result[run] = Result.MAX_STEPS if early else Result.TIME_OVER


@eqx.filter_jit
def _run(begin: tuple[Array, Array], known: Any) -> tuple[Array, ...]:
    """The path at the times, where and when it stopped, and whether it came to rest or passed the limits."""
    state, start = begin
    problem, plan, limits, times, (tolerance, accuracy) = known

    def slope(t: Any, y: Moving, args: Any) -> Moving:
        return Moving(-jax.grad(args[0].risk)(y.point, args[1]), jnp.zeros(()))

    def converged(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        return y.speed < tolerance

    def left(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        length, noise, overlap = problem.extent(y.point)
        inside = (length <= MARGIN * limits.length) & (noise <= limits.noise)
        return ~(inside & (overlap <= limits.overlap))

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        ExponentialRosenbrock(),
        start,
        times[-1],
        0.1,
        Moving(state, jnp.asarray(jnp.inf)),
        args=(problem, plan),
        saveat=diffrax.SaveAt(
            subs=[diffrax.SubSaveAt(ts=jnp.maximum(times, start)), diffrax.SubSaveAt(t1=True)]
        ),
        stepsize_controller=diffrax.PIDController(
            rtol=accuracy, atol=accuracy * 1e-2, dtmin=1e-8, force_dtmin=True
        ),
        adjoint=diffrax.ForwardMode(),
        event=diffrax.Event([converged, left]),
        max_steps=_MOST_STEPS,
        throw=False,
    )
    (path, end), (_, (time,)) = solution.ys, solution.ts
    return path.point, end.point[0], time, *solution.event_mask
