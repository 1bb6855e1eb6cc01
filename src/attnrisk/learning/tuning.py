"""Ridges that make the test risk least, `E_σ(α)` (section 6), by descent through the fixed point."""

import numpy as np
from jaxtyping import Float

from .._check import real
from ..attention import AbstractAttention
from ..tasks import AbstractTask
from .asymptotics import ERMAsymptotics, Ridge
from .erm import LOG2_POINTS, Problem, Start, distinct, erm_asymptotics

_SMALLEST, _LARGEST = np.log(1e-3), np.log(1e3)
_FLAT = 1e-4  # a slope of the test risk in log r below this gains less than 10^-4 over a factor e
_NOISE = 0.1  # of the error of a test risk: samples that jump between minima move it about as much
_MOST_EVALUATIONS = 30
# Halvings of the points on the way, down to so many: near the best ridges the risk hardly depends on them.
_COARSER, _COARSEST = 2, 7
_STIFFER = np.log(
    3.0
)  # where the fixed point is not found, the descent starts at ridges that are larger by this
_MOST_RESTARTS = 4


def tuned_erm_asymptotics(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    seed: int = 0,
    log2_points: int = LOG2_POINTS,
    start: Ridge | None = None,
) -> ERMAsymptotics:
    """Empirical risk minimisation with the best `r_k` and `r_v` between 10^-3 and 10^3.

    Each fixed point starts from the one before, and its derivative in the ridges leads to the next, on a part of the
    points. At the end the fixed point is looked for from all starts, on all points.
    """
    alpha = float(real("alpha", alpha, above=0.0))
    coarse = max(log2_points - _COARSER, min(log2_points, _COARSEST))
    descent = Descent(Problem.of(task, attention, coarse, seed), alpha)
    first = _first(task, attention) if start is None else start
    best = descent.run(np.log([float(first.k), float(first.v)]))
    ridge = Ridge(*np.exp(best).tolist())
    return erm_asymptotics(task, attention, alpha, ridge, seed, log2_points)


def _first(task: AbstractTask, attention: AbstractAttention) -> Ridge:
    """Ridges to start from: where weights sum to much more than one, `v` is as much smaller."""
    equal = np.zeros((attention.keys, round(task.length.mean())))
    total = max(float(np.sum(attention.attend(equal))), 1.0)
    return Ridge(1.0, total**2)


class Descent:
    """The test risk as a function of the logarithms of the ridges, which remembers where it was."""

    def __init__(self, problem: Problem, alpha: float):
        self.problem, self.alpha = problem, alpha
        self.last: Start | None = None
        self.evaluations = 0

    def __call__(self, logs: np.ndarray) -> tuple[float, Float[np.ndarray, "2"], float]:
        self.evaluations += 1
        ridge = Ridge(*np.exp(logs).tolist())
        tries = (self.last,) if self.last is not None else self.problem.starts(ridge)
        found = [self.problem.find_fixed_point(self.alpha, ridge, start) for start in tries]
        best = distinct(found)[0]
        if not best.result.converged:
            return np.inf, np.zeros(2), 0.0
        self.last = Start(best.start, best.x, best.displacements)
        risk, by_unknowns = self.problem.test_risk(best.x)
        return risk, best.slope(by_unknowns) * np.exp(logs), best.error(by_unknowns)

    def run(self, logs: np.ndarray) -> np.ndarray:
        """Quasi-Newton steps within the bounds."""
        value, slope, error = self(logs)
        for _ in range(_MOST_RESTARTS):
            if value < np.inf:
                break
            logs = np.minimum(logs + _STIFFER, _LARGEST)
            value, slope, error = self(logs)
        inverse = np.eye(2) / max(float(np.linalg.norm(slope)), 1e-3)
        for _ in range(_MOST_EVALUATIONS):
            free = ~((logs <= _SMALLEST) & (slope > 0) | (logs >= _LARGEST) & (slope < 0))
            if np.all(np.abs(slope[free]) < max(_FLAT, _NOISE * error)):
                break
            step = np.clip(-inverse @ np.where(free, slope, 0.0), -1.5, 1.5)
            if step @ slope >= 0:
                inverse = np.eye(2) / float(np.linalg.norm(slope))
                step = np.clip(-inverse @ np.where(free, slope, 0.0), -1.5, 1.5)
            ahead = np.clip(logs + step, _SMALLEST, _LARGEST)
            new_value, new_slope, error = self(ahead)
            if not new_value < value + _NOISE * error:
                inverse = inverse / 4.0
                if abs(float(slope @ (ahead - logs))) < _NOISE * error:
                    break
                continue
            inverse = _updated(inverse, ahead - logs, new_slope - slope)
            logs, value, slope = ahead, new_value, new_slope
        return logs


def _updated(inverse: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The update of Broyden, Fletcher, Goldfarb and Shanno, where the curvature is positive."""
    curvature = step @ change
    if curvature <= 1e-10:
        return inverse
    project = np.eye(2) - np.outer(step, change) / curvature
    return project @ inverse @ project.T + np.outer(step, step) / curvature
