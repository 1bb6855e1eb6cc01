"""`flow`: gradient flow of one head; of several, and online SGD, in `head_flow`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from . import options, render
from .command import ASK, command
from .head_flow import head_flow

if TYPE_CHECKING:
    from .._results import Estimate, Result
    from ..flow import Flow
    from ..population import Overlaps

_DIGITS = 8  # of a risk in a table, which fits a terminal of 80 columns
_FIRST = 1e-2  # time of the first record after the start of a flow: the risk hardly changes before
_PER_DECADE = 3
_TEACHER, _RESIDUAL = ("m_kk", "m_kv", "m_vk", "m_vv"), ("R_kk", "R_kv", "R_vv")


class Moment(NamedTuple):
    """A point of a path."""

    time: float
    risk: Estimate
    overlaps: Overlaps
    bias: float | None
    gradient_norm: float


@command(
    ASK,
    "gradient flow",
    options.task(nu="2", length="10", features=True),
    options.ONE_WITH_HEADS,
    options.whole("runs", "Number of initialisations; for several, one line each.", 1, 10_000, "1"),
    options.choice(
        "start",
        "Initialisation: random (default), k and v near 0; mismatched, k near v*, v near k*.",
        ("random", "mismatched"),
        None,
    ),
    options.number(
        "size",
        "Standard deviation of each component of an initial vector.",
        "0.1",
        above=0.0,
        maximum=1e5,
    ),
    options.seed("the random initialisations"),
    options.number(
        "time",
        "Final time, > 0; default 1e5, 200 for several heads or features, 50 with --step.",
        None,
        above=0.0,
    ),
    options.number(
        "step",
        "Step size of online SGD, which replaces the flow; the unit of time is then D steps.",
        None,
        above=0.0,
    ),
    options.whole("batch", "Mini-batch size of online SGD.", 1, 10**9, "1"),
    options.overlaps("start from them"),
)
def flow(args: Any) -> render.Shown:
    """Gradient flow of the population risk on k and v, or online SGD (training with infinite data).

    Example: attnrisk flow --nu 2 --attention softmax --start mismatched --runs 5
    """
    from ..flow import gradient_flow

    task, attention, starts = args.task, args.attention, _starts(args)
    several = attention.keys > 1 or task.name == "features"
    usual = 50.0 if args.step else 200.0 if several else 1e5
    times = times_to(args.time or usual)
    if several or args.step:
        return head_flow(args, starts, times)
    paths = gradient_flow(task, attention, starts, times)
    found = _runs(paths, attention.free_bias)
    rows = []
    for result, moments in found:
        path = [render.picked(moment, *Moment._fields) for moment in moments]
        told = {"result": str(result), "converged": result.converged}
        rows.append({**told, **path[-1], "path": path})
    fields = render.one_or_many("runs", rows)
    fields |= {"attention": attention.name, "task": render.task_fields(task)}
    title = f"{attention.name} on the {render.task_words(task)}"
    columns = ["time", "risk", *_TEACHER, *_RESIDUAL]
    if len(found) > 1:
        cells = [[*_cells(path[-1]), render.short_result(result)] for result, path in found]
        notes = render.result_notes([result for result, _ in found])
        title = f"End points of gradient flow, {title}"
        return render.Shown(
            fields, [render.table(title, [*columns, "result"], cells, notes, optional=_RESIDUAL)]
        )
    ((result, moments),) = found
    cells = [[*_cells(moment), f"{moment.gradient_norm:.1g}"] for moment in moments]
    head, columns = f"Gradient flow, {title}", [*columns, "gradient"]
    end = {
        "result": render.result_words(result),
        "time": f"{moments[-1].time:.6g}",
        "risk": render.with_error(moments[-1].risk),
        "gradient": f"{moments[-1].gradient_norm:.1g}",
        "overlaps": render.overlap_words(moments[-1].overlaps),
        "bias": render.optional(moments[-1].bias, ".8g"),
    }
    parts = [
        render.table(head, columns, cells, optional=_RESIDUAL),
        render.facts(f"End point, {title}", end),
    ]
    return render.Shown(fields, parts)


def times_to(end: float) -> list[float]:
    """Time 0, then logarithmically spaced times up to the end."""
    first = min(_FIRST, end / 10)
    steps = math.ceil(_PER_DECADE * math.log10(end / first))
    return [0.0, *(end * 10 ** (-step / _PER_DECADE) for step in range(steps, -1, -1))]


def _starts(args: Any) -> Overlaps:
    """One start for each run."""
    import jax
    import numpy as np

    from .._check import refuse
    from ..flow import random_starts, swapped_starts

    counts = args.attention.keys, args.task.features
    if counts != (1, 1):
        if args.start == "mismatched":
            raise refuse("start", "mismatched", "random with several heads or features")
        if args.overlaps is not None:
            raise refuse("overlaps", "(given)", "left out with several heads or features")
    if args.overlaps is None:
        key = jax.random.key(args.seed)
        if args.start == "mismatched":
            return swapped_starts(key, args.runs, args.size)
        return random_starts(key, args.runs, args.size, *counts)
    if args.start is not None:
        raise refuse("start", repr(args.start), "left out where overlaps are given")
    if args.runs != 1:
        raise refuse("runs", args.runs, "1 where overlaps are given")
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], args.overlaps)


def _runs(flow: Flow, biased: bool) -> list[tuple[Result, list[Moment]]]:
    """For each run the reason why it stopped, and its path."""
    import jax

    from .._results import Result

    def moment(run: int, column: int, time: float) -> Moment:
        here = run, column
        risk, overlaps = jax.tree.map(lambda leaf: leaf[here], (flow.risk, flow.overlaps))
        bias = float(flow.bias[here]) if biased else None
        return Moment(time, risk, overlaps, bias, float(flow.gradient_norm[here]))

    runs = []
    for run, result in enumerate(flow.result):
        end = float(flow.end_time[run])
        before = [(column, float(time)) for column, time in enumerate(flow.times) if time < end]
        path = [moment(run, column, time) for column, time in (*before, (-1, end))]
        runs.append((Result(str(result)), path))
    return runs


def _cells(moment: Moment) -> list[str]:
    """Time, risk, the overlaps with the teacher and the residuals."""
    (r_kk, _), (r_kv, r_vv) = moment.overlaps.residual
    teacher = (getattr(moment.overlaps, name) for name in _TEACHER)
    time = f"{float(f'{moment.time:.3g}'):g}"  # 1250, where three digits alone would be 1.25e+03
    numbers = (f"{float(number):z.3f}" for number in (*teacher, r_kk, r_kv, r_vv))
    return [time, render.with_error(moment.risk, _DIGITS), *numbers]
