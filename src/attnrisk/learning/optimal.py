"""The Bayes optimum with finite data, `N, D → ∞` at `α = N/D`, and the risk of message passing (section 7).

Both are fixed points of one monotone map: the state evolution that starts from no information, and the one that
starts from more than any data can give, the locations of all tokens included. Where they differ, the larger free
entropy decides which is the optimum.
"""

from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from .._check import numbers, of_type, real, refuse, shown, whole
from .._results import AbstractResult, ErrorKind, Estimate, Result
from ..numerics.arrays import as_arrays
from ..numerics.qmc import sobol
from ..tasks import AbstractSamplable, AbstractTask
from .evidence import Evidence, Points, evidence, uncertainty, visits_all
from .fixed_point import find_fixed_point
from .scope import check_seed, optimisable

RANDOMISATIONS = 8
_LEAST_POINTS, _MOST_POINTS = 8, 14  # powers of two: points of a randomisation
# Tokens in all, a power of two, for which a call takes seconds; the second where several locations are visited.
_LOG2_NUMBERS = 19, 16

# With noiseless labels and 1 − q_v below e^-16, each step divides it by α: v is found, and q_v is one to all digits.
_RECOVERING, _RECOVERED = 16.0, 69.0
_CLOSEST = 1e-3  # 1 − q_v of the informed start where the limit of recovery is not passed
_PROBE = 1e-4  # step of the differences that carry errors through the fixed point
_SURE = 3.0  # standard errors by which two risks differ


class FixedPoint(AbstractResult):
    """A fixed point of the state evolution.

    `residual` is the remaining step of the iteration in `log(1 + q̂)`; the errors include it and the sampling.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        *("q_k", "q_v", "free_entropy", "risk"),
        *("residual", "steps", "result", "converged"),
    )
    q_k: Estimate
    q_v: Estimate
    q_hat_k: Estimate
    q_hat_v: Estimate
    free_entropy: Estimate
    risk: Estimate
    residual: float
    steps: int


class OptimalAsymptotics(eqx.Module):
    """Lowest achievable test risk and the risk that message passing reaches, from two fixed points.

    `reachable` is found from an uninformed initialisation, `informed` from known locations.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        *("risk", "reachable_risk", "q_k", "q_v", "hard"),
        *("result", "converged"),
    )
    reachable: FixedPoint
    informed: FixedPoint

    @property
    def risk(self) -> Estimate:
        """The best possible test risk, noise included."""
        return self.optimum.risk

    @property
    def reachable_risk(self) -> Estimate:
        """The test risk of message passing, the lowest that a known polynomial-time algorithm attains."""
        return self.reachable.risk

    @property
    def q_k(self) -> Estimate:
        """Overlap of the optimal estimate of `k*`."""
        return self.optimum.q_k

    @property
    def q_v(self) -> Estimate:
        """Overlap of the optimal estimate of `v*`."""
        return self.optimum.q_v

    @property
    def optimum(self) -> FixedPoint:
        """The fixed point with the larger free entropy."""
        better = float(self.informed.free_entropy) > float(self.reachable.free_entropy)
        return self.informed if better else self.reachable

    @property
    def hard(self) -> bool:
        """Whether the optimum exists and message passing misses it, beyond the errors of both."""
        error = float(self.risk.error) + float(self.reachable_risk.error)
        return float(self.reachable_risk) - float(self.risk) > _SURE * error

    @property
    def result(self) -> Result:
        """The result of the fixed point that did not converge, if there is one."""
        return self.informed.result if self.reachable.converged else self.reachable.result

    @property
    def converged(self) -> bool:
        """Whether both fixed points converged."""
        return self.result.converged


def optimal_asymptotics(task: AbstractTask, alpha: float, seed: int = 0) -> OptimalAsymptotics:
    """Bayes optimum at `α = N/D`: lowest test risk achievable from the data, as `D → ∞` (section 7).

    Args:
        task: A planted task (`SpikedSLR`) or a selected one (`MaxSLR`), with up to 1000 tokens. With
            spread other than 1, the norm of the relevant token reveals its location as `D → ∞`: what remains is a
            linear regression for `v` and a mean for `k`, in closed form.
        alpha: Number of sequences per dimension, `α = N/D > 0`.
        seed: Seed of the Sobol points.

    Returns:
        An `OptimalAsymptotics`. `risk` is the optimum, `reachable_risk` that of approximate message passing from an
        uninformed initialisation, and `hard` says whether they differ.

    Examples:
        >>> best = ar.optimal_asymptotics(ar.SpikedSLR(nu=2.0, length=3), alpha=1.1)
        >>> print(f"{best.risk:.3f} {best.reachable_risk:.3f}", best.hard)
        0.427 0.632 True
    """
    alpha = real("alpha", alpha, above=0.0)
    of_type("task", task, AbstractTask, "a task, such as SpikedSLR(2.0, 3)")
    if task.spread != 1.0 and not task.no_optimum:
        found = _located(task, float(alpha))
        return OptimalAsymptotics(found, found)
    task = optimisable(task)
    points = draw(task, seed)
    return OptimalAsymptotics(reachable(task, alpha, points), informed(task, alpha, points))


