"""Gradient flow: the exponential integrator against the implicit solvers of diffrax, on the same flows."""

import time
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnrisk as ar
from attnrisk.flow.state import Extent, Problem
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.exponential import ExponentialRosenbrock, Moving
from benchmarks.population import Row

RUNS, TOLERANCE, ACCURACY, TIME = 3, 1e-6, 1e-4, 1e5
FASTER = 1.5  # than each of the others, or the integrator is not worth its lines
CASES = {
    "softmax, spiked ν = 2, L = 10": (
        Problem(ar.SpikedSLR(2.0, 10), ar.Softmax()),
        Extent(2.0, 1.0, 2.0),
    ),
    "softmax, max ν = 2, L = 3": (Problem(ar.MaxSLR(2.0, 3), ar.Softmax()), Extent(2.8, 1.0, 2.8)),
    "erf, spiked ν = 2, L = 10": (
        Problem(ar.SpikedSLR(2.0, 10), ar.Erf()),
        Extent(32.0, 32.0, 32.0),
    ),
}
SOLVERS = {"Kvaerno3": diffrax.Kvaerno3(), "Kvaerno5": diffrax.Kvaerno5()}


class Found(NamedTuple):
    """Of all runs of a case: seconds, steps, and the ends."""

    seconds: float
    steps: int
    ends: np.ndarray


def _slope(time: Any, state: Any, known: Any) -> Any:
    problem, plan = known
    if isinstance(state, Moving):
        return Moving(-jax.grad(problem.risk)(state.point, plan), jnp.zeros(()))
    return -jax.grad(problem.risk)(state, plan)


@eqx.filter_jit
def _solve(start: Any, known: Any, solver: Any) -> tuple[Any, Any]:
    """The end of a run and its number of steps; runs end when the gradient is below the tolerance."""
    ours = isinstance(solver, ExponentialRosenbrock)

    def at_rest(t: Any, y: Any, args: Any, terms: Any, **_: Any) -> Any:
        speed = y.speed if ours else jnp.linalg.norm(terms.vf(t, y, args))
        return speed < TOLERANCE

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_slope),
        solver,
        0.0,
        TIME,
        0.1,
        Moving(start, jnp.asarray(jnp.inf)) if ours else start,
        args=known,
        stepsize_controller=diffrax.PIDController(rtol=ACCURACY, atol=ACCURACY * 1e-2),
        event=diffrax.Event(at_rest),
        max_steps=4000,
        throw=False,
    )
    end = solution.ys.point if ours else solution.ys
    return end[0], solution.stats["num_steps"]


def measure(name: str, solver: Any) -> Found:
    """All runs of a case, one after the other, after one to compile."""
    problem, limits = CASES[name]
    starts = problem.pack(ar.random_starts(jax.random.key(0), RUNS))
    starts, known = as_arrays((starts, (problem, problem.plan(limits))))
    jax.block_until_ready(_solve(starts[0], known, solver))
    begin = (
        time.process_time()
    )  # one core: the same as the clock on the wall, but for other programs
    found = [jax.block_until_ready(_solve(start, known, solver)) for start in starts]
    spent = time.process_time() - begin
    ends, steps = zip(*found, strict=True)
    return Found(spent, int(sum(steps)), np.stack(ends))


def rows() -> list[Row]:
    """Each case with each solver."""
    table = []
    for name in CASES:
        ours = measure(name, ExponentialRosenbrock())
        table.append(
            Row(f"flow, {name}: exprb32", f"{ours.seconds:.2f} s, {ours.steps} steps", "", True)
        )
        for other, solver in SOLVERS.items():
            theirs = measure(name, solver)
            ratio = theirs.seconds / ours.seconds
            apart = np.abs(theirs.ends - ours.ends).max()
            found = f"{ratio:.1f}× ({theirs.seconds:.2f} s, {theirs.steps} steps, ends {apart:.0e} apart)"
            table.append(Row(f"flow, {name}: {other}", found, f"≥ {FASTER}×", ratio >= FASTER))
    return table
