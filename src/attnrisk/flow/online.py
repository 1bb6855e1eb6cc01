"""Online stochastic gradient descent in high dimension: closed equations for the overlaps (section 10).

A step on `½(y − f)²` with a fresh mini-batch moves each student vector by `−step` times its gradient. As `D → ∞` at
`time = steps/D` the overlaps follow an ordinary differential equation, at any step size: the gradient flow times
`step/2`, and a term `step²/batch` in `dQ/dt` from the noise of the gradients.
"""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from .._check import numbers, real, refuse, shown, whole
from .._results import AbstractResult, Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.linalg import cholesky
from ..numerics.minimise import bisect
from ..numerics.qmc import mean_estimate, sobol
from ..population.engines.sobol import needle_sequence
from ..population.overlaps import Overlaps, check_overlaps
from ..population.plan import check_needle, check_problem
from ..tasks import AbstractTask
from .state import Problem

DEFAULT_TIMES = np.concatenate([[0.0], np.geomspace(0.1, 100.0, 31)])
_RANDOMISATIONS = 16  # each follows a path of its own, whose spread is the error
_LOG2_POINTS, _LOG2_NUMBERS = 12, 19  # points, and random numbers of a randomisation
_LEAST_POINTS = 512
_RELATIVE, _ABSOLUTE = 1e-5, 1e-7  # of the solver: less than the error of the points
_DIVERGED = 1e3  # a squared norm beyond it does not come back
_AT_REST = 1e-5  # change of the overlaps in a unit of time, for steps of size one
_SEEDS, _RATIO = 2, 1.03  # of points for the largest step, and of the ends of its bracket
_STEPS_TRIED = 0.05, 20.0  # between which the largest step is sought


class OnlineSGD(AbstractResult):
    """Path of online SGD: overlaps and risk at each time, with standard errors over Sobol points.

    `M` and `Q` are estimates of the overlap matrices with a leading axis of times.
    """

    recorded: ClassVar = ("result", "converged", "end_time", "end_risk", "end")
    times: Float[np.ndarray, " times"]
    M: Estimate
    Q: Estimate
    risk: Estimate
    end_time: float

    @property
    def overlaps(self) -> Overlaps:
        """Overlaps at each time."""
        return Overlaps(self.M.value, self.Q.value)

    @property
    def end(self) -> Overlaps:
        """Overlaps at the last time."""
        return jax.tree.map(lambda leaf: leaf[-1], self.overlaps)

    @property
    def end_risk(self) -> Estimate:
        """Risk at the last time; at convergence, the risk at finite step size."""
        return self.risk[-1]


def online_sgd(
    task: AbstractTask,
    attention: AbstractAttention,
    start: Overlaps,
    step: float = 0.1,
    batch: int = 1,
    times: Any = DEFAULT_TIMES,
    seed: int = 0,
    log2_points: int = _LOG2_POINTS,
) -> OnlineSGD:
    """Online stochastic gradient descent in the limit `D → ∞`: the path of the overlaps (section 10).

    Each step uses a fresh mini-batch. Tasks with a shifted token (`SpikedSLR`, `FeatureSLR`) and any attention are
    supported; biases and head weights are not trained.

    Args:
        task: The task.
        attention: The attention, with `H` heads.
        start: Initial overlaps, without a batch axis.
        step: Step size `η` on the loss `½(y − f)²`.
        batch: Number of sequences in a mini-batch.
        times: Ascending times from 0, shape `(T,)`, in units of `D` steps; by default 0 and 31 times from 0.1 to 100,
            evenly spaced in the logarithm.
        seed: Seed of the Sobol points over which expectations are averaged.
        log2_points: At most `2^log2_points` points in each of 16 randomisations; 12 by default. Each
            randomisation follows a path of its own; where these separate at a saddle, the errors are large.

    Returns:
        An `OnlineSGD` with `M` of shape `(T, H+1, F+1)`, `Q` of shape `(T, H+1, H+1)` and `risk` of shape `(T,)`,
        each with standard errors.

    Examples:
        >>> start = ar.Overlaps(m_kk=0.3, m_vv=0.3, q_kk=0.2, q_vv=0.2)
        >>> path = ar.online_sgd(ar.SpikedSLR(nu=4.0, length=3), ar.Softmax(), start, step=0.5, times=[0.0, 10.0])
        >>> path.risk.value.shape
        (2,)
    """
    check_problem(task, attention)
    check_needle(task, "online SGD")
    if attention.tied:
        given = f"{attention.name} with tied biases"
        raise refuse("attention", given, "one with biases of its own")
    check_overlaps(task, attention, start, "start")
    if np.size(task.length.lengths) > 1:
        raise refuse("length", str(task.length), "a single length for online SGD")
    problem = Problem(task, attention.as_one_head())
    step, batch = real("step", step, above=0.0), whole("batch", batch, 1, 10**9)
    allowed = "numbers from 0, ascending"
    read = np.atleast_1d(numbers("times", times, allowed))
    if read.ndim != 1 or not read.size or read[0] != 0 or np.any(np.diff(read) <= 0):
        raise refuse("times", shown(times), allowed)
    points = _draw(problem, seed, whole("log2_points", log2_points, 1, 20))
    noise = step**2 / batch
    return _follow(problem, start, points, (step, noise), read)


