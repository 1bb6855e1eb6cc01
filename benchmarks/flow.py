"""Gradient flow: the exponential integrator against the implicit solvers of diffrax, on the same flows."""

import time
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnrisk as ar
from attnrisk.flow.state import Extent, Problem, derivatives, evaluator
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.exponential import integrate
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


@eqx.filter_jit
def _solve(start: Any, known: Any, solver: Any) -> tuple[Any, Any]:
    """The end of a run and its number of steps; runs end when the gradient is below the tolerance."""

    def slope(time: Any, state: Any, known: Any) -> Any:
        return -jax.grad(known[0].risk)(state, known[1])

    def at_rest(t: Any, y: Any, args: Any, terms: Any, **_: Any) -> Any:
        return jnp.linalg.norm(terms.vf(t, y, args)) < TOLERANCE

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        solver,
        0.0,
        TIME,
        0.1,
        start,
        args=known,
        stepsize_controller=diffrax.PIDController(rtol=ACCURACY, atol=ACCURACY * 1e-2),
        event=diffrax.Event(at_rest),
        max_steps=4000,
        throw=False,
    )
    return solution.ys[0], solution.stats["num_steps"]


def _measure(name: str, solver: Any = None) -> Found:
    """All runs of a case after one to compile, with a solver of diffrax or by `integrate`."""
    problem, limits = CASES[name]
    starts = problem.pack(ar.random_starts(jax.random.key(0), RUNS))
    known = as_arrays((problem, problem.plan(limits)))
    evaluate = evaluator(problem, derivatives, problem.plan)
    steps = 0

    def counted(points: np.ndarray) -> Any:
        nonlocal steps
        steps += len(points)
        return evaluate(points, limits)[1:]

    def run(starts: np.ndarray) -> tuple[np.ndarray, int]:
        nonlocal steps
        steps = 0
        if solver is None:
            times = np.array([TIME])
            args = counted, starts, times, TOLERANCE, ACCURACY, problem.is_inside
            return integrate(*args).end, steps
        found = [_solve(start, known, solver) for start in as_arrays(starts)]
        return np.stack([end for end, _ in found]), sum(int(each) for _, each in found)

    run(starts[:1])
    begin = time.process_time()  # one core: the wall clock, but for other programs
    ends, steps = run(starts)
    return Found(time.process_time() - begin, steps, ends)


def rows() -> list[Row]:
    """Each case with each solver."""
    table = []
    for name in CASES:
        ours = _measure(name)
        table.append(
            Row(f"flow, {name}: exprb32", f"{ours.seconds:.2f} s, {ours.steps} steps", "", True)
        )
        for other, solver in SOLVERS.items():
            theirs = _measure(name, solver)
            ratio = theirs.seconds / ours.seconds
            apart = np.abs(theirs.ends - ours.ends).max()
            found = f"{ratio:.1f}× ({theirs.seconds:.2f} s, {theirs.steps} steps, ends {apart:.0e} apart)"
            table.append(Row(f"flow, {name}: {other}", found, f"≥ {FASTER}×", ratio >= FASTER))
    return table
