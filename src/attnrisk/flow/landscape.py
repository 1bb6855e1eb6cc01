"""Stationary points of gradient flow, minima and saddles, and how often each is reached (sections 5 and 10)."""

from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from .._check import of_type
from .._results import AbstractResult, ErrorKind, Estimate, Result
from ..attention import AbstractAttention
from ..population.minimum import Minimum, population_minimum
from ..population.overlaps import Overlaps, check_overlaps, swapped
from ..population.plan import check_problem
from ..population.risk import extrapolate
from ..population.uncompiled import uncompiled_minima
from ..tasks import AbstractTask
from .flow import follow, random_starts
from .state import SMOOTHING, Problem, evaluator, gradients

Kind = Literal["minimum", "saddle", "flat", "not stationary", "not attained"]

_FLAT = 1e-6  # curvatures carry some 10^-8 of noise: an eigenvalue below this is not told from zero
_STATIONARY = 1e-5  # norm of a gradient
_DEVIATIONS = 4.0  # standard errors that tell a number found from random points from zero
_SEEDS = range(2, 9)  # of more random points for a Hessian
_SAME_RISK = 1e-6
_STEP = 0.1  # along the direction that leaves a saddle

# Tolerance, accuracy and fineness of a flow that is only asked where it goes. Its plan is right to 10^-5: it ends that
# near to a minimum, at a risk that is higher by the square of it, and only starts on the boundary end elsewhere.
_ROUGH, _ROUGHLY_SAME_RISK = (1e-6, 1e-2, 0.6), 1e-5
_PRECISE = 1e-8, 2e-4  # of a flow whose end is to be certified

# Many times at which a run that goes to infinity shows how its risk approaches a limit, and lengths of k, in units of
# the last, that the limit is drawn through.
_LONG_TIMES = np.geomspace(1.0, 1e9, 91)
_OUTWARD = np.sqrt(2.0) ** -np.arange(4)

# Of central differences of fourth order. Random points have no second derivatives to rely on, since those of each are
# zero or undefined at the kinks of an attention; there the differences are taken over a wider step.
_NODES, _WEIGHTS = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([1.0, -8.0, 8.0, -1.0]) / 12.0
_EXACT_STEP, _RANDOM_STEP = 0.01, 0.05


class Stationary(AbstractResult):
    """A stationary point of the population risk, classified by its Hessian.

    `eigenvalues` are those of the Hessian in the student vectors (and a free bias), ascending, without common rotations
    outside the span of the teacher, which change nothing. `escape` is where a step down from a saddle leads. `matched`
    says whether this is the minimum of `population_minimum`. A point that is `not attained` is a limit of diverging
    keys, and its overlaps are the last that were computed. `result` is why the flow that led here stopped, or, without
    a flow, whether the gradient vanishes.
    """

    recorded: ClassVar = (
        *("risk", "overlaps", "kind", "matched", "gradient_norm", "lowest_eigenvalue"),
        *("result", "converged"),
    )
    risk: Estimate
    overlaps: Overlaps
    attention: AbstractAttention
    kind: Kind = eqx.field(static=True)
    gradient_norm: float
    eigenvalues: Float[np.ndarray, " n"]
    escape: Overlaps | None
    matched: bool = eqx.field(static=True, default=False)

    @property
    def lowest_eigenvalue(self) -> float | None:
        """Lowest eigenvalue of the Hessian, if it was computed."""
        return float(self.eigenvalues[0]) if self.eigenvalues.size else None


