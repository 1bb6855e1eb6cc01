"""The population room: what an exact risk costs, and what plain Monte Carlo would."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.risk import plan, risk

OVERLAPS = ar.Overlaps(m_kk=0.7, m_kv=0.3, m_vk=-0.4, m_vv=0.8, q_kk=1.2, q_kv=0.25, q_vv=1.5)
ACCURACY = 1e-4


class Row(NamedTuple):
    """One line of the table: what was measured, the bar to reach, and whether it was."""

    what: str
    found: str
    bar: str
    reached: bool


def seconds(function: Callable[[], Any], repeats: int = 30) -> float:
    """The median time of a call, after one to compile."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def compiled(length: int, gradient: bool) -> Callable[[], Any]:
    """The seven-overlap softmax risk on the spiked task, ready to call."""
    task, attention = ar.SpikedSLR(2.0, length), ar.Softmax()
    how = plan(task, attention, scale=float(np.sqrt(OVERLAPS.q_kk)))
    task_, overlaps, how_ = as_arrays((task, OVERLAPS, how))

    def value(overlaps: ar.Overlaps, task: Any, how: Any) -> Any:
        return risk(task, attention, overlaps, how)

    function = eqx.filter_jit(eqx.filter_value_and_grad(value) if gradient else value)
    return lambda: function(overlaps, task_, how_)


def monte_carlo(length: int, n: int, rng: np.random.Generator) -> tuple[float, float]:
    """Plain NumPy: seconds for `n` sequences, and the standard deviation of the loss of one."""
    overlap = np.array([[OVERLAPS.m_kk, OVERLAPS.m_kv], [OVERLAPS.m_vk, OVERLAPS.m_vv]])
    root = np.linalg.cholesky(np.asarray(OVERLAPS.residual))
    start = time.perf_counter()
    teacher = rng.normal(size=(n, length, 2))
    teacher[:, 0, 0] += np.sqrt(2.0)
    student = teacher @ overlap.T + rng.normal(size=(n, length, 2)) @ root.T
    weights = np.exp(student[..., 0] - student[..., 0].max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    loss = (teacher[:, 0, 1] - (weights * student[..., 1]).sum(1)) ** 2
    return time.perf_counter() - start, float(loss.std())


def rows() -> list[Row]:
    """Everything this room promises."""
    value = {length: seconds(compiled(length, gradient=False)) for length in (10, 10**6)}
    gradient = {length: seconds(compiled(length, gradient=True)) for length in (10, 10**6)}
    n = 200_000
    spent, deviation = monte_carlo(10, n, np.random.default_rng(0))
    needed = spent / n * (deviation / ACCURACY) ** 2
    growth = gradient[10**6] / gradient[10]
    ratio = needed / value[10]
    return [
        Row("risk, 7 overlaps, softmax, L = 10", f"{1e3 * value[10]:.2f} ms", "", True),
        Row(
            "value and gradient, the same",
            f"{1e3 * gradient[10]:.2f} ms",
            "≤ 5 ms",
            gradient[10] <= 5e-3,
        ),
        Row("value and gradient, L = 10^6 over L = 10", f"{growth:.2f}×", "≤ 1.5×", growth <= 1.5),
        Row("NumPy Monte Carlo to 1e-4, L = 10", f"{needed:.1f} s", "", True),
        Row("Monte Carlo over exact risk", f"{ratio:,.0f}×", "≥ 1000×", ratio >= 1000),
    ]
