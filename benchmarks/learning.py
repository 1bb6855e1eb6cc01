"""Learning: what a fixed point, a tuned curve and a grid of ridges cost, and what plain Monte Carlo would."""

import time

import numpy as np

import attnrisk as ar
from attnrisk.learning.equations import RANDOMISATIONS, map_step
from attnrisk.learning.problem import Problem
from attnrisk.learning.samples import Points
from attnrisk.learning.tuning import Descent, ridge_range
from benchmarks.population import Row

TASK, ATTENTION, ALPHA, RIDGE = ar.SpikedSLR(2.0, 3), ar.Softmax(), 4.0, ar.Ridge(1.0, 1.0)
ACCURACY = 1e-3
ALPHAS = np.geomspace(0.3, 20.0, 12).tolist()
GRID = np.geomspace(0.1, 10.0, 5).tolist()  # ridges of a coarse grid, as its side

_PLAIN_STEPS, _PLAIN_DAMPING, _PLAIN_RUNS = 40, 0.5, 4
_LOG2_PLAIN = 7


def fixed_point() -> tuple[float, float]:
    """Seconds of one call once compiled, and the error it states."""
    ar.erm_asymptotics(TASK, ATTENTION, ALPHA, RIDGE)
    start = time.perf_counter()
    found = ar.erm_asymptotics(TASK, ATTENTION, ALPHA, RIDGE, seed=1)
    return time.perf_counter() - start, float(found.test_risk.error)


def fine_fixed_point() -> tuple[float, float]:
    """Processor seconds of one call with `2^13` points once compiled, and the error it states."""
    ar.erm_asymptotics(TASK, ATTENTION, ALPHA, RIDGE, log2_points=13)
    begun = time.process_time()
    found = ar.erm_asymptotics(TASK, ATTENTION, ALPHA, RIDGE, 1, 13)
    return time.process_time() - begun, float(found.test_risk.error)


def plain(rng: np.random.Generator) -> tuple[float, float]:
    """New random samples at every step of a damped iteration, every sample searched from nothing.

    Seconds of a run once compiled, and the standard deviation of its test risk between runs.
    """
    risks, spent = [], []
    for _ in range(_PLAIN_RUNS + 1):
        begun = time.perf_counter()
        x = Problem(TASK, ATTENTION, []).starts(RIDGE)[0].x
        for _ in range(_PLAIN_STEPS):
            problem = Problem(TASK, ATTENTION, _random_points(rng))
            x = x + _PLAIN_DAMPING * (map_step(problem, x, ALPHA, RIDGE)[1].target - x)
        risks.append(float(problem.test_risk(x)[0]))
        spent.append(time.perf_counter() - begun)
    return float(np.median(spent[1:])), float(np.std(risks[1:], ddof=1))


def _random_points(rng: np.random.Generator) -> list[tuple[Points, ...]]:
    normals = rng.normal(size=(RANDOMISATIONS, 2**_LOG2_PLAIN, 7))
    shift, none = np.full((2**_LOG2_PLAIN, 1), float(TASK.shift)), np.zeros((2**_LOG2_PLAIN, 0))
    return [
        (Points(1.0, it[:, None, :3], it[:, 3:6], np.abs(it[:, 6]), shift, none),) for it in normals
    ]


LENGTHS = (10, 100, 1000)
_LOG2_LONG = 3


def length_cost(length: int) -> float:
    """Seconds of a sample in one step of the map, every minimum searched for, once compiled: softmax, `ν = 4 log L`."""
    problem = Problem.of(ar.SpikedSLR(4 * np.log(length), length), ATTENTION, _LOG2_LONG, 0)
    x = problem.starts(RIDGE)[1].x
    map_step(problem, x, ALPHA, RIDGE)
    begun = time.perf_counter()
    map_step(problem, x, ALPHA, RIDGE)
    return (time.perf_counter() - begun) / (RANDOMISATIONS * 2**_LOG2_LONG)


def tuned_curve() -> float:
    """Seconds of a tuned curve, compilation included."""
    begun, start = time.perf_counter(), None
    for alpha in ALPHAS[::-1]:
        start = ar.tuned_erm_asymptotics(TASK, ATTENTION, alpha, start=start).ridge
    return time.perf_counter() - begun