def certify(task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps) -> Stationary:
    """Classify given overlaps: minimum, saddle, flat or not stationary, from the gradient and the Hessian.

    One coordinate outside the span of teacher and student is enough for any dimension: there the Hessian is `2 E_Q` in
    each direction, and zero between two of them and between them and the span.

    Args:
        task: The task.
        attention: The attention, with its bias.
        overlaps: The overlaps, without a batch axis.

    Returns:
        A `Stationary` with `kind`, `eigenvalues` of shape `(n,)`, the risk and the norm of the gradient.

    Examples:
        >>> task = ar.SpikedSLR(nu=2.0, length=3)
        >>> best = ar.population_minimum(task, ar.Softmax())
        >>> ar.certify(task, ar.Softmax(), best.overlaps).kind
        'minimum'
    """
    check_problem(task, attention)
    attention = attention.as_one_head()
    check_overlaps(task, attention, overlaps)
    problem = Problem(task, attention)
    (state,) = states = problem.pack(jax.tree.map(lambda leaf: leaf[None], overlaps), spare=1)
    (limits,), exact = problem.limits(states), problem.is_exact
    step = _EXACT_STEP if exact else _RANDOM_STEP
    moves = (step * _NODES[:, None, None] * np.eye(state.size)).reshape(-1, state.size)
    points = state + np.concatenate([np.zeros((1, state.size)), moves])
    risks, first = problem.values(points, limits=limits, hessians=False)
    plans = (partial(problem.plan, seed=seed) for seed in (() if exact else _SEEDS))
    others = (evaluator(problem, gradients, each)(points, limits)[1] for each in plans)
    samples = np.array([first, *others])
    slopes, parts = samples[:, 0], samples[:, 1:].reshape(-1, _NODES.size, *2 * state.shape)
    hessians = np.einsum("d,sdij->sij", _WEIGHTS / step, parts)
    hessians = (hessians + hessians.swapaxes(1, 2)) / 2.0
    frame = _without_rotations(state, problem)
    gradient, hessian = slopes.mean(0), frame.T @ hessians.mean(0) @ frame
    eigenvalues, vectors = np.linalg.eigh(hessian)
    norm, down = float(np.linalg.norm(gradient)), frame @ vectors[:, 0]
    flat, still = _FLAT, _STATIONARY
    if not exact:
        curvatures = np.einsum("i,sij,j->s", down, hessians, down)[:, None]
        flat, still = (
            _DEVIATIONS * float(np.linalg.norm(sample.std(0, ddof=1))) / len(samples) ** 0.5
            for sample in (curvatures, slopes)
        )
        still += SMOOTHING**2 * float(np.abs(eigenvalues).max())  # what it moves a gradient by
    kind: Kind = "minimum" if eigenvalues[0] > flat else "flat"
    if eigenvalues[0] < -flat:
        kind = "saddle"
    if not norm < still:
        kind = "not stationary"
    lower = state + _STEP * (down if down @ gradient <= 0 else -down)
    escape = problem.overlaps(lower) if kind == "saddle" else None
    result = Result.NOT_STATIONARY if kind == "not stationary" else Result.CONVERGED
    return Stationary(risks[0], overlaps, attention, kind, norm, eigenvalues, escape, result=result)


def _without_rotations(state: np.ndarray, problem: Problem) -> np.ndarray:
    """A basis of the directions that are not a common rotation of the student vectors outside the teacher's span."""
    vectors, _ = problem.unpack(state)
    rotations = []
    for i, j in combinations(range(problem.task.features + 1, vectors.shape[1]), 2):
        rotated = np.zeros_like(vectors)
        rotated[:, i], rotated[:, j] = -vectors[:, j], vectors[:, i]
        rotations.append(np.pad(rotated.ravel(), (0, state.size - rotated.size)))
    directions, sizes, _ = np.linalg.svd(np.array(rotations).T)
    return directions[:, int(np.sum(sizes > 1e-4)) :]


def mismatched_minimum(
    task: AbstractTask, attention: AbstractAttention, best: Minimum | None = None
) -> Stationary:
    """End point of gradient flow from `k = v*`, `v = k*`.

    This is a mismatched local minimum; or, if there is none, the global minimum (`matched`); or, as for linear
    attention, a limit in which `k` diverges (`not attained`).

    Args:
        task: A task of one feature.
        attention: An attention with one head.
        best: The result of `population_minimum`, if it is known.

    Returns:
        A `Stationary`.

    Examples:
        >>> point = ar.mismatched_minimum(ar.SpikedSLR(nu=2.0, length=10), ar.Softmax())
        >>> print(f"{point.risk:.2f}", point.kind, point.matched)
        0.93 minimum False
    """
    check_problem(task, attention, one_head=True)
    attention = attention.as_one_head()
    if best is not None:
        of_type("best", best, Minimum, "what population_minimum returns")
    problem = Problem(task, attention)
    start = jax.tree.map(lambda leaf: leaf[None], swapped())
    runs = follow(problem, start, _LONG_TIMES, *_PRECISE)
    end, student = (
        problem.overlaps(runs.end[0]),
        attention.with_bias(problem.unpack(runs.end)[1][0]),
    )
    if runs.result[0] is Result.LEFT_DOMAIN:
        risks, slopes = problem.values(runs.points[0])
        squares = problem.overlaps(runs.points[0]).q_kk * (runs.time[0] >= _LONG_TIMES)
        limit, norm = _limit(squares, risks), float(np.linalg.norm(slopes[-1]))
        if limit is not None:
            why, none = Result.K_DIVERGES, np.zeros(0)
            return Stationary(limit, end, student, "not attained", norm, none, None, result=why)
    rest, best = certify(task, student, end), best or population_minimum(task, attention)
    same = _is_same(rest.risk, best.risk, _SAME_RISK + float(best.risk.error))
    flowed = runs.result[0]
    result = rest.result if flowed.converged and not rest.converged else flowed
    return replace(rest, matched=bool(same), result=result)


