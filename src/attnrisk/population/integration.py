"""The flow of section 5 in the hands of diffrax."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .exponential import ExponentialRosenbrock, Moving
from .flow import MARGIN, risk_at

_MOST_STEPS = 4000


def _descend(time: Any, state: Moving, problem: Any) -> Moving:
    task, attention, plan, _ = problem
    return Moving(-jax.grad(risk_at)(state.point, task, attention, plan), jnp.zeros(()))


@eqx.filter_jit
def integrate(
    begin: tuple[Array, Array, Array], problem: Any, settings: tuple[float, float]
) -> tuple[Array, ...]:
    """Paths at `times`, and of each run where and when it stopped, and whether it converged or left."""
    states, starts, times = begin
    (tolerance, accuracy), (reach, noise, sharpness) = settings, problem[-1]

    def converged(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        return y.speed < tolerance

    def left(t: Any, y: Moving, args: Any, **_: Any) -> Any:
        inside = jnp.linalg.norm(y.point[:4]) <= MARGIN * reach
        quiet = jnp.linalg.norm(y.point[1:4]) <= noise
        return ~(inside & quiet & (jnp.abs(y.point[0]) <= sharpness))

    def one(state: Array, start: Array) -> tuple[Array, ...]:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(_descend),
            ExponentialRosenbrock(),
            start,
            times[-1],
            0.1,
            Moving(state, jnp.asarray(jnp.inf)),
            args=problem,
            saveat=diffrax.SaveAt(
                subs=[
                    diffrax.SubSaveAt(ts=jnp.maximum(times, start)),
                    diffrax.SubSaveAt(t1=True),
                ]
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

    if jax.default_backend() == "cpu":  # where a batch would only wait for its slowest run
        return jax.lax.map(lambda run: one(*run), (states, starts))
    return jax.vmap(one)(states, starts)
