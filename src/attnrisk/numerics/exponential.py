"""An exponential Rosenbrock method for gradient flows of few variables.

A gradient flow slows down by orders of magnitude on its way: it is stiff, and explicit solvers take thousands of
steps. Here each step solves the flow linearised around its start exactly, in the eigenbasis of the Hessian, and
corrects it with the gradient at the predicted end: the scheme exprb32 of Hochbruck, Ostermann and Schweitzer (SIAM J.
Numer. Anal. 47, 2009), of order three, with an error estimate of order two. Near a minimum it becomes Newton's method.

Gradient and Hessian are evaluated together, once a step, at the predicted end. The next step starts from the corrected
end, which differs by `O(h³)`: its gradient is extended linearly from there and its Hessian is kept, which leaves the
order as it is. The rest is NumPy, since all that takes time to compile is the objective. `benchmarks/flow.py` compares
it with the implicit solvers of diffrax.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .._results import Result

_SERIES = 12  # terms, for arguments up to one half
_LARGEST = 50.0  # a step that grows by e^50 is refused in any case
_FIRST_STEP, _SHORTEST_STEP = 0.1, 1e-8
_MOST_STEPS = 4000
_SAFETY, _SHRINKS, _GROWS = 0.9, 0.2, 10.0  # of the next step, as in diffrax and most solvers
_ABSOLUTE = 1e-2  # absolute tolerance, in units of the relative one


def phi(k: int, z: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """`φ_k(z) = Σ_j z^j/(j+k)!`: `φ_0 = e^z`, `φ_{k+1}(z) = (φ_k(z) − 1/k!)/z`."""
    near = np.abs(z) < 0.5
    small = np.where(near, z, 0.0)
    series = np.zeros_like(z)
    for j in range(_SERIES, -1, -1):
        series = series * small + 1.0 / math.factorial(j + k)
    large = np.where(near, 1.0, np.minimum(z, _LARGEST))
    value = np.exp(large)
    for j in range(k):
        value = (value - 1.0 / math.factorial(j)) / large
    return np.where(near, series, value)


class Linearised(NamedTuple):
    """A vector field with a symmetric Jacobian, linearised around points: its eigenvalues and eigenvectors there."""

    slope: Float[np.ndarray, "*runs n"]
    rates: Float[np.ndarray, "*runs n"]
    frame: Float[np.ndarray, "*runs n n"]

    def phi(self, k: int, time: Any, vector: Float[np.ndarray, "*runs n"]) -> np.ndarray:
        """`time · φ_k(time · J) vector`."""
        time = np.asarray(time)[..., None]
        coordinates = np.einsum("...ji,...j->...i", self.frame, vector)
        return time * np.einsum(
            "...ij,...j->...i", self.frame, phi(k, time * self.rates) * coordinates
        )


class Paths(NamedTuple):
    """For each run its end point, end time, points at the recorded times, and the reason why it stopped."""

    end: Float[np.ndarray, "runs n"]
    time: Float[np.ndarray, " runs"]
    points: Float[np.ndarray, "runs times n"]
    result: np.ndarray


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # failed steps are rejected
def integrate(
    derivatives: Callable[[np.ndarray], Sequence[np.ndarray]],
    starts: Float[np.ndarray, "runs n"],
    times: Float[np.ndarray, " times"],
    tolerance: float,
    accuracy: float,
    is_inside: Callable[[np.ndarray], Bool[np.ndarray, " runs"]],
) -> Paths:
    """Integrate gradient flows from time 0 until the norm of the gradient is below `tolerance`.

    `derivatives` gives gradients and Hessians at several points. `accuracy` is the relative error of a step. Runs also
    stop at the last of `times`, and where they are no longer inside the domain. No step is longer than the distance to
    the origin, or one if that is less: near a saddle the linearised solution grows exponentially and holds only nearby.
    """
    point, time, step = starts.copy(), np.zeros(len(starts)), np.full(len(starts), _FIRST_STEP)
    points = np.repeat(starts[:, None], times.size, 1)
    gradient, hessian = np.zeros_like(point), np.zeros((*point.shape, point.shape[1]))
    result = np.array([Result.MAX_STEPS] * len(starts), object)  # `np.full` would make strings
    running = np.ones(len(starts), bool)

    def stop(runs: np.ndarray, why: Result) -> None:
        result[runs], running[runs] = why, False

    if times[-1] <= 0.0:
        stop(running, Result.TIME_OVER)
    stop(~is_inside(point), Result.LEFT_DOMAIN)
    if running.any():
        gradient[running], hessian[running] = derivatives(point[running])
    finite = np.isfinite(gradient).all(1) & np.isfinite(hessian).all((1, 2))
    stop(~finite, Result.DIVERGED)
    for _ in range(_MOST_STEPS):
        runs = np.flatnonzero(running)
        if not runs.size:
            break
        eigenvalues, frame = np.linalg.eigh(hessian[runs])
        field = Linearised(-gradient[runs], -eigenvalues, frame)
        length = np.minimum(step[runs], times[-1] - time[runs])
        farthest = np.maximum(1.0, np.linalg.norm(point[runs], axis=1))
        far = np.ones(len(runs), bool)
        while far.any():
            predicted = field.phi(1, length, field.slope)
            far = np.linalg.norm(predicted, axis=1) > farthest
            length = np.where(far, length / 2, length)
        ahead, curvature = derivatives(point[runs] + predicted)
        remainder = np.einsum("rij,rj->ri", hessian[runs], predicted) + gradient[runs] - ahead
        correction = 2.0 * field.phi(3, length, remainder)
        moved = point[runs] + predicted + correction
        scale = accuracy * (_ABSOLUTE + np.maximum(np.abs(point[runs]), np.abs(moved)))
        error = np.sqrt(np.mean((correction / scale) ** 2, 1))
        finite = np.isfinite(error) & np.isfinite(curvature).all((1, 2))
        forced = length <= _SHORTEST_STEP
        kept = finite & ((error < 1.0) | forced)
        stop(runs[~finite & forced], Result.DIVERGED)
        factor = np.clip(_SAFETY * error ** (-1.0 / 3.0), _SHRINKS, _GROWS)
        factor = np.where(kept, factor, np.where(finite, np.minimum(factor, _SAFETY), _SHRINKS))
        step[runs] = np.maximum(length * factor, _SHORTEST_STEP)
        is_last = length == times[-1] - time[runs]
        until = np.where(is_last, times[-1], time[runs] + length)
        passed = (times > time[runs, None]) & (times <= until[:, None]) & kept[:, None]
        for at in np.flatnonzero(passed.any(1)):
            part = times[passed[at]] - time[runs[at]]
            here = Linearised(*(each[at] for each in field))
            squares = (part / length[at])[:, None] ** 2
            inside = here.phi(1, part, here.slope) + 2.0 * squares * here.phi(
                3, part, remainder[at]
            )
            points[runs[at], passed[at]] = point[runs[at]] + inside
        now = runs[kept]
        rested = np.linalg.norm(gradient[now], axis=1) < tolerance
        time[now], point[now], hessian[now] = until[kept], moved[kept], curvature[kept]
        gradient[now] = ahead[kept] + np.einsum("rij,rj->ri", curvature[kept], correction[kept])
        stop(now[time[now] >= times[-1]], Result.TIME_OVER)
        stop(runs[~is_inside(point[runs])], Result.LEFT_DOMAIN)
        stop(now[rested], Result.CONVERGED)
    late = times > time[:, None]
    return Paths(point, time, np.where(late[..., None], point[:, None], points), result)
