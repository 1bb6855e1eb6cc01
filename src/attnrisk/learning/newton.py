"""Newton's method on the fixed points of empirical risk minimisation, and the points where it ends (section 6)."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .._results import Result
from .asymptotics import Ridge
from .equations import Averages, Displacements, MapStep, map_step
from .unknowns import Layout

_TOLERANCE = 1e-8  # of a step of the map, relative
# Plain steps first; and steps at most, in general and in tuning from near a fixed point: there five are common.
_PLAIN_STEPS, MOST_STEPS, MOST_NEAR = 6, 80, 30
_FLAT = 1e-4  # a singular value of `1 − T'` in natural units, relative, that differences do not tell from zero
_FAR = 0.1  # a step after which all minima are searched for again; one of a bias is not: a bias may diverge
# Standard errors that the map may still move by: in the first searches, and after so many.
_SLIGHT, _SEARCHES, _JUMP = 0.05, 4, 2.0
LONGEST_STEP, _DAMPING = 0.5, 0.7  # a Newton step, relative to each unknown; and a plain one
# Distances at which two fixed points are one: of all unknowns, relative and in all; and beyond their errors of the
# value overlap of one head, which is known best.
_SAME, _CLOSE = 1e-2, 1e-4
_ROUNDING = 1e-13  # a singular value of the matrix of a Newton step, relative, that is rounding


class Start(NamedTuple):
    """Unknowns to start from, whether they are near a fixed point, and the displacements `χ − ω` found there."""

    name: str
    x: Float[np.ndarray, " n"]
    near: bool = False
    displacements: Displacements | None = None


class FixedPointSolution(NamedTuple):
    """Where Newton's method ended: the unknowns, the displacements `χ − ω` there, and the last step of the map."""

    layout: Layout
    alpha: float
    ridge: Ridge
    start: str
    x: Float[np.ndarray, " n"]
    displacements: Displacements
    step: MapStep
    steps: int
    result: Result
    rough: "FixedPointSolution | None" = None  # the same on fewer points, where it was found first

    @property
    def objective(self) -> float:
        penalty, _ = self.layout.penalty(self.ridge, self.x)
        return self.alpha * float(np.mean(self.step.train)) / 2 + penalty

    @property
    def answer(self) -> Float[np.ndarray, "n n"]:
        """`(1 − T')⁻¹`: the response of the fixed point to a small change of the map.

        It is zero along directions of degenerate fixed points, such as identical heads that share a norm. Which
        directions these are is decided in natural units: with large ridges the unknowns differ by orders of magnitude.
        """
        units = self.layout.scales(self.x)
        return np.linalg.pinv(self._change, rcond=_FLAT) * units[:, None] / units

    @property
    def _change(self) -> Float[np.ndarray, "n n"]:
        """`1 − T'` in natural units."""
        units = self.layout.scales(self.x)
        return (np.eye(self.x.size) - self.step.jacobian) * units / units[:, None]

    @property
    def shifts(self) -> Float[np.ndarray, "r n"]:
        """Distance of the fixed point of each randomisation from the common one, `(1 − T')⁻¹(T_r − T)`."""
        return np.asarray((self.step.replicates - self.step.target) @ self.answer.T)

    def error(self, gradient: Any, own: Any = 0.0) -> float:
        """Standard error of a function of the unknowns with this gradient, to which each randomisation adds `own`."""
        replicates = self.shifts @ gradient + own
        left = self.answer @ (self.step.target - self.x)
        return float(np.std(replicates, ddof=1) / np.sqrt(len(replicates)) + abs(left @ gradient))

    @property
    def determined(self) -> Bool[np.ndarray, " n"]:
        """Which unknowns matter: a learned bias that has diverged, as where softplus becomes softmax, does not."""
        moves = np.abs(self._change).max(0)
        return np.where(
            np.isin(np.arange(self.x.size), self.layout.places.bias), moves > _FLAT, True
        )

    def is_same(self, other: "FixedPointSolution") -> bool:
        """Whether two solutions are the same fixed point: by all unknowns, for one head within errors.

        For identical heads the split of the norm is not determined, so errors do not measure the distance.
        """
        if self.layout.heads * self.layout.features > 1:
            return np.allclose(self.x, other.x, _SAME, _SAME)
        errors = np.array([other.error(unit) for unit in np.eye(self.x.size)])
        beyond, value = np.abs(self.x - other.x) - errors, self.layout.places.values.M[0, 0]
        near = beyond <= _SAME * (1.0 + np.abs(other.x))
        determined = self.determined | other.determined
        return bool(np.all(near | ~determined) and beyond[value] <= _CLOSE)

    def slope(self, by_unknowns: Float[np.ndarray, " n"]) -> Float[np.ndarray, "2"]:
        """The derivative in the two ridges of a function of the unknowns."""
        return np.asarray(by_unknowns @ self.answer @ self.step.by_ridge)


