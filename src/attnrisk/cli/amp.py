"""`attnrisk amp`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .options import INTERRUPTED, Alpha, Json, Length, Noise, Nu, TaskName, read_task, read_whole
from .output import print_json, print_rich, significant, table, task_fields, task_words, with_error
from .progress import Report, patience, working
from .simulate import LARGEST, LARGEST_SEED, Dim, Precision, Seed, Stream

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..learning import FixedPoint
    from ..simulation import AbstractDataset, AMPFit
    from ..simulation.amp import Watch

_DIGITS = 6

Start = Annotated[
    str,
    typer.Option(
        metavar="nothing|teacher",
        help="teacher: begin near the truth, to see whether the optimum stays where it is.",
    ),
]
Damping = Annotated[
    str,
    typer.Option(metavar="NUMBER", help="Share of the old estimate in the new one, ≥ 0 and < 1."),
]
Steps = Annotated[str, typer.Option(metavar="NUMBER", help="Steps at most.")]


class Answer(NamedTuple):
    """What message passing found, what the limit of large D has in its place, and the time taken without the latter."""

    data: AbstractDataset
    fit: AMPFit
    limit: FixedPoint
    start: str
    seconds: float


def amp(
    alpha: Alpha,
    dim: Dim,
    task: TaskName = "spiked",
    nu: Nu = "5",
    length: Length = "3",
    noise: Noise = "0",
    seed: Seed = "0",
    start: Start = "nothing",
    damping: Damping = "0",
    steps: Steps = "500",
    precision: Precision = "float64",
    stream: Stream = False,
    as_json: Json = False,
) -> None:
    """Draw N = αD sequences and learn from them as well as any fast algorithm can, by approximate message passing.

    Example: attnrisk amp --alpha 2 --dim 1000 --nu 2 --length 3 --seed 0
    """
    with working("drawing the data") as report:
        import jax

        from .. import simulation
        from .._check import one_of, real
        from ..learning import optimal_asymptotics
        from ..learning.scope import optimisable
        from ..simulation.amp import STARTS, as_damping

        problem = optimisable(read_task(task, nu, length, noise, None))
        size = read_whole("dim", dim, 2, LARGEST)
        samples = max(1, round(real("alpha", alpha, above=0.0) * size))
        most_steps = read_whole("steps", steps, 1, LARGEST)
        origin = one_of("start", start, STARTS)
        weight = as_damping(damping)
        dtype = one_of("precision", precision, simulation.PRECISIONS)
        key = jax.random.split(jax.random.key(read_whole("seed", seed, 0, LARGEST_SEED)), 3)[0]
        begun = time.perf_counter()
        draw = simulation.stream if stream else simulation.sample
        with patience() as check:
            data = draw(problem, key, samples, size, dtype)
            check()
            watch = _watch(report, check)
            fit = simulation.fit_amp(
                data, problem, start=origin, damping=weight, most_steps=most_steps, watch=watch
            )
        seconds = time.perf_counter() - begun
        both = optimal_asymptotics(problem, data.alpha)
        limit = both.reachable if origin == "nothing" else both.informed
        answer = Answer(data, fit, limit, origin, seconds)
    if as_json:
        print_json(_fields(answer) | {"seed": int(seed)})
    else:
        print_rich(_table(answer))
    if fit.result == "interrupted":
        told = f"Message passing was interrupted after {fit.iterations} steps"
        typer.echo(f"{told}: these are its estimates so far", err=True)
        raise typer.Exit(INTERRUPTED)


def _watch(report: Report, check: Callable[[], None]) -> Watch:
    """Progress in tenths of a decade, of the residual from one to where it is small enough."""
    from ..simulation.amp import TOLERANCE

    total = round(-10 * math.log10(TOLERANCE))

    def watch(step: int, residual: float) -> None:
        check()
        done = -10 * math.log10(max(residual, TOLERANCE))
        report(f"step {step}, moving by {residual:.1e}", max(0, math.floor(done)), total)

    return watch


def _fields(answer: Answer) -> dict[str, Any]:
    data, fit, limit = answer.data, answer.fit, answer.limit
    theory = {"risk": limit.risk, "q_k": limit.q_k, "q_v": limit.q_v}
    return {
        "risk": float(fit.risk),
        "risk_error": float(fit.risk.error),
        "q_k": fit.q_k,
        "q_v": fit.q_v,
        "expected_q_k": fit.expected_q_k,
        "expected_q_v": fit.expected_q_v,
        "converged": fit.converged,
        "result": fit.result,
        "iterations": fit.iterations,
        "residual": fit.residual,
        "start": answer.start,
        "overlaps": fit.overlaps.as_dict(),
        "theory": {name: float(each) for name, each in theory.items()}
        | {f"{name}_error": float(each.error) for name, each in theory.items()}
        | {"converged": limit.converged},
        "seconds": answer.seconds,
        "n": data.n,
        "dim": data.dim,
        "alpha": data.alpha,
        "precision": data.precision,
        "task": task_fields(data.task),
    }


def _table(answer: Answer) -> RenderableType:
    data, fit, limit = answer.data, answer.fit, answer.limit
    title = f"Message passing on the {task_words(data.task)}, α = {data.alpha:g}, D = {data.dim}"
    rows = table(title, "", "measured", "expected", "at large D", "difference")
    numbers = (
        ("risk", significant(fit.risk, _DIGITS), "", float(fit.risk), limit.risk),
        ("q_k", f"{fit.q_k:.6f}", f"{fit.expected_q_k:.6f}", fit.q_k, limit.q_k),
        ("q_v", f"{fit.q_v:.6f}", f"{fit.expected_q_v:.6f}", fit.q_v, limit.q_v),
    )
    for name, measured, expected, value, theory in numbers:
        difference = f"{value - float(theory):+.4f}"
        rows.add_row(name, measured, expected, with_error(theory, _DIGITS), difference)
    unsure = "" if limit.converged else f"\n! at large D: {limit.result}"
    mark = "" if fit.converged else "! NOT CONVERGED: "
    why = fit.result.removeprefix("not converged: ")
    told = f"{mark}{why} ({fit.iterations} steps from {answer.start}, {answer.seconds:.3g} s)"
    rows.caption, rows.caption_justify = told + unsure, "left"
    return rows
