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
from ..population.overlaps import Overlaps, overlaps_of, swapped
from ..population.plan import check_problem
from ..tasks import AbstractTask
from .state import DERIVATIVES, Problem, evaluator

DEFAULT_TIMES = np.concatenate([[0.0], np.geomspace(1e-2, 1e5, 99)])


class Flow(eqx.Module):
    """Paths of gradient flow: a row for each start (none for a single one), a column for each time.

    A run that converged stays where it is. The error of `risk` is that of the integral at the recorded overlaps.
    `end`, `end_bias`, `end_time` and `end_risk` tell where and when each run stopped, and `result` why. Where the risk
    is found from random points, a flow follows the risk that one randomisation gives, and `gradient_norm` is its.
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
        """Whether each run came to rest."""
        if isinstance(self.result, Result):
            return np.bool_(self.result.converged)
        return np.array([why.converged for why in self.result])


def random_starts(
    key: PRNGKeyArray, runs: int, size: float = 0.1, keys: int = 1, features: int = 1
) -> Overlaps:
    """Overlaps of small random vectors: each component, along a teacher vector or outside their span, is
    `size · N(0, 1)`. `keys` and `features` are the numbers of key vectors of the student and of the teacher."""
    shape = whole("keys", keys, 1, 100) + 1, whole("features", features, 1, 100) + 1
    return _around(np.zeros(shape), key, runs, size)


def swapped_starts(key: PRNGKeyArray, runs: int, size: float = 0.1) -> Overlaps:
    """The same around `k = v*`, `v = k*` in the place of zero: starts that lead to mismatched minima."""
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
    """Follow the flow from `start`, which may have a batch axis, until the gradient on the student vectors has a norm
    below `tolerance` or the last of `times` is reached. `accuracy` is relative, per step."""
    check_problem(task, attention)
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


def follow(
    problem: Problem,
    starts: Overlaps,
    times: np.ndarray,
    tolerance: float,
    accuracy: float,
    fineness: float = 1.0,
) -> Paths:
    """Runs from each of the starts, until the gradient has a norm below `tolerance`, keys leave the domain, or the
    last of the times; `accuracy` is the relative error of a step, `fineness` that of the plans."""
    shape = problem.attention.keys + 1, problem.task.features + 1
    if np.shape(starts.M)[1:] != shape:
        allowed = f"of {shape[0]} student and {shape[1]} teacher vectors"
        raise refuse("start", f"(M of shape {np.shape(starts.M)[1:]})", allowed)
    if not problem.is_exact:
        check_continuous(problem.attention, int(problem.task.length.longest))
    evaluate = evaluator(problem, DERIVATIVES, partial(problem.plan, fineness=fineness))
    states, domain = problem.pack(starts), problem.is_inside
    return integrate(lambda at: evaluate(at)[1:], states, times, tolerance, accuracy, domain)