def distinct(found: list[FixedPointSolution]) -> list[FixedPointSolution]:
    """Distinct fixed points, sorted by objective; those that did not converge are used only if no other did."""
    ranked = sorted(found, key=lambda it: (not it.result.converged, it.objective))
    kept = ranked[:1]
    for each in ranked[1:]:
        if each.result.converged and not any(each.is_same(other) for other in kept):
            kept.append(each)
    return kept


def run_newton(
    averages: Averages,
    alpha: float,
    ridge: Ridge,
    start: Start,
    known: MapStep | None = None,
    most_steps: int = MOST_STEPS,
) -> FixedPointSolution:
    """The fixed point that Newton's method finds from a start, with the derivatives of a step if one is `known`.

    Not a library's root finder: the start is to decide which fixed point is found. Hence the first steps are those
    of the plain iteration (unless the start is near a fixed point), later ones agree with it in direction and are
    short, and the iteration stops only after every sample has been searched for a lower minimum.
    """
    x, last, result = np.array(start.x), start.displacements, Result.MAX_STEPS
    anew, searches = last is None, 0
    for count in range(most_steps):
        last, step = map_step(averages, x, alpha, ridge, last, anew, known)
        if np.all(np.abs(step.target - x) <= _TOLERANCE * (1.0 + np.abs(x))):
            # Fixed; but is every sample at its lowest minimum? If not, on from there. A sample that has two
            # equally low ones jumps at every step, and may, if that is little beside the sampling; its share is in
            # the error.
            if not anew:
                last, step = map_step(averages, x, alpha, ridge, last, known=step)
            searches += 1
            jump = np.abs(step.target - x)
            noise = np.std(step.replicates, 0, ddof=1) / np.sqrt(len(step.replicates))
            most = _SLIGHT if searches < _SEARCHES else _JUMP
            if np.all(jump <= np.maximum(_TOLERANCE, most * noise)):
                result = Result.CONVERGED
                break
        if count == most_steps - 1:
            break
        ahead = _stepped(averages.layout, x, step, start.near or count >= _PLAIN_STEPS)
        far = np.abs(ahead - x) > _FAR * (0.1 + np.abs(x))
        far[averages.layout.places.bias] = False
        anew = bool(np.any(far))
        x = ahead
    assert last is not None
    return FixedPointSolution(
        averages.layout, alpha, ridge, start.name, x, last, step, count + 1, result
    )


def _stepped(layout: Layout, x: np.ndarray, step: MapStep, newton: bool) -> np.ndarray:
    """Newton's step, of limited length, if it agrees in direction with the plain step; otherwise that, damped."""
    target, valid = layout.tamed(x, step.target)
    here, there = layout.to_free(x), layout.to_free(target)
    plain = there - here
    if newton and valid:
        by_here, by_there = map(layout.free_slope, (here, there))
        slope = np.linalg.solve(by_there, step.jacobian @ by_here)
        # Flat directions, of a bias that has no effect where the weights vanish, are left alone.
        ahead = np.linalg.pinv(np.eye(x.size) - slope, rcond=_ROUNDING) @ plain
        size = layout.sizes(here)
        ahead *= min(1.0, LONGEST_STEP / float(np.max(np.abs(ahead) / size)))
        if (ahead / size) @ (plain / size) > 0:
            return layout.from_free(here + ahead)
    return layout.from_free(here + _DAMPING * plain)
