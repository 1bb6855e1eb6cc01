"""Runs of gradient flow, integrated by diffrax (sections 5 and 10)."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._results import Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.exponential import ExponentialRosenbrock, Moving
from ..population.overlaps import Overlaps
from ..tasks import AbstractTask
from .plans import MARGIN, QUIET, REACHES, check_continuous, flow_plan, reaches_of
from .state import Extent, extent, pack, risk_at

_MOST_STEPS = 4000
_REASONS = np.array(
    [Result.DIVERGED, Result.CONVERGED, Result.LEFT_DOMAIN, Result.MAX_STEPS, Result.TIME_OVER],
    object,
)


class Settings(NamedTuple):
    """Of an integration: the norm of a gradient at rest, the relative error per step, the fineness of the plans, and
    the lengths of keys that they are made for."""

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


def follow(
    task: AbstractTask,
    attention: AbstractAttention,
    starts: Overlaps,
    times: np.ndarray,
    settings: Settings,
) -> Runs:
    """Runs from each of the starts, until they rest, leave the domain or reach the last of the times."""
    check_continuous(task, attention)
    states = pack(attention, starts)
    result = np.full(len(states), Result.LEFT_DOMAIN, object)
    runs = Runs(states, np.zeros(len(states)), np.repeat(states[:, None], times.size, 1), result)
    reaches = reaches_of(task, attention, settings.reaches)
    while stages := _stages(extent(runs.state, task, attention), reaches, result):
        for limits, which in stages.items():
            how = flow_plan(task, attention, limits, settings.fineness)
            _advance(runs, np.array(which), times, (task, attention, how, limits), settings)
    return runs


def _stages(
    reached: Extent, reaches: tuple[tuple[float, ...], tuple[float, ...]], result: np.ndarray
) -> dict[Extent, list[int]]:
    """Runs that have left the plan that they had, by the limits of the one that they need.

    While keys follow the teacher's they leave little noise; elsewhere their overlap is small.
    """
    stages: dict[Extent, list[int]] = {}
    for run in np.flatnonzero(result == Result.LEFT_DOMAIN).tolist():
        length, noise, overlap = (norms[run] / MARGIN for norms in reached)
        reach = next((r for r in reaches[0] if length < r), None)
        if reach is None:
            continue
        blunt = next(r for r in reaches[1] if overlap < r)
        quiet = noise < QUIET
        limits = Extent(reach, QUIET, reach) if quiet else Extent(reach, reach, min(reach, blunt))
        stages.setdefault(limits, []).append(run)
    return stages


def _advance(
    runs: Runs, which: np.ndarray, times: np.ndarray, problem: Any, settings: Settings
) -> None:
    """Follow some of the runs as far as the plan reaches.

    On a CPU one after the other: a batch would wait for its slowest run, and one compiled run serves any number.
    """
    begin = as_arrays((runs.state[which], np.minimum(runs.time[which], times[-1])))
    known = *as_arrays((times, problem)), settings[:2]
    if jax.default_backend() == "cpu":
        parts = [_run(each, known) for each in zip(*begin, strict=True)]
        found = [np.stack(part) for part in zip(*parts, strict=True)]
    else:
        found = [np.asarray(part) for part in _runs(begin, known)]
    saved, state, time, converged, left = found
    here = np.isfinite(saved).all(-1) & (times >= runs.time[which][:, None])
    path = np.where(here[..., None], saved, runs.path[which])
    finite = np.isfinite(state).all(-1)
    state = np.where(finite[:, None], state, runs.state[which])
    runs.path[which] = np.where((times > time[:, None])[..., None], state[:, None], path)
    runs.state[which], runs.time[which] = state, time
    reason = np.argmax([~finite, converged, left, time < times[-1], np.ones_like(left)], axis=0)
    runs.result[which] = _REASONS[reason]


def _descend(time: Any, state: Any, problem: Any) -> Any:
    return Moving(-jax.grad(risk_at)(state.point, *problem[:3]), jnp.zeros(()))


@eqx.filter_jit
def _run(begin: tuple[Array, Array], known: tuple[Array, Any, Any]) -> tuple[Array, ...]:
    """The path at the times, where and when it stopped, and whether it came to rest or passed the limits."""
    state, start = begin
    times, problem, (tolerance, accuracy) = known
    task, attention, _, limits = problem

    def converged(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        return y.speed < tolerance

    def left(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        length, noise, overlap = extent(y.point, task, attention)
        inside = (length <= MARGIN * limits.length) & (noise <= limits.noise)
        return ~(inside & (overlap <= limits.overlap))

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_descend),
        ExponentialRosenbrock(),
        start,
        times[-1],
        0.1,
        Moving(state, jnp.asarray(jnp.inf)),
        args=problem,
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


@eqx.filter_jit
def _runs(begin: tuple[Array, Array], known: tuple[Array, Any, Any]) -> tuple[Array, ...]:
    return jax.vmap(lambda begin: _run(begin, known))(begin)
