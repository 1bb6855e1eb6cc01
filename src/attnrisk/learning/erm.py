"""Empirical risk minimisation with finite data, `N, D → ∞` at `α = N/D` (section 6).

    minimise  Σ_μ ½(y_μ − σ(χ_μ)·z_μ)² + (r_k/2)|k|² + (r_v/2)|v|²

Its overlaps solve six equations, whose right-hand sides are means over one sample. They are solved by Newton's method
with the derivatives of the minimisers inside (implicit ones), on one fixed set of Sobol points.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from .._check import real
from .._results import Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..tasks import AbstractTask, MaxSLR, SpikedSLR
from .asymptotics import CONVERGED, ERMAsymptotics, Ridge, Settled, report
from .channel import Sequences, draw
from .scope import Solvable, learner, solvable
from .step import Moved, doubts, move, search_all

RANDOMISATIONS = 16
LOG2_POINTS = 9
_LONGEST = {SpikedSLR: 32, MaxSLR: 32}

_TOLERANCE = 1e-8  # of a step of the map, relative
_PLAIN_STEPS, _MOST_STEPS = 6, 80
_FAR = 0.05  # a step after which all minima are searched for again
# Standard errors that the map may still move by: in the first searches, and after so many.
_SLIGHT, _SEARCHES, _JUMP = 0.05, 4, 2.0
_FARTHEST, _DAMPING = 0.5, 0.7  # a Newton step, relative to each unknown; and a plain one
_LEAST = 1e-20  # of q − m², which is zero where an attention does not look at its scores
_NO_OWN = 1e-12  # a q − m² that is none
# How wide a difference of the map is: in standard errors, and at least so much relative to the unknowns.
_WIDE, _NARROWEST = 2.0, 0.02
_M_V = 3  # the place of m_v among the unknowns


def erm_asymptotics(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    ridge: Ridge,
    seed: int = 0,
    log2_points: int = LOG2_POINTS,
) -> ERMAsymptotics:
    """The fixed point of lowest objective, of those found from no information and from the teacher."""
    alpha = float(real("alpha", alpha, above=0.0))
    points = draw(learnable(task), log2_points, RANDOMISATIONS, seed)
    problem = Problem(learnable(task), learner(attention), points)
    found = [problem.settle(alpha, ridge, start) for start in starts(task, ridge)]
    best, *rivals = map(problem.report, distinct(found))
    return replace(best, rivals=tuple(rivals))


def learnable(task: AbstractTask) -> Solvable:
    """The task, if this room has the equations for it."""
    return solvable(task, _LONGEST, "learning from finite data")


class Start(NamedTuple):
    """Unknowns to start from, and the displacements `χ − ω` that were found there, if any were."""

    name: str
    x: Float[np.ndarray, "6"]
    displacements: Any = None


def starts(task: AbstractTask, ridge: Ridge) -> tuple[Start, ...]:
    """Next to nothing known, and nearly all."""
    sharpness = min(float(getattr(task, "shift", getattr(task, "sharpness", 1.0))), 2.0)
    loose_k, loose_v = (min(0.5 / float(r), 1.0) for r in (ridge.k, ridge.v))
    little = np.array([0.05, 0.2, loose_k, 0.05, 0.2, loose_v])
    much = np.array([sharpness, 1.1 * sharpness**2 + 0.1, min(loose_k, 0.3), 1.0, 1.1, 0.1])
    return Start("no information", little), Start("teacher", much)


def distinct(found: list[Settled]) -> list[Settled]:
    """The lowest objective among the converged, and those others that converged elsewhere."""
    best, *others = sorted(found, key=lambda it: (not it.converged, it.objective))
    same = 1e-4 + best.error(np.eye(6)[_M_V])
    return [best, *(it for it in others if it.converged and abs((it.x - best.x)[_M_V]) > same)]


class Problem(NamedTuple):
    """One attention on one task, with the points that everything is averaged over."""

    task: Solvable
    attention: AbstractAttention
    points: tuple[Sequences, ...]

    def settle(self, alpha: float, ridge: Ridge, start: Start) -> Settled:
        """The fixed point that Newton's method finds from a start."""
        known, numbers = self._known, as_arrays((alpha, ridge.k, ridge.v))
        x, chi, result = np.array(start.x), start.displacements, Result.MAX_STEPS
        far, newton, searches = chi is None, chi is not None, 0
        for step in range(_MOST_STEPS):
            if far:
                chi = search_all(known, as_arrays(x), chi)
            chi, moved = move(known, as_arrays(x), chi, numbers)
            moved = jax.tree.map(np.asarray, moved)
            if _is_small(moved.target - x, x):
                # Fixed; but is every sample at its lowest minimum? If not, on from there. A sample that has two
                # equally low ones jumps at every step, and may, if that is little beside the sampling; its share is in
                # the error.
                chi = search_all(known, as_arrays(x), chi)
                moved = jax.tree.map(np.asarray, move(known, as_arrays(x), chi, numbers)[1])
                searches += 1
                jump = np.abs(moved.target - x)
                noise = np.std(moved.spread, 0, ddof=1) / np.sqrt(RANDOMISATIONS)
                most = _SLIGHT if searches < _SEARCHES else _JUMP
                if np.all(jump <= np.maximum(_TOLERANCE, most * noise)):
                    result = CONVERGED
                    break
            ahead = _stepped(x, moved, newton or step >= _PLAIN_STEPS)
            far = bool(np.any(np.abs(ahead - x) > _FAR * (0.1 + np.abs(x))))
            x = ahead
        return Settled(alpha, ridge, start.name, x, chi, moved, result)

    def report(self, settled: Settled) -> ERMAsymptotics:
        """All there is to say about a fixed point."""
        x, chi = as_arrays(settled.x), settled.displacements
        replicon, unresolved = map(float, doubts(self._known, x, chi, as_arrays(settled.alpha)))
        settled, jumps = self._with_jumps(settled)
        return report(self.task, self.attention, settled, replicon, unresolved, jumps)

    def _with_jumps(self, settled: Settled) -> tuple[Settled, float]:
        """The same with samples that jump between minima in the derivative of the map, and their share of it.

        The derivatives of the minimisers know nothing of them. One difference of the map, every sample searched anew on
        both sides, corrects the derivative where it matters: in the direction in which the sampling moves the fixed
        point most, and over about as far.
        """
        x, moved = settled.x, settled.moved
        slope, size = _free_slope(x), _sizes(_free(x))
        seen = _owns(x) > _NO_OWN
        spread = np.where(seen, settled.shifts @ slope.T / size, 0.0)
        _, deviations, directions = np.linalg.svd(spread, full_matrices=False)
        error = deviations[0] / len(spread)
        reach = np.clip(_WIDE * error, _NARROWEST, _FARTHEST) * size * directions[0]
        above, below = (_unfree(_free(x) + side * reach) for side in (1.0, -1.0))
        missed = self._searched(settled, above) - self._searched(settled, below)
        missed -= moved.jacobian @ (above - below)
        toward = slope.T @ (reach / size**2)
        update = np.outer(missed, toward / (toward @ (above - below)))
        share = np.linalg.norm(np.where(seen, slope @ missed / size, 0.0))
        jumps = float(share / (2.0 * np.linalg.norm(reach / size)))
        return settled._replace(moved=moved._replace(jacobian=moved.jacobian + update)), jumps

    def _searched(self, settled: Settled, x: np.ndarray) -> np.ndarray:
        """Where the map leads from other unknowns nearby."""
        numbers = as_arrays((settled.alpha, settled.ridge.k, settled.ridge.v))
        chi = search_all(self._known, as_arrays(x), settled.displacements)
        return np.asarray(move(self._known, as_arrays(x), chi, numbers)[1].target)

    @property
    def _known(self) -> Any:
        return as_arrays((self.task, self.attention, self.points))