def _is_same(risk: Estimate, best: Estimate, tolerance: float) -> Any:
    if risk.kind is ErrorKind.STANDARD:
        tolerance = tolerance + _DEVIATIONS * np.hypot(risk.error, float(best.error))
    return np.abs(risk.value - float(best.value)) < tolerance


def _limit(squares: np.ndarray, risks: Estimate) -> Estimate | None:
    """The limit of the risk along a path on which `k` diverges, by a polynomial in `1/|k|²` through a few points.

    `None` if the points do not determine it better than the last risk does: `k` need not diverge.
    """
    picked = {int(np.argmin(np.abs(squares - squares.max() * part**2))) for part in _OUTWARD}
    points = np.array(sorted(picked, key=lambda at: -squares[at]))
    if len(points) < len(_OUTWARD) or squares[points[-1]] == 0.0:
        return None
    limit = extrapolate(squares[points], [risks[at] for at in points], np.inf)
    return limit if limit.error < risks.value[-1] - limit.value else None


class Basins(eqx.Module):
    """Counts of the end points of gradient flow from random initialisations.

    `matched` runs ended within 1e-5 of the lowest risk, `mismatched` ones converged elsewhere, `unfinished` ones did
    neither. `risks` are the risks at the end points.
    """

    recorded: ClassVar = "matched", "mismatched", "unfinished", "matched_fraction"
    matched: int
    mismatched: int
    unfinished: int
    risks: Float[np.ndarray, " runs"]

    @property
    def matched_fraction(self) -> Estimate:
        """Fraction of `matched` runs, with its standard error."""
        return share_of(self.matched, self.matched + self.mismatched + self.unfinished)


def share_of(count: int, runs: int) -> Estimate:
    """A fraction with its standard error; near 0 and 1, that of one run."""
    share = count / runs
    error = float(np.sqrt(max(share * (1 - share), 1 / runs) / runs))
    return Estimate(share, error, ErrorKind.STANDARD)


def basins(
    task: AbstractTask,
    attention: AbstractAttention,
    key: PRNGKeyArray,
    runs: int = 100,
    size: float = 1.0,
) -> Basins:
    """Fraction of random initialisations from which gradient flow reaches the global minimum.

    Args:
        task: The task.
        attention: The attention.
        key: JAX random key.
        runs: Number of initialisations.
        size: Standard deviation of each component of an initial vector; 1 is the size of the teacher vectors.

    Returns:
        A `Basins` with the counts and `risks` of shape `(runs,)`.

    Examples:
        >>> found = ar.basins(ar.SpikedSLR(nu=2.0, length=3), ar.Softmax(), jax.random.key(0), runs=20, size=0.1)
        >>> found.matched
        20
    """
    check_problem(task, attention, one_head=True)
    attention = attention.as_one_head()
    starts = random_starts(key, runs, size)
    (least,) = uncompiled_minima([task], attention)
    problem = Problem(task, attention)
    ends = follow(problem, starts, _LONG_TIMES[-1:], *_ROUGH)
    risks, _ = problem.values(ends.end, _ROUGH[-1])
    # From there no flow leads on, at rest or not.
    same = _is_same(risks, least.risk, _ROUGHLY_SAME_RISK)
    converged = ends.result == Result.CONVERGED
    matched, mismatched = int(same.sum()), int((converged & ~same).sum())
    return Basins(matched, mismatched, runs - matched - mismatched, risks.value)