def tuned_over_grid() -> tuple[float, float, float]:
    """Seconds of tuning over those of a coarse grid, and how much lower it ends, with the error of that."""
    ar.tuned_erm_asymptotics(TASK, ATTENTION, ALPHA)
    begun = time.perf_counter()
    tuned = ar.tuned_erm_asymptotics(TASK, ATTENTION, ALPHA)
    spent = time.perf_counter() - begun
    begun = time.perf_counter()
    grid = [
        ar.erm_asymptotics(TASK, ATTENTION, ALPHA, ar.Ridge(k, v)).test_risk
        for k in GRID
        for v in GRID
    ]
    share = spent / (time.perf_counter() - begun)
    best = min(grid, key=float)
    return share, float(best) - float(tuned.test_risk), float(tuned.test_risk.error)


TUNED = (
    (TASK, ATTENTION, 4.0),
    (TASK, ar.Linear(), 2.0),
    (TASK, ATTENTION, 0.5),
    (ar.MaxSLR(np.inf, 3), ATTENTION, 4.0),
)
_OWN_BFGS = 41  # fixed points that a BFGS of our own took in these settings, to end at the same risks or higher


def tuning_evaluations() -> int:
    """Fixed points that SciPy's L-BFGS-B asks for, over all settings."""
    total = 0
    for task, attention, alpha in TUNED:
        first, *bounds = ridge_range(task, attention)
        descent = Descent(Problem.of(task, attention, 7, 0), alpha, *bounds)
        descent.run(np.log([first.k, first.v]))
        total += descent.evaluations
    return total


def lengths() -> list[Row]:
    """What a sample costs by its number of tokens."""
    costs = {length: length_cost(length) for length in LENGTHS}
    return [
        Row(
            f"a sample of a step of the fixed point, L = {length}",
            f"{1e3 * costs[length]:.2f} ms",
            "" if length == LENGTHS[0] else f"≤ {length // shorter}× of L = {shorter}, + 50 %",
            length == LENGTHS[0] or costs[length] <= 1.5 * length / shorter * costs[shorter],
        )
        for shorter, length in zip((LENGTHS[0], *LENGTHS), LENGTHS, strict=False)
    ]


def fixed_points() -> list[Row]:
    """Against plain Monte Carlo."""
    spent, error = fixed_point()
    long, fine = fine_fixed_point()
    plainly, deviation = plain(np.random.default_rng(0))
    needed = plainly * (deviation / ACCURACY) ** 2
    ours = spent * (error / ACCURACY) ** 2
    return [
        Row(
            f"ERM fixed point, softmax, L = 3, α = 4, to ±{error:.0e}",
            f"{spent:.2f} s",
            "≤ 3 s, ±1e-3",
            spent <= 3 and error <= ACCURACY,
        ),
        Row(
            f"the same to ±{fine:.0e}, processor time",
            f"{long:.0f} s",
            "≤ 20 s, ±1e-4",
            long <= 20 and fine <= 1e-4,
        ),
        Row("plain Monte Carlo, cold starts, to ±1e-3", f"{needed:.0f} s", "", True),
        Row("plain over ours, at the same error", f"{needed / ours:.0f}×", "", True),
    ]


def tuning() -> list[Row]:
    """Tuned ridges, against a grid of them and against a BFGS of our own."""
    share, gained, noise = tuned_over_grid()
    curve = tuned_curve()
    evaluations = tuning_evaluations()
    return [
        Row("tuned curve, 12 α, compilation included", f"{curve:.0f} s", "≤ 180 s", curve <= 180),
        Row(
            "fixed points in tuning, L-BFGS-B, four settings",
            f"{evaluations}",
            f"≤ {_OWN_BFGS}, our own BFGS",
            evaluations <= _OWN_BFGS,
        ),
        Row("tuning over a grid of 5 × 5 ridges", f"{share:.2f}×", "≤ 0.2×", share <= 0.2),
        Row(
            "least risk of the grid over the tuned",
            f"{gained:+.4f} ± {noise:.4f}",
            "≥ −3 errors",
            gained >= -3 * noise,
        ),
    ]