def _is_small(step: np.ndarray, x: np.ndarray) -> bool:
    return bool(np.all(np.abs(step) <= _TOLERANCE * (1.0 + np.abs(x))))


def _stepped(x: np.ndarray, moved: Moved, newton: bool) -> np.ndarray:
    """Newton's step, shortened to what is near, where it goes the way of the plain one; or that, damped."""
    target = _tamed(x, np.asarray(moved.target))
    here = _free(x)
    plain = _free(target) - here
    if newton and np.all(target == moved.target):
        slope = _free_slope(target) @ moved.jacobian @ np.linalg.inv(_free_slope(x))
        step = np.linalg.solve(np.eye(6) - slope, plain)
        size = _sizes(here)
        step *= min(1.0, _FARTHEST / float(np.max(np.abs(step) / size)))
        if (step / size) @ (plain / size) > 0:
            return _unfree(here + step)
    return _unfree(here + _DAMPING * plain)


def _tamed(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The target, where it is valid. At a `r + V̂ < 0`, which no fixed point has, as at a stiffness half of that now."""
    v, ahead = x.reshape(2, 3)[:, 2], target.reshape(2, 3)
    ratio = np.where(ahead[:, 2] > 0, 1.0, 2.0 * v / ahead[:, 2])
    return np.asarray((ahead * np.stack([ratio, ratio**2, ratio], 1)).ravel())


def _sizes(free: np.ndarray) -> np.ndarray:
    """What is a large step of each free number."""
    return np.where(np.arange(6) % 3, 1.0, 0.1 + np.abs(free))


def _owns(x: np.ndarray) -> np.ndarray:
    """`q − m²` where an unknown depends on it, and one elsewhere."""
    m, q, _ = x.reshape(2, 3).T
    return np.stack([np.ones(2), q - m**2, np.ones(2)], 1).ravel()


def _free(x: np.ndarray) -> np.ndarray:
    """`m`, `log(q − m²)`, `log V` for both directions: any six numbers are valid."""
    m, q, v = x.reshape(2, 3).T
    return np.stack([m, np.log(np.maximum(q - m**2, _LEAST)), np.log(v)], 1).ravel()


def _unfree(y: np.ndarray) -> np.ndarray:
    m, log_own, log_v = y.reshape(2, 3).T
    return np.stack([m, m**2 + np.exp(log_own), np.exp(log_v)], 1).ravel()


def _free_slope(x: np.ndarray) -> Float[np.ndarray, "6 6"]:
    """The derivatives of the free numbers."""
    slope = np.zeros((6, 6))
    for at, (m, q, v) in zip((0, 3), x.reshape(2, 3), strict=True):
        own = max(q - m**2, _LEAST)
        block = np.diag([1.0, 1.0 / own, 1.0 / v])
        block[1, 0] = -2.0 * m / own
        slope[at : at + 3, at : at + 3] = block
    return slope
