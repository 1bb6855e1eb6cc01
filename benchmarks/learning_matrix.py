"""Which attention can be learned on which task, by theory and in experiments: the table of docs/learning.md.

`python -m benchmarks.learning_matrix` writes it between the two marks of that page. With `--seconds` it measures before
how long a fixed point takes for each pair that is not in docs/data/learning_seconds.csv, and adds it there.
"""

import csv
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np

import attnrisk as ar
from attnrisk.attention import AbstractAttention
from attnrisk.learning.scope import learnable, learner, optimisable
from attnrisk.simulation.erm import check_padding
from attnrisk.tasks import AbstractTask
from benchmarks.lines import append_lines
from benchmarks.tables import PAGE, put

DATA, MARK = PAGE.parent / "data" / "learning_seconds.csv", "matrix"

TASKS: dict[str, AbstractTask] = {
    "spiked, L = 3": ar.SpikedSLR(2.0, 3),
    "spiked, lengths 1 to 3": ar.SpikedSLR(2.0, ar.uniform(1, 3)),
    "spiked, spread 0.7": ar.SpikedSLR(2.0, 3, spread=0.7),
    "spiked, L = 1000": ar.SpikedSLR(20.0, 1000),
    "max, L = 3": ar.MaxSLR(np.inf, 3),
    "max, L = 1000": ar.MaxSLR(np.inf, 1000),
    "a weight g": ar.WeightedSLR(lambda at, chi: chi[at] - 0.5, 3),
    "features": ar.FeatureSLR(ar.flipped(nu=4.0), 3),
    "features, L = 1000": ar.FeatureSLR(ar.flipped(nu=20.0), 1000),
}
ATTENTIONS: dict[str, AbstractAttention] = {
    "kernels: softmax, softplus, elu+1, Taylor-2, softmax-1": ar.get_attention("softplus"),
    "the same with a free bias": ar.get_attention("softplus", "free"),
    "element-wise: linear, erf, sigmoid, ReLU": ar.get_attention("erf"),
    "ReLU, ReLU² over their sums, bias −1": ar.get_attention("relu", -1.0),
    "the same with a free bias or none": ar.get_attention("relu", "free"),
    "sparsemax, entmax, top-k": ar.get_attention("sparsemax"),
    "hardmax": ar.get_attention("hardmax"),
    "two heads of softmax": ar.get_heads("softmax", 2),
    "three heads of softmax": ar.get_heads("softmax", 3),
}


def theory(task: AbstractTask, attention: AbstractAttention) -> None:
    """Refuse what `erm_asymptotics` and `tuned_erm_asymptotics` refuse."""
    learnable(task, learner(attention))


def experiment(task: AbstractTask, attention: AbstractAttention) -> None:
    """Refuse what `sample` and `fit_erm` refuse."""
    check_padding(ar.sample(task, jax.random.key(0), 4, 4), learner(attention))


def optimum(task: AbstractTask) -> None:
    """Refuse what `optimal_asymptotics` refuses."""
    if task.spread == 1.0:
        optimisable(task)


def table() -> str:
    """A row for each task, and under it the reasons of the refusals."""
    reasons: dict[str, int] = {}
    seconds = measured()

    def cell(function: Callable[..., None], *given: Any) -> str:
        try:
            function(*given)
        except ValueError as refusal:
            number = reasons.setdefault(str(refusal).replace("|", "\\|"), len(reasons) + 1)
            return f"refused ({number})"
        return "yes"

    def both(place: str, name: str) -> str:
        task, attention = TASKS[place], ATTENTIONS[name]
        cells = [cell(each, task, attention) for each in (theory, experiment)]
        took = f", {seconds[place, name]:.0f} s" if (place, name) in seconds else ""
        if cells[0] == cells[1]:
            return cells[0] + took
        return f"theory {cells[0]}{took}, experiment {cells[1]}"

    lines = ["| task | " + " | ".join(ATTENTIONS) + " | Bayes optimum |"]
    lines.append("|---" * (len(ATTENTIONS) + 2) + "|")
    for name, task in TASKS.items():
        cells = [*(both(name, each) for each in ATTENTIONS), cell(optimum, task)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([*lines, "", "The messages:", "", *notes])


def measured() -> dict[tuple[str, str], float]:
    """Seconds of processor time of a fixed point, by task and attention, where they are known."""
    if not DATA.exists():
        return {}
    with DATA.open(newline="", encoding="utf-8") as file:
        return {
            (row["task"], row["attention"]): float(row["seconds"]) for row in csv.DictReader(file)
        }


def measure() -> None:
    """Add the processor time of a fixed point with its compilation, for each pair that is not known and not refused."""
    known = measured()

    def solve(place: str, name: str) -> dict[str, Any]:
        ridge = ar.Ridge(1.0, 1.0)
        ar.erm_asymptotics(TASKS[place], ATTENTIONS[name], 4.0, ridge, log2_points=5)
        return {"task": place, "attention": name}

    def is_refused(place: str, name: str) -> bool:
        try:
            theory(TASKS[place], ATTENTIONS[name])
        except ValueError:
            return True
        return False

    pairs = [each for each in product(TASKS, ATTENTIONS) if each not in known]
    jobs = [partial(solve, *each) for each in pairs if not is_refused(*each)]
    append_lines(DATA, ("task", "attention", "seconds"), jobs, math.inf, time.process_time)


if __name__ == "__main__":
    if "--seconds" in sys.argv:
        measure()
    put(MARK, table())
