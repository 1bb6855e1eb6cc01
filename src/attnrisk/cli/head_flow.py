"""`flow` for several heads or features, and online SGD: overlaps are matrices, and features are found in stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import render

if TYPE_CHECKING:
    from .._results import Estimate, Result
    from ..population import Overlaps

_DIGITS = 5  # of a risk in a table: they come from random points


class Path(NamedTuple):
    """A run: its times, the overlaps, biases and risks there, and why it stopped."""

    times: Any
    overlaps: Overlaps
    biases: Any  # of each key
    risk: Estimate
    result: Result

    def at(self, column: int) -> dict[str, Any]:
        """The fields of one time."""
        return {
            "time": float(self.times[column]),
            "risk": float(self.risk.value[column]),
            "risk_error": float(self.risk.error[column]),
            "overlaps": {
                "M": self.overlaps.M[column].tolist(),
                "Q": self.overlaps.Q[column].tolist(),
            },
            "biases": self.biases[column].tolist(),
        }


def head_flow(args: Any, starts: Overlaps, times: Sequence[float]) -> render.Shown:
    """Paths from the starts: gradient flow, or with `--step` online SGD."""
    import jax

    from ..flow import feature_times

    task, attention = args.task, args.attention
    paths = []
    for run in range(args.runs):
        args.progress("run", run, args.runs)
        start = jax.tree.map(lambda leaf: leaf[run], starts)  # noqa: B023 -- used in this turn
        paths.append(_online(args, start, times) if args.step else _flowed(args, start, times))
    rows = [
        {
            "result": str(path.result),
            "converged": path.result.converged,
            **path.at(-1),
            "feature_times": feature_times(path.times, path.overlaps),
            "path": [path.at(column) for column in range(len(path.times))],
        }
        for path in paths
    ]
    weights = attention.head_weights
    fields = render.one_or_many("runs", rows) | {
        "attention": attention.head_name,
        "heads": attention.keys,
        "head_weights": None if weights is None else list(map(float, weights)),
        "step": args.step,
        "batch": args.batch if args.step else None,
        "task": render.task_fields(task),
    }
    how = "Online SGD" if args.step else "Gradient flow"
    title = f"{how}, {render.heads_words(attention)} on the {render.task_words(task)}"
    columns = ["time", "risk", *(f"key {h + 1}" for h in range(attention.keys)), "m_vv"]
    note = "keys: their overlaps with each feature"
    if len(rows) > 1:
        results = [path.result for path in paths]
        cells = [
            [*_cells(row), render.short_result(result)]
            for row, result in zip(rows, results, strict=True)
        ]
        notes = [note, *render.result_notes(results)]
        return render.Shown(
            fields, [render.table(f"Ends: {title}", [*columns, "result"], cells, notes)]
        )
    (row,), (path,) = rows, paths
    end = {
        "result": render.result_words(path.result),
        "risk": f"{row['risk']:.{_DIGITS}g} ± {row['risk_error']:.1g}",
        "features found at": ", ".join(
            "not found" if when is None else f"{when:.3g}" for when in row["feature_times"]
        ),
        "biases": ", ".join(f"{each:.4g}" for each in row["biases"]),
    }
    parts = [
        render.table(title, columns, [_cells(each) for each in row["path"]], [note]),
        render.facts("End", end),
    ]
    return render.Shown(fields, parts)


def _cells(row: dict[str, Any]) -> list[str]:
    *keys, value = row["overlaps"]["M"]
    listed = (", ".join(f"{number:z.3f}" for number in key[:-1]) for key in keys)
    return [
        f"{float(format(row['time'], '.3g')):g}",
        f"{row['risk']:.{_DIGITS}g}",
        *listed,
        f"{value[-1]:z.3f}",
    ]


def _online(args: Any, start: Overlaps, times: Sequence[float]) -> Path:
    """Paths of online SGD; biases and head weights are not trained."""
    import numpy as np

    from ..flow import online_sgd

    found = online_sgd(
        args.task, args.attention, start, args.step, args.batch, times, seed=args.seed
    )
    biases = np.tile(np.ravel(args.attention.bias), (len(found.times), 1))
    return Path(found.times, found.overlaps, biases, found.risk, found.result)


def _flowed(args: Any, start: Overlaps, times: Sequence[float]) -> Path:
    """The path up to the time at which the flow stopped."""
    import jax
    import numpy as np

    from .._results import Result
    from ..flow import gradient_flow

    found = gradient_flow(args.task, args.attention, start, times)
    kept = slice(int(np.searchsorted(found.times, found.end_time)) + 1)
    biases = found.bias.reshape(len(found.times), -1)[kept]
    overlaps, risk = jax.tree.map(lambda leaf: leaf[kept], (found.overlaps, found.risk))
    return Path(found.times[kept], overlaps, biases, risk, Result(str(found.result)))
