"""The theory of learning where it gives a warning, compared with training: a table of docs/learning.md.

`python -m benchmarks.replica_symmetry --out FILE.csv` solves settings with an unstable replica symmetry or with samples
that jump, and one without either, trains at three dimensions from a random and an informed start, removes the order
`1/D`, and appends a line for each setting. `--table` writes the table of docs/learning.md from docs/data.
"""

import argparse
import csv
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import attnrisk as ar
from benchmarks.lines import append_lines, with_error
from benchmarks.tables import PAGE, put

DATA, MARK = PAGE.parent / "data" / "replica_symmetry.csv", "replica symmetry"
DIMS, RUNS, LOG2_POINTS = (100, 200, 400), (24, 16, 8), 9

SPIKED = ar.SpikedSLR(2.0, 3)
SETTINGS: dict[str, tuple[Any, Any, float, ar.Ridge]] = {
    "spiked ν = 2, softmax, α = 4, ridges 1": (SPIKED, ar.Softmax(), 4.0, ar.Ridge(1.0, 1.0)),
    "spiked ν = 5, softmax, α = 1.2, ridges 0.09, 0.24": (
        ar.SpikedSLR(5.0, 3), ar.Softmax(), 1.2, ar.Ridge(0.09, 0.24),
    ),
    "spiked ν = 2, softmax, α = 4, ridges 0.02": (SPIKED, ar.Softmax(), 4.0, ar.Ridge(0.02, 0.02)),
    "spiked ν = 2, softmax, α = 2, ridges 0.05": (SPIKED, ar.Softmax(), 2.0, ar.Ridge(0.05, 0.05)),
    "spiked ν = 0.3, softmax, α = 1, ridges 0.02": (
        ar.SpikedSLR(0.3, 3), ar.Softmax(), 1.0, ar.Ridge(0.02, 0.02),
    ),
    "spiked ν = 5, L = 10, softmax, α = 2, ridges 0.1": (
        ar.SpikedSLR(5.0, 10), ar.Softmax(), 2.0, ar.Ridge(0.1, 0.1),
    ),
    "spiked ν = 2, erf, α = 4, ridges 0.02": (SPIKED, ar.Erf(), 4.0, ar.Ridge(0.02, 0.02)),
}  # fmt: skip
FIELDS = (
    *("setting", "replicon", "jumps", "result", "warning", "dims", "seconds"),
    *(f"{name}_{kind}" for name in ("test", "train") for kind in ("theory", "error")),
    *(f"{name}_{kind}" for name in ("test", "train") for kind in ("measured", "spread")),
)


def limit(means: list[np.ndarray]) -> tuple[float, float]:
    """The constant of `constant + slope/D` through the means of the runs at all dimensions, and its error."""
    errors = np.array([np.std(each, ddof=1) / np.sqrt(len(each)) for each in means])
    design = np.stack([np.ones(len(DIMS)), 1.0 / np.array(DIMS, float)], 1) / errors[:, None]
    covariance = np.linalg.inv(design.T @ design)
    values = np.array([np.mean(each) for each in means]) / errors
    return float((covariance @ design.T @ values)[0]), float(np.sqrt(covariance[0, 0]))


def compare(name: str) -> dict[str, Any]:
    """One line: the theory, and the limit of the experiments."""
    task, attention, alpha, ridge = SETTINGS[name]
    theory = ar.erm_asymptotics(task, attention, alpha, ridge, log2_points=LOG2_POINTS)
    runs: dict[str, list[np.ndarray]] = {"test": [], "train": []}
    for dim, count in zip(DIMS, RUNS, strict=True):
        data = (ar.sample(task, jax.random.key(at), round(alpha * dim), dim) for at in range(count))
        fits = [ar.fit_erm(each, attention, ridge) for each in data]
        runs["test"].append(np.array([float(fit.test_risk) for fit in fits]))
        runs["train"].append(np.array([fit.train_error for fit in fits]))
    row: dict[str, Any] = {"setting": name, "replicon": theory.replicon, "jumps": theory.jumps}
    row |= {"result": str(theory.result), "warning": theory.warning}
    row["dims"] = " ".join(map(str, DIMS))
    for kind, found in (("test", theory.test_risk), ("train", theory.train_error)):
        measured, spread = limit(runs[kind])
        row |= {f"{kind}_theory": float(found), f"{kind}_error": float(found.error)}
        row |= {f"{kind}_measured": measured, f"{kind}_spread": spread}
    return row


def table(path: Path = DATA) -> str:
    """The lines as a table of the page."""
    lines = [
        "| setting | replicon | jumps | test risk: theory | experiments | training error: theory | experiments |",
        "|---|---|---|---|---|---|---|",
    ]
    with path.open() as file:
        for row in csv.DictReader(file):
            cells = [row["setting"], *(f"{float(row[it]):.2f}" for it in ("replicon", "jumps"))]
            for kind in ("test", "train"):
                pairs = (("theory", "error"), ("measured", "spread"))
                for value, error in pairs:
                    numbers = (float(row[f"{kind}_{it}"]) for it in (value, error))
                    cells.append(with_error(*numbers))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Append a line for each setting until the time is over, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(DATA.name), help="file to append to")
    parser.add_argument("--table", action="store_true", help="write the table of the page alone")
    parser.add_argument("--seconds", type=float, default=1e6, help="start nothing after this time")
    given = parser.parse_args()
    if given.table:
        put(MARK, table())
    else:
        append_lines(
            given.out, FIELDS, (partial(compare, name) for name in SETTINGS), given.seconds
        )


if __name__ == "__main__":
    main()
