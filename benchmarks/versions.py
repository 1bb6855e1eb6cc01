"""Random questions over all packages, answered by two versions of the code: do the numbers agree within their errors?

`python -m benchmarks.versions answer FILE [KIND ...]` appends a line for each question, with its values and errors; run
it with `PYTHONPATH` at the sources of either version. `python -m benchmarks.versions compare OLD NEW` prints a table.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import attnrisk as ar

SEED = 17
EXACT = ["softmax", "softmax-1", "softplus", "elu+1", "relu", "relu2", "taylor-2", "erf", "sigmoid"]
EXACT += ["linear", "elementwise-relu", "ssmax"]
LEARNED = ["softmax", "linear", "erf", "softplus"]
_AT_REST = 1e-6  # of a flow that stops at a small gradient
_SLACK = 1e-12  # of rounding, where an error is not stated
_WIDER = 3.0  # standard errors, where points are random

Rng = np.random.Generator
Values = dict[str, tuple[float, float, bool]]  # value, error, and whether that is a standard error


def _task(rng: Rng, longest: int = 4) -> Any:
    length: Any = int(10 ** rng.uniform(math.log10(2), longest))
    if rng.random() < 0.2:
        length = ar.uniform(1, int(rng.integers(2, 8)))
    noise = float(rng.choice([0.0, 0.3]))
    if rng.random() < 0.6:
        return ar.SpikedSLR(float(rng.uniform(0.5, 12.0)), length, noise)
    nu = math.inf if rng.random() < 0.4 else float(rng.uniform(0.5, 6.0))
    return ar.MaxSLR(nu, length, noise)


def _overlaps(rng: Rng, keys: int = 1, features: int = 1) -> ar.Overlaps:
    M = rng.uniform(-1.2, 1.2, (keys + 1, features + 1))
    noise = 0.5 * rng.normal(size=(keys + 1, keys + 1))
    return ar.Overlaps(M, M @ M.T + noise @ noise.T)


def _of(**estimates: Any) -> Values:
    found = {}
    for name, each in estimates.items():
        is_estimate = isinstance(each, ar.Estimate)
        random = is_estimate and each.kind is ar.ErrorKind.STANDARD
        found[name] = float(each), float(each.error) if is_estimate else 0.0, random
    return found


def risk(rng: Rng) -> tuple[str, Values]:
    """A population risk at seven random overlaps."""
    task, name, overlaps = _task(rng), str(rng.choice(EXACT)), _overlaps(rng)
    found = ar.population_risk(task, ar.get_attention(name), overlaps)
    return f"{name}, {task}", _of(risk=found)


def minimum(rng: Rng) -> tuple[str, Values]:
    """The least risk over the length of `k`, and half of the time over the bias."""
    task, name = _task(rng), str(rng.choice(EXACT))
    bias = "free" if rng.random() < 0.5 else None
    attention = ar.get_attention(name, bias=bias) if bias else ar.get_attention(name)
    return f"{name}, bias {bias}, {task}", _of(risk=ar.population_minimum(task, attention).risk)


def bayes(rng: Rng) -> tuple[str, Values]:
    """The Bayes risk and closed forms."""
    task = _task(rng, 8)
    found = {"linear": ar.linear_risk(task), "floor": ar.elementwise_floor(task)}
    return str(task), _of(bayes=ar.bayes_risk(task), **found)


def general(rng: Rng) -> tuple[str, Values]:
    """Attentions without structure, over random points."""
    name, task = str(rng.choice(["sparsemax", "top-k", "entmax-1.5"])), _task(rng, 1)
    return f"{name}, {task}", _of(
        risk=ar.population_risk(task, ar.get_attention(name), _overlaps(rng))
    )


def heads(rng: Rng) -> tuple[str, Values]:
    """Two heads on one or two features."""
    features = ar.flipped(4.0) if rng.random() < 0.5 else ar.one_of([6.0, 4.0])
    task = ar.FeatureSLR(features, int(rng.integers(2, 40)))
    attention: Any = ar.Heads(ar.Softmax(), 2) if rng.random() < 0.5 else ar.BayesSoftmax(2)
    overlaps = _overlaps(rng, 2, task.features)
    return f"{attention.name}, {task}", _of(risk=ar.population_risk(task, attention, overlaps))


def flow(rng: Rng) -> tuple[str, Values]:
    """Where gradient flow ends, to the tolerance of its gradient."""
    task = ar.SpikedSLR(float(rng.uniform(1.0, 6.0)), int(rng.integers(2, 12)))
    attention = ar.get_attention(str(rng.choice(["softmax", "linear", "softplus"])))
    starts = ar.random_starts(jax.random.key(int(rng.integers(100))), 1)
    found = ar.gradient_flow(task, attention, starts)
    end, error = (float(np.ravel(each)[0]) for each in (found.end_risk.value, found.end_risk.error))
    return f"{attention.name}, {task}", {"risk": (end, error + _AT_REST, False)}


def online(rng: Rng) -> tuple[str, Values]:
    """Online SGD after some time."""
    task = ar.SpikedSLR(float(rng.uniform(1.0, 6.0)), 3, 0.2)
    start = ar.Overlaps(m_kk=0.3, m_vv=0.3, q_kk=0.18, q_vv=0.18)
    found = ar.online_sgd(task, ar.Softmax(), start, step=float(rng.uniform(0.3, 1.5)))
    return str(task), _of(risk=found.end_risk)


def erm(rng: Rng) -> tuple[str, Values]:
    """A fixed point of learning from finite data."""
    task = ar.SpikedSLR(float(rng.uniform(1.0, 6.0)), 3, float(rng.choice([0.0, 0.3])))
    attention, alpha = ar.get_attention(str(rng.choice(LEARNED))), float(rng.uniform(0.5, 8.0))
    found = ar.erm_asymptotics(task, attention, alpha, ar.Ridge(1.0, 1.0), log2_points=7)
    return f"{attention.name}, {task}, {alpha:g}", _of(
        test=found.test_risk, train=found.train_error
    )


def optimal(rng: Rng) -> tuple[str, Values]:
    """The Bayes optimum from finite data."""
    task, alpha = ar.SpikedSLR(float(rng.uniform(1.0, 6.0)), 3, 0.3), float(rng.uniform(0.5, 4.0))
    return f"{task}, {alpha:g}", _of(risk=ar.optimal_asymptotics(task, alpha).risk)


def simulated(rng: Rng) -> tuple[str, Values]:
    """A fit and message passing at finite dimension: the same numbers to the tolerance of the minimiser."""
    task, seed = ar.SpikedSLR(float(rng.uniform(2.0, 6.0)), 3, 0.3), int(rng.integers(100))
    data = ar.sample(task, jax.random.key(seed), n=800, dim=200)
    fit, passed = ar.fit_erm(data, ar.Softmax(), ar.Ridge(1.0, 1.0)), ar.fit_amp(data)
    values = {"fit": (float(fit.test_risk), 1e-5, False), "amp": (float(passed.risk), 1e-4, False)}
    return str(task), values


KINDS: dict[str, tuple[Callable[[Rng], tuple[str, Values]], int]] = {
    "risk": (risk, 50),
    "minimum": (minimum, 50),
    "bayes": (bayes, 30),
    "general": (general, 8),
    "heads": (heads, 8),
    "flow": (flow, 15),
    "online": (online, 5),
    "erm": (erm, 16),
    "optimal": (optimal, 10),
    "simulated": (simulated, 8),
}


def answer(path: Path, kinds: list[str]) -> None:
    """Append a line for each question of these kinds."""
    for kind in kinds:
        ask, count = KINDS[kind]
        for index in range(count):
            begun = time.process_time()
            try:
                asked, values = ask(np.random.default_rng([SEED, list(KINDS).index(kind), index]))
            except Exception as failure:  # it is part of the answer
                asked, values = f"{type(failure).__name__}: {failure}", {}
            spent = round(time.process_time() - begun, 2)
            line = {"kind": kind, "index": index, "asked": asked, "values": values, "spent": spent}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def compare(old: Path, new: Path) -> int:
    """Print how far the answers are apart, by kind, and each that is further than both errors together."""
    before, after = (
        {(line["kind"], line["index"]): line for line in map(json.loads, path.open())}
        for path in (old, new)
    )
    print(
        f"{'kind':10} {'questions':>9} {'numbers':>8} {'largest difference':>19} {'beyond errors':>14}"
    )
    total = 0
    for kind in KINDS:
        pairs = [(before[key], after[key]) for key in after if key[0] == kind and key in before]
        differences, beyond = [0.0], []
        for first, second in pairs:
            if (
                first["asked"] != second["asked"]
                or first["values"].keys() != second["values"].keys()
            ):
                beyond.append(f"{first['asked']} / {second['asked']}")
                continue
            for name, (value, error, random) in first["values"].items():
                other, other_error, _ = second["values"][name]
                differences.append(abs(other - value))
                allowed = (_WIDER if random else 1.0) * (error + other_error) + _SLACK
                if not differences[-1] <= allowed:
                    beyond.append(
                        f"{first['asked']}: {name} {value!r} ± {error:g}, now {other!r} ± {other_error:g}"
                    )
        if pairs:
            print(
                f"{kind:10} {len(pairs):9} {len(differences) - 1:8} {max(differences):19.1e} {len(beyond):14}"
            )
        for each in beyond:
            print(f"  {each}")
        total += len(beyond)
    return total


def main() -> int:
    """Answer, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("answer")
    asked.add_argument("file", type=Path)
    asked.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"of {list(KINDS)}; all if not given"
    )
    compared = commands.add_parser("compare")
    compared.add_argument("old", type=Path)
    compared.add_argument("new", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return 1 if compare(given.old, given.new) else 0
    answer(given.file, given.kinds or list(KINDS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