def largest_step(
    task: AbstractTask,
    attention: AbstractAttention,
    start: Overlaps,
    batch: int = 1,
    time: float = 20.0,
    seed: int = 0,
) -> Estimate:
    """Largest step size of online SGD that does not diverge, by bisection.

    The error is the standard error over two sets of Sobol points plus half the width of the final bracket.

    Args:
        task: The task.
        attention: The attention.
        start: Initial overlaps, without a batch axis.
        batch: Number of sequences in a mini-batch.
        time: Time up to which the path must not diverge, in units of `D` steps.
        seed: Seed of the Sobol points.

    Returns:
        The step size with its error, an `Estimate` of a scalar.
    """
    time, seed = real("time", time, above=0.0), whole("seed", seed, minimum=0)

    def bracket(seed: int) -> np.ndarray:
        """A step size that does not diverge and a slightly larger one that does."""

        def diverges(step: float) -> bool:
            path = online_sgd(task, attention, start, step, batch, [0.0, time], seed)
            return path.result is Result.DIVERGED

        low, high = _STEPS_TRIED
        if diverges(low) or not diverges(high):
            allowed = f"one from which the largest step is between {low:g} and {high:g}"
            raise refuse("start", "(these overlaps)", allowed)
        return np.array(bisect(diverges, low, high, _RATIO))

    found = np.stack([bracket(seed + at) for at in range(_SEEDS)])
    middle = mean_estimate(found.mean(1))
    width = np.max(np.diff(found)) / 2.0
    return Estimate(float(middle), float(middle.error + width), middle.kind)


def _draw(
    problem: Problem, seed: int, log2_points: int = _LOG2_POINTS
) -> Float[np.ndarray, "r n d"]:
    """Label noise, the teacher fields of each token, and the student fields outside the span of the teacher."""
    task = problem.task
    fields = task.features + problem.attention.keys + 2
    dimension = 2 + task.shift_uniforms + fields * int(task.length.longest)
    log2 = int(np.floor(_LOG2_NUMBERS - np.log2(dimension)))
    if 2**log2 < _LEAST_POINTS:
        most = 2**_LOG2_NUMBERS // _LEAST_POINTS // fields
        raise refuse("length", str(task.length), f"at most {most} for online SGD of this attention")
    return sobol(dimension, min(log2, log2_points), _RANDOMISATIONS, whole("seed", seed, minimum=0))


