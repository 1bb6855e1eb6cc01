"""`attnrisk simulate`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import options, render
from .command import LEARN, command
from .interrupts import deferred

if TYPE_CHECKING:
    from ..attention import AbstractAttention
    from .progress import Report

DATA = ("n", "dim", "alpha", "precision")
_RIVAL = ("start", "result", "objective", "train_error", "overlaps")


@command(
    LEARN,
    "drawing the data",
    options.SIZES,
    options.task(),
    options.ATTENTION,
    options.ridge("1"),
    options.seed("another dataset"),
    options.whole(
        "test_set",
        "Draw so many new sequences to check the test risk, which is exact without them.",
        0,
        options.LARGEST,
        "0",
    ),
    options.PRECISION,
    options.STREAM,
)
def simulate(
    sizes: tuple[int, int],
    task: Any,
    attention: AbstractAttention,
    ridge: tuple[float, float],
    seed: int,
    test_set: int,
    precision: str,
    stream: bool,
    report: Report,
) -> render.Shown:
    """Draw N = αD sequences and learn from them, by empirical risk minimisation with L-BFGS.

    Example: attnrisk simulate --alpha 4 --dim 1000 --ridge-k 1 --ridge-v 1 --seed 0
    """
    import jax

    from .. import simulation
    from .._check import refuse
    from .._results import Result
    from ..learning import Ridge
    from ..simulation.erm import TOLERANCE

    if test_set == 1:
        raise refuse("test_set", test_set, "0 or at least 2")  # one has no standard error
    for_data, for_start, for_test = jax.random.split(jax.random.key(seed), 3)
    draw = simulation.stream if stream else simulation.sample
    begun = time.perf_counter()
    with deferred() as check:
        data = draw(task, for_data, *sizes, precision)
        check()
        watch = watching(report, check, "gradient", TOLERANCE["float64"])
        fit = simulation.fit_erm(data, attention, Ridge(*ridge), for_start, watch=watch)
    seconds = time.perf_counter() - begun
    checked = simulation.measure_risk(data, fit, for_test, test_set) if test_set else None
    fields = render.fields_of(
        fit, "start", "iterations", "evaluations", "gradient_norm", "ridge"
    ) | {
        "seconds": seconds,
        **render.picked(data, *DATA),
        "attention": fit.attention.name,
        "task": render.task_fields(fit.task),
        "rivals": [render.picked(rival, *_RIVAL) for rival in fit.rivals],
        "test_set_risk": None if checked is None else float(checked),
        "test_set_risk_error": None if checked is None else float(checked.error),
        "test_set": test_set,
        "seed": seed,
    }
    told = f"after {fit.iterations} steps, gradient {fit.gradient_norm:.1g} (start: {fit.start})"
    rivals = [f"{rival.start} {rival.objective:.10g} ({rival.result})" for rival in fit.rivals]
    rows = {
        "test risk": render.with_error(fit.test_risk),
        "train error": f"{fit.train_error:.10g}",
        "objective": f"{fit.objective:.10g} per dimension",
        "result": f"{render.result_words(fit.result)} {told}",
        "data": f"N = {data.n}, D = {data.dim}, {data.nbytes / 2**20:.3g} MiB of {data.precision}",
        "ridges": f"r_k = {float(fit.ridge.k):.6g}, r_v = {float(fit.ridge.v):.6g}",
        "overlaps": render.overlap_words(fit.overlaps),
        "time": f"{seconds:.3g} s",
        "test set": None
        if checked is None
        else f"{render.with_error(checked)} ({test_set} sequences)",
        "other starts": ", ".join(rivals) or None,
    }
    title = f"{fit.attention.name} on the {render.task_words(fit.task)}, α = {data.alpha:g}"
    stopped = fit.result == Result.INTERRUPTED
    note = "Interrupted: this is the best point so far, not a minimum" if stopped else ""
    return render.Shown(fields, [render.facts(title, rows)], note)


def watching(
    report: Report, check: Callable[[], None], what: str, tolerance: float
) -> Callable[[int, float], None]:
    """Progress in tenths of a decade, of what has to become small, from its largest value to the tolerance."""
    largest = tolerance

    def watch(step: int, size: float) -> None:
        nonlocal largest
        check()
        largest = max(largest, size)
        total, left = (
            math.ceil(10 * math.log10(max(each, tolerance) / tolerance)) for each in (largest, size)
        )
        report(f"step {step}, {what} {size:.1e}", total - left, total)

    return watch
