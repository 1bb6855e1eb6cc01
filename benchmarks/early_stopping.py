"""Gradient descent with early stopping and no ridge, against the ridges of lowest test risk, at five settings.

`python -m benchmarks.early_stopping --out FILE.csv` draws datasets with `√(ND) = 10⁴` (1.2 GB of tokens in single
precision; a step reads and writes them, about 2.5 GB of memory in all) and appends a line for each path and for each
prediction of `tuned_erm_asymptotics`. `--quick` is the small form for a processor. Each dataset is learned twice:

- `held out`: from 90 % of the sequences; the loss on the others decides when to stop.
- `all`: from all sequences, stopped where the exact test risk is least. Like the tuned ridges, it knows the test risk.

`risk` is the exact test risk where the path stopped, `least` the least one along it, `last` that of its end, all from
the measured overlaps. `--table` writes the table of docs/learning.md from docs/data.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import attnrisk as ar
from attnrisk.attention import AbstractAttention
from attnrisk.learning.problem import risks_at
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.plan import light_plan
from attnrisk.tasks import AbstractTask
from benchmarks.lines import append_lines, with_error
from benchmarks.tables import PAGE, put

DATA, MARK = PAGE.parent / "data" / "early_stopping.csv", "early stopping"
HELD_OUT = 0.1
RECORDS, PATIENCE = 150, 25
START = 0.01  # standard deviation of the entries of the first vectors: without a ridge they stay
QUICK_SIZE, SIZE = 600, 10_000


Job = Callable[[], dict[str, Any]]


class Setting(NamedTuple):
    """A task, an attention, `α`, and a step short enough and a time long enough for its path."""

    task: AbstractTask
    attention: AbstractAttention
    alpha: float
    step: float
    time: float


SETTINGS = {
    "spiked ν = 2, softmax, α = 4": Setting(ar.SpikedSLR(2.0, 3), ar.Softmax(), 4.0, 0.05, 22.5),
    "spiked ν = 2, softmax, α = 1.5": Setting(ar.SpikedSLR(2.0, 3), ar.Softmax(), 1.5, 0.03, 9.0),
    "spiked ν = 4, noise 0.5, softmax, α = 2": Setting(
        ar.SpikedSLR(4.0, 3, noise=0.5), ar.Softmax(), 2.0, 0.03, 13.5
    ),
    "spiked ν = 2, linear, α = 4": Setting(ar.SpikedSLR(2.0, 3), ar.Linear(), 4.0, 0.01, 3.0),
    "max ν = ∞, noise 0.5, softmax, α = 4": Setting(
        ar.MaxSLR(np.inf, 3, noise=0.5), ar.Softmax(), 4.0, 0.05, 22.5
    ),
}
FIELDS = (
    *("setting", "kind", "alpha", "dim", "n", "seed", "risk", "error", "least", "last", "time"),
    *("ridge_k", "ridge_v", "result", "warning", "seconds"),
)


def path(setting: Setting, size: int, seed: int, held_out: float) -> dict[str, Any]:
    """Gradient descent on one dataset, and the exact test risk along it."""
    task, attention, alpha, step, end = setting
    dim = round(size / np.sqrt(alpha))
    data = ar.sample(task, jax.random.key(seed), round(alpha * dim), dim, np.float32)
    start = START * np.random.default_rng(seed).normal(size=(2, dim))
    found = ar.fit_sgd(
        data,
        attention,
        step,
        data.n,
        round(end / step),
        start=start,
        records=RECORDS,
        held_out=held_out,
        patience=PATIENCE if held_out else RECORDS,
    )
    risks = exact_risks(task, attention, found.overlaps)
    best = found.best if held_out else int(np.argmin(risks))
    return {
        **{"dim": dim, "n": data.n, "risk": risks[best], "least": np.min(risks), "last": risks[-1]},
        **{"time": found.times[best], "result": str(found.result)},
    }


def exact_risks(task: AbstractTask, attention: AbstractAttention, overlaps: ar.Overlaps) -> Any:
    """The test risk at all overlaps of a path, right to eight digits, on the processor."""
    scale = 2.0 ** max(1, int(np.ceil(np.log2(np.max(overlaps.Q)) / 2)))
    with jax.default_device(jax.devices("cpu")[0]):
        engine = light_plan(task, attention, scale, scale, scale)
        arrays = as_arrays((task, attention, engine))
        return np.asarray(risks_at(arrays, overlaps.M, overlaps.Q, np.zeros(len(overlaps.M))))


def prediction(setting: Setting, log2_points: int) -> dict[str, Any]:
    """The tuned ridges, on the processor."""
    with jax.default_device(jax.devices("cpu")[0]):
        found = ar.tuned_erm_asymptotics(*setting[:3], log2_points=log2_points)
    return {
        **{"risk": float(found.test_risk), "error": float(found.test_risk.error)},
        **{"ridge_k": float(found.ridge.k), "ridge_v": float(found.ridge.v)},
        **{"result": str(found.result), "warning": found.warning},
    }


def jobs(size: int, seeds: int, log2_points: int, only: str) -> Iterator[Job]:
    """One dataset of every setting before a second."""
    for seed in range(seeds if only != "theory" else 0):
        for name, setting in SETTINGS.items():
            for kind, share in (("held out", HELD_OUT), ("all", 0.0)):
                yield _job(name, kind, seed, partial(path, setting, size, seed, share))
        if seed == 0 and only != "paths":
            yield from _predictions(log2_points)
    if only == "theory":
        yield from _predictions(log2_points)


def _predictions(log2_points: int) -> Iterator[Job]:
    for name, setting in SETTINGS.items():
        yield _job(name, "tuned ridges", 0, partial(prediction, setting, log2_points))


def _job(name: str, kind: str, seed: int, function: Job) -> Job:
    """The whole line, with what was asked."""
    asked = {"setting": name, "kind": kind, "seed": seed, "alpha": SETTINGS[name].alpha}
    return lambda: asked | function()


def table(path: Path = DATA) -> str:
    """Means over datasets with their standard errors; a star marks ridges that are not tuned to the end."""
    with path.open() as file:
        rows = list(csv.DictReader(file))

    def mean(name: str, kind: str, column: str = "risk") -> str:
        found = [
            float(row[column]) for row in rows if (row["setting"], row["kind"]) == (name, kind)
        ]
        return with_error(np.mean(found), np.std(found, ddof=1) / np.sqrt(len(found)))

    lines = [
        "| setting | tuned ridges, theory | best time, all data | stopped on 10 % held out | end of the path |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["kind"] == "tuned ridges":
            name, star = row["setting"], "" if row["result"] == "converged" else "*"
            tuned = with_error(float(row["risk"]), float(row["error"])) + star
            cells = mean(name, "all"), mean(name, "held out"), mean(name, "all", "last")
            lines.append(f"| {name} | {tuned} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Append lines until all is done or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(DATA.name), help="file to append to")
    parser.add_argument("--table", action="store_true", help="write the table of the page alone")
    parser.add_argument("--quick", action="store_true", help="√(ND) = 600")
    parser.add_argument("--seeds", type=int, default=4, help="datasets of each setting")
    parser.add_argument("--seconds", type=float, default=1e6, help="start nothing after this time")
    parser.add_argument("--log2-points", type=int, default=10)
    parser.add_argument("--only", choices=("theory", "paths", "both"), default="both")
    given = parser.parse_args()
    if given.table:
        put(MARK, table())
        return
    size = QUICK_SIZE if given.quick else SIZE
    wanted = jobs(size, given.seeds, given.log2_points, given.only)
    append_lines(given.out, FIELDS, wanted, given.seconds)


if __name__ == "__main__":
    main()