def _moments(
    problem: Problem, overlaps: Overlaps, points: Float[Array, "n d"]
) -> tuple[Array, ...]:
    """`E[(y−f) Σ_ℓ ∂f h*_ℓᵀ]`, `E[(y−f) Σ_ℓ ∂f h_ℓᵀ]`, `E[(y−f)² Σ_ℓ ∂f ∂fᵀ]` and `E[(y−f)²]`."""
    task: Any = problem.task
    attention = problem.attention
    students, teachers = overlaps.M.shape
    root = cholesky(overlaps.residual)

    def predict(fields: Float[Array, "L P"]) -> Array:
        return attention.attend(fields[:, :-1].T) @ fields[:, -1]

    def at_point(point: Array) -> tuple[Array, ...]:
        drawn = needle_sequence(task, point[1:], teachers + students)
        normal, scale = drawn.normals, drawn.deviations[:, None]
        shift = jnp.append(drawn.shift, 0.0)
        teacher = scale * normal[:, :teachers] + drawn.relevant[:, None] * shift
        student = teacher @ overlaps.M.T + scale * (normal[:, teachers:] @ root.T)
        label = jnp.sum(drawn.relevant * teacher[:, -1]) + task.noise * ndtri(point[0])
        prediction, slope = jax.value_and_grad(predict)(student)
        left = label - prediction
        moved = scale * slope  # |X_ℓ|²/D is the square of the scale
        return (
            left * slope.T @ teacher,
            left * slope.T @ student,
            left**2 * moved.T @ moved,
            left**2,
        )

    return jax.tree.map(partial(jnp.mean, axis=0), jax.vmap(at_point)(points))


@eqx.filter_jit
def _velocity(
    problem: Problem, points: Float[Array, "r n d"], rates: tuple[Array, Array], M: Array, Q: Array
) -> tuple[Array, Array, Array]:
    """`dM/dt`, `dQ/dt` and the risk, for each randomisation at its own overlaps."""
    step, noise = rates

    def one(each: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        own, M, Q = each
        teacher, student, squares, risk = _moments(problem, Overlaps(M, Q), own)
        return step * teacher, step * (student + student.T) + noise * squares, risk

    return jax.lax.map(one, (points, M, Q))


def _follow(
    problem: Problem, start: Overlaps, points: np.ndarray, rates: tuple[float, float], times: Any
) -> OnlineSGD:
    from scipy.integrate import solve_ivp  # half a second of import that only paths pay

    (students, teachers), runs = np.shape(start.M), len(points)
    arrays = as_arrays((problem, points, rates))
    split = runs * students * teachers

    def unpack(state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        M = state[:split].reshape(runs, students, teachers)
        return M, state[split:].reshape(runs, students, students)

    def velocity(state: np.ndarray) -> np.ndarray:
        M, Q, _ = _velocity(*arrays, *as_arrays(unpack(state)))
        return np.concatenate([np.ravel(M), np.ravel(Q)])

    def bound(_: float, state: np.ndarray) -> float:
        return _DIVERGED - float(np.abs(unpack(state)[1]).max())

    bound.terminal = True  # type: ignore[attr-defined]
    first = np.concatenate([np.tile(np.ravel(each), runs) for each in (start.M, start.Q)])
    solved = solve_ivp(
        lambda _, state: velocity(state),
        (0.0, max(float(times[-1]), 1e-12)),
        first,
        t_eval=times,
        events=bound,
        rtol=_RELATIVE,
        atol=_ABSOLUTE,
    )
    end, result, states = float(solved.t[-1]), Result.TIME_OVER, solved.y.T
    if solved.status != 0 or solved.t.size < len(times):
        result = Result.DIVERGED
    slowest = _AT_REST * min(1.0, rates[0])
    if result is Result.TIME_OVER and np.abs(velocity(states[-1])).max() < slowest:
        result = Result.CONVERGED
    paths = [unpack(state) for state in states]
    M, Q = (np.stack([path[part] for path in paths], 1) for part in range(2))
    # A path is optimised on its own points, on which its risk is too low: the risk is that on those of another.
    others = arrays[0], jnp.roll(arrays[1], 1, 0), arrays[2]
    risk = np.stack([np.asarray(_velocity(*others, *as_arrays(path))[2]) for path in paths], 1)
    recorded = np.asarray(times[: len(states)])
    return OnlineSGD(
        recorded,
        mean_estimate(M),
        mean_estimate(Q),
        mean_estimate(risk),
        end_time=end,
        result=result,
    )
