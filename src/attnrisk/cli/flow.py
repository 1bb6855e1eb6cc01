"""`attnrisk flow`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from . import options, render
from .command import ASK, command

if TYPE_CHECKING:
    from .._results import Estimate, Result
    from ..attention import AbstractAttention
    from ..flow import Flow
    from ..population import Overlaps

_FIRST = 1e-2  # time of the first record after the start: the risk hardly changes before
_PER_DECADE = 3
_DIGITS = 8  # of a risk in a table
_TEACHER, _RESIDUAL = ("m_kk", "m_kv", "m_vk", "m_vv"), ("R_kk", "R_kv", "R_vv")


@dataclass(frozen=True)
class Moment:
    """A point of a path."""

    recorded: ClassVar = ("time", "risk", "overlaps", "bias", "gradient_norm")
    time: float
    risk: Estimate
    overlaps: Overlaps
    bias: float | None
    gradient_norm: float


class Run(NamedTuple):
    """A path up to where it stopped, which is its last moment, and why it stopped."""

    result: Result
    path: list[Moment]


@command(
    ASK,
    "gradient flow",
    options.task(nu="2", length="10"),
    options.ATTENTION,
    options.whole("runs", "How many starts; for several, a line for each.", 1, 10_000, "1"),
    options.choice(
        "start",
        "random (if not given): k and v near 0. mismatched: k near v*, v near k*.",
        ("random", "mismatched"),
        None,
    ),
    options.number(
        "size", "Standard deviation of each component of a start.", "0.1", above=0.0, most=1e5
    ),
    options.seed("other random starts"),
    options.number("time", "When to stop, > 0.", "1e5", above=0.0),
    options.OVERLAPS,
)
def flow(
    task: Any,
    attention: AbstractAttention,
    runs: int,
    start: str | None,
    size: float,
    seed: int,
    time: float,
    overlaps: Overlaps | None,
) -> render.Shown:
    """Where training with infinite data leads: gradient flow of the population risk on k and v.

    Example: attnrisk flow --nu 2 --attention softmax --start mismatched --runs 5
    """
    from ..flow import gradient_flow

    starts = _starts(overlaps, start, runs, size, seed)
    found = _runs(gradient_flow(task, attention, starts, times_to(time)), attention.free_bias)
    paths = [[render.fields_of(moment) for moment in run.path] for run in found]
    rows = [
        {"result": str(run.result), "converged": run.result.converged, **path[-1], "path": path}
        for run, path in zip(found, paths, strict=True)
    ]
    fields = render.one_or_many("runs", rows)
    fields |= {"attention": attention.name, "task": render.task_fields(task)}
    title = f"{attention.name} on the {render.task_words(task)}"
    if len(found) == 1:
        return render.Shown(fields, [_path_table(title, found[0]), _panel(title, found[0])])
    return render.Shown(fields, [_runs_table(title, found)])


def times_to(end: float) -> list[float]:
    """The start, then as many times a decade up to the end."""
    first = min(_FIRST, end / 10)
    steps = math.ceil(_PER_DECADE * math.log10(end / first))
    return [0.0, *(end * 10 ** (-step / _PER_DECADE) for step in range(steps, -1, -1))]


def _starts(
    overlaps: Overlaps | None, start: str | None, runs: int, size: float, seed: int
) -> Overlaps:
    """One start for each run."""
    import jax
    import numpy as np

    from .._check import refuse
    from ..flow import random_starts, swapped_starts

    if overlaps is None:
        draw = swapped_starts if start == "mismatched" else random_starts
        return draw(jax.random.key(seed), runs, size)
    if start is not None:
        raise refuse("start", repr(start), "left out where overlaps are given")
    if runs != 1:
        raise refuse("runs", runs, "1 where overlaps are given")
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], overlaps)


def _runs(flow: Flow, biased: bool) -> list[Run]:
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
        runs.append(Run(Result(str(result)), path))
    return runs


def _path_table(title: str, run: Run) -> Any:
    rows = [[*_cells(moment), f"{moment.gradient_norm:.1g}"] for moment in run.path]
    columns = "time", "risk", *_TEACHER, *_RESIDUAL, "gradient"
    return render.table(f"Gradient flow, {title}", columns, rows, optional=_RESIDUAL)


def _runs_table(title: str, runs: list[Run]) -> Any:
    rows = [[*_cells(run.path[-1]), render.short_result(run.result)] for run in runs]
    notes = render.result_notes([run.result for run in runs])
    columns = "time", "risk", *_TEACHER, *_RESIDUAL, "result"
    title = f"Ends of gradient flow, {title}"
    return render.table(title, columns, rows, notes, optional=_RESIDUAL)


def _cells(moment: Moment) -> list[str]:
    """Time, risk, the overlaps with the teacher and the residuals."""
    (r_kk, _), (r_kv, r_vv) = moment.overlaps.residual
    teacher = (getattr(moment.overlaps, name) for name in _TEACHER)
    time = f"{float(f'{moment.time:.3g}'):g}"  # 1250, where three digits alone would be 1.25e+03
    numbers = (f"{float(number):z.3f}" for number in (*teacher, r_kk, r_kv, r_vv))
    return [time, render.significant(moment.risk, _DIGITS), *numbers]


def _panel(title: str, run: Run) -> Any:
    end = run.path[-1]
    rows = {
        "result": render.result_words(run.result),
        "time": f"{end.time:.6g}",
        "risk": render.with_error(end.risk),
        "gradient": f"{end.gradient_norm:.1g}",
        "overlaps": render.overlap_words(end.overlaps),
        "bias": render.optional(end.bias, ".8g"),
    }
    return render.facts(f"End of the flow, {title}", rows)
