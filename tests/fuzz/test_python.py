"""Random arguments to every public name: a value, or a `ValueError` of one line. Never another exception."""

import inspect
import random
from collections import Counter
from enum import EnumType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar

# What functions return: nobody builds these, and nothing is checked.
ANSWERS = (
    *(
        "AMPFit",
        "Basins",
        "Dataset",
        "ERMAsymptotics",
        "Estimate",
        "ERMFit",
        "FixedPoint",
        "Flow",
        "HeadsMinimum",
        "LocalMinimum",
        "Minimum",
        "OnlineSGD",
    ),
    *("OptimalAsymptotics", "SGDPath", "Stationary", "StreamedDataset", "Thresholds", "Trajectory"),
)

CALLED = [
    name
    for name in sorted(ar.__all__)
    if callable(getattr(ar, name)) and not name.startswith("Abstract") and name not in ANSWERS
    if not issubclass(type(getattr(ar, name)), EnumType)  # whose words are Python's
]
WRONG = [
    *(None, "", "softmax", "nan", "a\nb", "x" * 5000, b"bytes", 0, 1, -1, 2, 3, 10**12, 10**400, -(10**400)),
    *(10**5000, 0.0, 1.0, 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 1j, True),
    *((), [], {}, [1, 2], [[1.0], [1.0, 2.0]], {"k": 1}, {1, 2}, object(), type, len, range(3)),
    *(np.float32(2.0), np.int64(3), np.bool_(True), np.array([]), np.array("a"), np.array([1j, 2])),
    *(np.ones(3), np.ones((2, 2)), np.ones((2, 2, 2)), np.full(3, np.nan), np.array([object()])),
    *(jnp.ones(()), jnp.ones((2, 3)), np.zeros((0, 3)), np.array(3), ar.Softmax, ar.SpikedSLR),
]  # fmt: skip


@pytest.fixture(scope="module")
def suited():
    """Values that suit a parameter of this name, made before nothing can be computed any more."""
    tasks = [ar.SpikedSLR(2.0, 3), ar.MaxSLR(1.0, ar.uniform(1, 3)), ar.SpikedSLR(1.0, 2, 0.1, 2.0)]
    tasks += [ar.FeatureSLR(ar.flipped(9.0), 3), ar.MaxSLR(np.inf, 2), ar.WeightedSLR(_weight, 2)]
    attentions = [ar.Softmax(), ar.Erf(), ar.Sparsemax(), ar.Heads(ar.Softmax(), 2), ar.Linear()]
    overlaps = [ar.aligned(1.0), ar.Overlaps(np.zeros((2, 2, 2)), np.zeros((2, 2, 2)))]
    overlaps += [ar.Overlaps(np.zeros((3, 2)), np.eye(3))]
    data = ar.sample(tasks[0], jax.random.key(0), 8, 4)
    pair = ar.UnitPair(np.eye(4)[:1], np.eye(4)[1:2])
    vectors = np.ones((2, 4))
    fit = ar.ERMFit(
        *(vectors, tasks[0], attentions[0], ar.Ridge(1.0, 1.0), overlaps[0], 1.0, 1.0, 1.0, 1, 1),
        *(2.0, "random"),
        result=ar.Result.CONVERGED,
    )
    estimate, law = ar.Estimate(1.0, 0.1), ar.uniform(1, 3)
    minimum = ar.Minimum(estimate, overlaps[0], attentions[0])
    point = ar.FixedPoint(*[estimate] * 6, 0.0, 1, result=ar.Result.CONVERGED)
    return {
        "task": tasks,
        "tasks": [tasks[:2], []],
        "attention": [*attentions, "softmax", jax.nn.softmax],
        "overlaps": overlaps,
        "key": [jax.random.key(0), jax.random.PRNGKey(0)],
        "start": [*overlaps, pair, "nothing", "teacher", vectors, (0.1, 0.1), ar.Ridge(1.0, 1.0)],
        "starts": [{"one": vectors}],
        "times": [[0.0, 1.0], np.array([1.0, 2.0])],
        "ridge": [ar.Ridge(1.0, 1.0)],
        "alpha": [0.5, 4.0],
        "n": [8],
        "steps": [2],
        "batch": [2],
        "step_size": [0.1],
        "repeats": [2],
        "runs": [2],
        "dim": [4],
        "step": [0.1],
        "minimum": [minimum],
        "seed": [0, 7],
        "schedule": [ar.ConstantTemperature(1.0)],
        "data": [data],
        "fit": [fit],
        "law": [law],
        "length": [3, law, "1-3"],
        "best": [minimum],
        "text": ["1-3", "10"],
        "name": ["softmax", "linear"],
        "names": [["softmax"], ["linear", "erf"]],
        "answer": [estimate, minimum, ar.Ridge(1.0, 1.0), tasks[0]],
        "log_weight": [_weight],
        "log_phi": [jnp.abs, _weight],
        "weight": [jnp.tanh, _weight],
        "function": [jax.nn.softmax, _weight],
        "kind": [ar.ErrorKind.BOUND, "minimum"],
        "result": list(ar.Result)[:3],
        "reachable": [point],
        "informed": [point],
        "dtype": [float, "float32", np.float64],
        "path": ["/no/such/file.npz", "/dev/null", "/"],
        "M": [np.zeros((2, 2)), np.zeros((4, 2, 2))],
        "Q": [np.eye(2), np.zeros((4, 2, 2))],
        "features": [ar.flipped(9.0), ar.gaussian([2.0, 1.0])],
        "means": [np.ones((3, 2)), [[1.0]]],
        "nus": [[9.0, 4.0]],
        "variances": [[2.0]],
    }


def _weight(x, y):
    return x * y


def draw(rng, name, suited):
    """Arguments for this function, by name."""
    kinds = inspect.Parameter
    given = {}
    for parameter in inspect.signature(getattr(ar, name)).parameters.values():
        is_open = parameter.kind in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
        if is_open or (parameter.default is not kinds.empty and rng.random() < 0.5):
            continue
        wrong = parameter.name not in suited or rng.random() < 0.35
        value = rng.choice(WRONG if wrong else suited[parameter.name])
        is_callback = parameter.name in ("ask", "progress", "watch")
        if not (is_callback and callable(value)):  # what a function of the user's raises is its own
            given[parameter.name] = value
    return given


def shown(value):
    try:
        return repr(value)[:60]
    except ValueError:  # a whole number of thousands of digits
        return "10**5000"


def is_refusal(found, name):
    """One line, but for the example that `judge` shows, and the translation from PyTorch."""
    lines = 9 if name in ("judge", "from_torch") else 1
    return isinstance(found, ValueError) and len(str(found).splitlines()) <= lines


@pytest.mark.filterwarnings("ignore")
def test_public_names(suited, outcome, cases):
    faults, ends = [], Counter()
    for seed in cases:
        rng = random.Random(seed)
        name = CALLED[seed % len(CALLED)]
        given = draw(rng, name, suited)
        found = outcome(lambda: getattr(ar, name)(**given))  # noqa: B023
        ends[type(found).__name__] += 1
        if not is_refusal(found, name) and isinstance(found, Exception):
            words = ", ".join(f"{key}={shown(value)}" for key, value in given.items())
            faults.append(
                f"{seed}: ar.{name}({words})\n   {type(found).__name__}: {str(found)[:200]}"
            )
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults)
    assert ends["Refusal"] > len(cases) / 4
    assert ends["BeganToCompute"] >= len(cases) / 50
    assert len(cases) - ends["Refusal"] >= len(cases) / 5