class Trajectory(AbstractResult):
    """Overlaps `q_k` and `q_v` at the start and after each step of the state evolution, with errors."""

    recorded: ClassVar[tuple[str, ...]] = ("steps", "result", "converged")
    q_k: Estimate
    q_v: Estimate

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.q_k.value) - 1


def state_evolution(
    task: AbstractTask,
    alpha: float,
    steps: int,
    start: tuple[float, float] = (0.0, 0.0),
    seed: int = 0,
) -> Trajectory:
    """State evolution: overlaps of approximate message passing on `N = αD` samples after each step, as `D → ∞`.

    Args:
        task: As in `optimal_asymptotics`.
        alpha: Number of sequences per dimension, `α = N/D > 0`.
        steps: Number of steps `T`.
        start: Initial overlaps `(q_k, q_v)`, each in `[0, 1)`.
        seed: Seed of the Sobol points.

    Returns:
        A `Trajectory` with `q_k` and `q_v` of shape `(T+1,)`. The errors are standard errors over randomisations.

    Examples:
        >>> path = ar.state_evolution(ar.SpikedSLR(nu=2.0, length=3), alpha=2.0, steps=5)
        >>> path.q_k.value.shape
        (6,)
    """
    task, alpha = optimisable(task), float(real("alpha", alpha, above=0.0))
    steps, allowed = whole("steps", steps, 1, 10**6), "two overlaps ≥ 0 and < 1"
    overlaps = numbers("start", start, allowed)
    if overlaps.shape != (2,) or not np.all((overlaps >= 0) & (overlaps < 1)):
        raise refuse("start", shown(start), allowed)
    points = draw(task, seed)
    alone = [Points(*(each[at : at + 1] for each in points)) for at in range(RANDOMISATIONS)]
    maps = [StateEvolution(task, alpha, each) for each in (points, *alone)]
    depths = [np.tile(-np.log1p(-overlaps), (len(maps), 1))]
    for _ in range(steps):
        each = zip(maps, depths[-1], strict=True)
        depths.append(np.stack([evolution.next_depth(depth) for evolution, depth in each]))
    (q_k, *k_alone), (q_v, *v_alone) = -np.expm1(-np.stack(depths).T)
    errors = (np.std(each, 0, ddof=1) / np.sqrt(RANDOMISATIONS) for each in (k_alone, v_alone))
    found = zip((q_k, q_v), errors, strict=True)
    q_k, q_v = (Estimate(*each, ErrorKind.STANDARD) for each in found)
    return Trajectory(q_k, q_v, result=Result.FINISHED)


def draw(task: AbstractSamplable, seed: int = 0, fewer: int = 0) -> Points:
    """Random sequences of the task, their number halved `fewer` times."""
    seed = check_seed(seed)
    law, longest = task.length, int(task.length.longest)
    several = task.teacher_uniforms(longest)
    drawn = 0 if visits_all(longest) else several
    room = _LOG2_NUMBERS[several > 0] - int(np.ceil(np.log2(RANDOMISATIONS * longest)))
    log2_points = int(np.clip(room, _LEAST_POINTS, _MOST_POINTS)) - fewer
    counts = 1, task.shift_uniforms, drawn, 2 * longest + 1
    for_length, for_shift, for_teacher, normals = _numbers(counts, log2_points, seed)
    which = np.searchsorted(np.cumsum(law.probabilities)[:-1], for_length[..., 0], "right")
    lengths = law.lengths[which]
    each = zip(for_teacher, lengths, strict=True)
    teacher = [task.draw_teacher(*given) if drawn else given[0] for given in each]
    return Points(*as_arrays((lengths, for_shift, np.stack(teacher), normals)))


@lru_cache(maxsize=8)
def _numbers(counts: tuple[int, ...], log2_points: int, seed: int) -> tuple[np.ndarray, ...]:
    """Uniform numbers for the length, the shift and the teacher of each sequence, and normal ones for the rest."""
    uniforms = sobol(sum(counts), log2_points, RANDOMISATIONS, seed)
    *given, rest = np.split(uniforms, np.cumsum(counts)[:-1], -1)
    return *given, ndtri(rest)


def reachable(task: AbstractSamplable, alpha: float, points: Points) -> FixedPoint:
    return _branch(task, alpha, np.zeros(2), points)


def informed(task: AbstractSamplable, alpha: float, points: Points) -> FixedPoint:
    return _branch(task, alpha, informed_start(task, alpha), points)


def _located(task: AbstractTask, alpha: float) -> FixedPoint:
    """The optimum if all locations are known; in units of the spread `γ` the label noise is `Δ/γ`."""
    spread, noise = float(task.spread), float(task.noise) / float(task.spread)
    left = _regression_error(alpha, noise)
    q_hat = (
        alpha * float(task.relevant_field) ** 2 / spread**2,
        np.inf if left == 0 else 1.0 / left - 1.0,
    )
    q_k, risk = q_hat[0] / (1.0 + q_hat[0]), float(task.noise) ** 2 + spread**2 * left
    # There is one fixed point: its free entropy, up to a constant, is compared with nothing.
    found = Outcome(*(Estimate(each, 0.0) for each in (q_k, 1.0 - left, *q_hat, 0.0, risk)))
    return FixedPoint(*found, 0.0, 0, result=Result.CONVERGED)


