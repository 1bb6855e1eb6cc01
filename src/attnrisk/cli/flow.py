"""`attnrisk flow`: gradient flow and online SGD."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    notes = ["keys: their overlaps with each feature"] * has_matrices
    how = "Online SGD" if args.step else "Gradient flow"
    title = f"{render.heads_words(attention)} on the {render.task_words(task)}"
    if len(runs) > 1:
        ends = [
            _cells(path[-1], has_matrices) | {"result": render.short_result(result)}
            for path, result in zip(paths, results, strict=True)
        ]
        notes += render.result_notes(results)
        return render.Shown(fields, [_table(f"{how}, end points, {title}", ends, notes)])
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
    table = _table(f"{how}, {title}", [_cells(each, has_matrices) for each in path], notes)
    return render.Shown(fields, [table, render.facts(f"End point, {title}", end)])


def _table(title: str, rows: Sequence[dict[str, str]], notes: Sequence[str]) -> Any:
    cells = [list(row.values()) for row in rows]
    return render.table(title, list(rows[0]), cells, notes, optional=_OPTIONAL)


def times_to(end: float) -> list[float]:
    """Time 0, then logarithmically spaced times up to the end."""
    first = min(_FIRST, end / 10)
    steps = math.ceil(_PER_DECADE * math.log10(end / first))
    return [0.0, *(end * 10 ** (-step / _PER_DECADE) for step in range(steps, -1, -1))]


def _starts(args: Any) -> ar.Overlaps:
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
    import numpy as np

    paths = []
    # One head takes little memory, so that all runs are one batch.
    size = args.runs if args.attention.keys == args.task.features == 1 else 1
    for first in range(0, args.runs, size):
        args.progress("run", first, args.runs)
        batch = _at(starts, slice(first, first + size))
        flow = ar.gradient_flow(args.task, args.attention, batch, times)
        for run, result in enumerate(flow.result):
            before = np.flatnonzero(flow.times < flow.end_time[run])
            found = flow.risk, flow.overlaps, flow.bias, flow.gradient_norm
            ends = np.append(flow.times[before], flow.end_time[run])
            path = Moment(ends, *_at(found, (run, [*before, -1])))
            paths.append((ar.Result(str(result)), path))
    return paths


def _online(
    args: Any, starts: ar.Overlaps, times: Sequence[float]
) -> list[tuple[ar.Result, Moment]]:
    """Online SGD from each start; biases and head weights are not trained."""
    import numpy as np

    paths = []
    for run in range(args.runs):
        args.progress("run", run, args.runs)
        how = {"step": args.step, "batch": args.batch, "times": times, "seed": args.seed}
        found = ar.online_sgd(args.task, args.attention, _at(starts, run), **how)
        biases = np.tile(np.ravel(args.attention.bias), (len(found.times), 1))
        paths.append((found.result, Moment(found.times, found.risk, found.overlaps, biases, None)))
    return paths


def _at(tree: Any, index: Any) -> Any:
    """These entries of each array, as of a path at one time."""
    import jax

    return jax.tree.map(lambda leaf: leaf[index], tree)


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


def _cells(moment: Moment, has_matrices: bool) -> dict[str, str]:
    """A line of a table of moments, by column."""
    M, R = moment.overlaps.M, moment.overlaps.residual
    cells = {
        "time": f"{float(f'{moment.time:.3g}'):g}",  # 1250, where three digits are 1.25e+03
        "risk": render.with_error(moment.risk, _DRAWN_DIGITS if has_matrices else _DIGITS),
    }
    if has_matrices:
        for number, key in enumerate(M[:-1, :-1], start=1):
            cells[f"key {number}"] = ", ".join(f"{each:z.3f}" for each in key)
        return cells | {"m_vv": f"{M[-1, -1]:z.3f}"}
    shown = {"m_kk": M[0, 0], "m_kv": M[0, 1], "m_vk": M[1, 0], "m_vv": M[1, 1]}
    shown |= {"R_kk": R[0, 0], "R_kv": R[1, 0], "R_vv": R[1, 1]}
    cells |= {name: f"{value:z.3f}" for name, value in shown.items()}
    return cells | {"gradient": f"{moment.gradient_norm:.1g}"}
