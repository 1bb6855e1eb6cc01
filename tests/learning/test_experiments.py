"""Theory against training at three dimensions, `1/D` removed, for every entry of the matrix of docs/learning.md.

Each setting has a negative control, the theory at other ridges and for heads that of one head, which must be rejected.
Weighted tasks have no sampler: they are checked against the tasks that their weights stand for (`test_tasks.py`). Free
biases are in `test_bias.py`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import attnrisk as ar
from tests.agreement import distance
from tests.learning.test_tasks import Chosen, Ours

pytestmark = pytest.mark.slow


class Setting(NamedTuple):
    task: Any
    attention: Any
    alpha: float
    ridge: Any
    log2_points: int = 9
    dims: tuple[int, ...] = (100, 200, 400)
    runs: int = 32
    control: Any = None  # attention of the negative control, the same if not given


# Shifts of sum zero: no head finds more than one of them, and three heads take one each.
_THREE = 3.0 * np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]])


def _signal(length):
    return 4 * np.log(length)


SETTINGS = {
    "spread 0.7": Setting(
        ar.SpikedSLR(2.0, 3, spread=0.7), ar.get_attention("erf", "free"), 6.0, ar.Ridge(0.3, 0.5)
    ),
    "user's planted task": Setting(Ours(), ar.Softmax(), 4.0, ar.Ridge(0.5, 0.5)),
    "user's selected task": Setting(Chosen(), ar.Softmax(), 4.0, ar.Ridge(0.5, 0.5)),
    "one head on features": Setting(
        ar.FeatureSLR(ar.one_of([9.0, 4.0]), 3), ar.Softmax(), 6.0, ar.Ridge(0.5, 1.0)
    ),
    "two heads": Setting(
        ar.FeatureSLR(ar.flipped(9.0), 3),
        ar.Heads(ar.Softmax(), 2),
        12.0,
        ar.Ridge(0.2, 1.0),
        6,
        (60, 120, 240),
        16,
        ar.Softmax(),
    ),
    "three heads": Setting(
        ar.FeatureSLR(ar.ShiftMixture(_THREE, [1 / 3] * 3), 3),
        ar.Heads(ar.Softmax(), 3),
        16.0,
        ar.Ridge(0.3, 1.0),
        5,
        (60, 120, 240),
        16,
        ar.Softmax(),
    ),
    "three heads that collapse": Setting(
        ar.FeatureSLR(ar.one_of([9.0, 6.0, 4.0]), 3),
        ar.Heads(ar.Softmax(), 3),
        8.0,
        ar.Ridge(0.5, 1.0),
        5,
        (60, 120, 240),
        16,
        ar.Softmax(),
    ),
    "softmax, L = 100": Setting(
        ar.SpikedSLR(_signal(100), 100), ar.Softmax(), 4.0, ar.Ridge(0.3, 0.5), 6, (50, 100, 200)
    ),
    "erf, L = 100": Setting(
        ar.SpikedSLR(_signal(100), 100),
        ar.get_attention("erf", "free"),
        16.0,
        ar.Ridge(0.5, 2.0),
        6,
        (40, 80, 160),
        16,
    ),
    "max, L = 100": Setting(
        ar.MaxSLR(np.inf, 100), ar.Softmax(), 16.0, ar.Ridge(0.5, 1.0), 6, (40, 80, 160), 16
    ),
    "softmax, L = 1000": Setting(
        ar.SpikedSLR(_signal(1000), 1000),
        ar.Softmax(),
        4.0,
        ar.Ridge(0.3, 0.5),
        5,
        (30, 60, 120),
        16,
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_approaches_the_fixed_point(name):
    task, attention, alpha, ridge, log2_points, dims, runs, control = SETTINGS[name]
    other = ridge if control else ar.Ridge(3.0 * ridge.k, 3.0 * ridge.v)
    theory, wrong = (
        ar.erm_asymptotics(task, student, alpha, each, log2_points=log2_points)
        for student, each in ((attention, ridge), (control or attention, other))
    )
    assert theory.converged
    assert not theory.warning
    fits = [
        [
            ar.fit_erm(
                ar.sample(task, jax.random.key(seed), round(alpha * dim), dim),
                attention,
                ridge,
                jax.random.key(seed + 1000),
            )
            for seed in range(runs)
        ]
        for dim in dims
    ]
    for what in ("train_error", "test_risk"):
        measured = [[float(getattr(fit, what)) for fit in each] for each in fits]
        assert abs(distance(dims, measured, getattr(theory, what))) < 4, what
        assert abs(distance(dims, measured, getattr(wrong, what))) > 4, what
