"""`attnrisk flow`: gradient flow and online SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attnrisk as ar

from .._check import refuse
from . import options, render
from .command import ASK, command

_DIGITS = 8  # of a risk in a table, which fits a terminal of 80 columns
_DRAWN_DIGITS = 5  # of a risk over random points
_FIRST = 1e-2  # time of the first record after the start of a flow: the risk hardly changes before
_PER_DECADE = 3
_OPTIONAL = ("R_kk", "R_kv", "R_vv", "gradient")  # columns left out of a narrow terminal


class Moment(NamedTuple):
    """A point of a path, or a path, whose arrays have an axis of times."""

    time: Any
    risk: ar.Estimate
    overlaps: ar.Overlaps
    biases: Any  # of each key
    gradient_norm: Any  # `None` for online SGD


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
    task, attention, starts = args.task, args.attention, _starts(args)
    has_matrices = attention.keys > 1 or task.name == "features" or bool(args.step)
    usual = 50.0 if args.step else 200.0 if has_matrices else 1e5
    times = times_to(args.time or usual)
    runs = _online(args, starts, times) if args.step else _flows(args, starts, times)
    results, rows, paths = [result for result, _ in runs], [], []
    for result, whole in runs:
        path = [_at(whole, column) for column in range(len(whole.time))]
        told = [_fields(moment, attention, has_matrices) for moment in path]
        row = {"result": str(result), "converged": result.converged, **told[-1], "path": told}
        if has_matrices:
            row["feature_times"] = ar.feature_times(whole.time, whole.overlaps)
        rows.append(row)
        paths.append(path)
    fields = render.one_or_many("runs", rows) | {"attention": attention.head_name}
    if has_matrices:
        fields |= {"heads": attention.keys, **render.picked(attention, "head_weights")}
        fields |= {"step": args.step, "batch": args.batch if args.step else None}
    fields["task"] = render.task_fields(task)
    columns = _columns(attention.keys, has_matrices)
    notes = ["keys: their overlaps with each feature"] * has_matrices

    def cells(moment: Moment) -> list[str]:
        return [shown(moment) for shown in columns.values()]

    how = "Online SGD" if args.step else "Gradient flow"
    title = f"{render.heads_words(attention)} on the {render.task_words(task)}"
    if len(runs) > 1:
        ends = [
            [*cells(path[-1]), render.short_result(result)]
            for path, result in zip(paths, results, strict=True)
        ]
        notes += render.result_notes(results)
        head = f"{how}, end points, {title}"
        table = render.table(head, [*columns, "result"], ends, notes, optional=_OPTIONAL)
        return render.Shown(fields, [table])
    (path,), (row,) = paths, rows
    when = ["not found" if at is None else f"{at:.3g}" for at in row.get("feature_times", ())]
    end = {
        "result": render.result_words(results[0]),
        "time": f"{row['time']:.6g}",
        "risk": render.with_error(path[-1].risk),
        "gradient": render.optional(row.get("gradient_norm"), ".1g"),
        "overlaps": render.overlap_words(path[-1].overlaps),
        "bias": render.optional(row.get("bias"), ".8g"),
        "biases": render.listed(row.get("biases")),
        "features found at": ", ".join(when) or None,
    }
    listed = [cells(moment) for moment in path]
    table = render.table(f"{how}, {title}", list(columns), listed, notes, optional=_OPTIONAL)
    return render.Shown(fields, [table, render.facts(f"End point, {title}", end)])


def times_to(end: float) -> list[float]:
    """Time 0, then logarithmically spaced times up to the end."""
    first = min(_FIRST, end / 10)
    steps = math.ceil(_PER_DECADE * math.log10(end / first))
    return [0.0, *(end * 10 ** (-step / _PER_DECADE) for step in range(steps, -1, -1))]


def _starts(args: Any) -> ar.Overlaps:
    """One start for each run."""
    import jax
    import numpy as np

    counts = args.attention.keys, args.task.features
    if counts != (1, 1):
        if args.start == "mismatched":
            raise refuse("start", "mismatched", "random with several heads or features")
        if args.overlaps is not None:
            raise refuse("overlaps", "(given)", "left out with several heads or features")
    if args.overlaps is None:
        key = jax.random.key(args.seed)
        if args.start == "mismatched":
            return ar.swapped_starts(key, args.runs, args.size)
        return ar.random_starts(key, args.runs, args.size, *counts)
    if args.start is not None:
        raise refuse("start", repr(args.start), "left out where overlaps are given")
    if args.runs != 1:
        raise refuse("runs", args.runs, "1 where overlaps are given")
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], args.overlaps)


def _flows(
    args: Any, starts: ar.Overlaps, times: Sequence[float]
) -> list[tuple[ar.Result, Moment]]:
    """Gradient flow of each run, up to the time at which it stopped."""
    import jax
    import numpy as np

    paths = []
    # One head takes little memory, so that all runs are one batch.
    size = args.runs if args.attention.keys == args.task.features == 1 else 1
    for first in range(0, args.runs, size):
        args.progress("run", first, args.runs)
        batch = jax.tree.map(lambda leaf: leaf[first : first + size], starts)  # noqa: B023
        flow = ar.gradient_flow(args.task, args.attention, batch, times)
        for run, result in enumerate(flow.result):
            before = np.flatnonzero(flow.times < flow.end_time[run])
            whole = Moment(flow.times, flow.risk, flow.overlaps, flow.bias, flow.gradient_norm)
            path = jax.tree.map(lambda leaf: leaf[run, [*before, -1]], whole._replace(time=None))  # noqa: B023
            ends = np.append(flow.times[before], flow.end_time[run])
            paths.append((ar.Result(str(result)), path._replace(time=ends)))
    return paths


def _online(
    args: Any, starts: ar.Overlaps, times: Sequence[float]
) -> list[tuple[ar.Result, Moment]]:
    """Online SGD from each start; biases and head weights are not trained."""
    import jax
    import numpy as np

    paths = []
    for run in range(args.runs):
        args.progress("run", run, args.runs)
        start = jax.tree.map(lambda leaf: leaf[run], starts)  # noqa: B023 -- used in this turn
        how = {"step": args.step, "batch": args.batch, "times": times, "seed": args.seed}
        found = ar.online_sgd(args.task, args.attention, start, **how)
        biases = np.tile(np.ravel(args.attention.bias), (len(found.times), 1))
        paths.append((found.result, Moment(found.times, found.risk, found.overlaps, biases, None)))
    return paths


def _at(path: Moment, column: int) -> Moment:
    import jax

    return jax.tree.map(lambda leaf: leaf[column], path)


def _fields(moment: Moment, attention: Any, has_matrices: bool) -> dict[str, Any]:
    """JSON fields of one time."""
    if has_matrices:
        several = {
            "overlaps": render.matrices(moment.overlaps),
            "biases": moment.biases.ravel().tolist(),
        }
        return render.picked(moment, "time", "risk") | several
    bias = float(moment.biases) if attention.free_bias else None
    return render.picked(moment, "time", "risk", "overlaps", "gradient_norm") | {"bias": bias}


def _columns(keys: int, has_matrices: bool) -> dict[str, Callable[[Moment], str]]:
    """The columns of a table of moments, and what each shows."""

    def key(number: int) -> Callable[[Moment], str]:
        return lambda it: ", ".join(f"{each:z.3f}" for each in it.overlaps.M[number, :-1])

    def entry(name: str, row: int, column: int) -> Callable[[Moment], str]:
        return lambda it: f"{getattr(it.overlaps, name)[row, column]:z.3f}"

    digits = _DRAWN_DIGITS if has_matrices else _DIGITS
    columns: dict[str, Callable[[Moment], str]] = {
        "time": lambda it: f"{float(f'{it.time:.3g}'):g}",  # 1250, where three digits are 1.25e+03
        "risk": lambda it: render.with_error(it.risk, digits),
    }
    if has_matrices:
        columns |= {f"key {number + 1}": key(number) for number in range(keys)}
        return columns | {"m_vv": entry("M", -1, -1)}
    for at, student in enumerate("kv"):
        columns |= {f"m_{student}{teacher}": entry("M", at, to) for to, teacher in enumerate("kv")}
    for name, row, column in (("R_kk", 0, 0), ("R_kv", 1, 0), ("R_vv", 1, 1)):
        columns[name] = entry("residual", row, column)
    return columns | {"gradient": lambda it: f"{it.gradient_norm:.1g}"}