def _regression_error(alpha: float, noise: float) -> float:
    """`u = 1 − q_v` of a linear regression, from `u² + (Δ² + α − 1) u = Δ²`."""
    if noise == 0.0:
        return max(1.0 - alpha, 0.0)
    excess = alpha - 1.0 + noise**2
    root = np.hypot(excess, 2.0 * noise)
    return float(2.0 * noise**2 / (root + excess) if excess > 0 else (root - excess) / 2.0)


def informed_start(task: AbstractSamplable, alpha: float) -> np.ndarray:
    """Depths above those of any data: with known locations, `v` is a linear regression."""
    depth_k = np.log1p(float(task.key_information(alpha)))
    if task.noise == 0.0:
        return np.array([depth_k, _RECOVERED if alpha > 1 else -np.log(max(1 - alpha, _CLOSEST))])
    left = _regression_error(alpha, float(task.noise))
    return np.array([depth_k, max(-np.log(left), 0.0)])


def _branch(task: AbstractSamplable, alpha: float, start: np.ndarray, points: Points) -> FixedPoint:
    """The fixed point that the state evolution reaches from a pair of depths.

    To first order, the map `T_r` of one randomisation has its fixed point `(1 − T')⁻¹(T_r − T)` away, and there its own
    outcomes. The residual step of the iteration is treated in the same way.
    """
    evolution = StateEvolution(task, alpha, points)
    end = find_fixed_point(evolution.next_depth, start)
    probes = end.point + _PROBE * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    around = [evolution.evidence(each) for each in probes]
    outcomes = np.stack(
        [np.stack(outcome(task, alpha, *each), -1) for each in zip(probes, around, strict=True)]
    )
    ahead = np.stack([evolution.depths_from(jax.tree.map(np.mean, each)) for each in around])
    pull, slopes = ((each[1:] - each[0]) / _PROBE for each in (ahead, np.mean(outcomes, 1)))
    response = np.linalg.solve(np.eye(2) - pull, slopes)
    own = evolution.depths_from(around[0])
    replicates = outcomes[0] + (own - np.mean(own, 0)) @ response
    spread = np.std(replicates, 0, ddof=1) / np.sqrt(RANDOMISATIONS)
    errors = spread + np.abs(end.step @ response)
    values = zip(np.mean(outcomes[0], 0), errors, strict=True)
    found = Outcome(*(Estimate(*each, ErrorKind.STANDARD) for each in values))
    if end.point[1] == _RECOVERED:
        infinite = Estimate(np.inf, 0.0, ErrorKind.STANDARD)
        found = found._replace(q_hat_v=infinite, free_entropy=infinite)
    result = Result.CONVERGED if end.converged else Result.MAX_STEPS
    return FixedPoint(*found, end.residual, end.steps, result=result)


class StateEvolution(NamedTuple):
    """The map from depths `log(1 + q̂)` to the next, `q̂ = α E[Σ(∂_ω log Z)²]`, as a mean over random sequences."""

    task: AbstractSamplable
    alpha: float
    points: Points

    def evidence(self, depth: Float[np.ndarray, "2"]) -> Evidence:
        task, at = as_arrays((self.task, depth))
        return jax.tree.map(np.asarray, evidence(task, at, self.points))

    def next_depth(self, depth: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
        """The next depths from the mean over all points."""
        return self.depths_from(jax.tree.map(np.mean, self.evidence(depth)))

    def depths_from(self, seen: Evidence) -> Float[np.ndarray, "*batch 2"]:
        depth_k, depth_v = (np.log1p(self.alpha * it) for it in (seen.signal_k, seen.signal_v))
        recovering = (float(self.task.noise) == 0.0) & (depth_v > _RECOVERING)
        return np.stack([depth_k, np.where(recovering, _RECOVERED, depth_v)], -1)


class Outcome(NamedTuple):
    """Overlaps, free entropy and risk at a pair of depths, in the order of `FixedPoint`."""

    q_k: Any
    q_v: Any
    q_hat_k: Any
    q_hat_v: Any
    free_entropy: Any
    risk: Any


def outcome(
    task: AbstractTask, alpha: float, depth: Float[np.ndarray, "2"], seen: Evidence
) -> Outcome:
    """Overlaps, free entropy and test risk at a pair of depths.

    With `q̂ = q/(1−q)` the free entropy is `½Σ(q + log(1−q)) + α E[log Z]`, a function of `q` alone, stationary at
    the fixed points.
    """
    given, (q_hat_k, q_hat_v) = uncertainty(depth, float(task.noise)), np.expm1(depth)
    entropy = (given.q_k + given.q_v - np.sum(depth)) / 2 + alpha * seen.log_evidence
    risk = given.label_variance + given.q_v * (1.0 - seen.found)
    return Outcome(*np.broadcast_arrays(given.q_k, given.q_v, q_hat_k, q_hat_v, entropy, risk))
