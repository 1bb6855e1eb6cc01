"""Which attention can be learned on which task, by theory and in experiments: the table of docs/learning.md.

`python -m benchmarks.learning_matrix` writes it between the two marks of that page. With `--seconds` it prints how
long a fixed point takes for each pair.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

import attnrisk as ar
from attnrisk.attention import AbstractAttention
from attnrisk.learning.scope import learnable, learner, optimisable
from attnrisk.simulation.erm import check_padding
from attnrisk.tasks import AbstractTask
from benchmarks.tables import put

MARK = "matrix"

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

    def cell(function: Callable[..., None], *given: Any) -> str:
        try:
            function(*given)
        except ValueError as refusal:
            number = reasons.setdefault(str(refusal).replace("|", "\\|"), len(reasons) + 1)
            return f"refused ({number})"
        return "yes"

    def both(task: AbstractTask, attention: AbstractAttention) -> str:
        cells = [cell(each, task, attention) for each in (theory, experiment)]
        return cells[0] if cells[0] == cells[1] else f"theory {cells[0]}, experiment {cells[1]}"

    lines = ["| task | " + " | ".join(ATTENTIONS) + " | Bayes optimum |"]
    lines.append("|---" * (len(ATTENTIONS) + 2) + "|")
    for name, task in TASKS.items():
        cells = [*(both(task, each) for each in ATTENTIONS.values()), cell(optimum, task)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([*lines, "", "The reasons, as they are told:", "", *notes])


def seconds() -> Iterable[str]:
    """How long a fixed point takes, compilation included, where there is one."""
    for place, task in TASKS.items():
        for name, attention in ATTENTIONS.items():
            begun = time.perf_counter()
            try:
                ar.erm_asymptotics(task, attention, 4.0, ar.Ridge(1.0, 1.0), log2_points=5)
            except ValueError:
                continue
            yield f"{place}; {name}: {time.perf_counter() - begun:.1f} s"


if __name__ == "__main__":
    put(MARK, table())
    if "--seconds" in sys.argv:
        for each in seconds():
            print(each, flush=True)
