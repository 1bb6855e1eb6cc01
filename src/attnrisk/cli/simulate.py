"""Commands for finite data, `N = αD`, on drawn datasets: `simulate` and `amp`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import attnrisk as ar

from .._check import refuse
from . import options, render
from .command import LEARN, command
from .interrupts import deferred

_DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_RIVAL = ("start", "result", "objective", "train_error", "overlaps")


@command(
    LEARN,
    "drawing the data",
    options.SIZE,
    options.task(features=True),
    options.ONE_WITH_HEADS,
    options.ridge("1"),
    options.seed("the dataset"),
    options.whole(
        "test_set",
        "Number of new sequences on which to verify the test risk, which is exact without them.",
        0,
        options.LARGEST,
        "0",
    ),
    options.PRECISION,
    options.STREAM,
)
def simulate(args: Any) -> render.Shown:
    """Draw N = αD sequences and minimise the empirical risk with L-BFGS.

    Example: attnrisk simulate --alpha 4 --dim 1000 --ridge-k 1 --ridge-v 1 --seed 0
    """
    import jax
    import numpy as np

    from ..learning.scope import learns_bias
    from ..simulation.erm import TOLERANCE

    if args.test_set == 1:
        raise refuse("test_set", 1, "0 or at least 2")  # one has no standard error
    for_data, for_start, for_test = jax.random.split(jax.random.key(args.seed), 3)
    begun = time.perf_counter()
    with deferred() as check:
        data = _draw(args, args.task, for_data)
        check()
        watch = _watching(args.progress, check, "gradient", TOLERANCE["float64"])
        fit = ar.fit_erm(data, args.attention, ar.Ridge(*args.ridge), for_start, watch=watch)
    seconds = time.perf_counter() - begun
    test_set = checked = None
    if args.test_set:
        checked = ar.measure_risk(data, fit, for_test, args.test_set)
        test_set = f"{render.with_error(checked)} ({args.test_set} sequences)"
    names = "start", "iterations", "evaluations", "gradient_norm", "ridge"
    fields = render.fields_of(fit, *names) | {
        "seconds": seconds,
        **_data_fields(data, args.seed),
        "attention": fit.attention.head_name,
        **render.head_fields(fit.task, fit.attention, fit),
        "bias": np.asarray(fit.attention.bias, float).tolist(),
        "rivals": [render.picked(rival, *_RIVAL) for rival in fit.rivals],
        "test_set_risk": checked and float(checked),
        "test_set_risk_error": checked and float(checked.error),
        "test_set": args.test_set,
    }
    told = f"after {fit.iterations} steps, gradient {fit.gradient_norm:.1g} (start: {fit.start})"
    rivals = [f"{rival.start} {rival.objective:.10g} ({rival.result})" for rival in fit.rivals]
    rows = {
        "test risk": f"{render.with_error(fit.test_risk, _DIGITS)} given this fit; another --seed gives another",
        "train error": f"{fit.train_error:.6g}",
        "objective": f"{fit.objective:.10g} per dimension",
        "result": f"{render.result_words(fit.result)} {told}",
        "data": f"N = {data.n}, D = {data.dim}, {data.nbytes / 2**20:.3g} MiB of {data.precision}",
        "ridge penalties": f"r_k = {float(fit.ridge.k):.6g}, r_v = {float(fit.ridge.v):.6g}",
        "learned bias": f"{fit.attention.bias:.6g}" if learns_bias(args.attention) else None,
        "overlaps": render.overlap_words(fit.overlaps),
        "time": f"{seconds:.3g} s",
        "test set": test_set,
        "other initialisations": ", ".join(rivals) or None,
    }
    title = f"{render.heads_words(fit.attention)} on the {render.task_words(fit.task)}, α = {data.alpha:g}"
    shown = render.Shown(fields, [render.facts(title, rows)])
    if fit.result == ar.Result.INTERRUPTED:
        return shown.interrupted("Interrupted: this is the best point so far, not a minimum")
    return shown


@command(
    LEARN,
    "drawing the data",
    options.SIZE,
    options.task(spread=False),
    options.seed("the dataset"),
    options.choice(
        "start",
        "Initialisation: nothing (uninformed), or teacher (near the true vectors, to test stability).",
        ("nothing", "teacher"),
        "nothing",
    ),
    options.number(
        "damping", "Weight of the previous estimate in the new one.", "0", minimum=0.0, below=1.0
    ),
    options.whole("steps", "Largest number of steps.", 1, 10**6, "500"),
    options.PRECISION,
    options.STREAM,
)
def amp(args: Any) -> render.Shown:
    """Draw N = αD sequences and estimate k* and v* by approximate message passing.

    Example: attnrisk amp --alpha 2 --dim 1000 --nu 2 --length 3 --seed 0
    """
    import jax

    from ..learning.scope import optimisable
    from ..simulation.amp import TOLERANCE

    task = optimisable(args.task)
    begun = time.perf_counter()
    with deferred() as check:
        data = _draw(args, task, jax.random.split(jax.random.key(args.seed), 3)[0])
        check()
        watch = _watching(args.progress, check, "moving by", TOLERANCE)
        how = {"start": args.start, "damping": args.damping, "most_steps": args.steps}
        fit = ar.fit_amp(data, task, **how, watch=watch)
    seconds = time.perf_counter() - begun
    both = ar.optimal_asymptotics(task, data.alpha)
    limit = both.reachable if args.start == "nothing" else both.informed
    fields = render.fields_of(fit, "overlaps", "iterations", "residual") | {
        "start": args.start,
        "theory": render.fields_of(limit),
        "seconds": seconds,
        **_data_fields(data, args.seed),
    }
    numbers = (
        ("risk", render.significant(fit.risk, _DIGITS), "", float(fit.risk), limit.risk),
        ("q_k", f"{fit.q_k:.6f}", f"{fit.expected_q_k:.6f}", fit.q_k, limit.q_k),
        ("q_v", f"{fit.q_v:.6f}", f"{fit.expected_q_v:.6f}", fit.q_v, limit.q_v),
    )
    rows = [
        (name, shown, expected, render.with_error(large, _DIGITS), f"{value - float(large):+z.4f}")
        for name, shown, expected, value, large in numbers
    ]
    mark = "" if fit.converged else "! "
    told = f"({fit.iterations} steps from {args.start}, {seconds:.3g} s)"
    notes = [f"{mark}{render.result_words(fit.result)} {told}"]
    notes += [] if limit.converged else [f"! at large D: {render.result_words(limit.result)}"]
    words = f"{render.task_words(data.task)}, α = {data.alpha:g}, D = {data.dim}"
    columns = "", "measured", "expected", "at large D", "difference"
    title = f"Message passing on the {words}"
    shown = render.Shown(fields, [render.table(title, columns, rows, notes)])
    if fit.result == ar.Result.INTERRUPTED:
        so_far = f"Interrupted after {fit.iterations} steps: these are the estimates so far"
        return shown.interrupted(so_far)
    return shown


def _draw(args: Any, task: Any, key: Any) -> ar.AbstractDataset:
    draw, (n, dim) = ar.stream if args.stream else ar.sample, args.size
    return draw(task, key, n, dim, args.precision)


def _data_fields(data: ar.AbstractDataset, seed: int) -> dict[str, Any]:
    named = render.picked(data, "n", "dim", "alpha", "precision")
    return named | {"task": render.task_fields(data.task), "seed": seed}


def _watching(
    report: render.Report, check: Callable[[], None], what: str, tolerance: float
) -> Callable[[int, float], None]:
    """Progress of a residual from its largest value to the tolerance, in tenths of a decade."""
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
