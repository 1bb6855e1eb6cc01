"""Gradient flow of the population risk on student vectors and a free bias (sections 5 and 10)."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from .._check import numbers, of_type, prng_key, real, refuse, shown, whole
from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.exponential import Paths, integrate
from ..population.continuity import check_continuous
from ..population.overlaps import Overlaps, check_overlaps, overlaps_of, swapped
from ..population.plan import check_problem
from ..tasks import AbstractTask
from .state import Problem, derivatives, evaluator

DEFAULT_TIMES = np.concatenate([[0.0], np.geomspace(1e-2, 1e5, 99)])
_FOUND = 0.5  # an overlap with a feature below this is that of a key which has not found it


class Flow(eqx.Module):
    """Paths of gradient flow: one row per run (none for a single start), one column per time.

    A run that has converged stays where it is. The error of `risk` is the integration error at the recorded overlaps.
    `end`, `end_bias`, `end_time` and `end_risk` describe where and when each run stopped, and `result` why. If the risk
    is averaged over Sobol points, the flow follows the risk of one randomisation, and `gradient_norm` refers to it.
    """

    recorded: ClassVar = ("result", "converged", "end_time", "end_risk", "end", "end_bias")
    times: Float[np.ndarray, " times"]
    overlaps: Overlaps
    bias: Float[np.ndarray, "..."]
    risk: Estimate
    gradient_norm: Float[np.ndarray, "*runs times"]
    end: Overlaps
    end_bias: Float[np.ndarray, "..."]
    end_time: Float[np.ndarray, "*runs"]
    end_risk: Estimate
    result: np.ndarray | Result

    @property
    def converged(self) -> Any:
        """Whether each run converged."""
        if isinstance(self.result, Result):
            return np.bool_(self.result.converged)
        return np.array([why.converged for why in self.result])


def random_starts(
    key: PRNGKeyArray, runs: int, size: float = 0.1, keys: int = 1, features: int = 1
) -> Overlaps:
    """Overlaps of random initial vectors: each component is `size · N(0, 1)`.

    Args:
        key: JAX random key.
        runs: Number of initialisations.
        size: Standard deviation of each component, along a teacher vector or outside their span.
        keys: Number of student key vectors `H`.
        features: Number of teacher key directions `F`.

    Returns:
        `Overlaps` with `M` of shape `(runs, H+1, F+1)` and `Q` of shape `(runs, H+1, H+1)`.

    Examples:
        >>> ar.random_starts(jax.random.key(0), runs=5).M.shape
        (5, 2, 2)
    """
    shape = whole("keys", keys, 1, 100) + 1, whole("features", features, 1, 100) + 1
    return _around(np.zeros(shape), key, runs, size)


def swapped_starts(key: PRNGKeyArray, runs: int, size: float = 0.1) -> Overlaps:
    """Random initial overlaps around `k = v*`, `v = k*`, from which gradient flow reaches mismatched minima.

    Args:
        key: JAX random key.
        runs: Number of initialisations.
        size: Standard deviation of each component around its mean.

    Returns:
        `Overlaps` with `M` and `Q` of shape `(runs, 2, 2)`.

    Examples:
        >>> ar.swapped_starts(jax.random.key(0), runs=5).M.shape
        (5, 2, 2)
    """
    return _around(swapped().M, key, runs, size)


def _around(
    centre: Float[np.ndarray, "P T"], key: PRNGKeyArray, runs: int, size: float
) -> Overlaps:
    students, teachers = centre.shape
    size = real("size", size, above=0.0, maximum=1e5)  # its square is an overlap
    runs = whole("runs", runs, 1, 10**6)
    drawn = jax.random.normal(prng_key("key", key), (runs, students, teachers + students))
    vectors: Any = np.pad(centre, ((0, 0), (0, students))) + size * np.asarray(drawn)
    return overlaps_of(vectors, teachers)


def gradient_flow(
    task: AbstractTask,
    attention: AbstractAttention,
    start: Overlaps,
    times: Any = DEFAULT_TIMES,
    tolerance: float = 1e-6,
    accuracy: float = 1e-4,
) -> Flow:
    """Gradient flow of the population risk on the student vectors and, if it is free, the bias.

    Integrates `dk/dt = −D ∂E/∂k`, `dv/dt = −D ∂E/∂v` (sections 5 and 10) until the norm of the gradient is below
    `tolerance` or the last time is reached.

    Args:
        task: The task.
        attention: The attention, with `H` heads.
        start: Initial overlaps, `M` of shape `(H+1, F+1)`, or a batch with one leading axis of `n` runs.
        times: Ascending times `≥ 0` at which the path is recorded, shape `(T,)`; by default 0 and 99 times from 0.01
            to 1e5, evenly spaced in the logarithm.
        tolerance: Norm of the gradient below which a run has converged.
        accuracy: Relative error of an integration step.

    Returns:
        A `Flow` with overlaps, risk and gradient norm of shape `(T,)`, or `(n, T)` for a batch, and the end of
        each run.

    Examples:
        >>> start = ar.Overlaps(m_kk=0.1, m_vv=0.1, q_kk=0.1, q_vv=0.1)
        >>> flow = ar.gradient_flow(ar.SpikedSLR(nu=2.0, length=3), ar.Softmax(), start)
        >>> print(f"{flow.end_risk:.6f}", flow.result)
        0.352423 converged
    """
    check_problem(task, attention)
    attention = attention.as_one_head()
    of_type("start", start, Overlaps, "of type Overlaps, such as aligned(0.1)")
    if np.ndim(start.M) > 3:
        raise refuse("start", f"(M of shape {np.shape(start.M)})", "a start, or one batch of them")
    allowed = "numbers, ≥ 0 and ascending"
    read = np.atleast_1d(numbers("times", times, allowed))
    if read.ndim != 1 or not read.size or read[0] < 0 or np.any(np.diff(read) <= 0):
        raise refuse("times", shown(times), allowed)
    tolerance = real("tolerance", tolerance, above=0.0)
    accuracy = real("accuracy", accuracy, above=0.0)
    single = np.ndim(start.M) == 2
    starts = jax.tree.map(lambda leaf: leaf[None], start) if single else start
    problem = Problem(task, attention)
    runs = follow(problem, starts, read, tolerance, accuracy)
    states = np.concatenate([runs.points, runs.end[:, None]], 1)
    risk, gradients = problem.values(states)
    overlaps, bias = problem.overlaps(states), problem.unpack(states)[1]
    index = 0 if single else slice(None)

    def part(tree: Any, columns: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[index, columns], tree)

    return Flow(
        times=read,
        overlaps=part(overlaps, slice(-1)),
        bias=part(bias, slice(-1)),
        risk=part(risk, slice(-1)),
        gradient_norm=part(np.linalg.norm(gradients, axis=-1), slice(-1)),
        end=part(overlaps, -1),
        end_bias=part(bias, -1),
        end_time=runs.time[index],
        end_risk=part(risk, -1),
        result=runs.result[index],
    )


def feature_times(times: Any, overlaps: Overlaps) -> list[float | None]:
    """Times at which each feature is found along a path.

    A feature is found when the largest overlap of a key with it reaches half of its final value.

    Args:
        times: Ascending times, shape `(T,)`.
        overlaps: Overlaps at these times, with an axis of times in front.

    Returns:
        A time for each feature, or `None` where the final overlap is below 0.5.
    """
    M = np.asarray(of_type("overlaps", overlaps, Overlaps, "of type Overlaps").M, float)
    times = numbers("times", times)
    if M.ndim != 3 or times.shape != M.shape[:1]:
        raise refuse("overlaps", f"(M of shape {M.shape})", "those at the times, times in front")
    sizes = np.abs(M[:, :-1, :-1]).max(1)
    found: list[float | None] = []
    for size in sizes.T:
        half, at = size[-1] / 2.0, int(np.argmax(size >= size[-1] / 2.0))
        near = slice(max(at - 1, 0), at + 1)
        is_found = size[-1] >= _FOUND
        found.append(float(np.interp(half, size[near], times[near])) if is_found else None)
    return found


def follow(
    problem: Problem,
    starts: Overlaps,
    times: np.ndarray,
    tolerance: float,
    accuracy: float,
    fineness: float = 1.0,
) -> Paths:
    """Runs from each of the starts, until the gradient has a norm below `tolerance`, keys leave the domain, or the
    last of the times; `accuracy` is the relative error of a step, `fineness` that of the quadrature."""
    check_overlaps(problem.task, problem.attention, starts, "start", batch=1)
    if not problem.is_exact:
        check_continuous(problem.attention, int(problem.task.length.longest))
    evaluate = evaluator(problem, derivatives, partial(problem.plan, fineness=fineness))
    states, domain = problem.pack(starts), problem.is_inside
    return integrate(lambda at: evaluate(at)[1:], states, times, tolerance, accuracy, domain)
