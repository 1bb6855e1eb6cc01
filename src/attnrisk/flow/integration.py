"""The flow of section 5 in the hands of diffrax."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..numerics.arrays import as_arrays
from ..numerics.exponential import ExponentialRosenbrock, Moving
from .flow import MARGIN, risk_at

_MOST_STEPS = 4000


def _descend(time: Any, state: Moving, problem: Any) -> Moving:
    task, attention, plan, _ = problem
    return Moving(-jax.grad(risk_at)(state.point, task, attention, plan), jnp.zeros(()))


def integrate(
    states: np.ndarray, starts: np.ndarray, times: np.ndarray, problem: Any, settings: Any
) -> tuple[np.ndarray, ...]:
    """Paths at `times`, and of each run where and when it stopped, and whether it converged or left.

    On a CPU, where a batch would only wait for its slowest run, one after the other: one compiled run serves any
    number of them.
    """
    known = *as_arrays((times, problem)), settings
    if jax.default_backend() == "cpu":
        runs = [_run(as_arrays(begin), known) for begin in zip(states, starts, strict=True)]
        return tuple(np.stack(part) for part in zip(*runs, strict=True))
    return tuple(np.asarray(part) for part in _runs(as_arrays((states, starts)), known))


@eqx.filter_jit
def _run(begin: tuple[Array, Array], known: tuple[Array, Any, Any]) -> tuple[Array, ...]:
    state, start = begin
    times, problem, (tolerance, accuracy) = known
    reach, noise, sharpness = problem[-1]

    def converged(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        return y.speed < tolerance

    def left(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        inside = jnp.linalg.norm(y.point[:4]) <= MARGIN * reach
        quiet = jnp.linalg.norm(y.point[1:4]) <= noise
        return ~(inside & quiet & (jnp.abs(y.point[0]) <= sharpness))

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
