"""`attnrisk amp`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from . import options, render
from .command import LEARN, command
from .interrupts import deferred
from .simulate import DATA, watching

if TYPE_CHECKING:
    from .progress import Report

_DIGITS = 6


@command(
    LEARN,
    "drawing the data",
    options.SIZES,
    options.task(spread=False),
    options.seed("another dataset"),
    options.choice(
        "start",
        "teacher: begin near the truth, to see whether the optimum is a fixed point.",
        ("nothing", "teacher"),
        "nothing",
    ),
    options.number(
        "damping", "Share of the old estimate in the new one.", "0", minimum=0.0, below=1.0
    ),
    options.whole("steps", "Steps at most.", 1, 10**6, "500"),
    options.PRECISION,
    options.STREAM,
)
def amp(
    sizes: tuple[int, int],
    task: Any,
    seed: int,
    start: str,
    damping: float,
    steps: int,
    precision: str,
    stream: bool,
    report: Report,
) -> render.Shown:
    """Draw N = αD sequences and learn from them as well as any fast algorithm can, by approximate message passing.

    Example: attnrisk amp --alpha 2 --dim 1000 --nu 2 --length 3 --seed 0
    """
    import jax

    from .. import simulation
    from .._results import Result
    from ..learning import optimal_asymptotics
    from ..learning.scope import optimisable
    from ..simulation.amp import TOLERANCE

    task = optimisable(task)
    key = jax.random.split(jax.random.key(seed), 3)[0]
    begun = time.perf_counter()
    draw = simulation.stream if stream else simulation.sample
    with deferred() as check:
        data = draw(task, key, *sizes, precision)
        check()
        fit = simulation.fit_amp(
            data,
            task,
            start=start,
            damping=damping,
            most_steps=steps,
            watch=watching(report, check, "moving by", TOLERANCE),
        )
    seconds = time.perf_counter() - begun
    both = optimal_asymptotics(task, data.alpha)
    limit = both.reachable if start == "nothing" else both.informed
    fields = render.fields_of(fit, "overlaps", "iterations", "residual") | {
        "start": start,
        "theory": render.fields_of(limit),
        "seconds": seconds,
        **render.picked(data, *DATA),
        "task": render.task_fields(data.task),
        "seed": seed,
    }
    numbers = (
        ("risk", render.significant(fit.risk, _DIGITS), "", float(fit.risk), limit.risk),
        ("q_k", f"{fit.q_k:.6f}", f"{fit.expected_q_k:.6f}", fit.q_k, limit.q_k),
        ("q_v", f"{fit.q_v:.6f}", f"{fit.expected_q_v:.6f}", fit.q_v, limit.q_v),
    )
    rows = [
        (name, shown, expected, render.with_error(theory, _DIGITS), f"{value - float(theory):+.4f}")
        for name, shown, expected, value, theory in numbers
    ]
    mark = "" if fit.converged else "! "
    told = f"({fit.iterations} steps from {start}, {seconds:.3g} s)"
    notes = [f"{mark}{render.result_words(fit.result)} {told}"]
    notes += [] if limit.converged else [f"! at large D: {render.result_words(limit.result)}"]
    title = (
        f"Message passing on the {render.task_words(data.task)}, α = {data.alpha:g}, D = {data.dim}"
    )
    columns = "", "measured", "expected", "at large D", "difference"
    stopped = fit.result == Result.INTERRUPTED
    note = f"Interrupted after {fit.iterations} steps: these are the estimates so far"
    return render.Shown(
        fields, [render.table(title, columns, rows, notes)], note if stopped else ""
    )
