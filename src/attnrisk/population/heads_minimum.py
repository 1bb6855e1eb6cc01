"""The lowest risk of several heads, or on several features, with infinite data (section 10).

The risk on the manifold is a function of the `H·F` components of the keys and of free biases. Descents from many starts
in one compiled call follow an average over random sequences, or the exact risk by a rough rule where sequences are
long; those that end at distinct risks are continued with the exact risk, where there is one.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import of_type, refuse, whole
from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.minimise import Descent, map_batch, minimise_bfgs
from ..numerics.qmc import sobol
from ..tasks import AbstractNeedle, AbstractTask
from .continuity import check_continuous, check_continuous_kernel, is_continuous
from .engines.base import AbstractEngine, HeadRange
from .manifold import ManifoldProblem, RandomSequences, best_weights
from .overlaps import Overlaps
from .plan import check_needle, has_exact_heads, heads_engine
from .risk import population_risk

Kind = Literal["minimum", "saddle", "flat", "not certified"]

_RANDOM_STARTS = 12
_MOST_LOG2_POINTS, _LOG2_NUMBERS = 12, 19  # of random sequences: points, and fields in all
_LEAST_POINTS = 256  # fewer points are no guide to a minimum
_MOST_FIELDS = 200  # of a sequence, where there is an exact risk to follow instead
_SEARCH_TOLERANCE, _TOLERANCE = 1e-4, 1e-6  # norms of gradients
_SEARCH_STEPS, _STEPS = 200, 60
# Of rules by the dimension of a token's grid: right to 10^-7 and to 10^-5.
_FINENESS = {1: 0.9, 2: 0.9, 3: 0.6}
_ROUGH = 0.5  # of a rule to search with
_DISTINCT = 1e-4  # risks of descents that are nearer have one minimum
_MOST_CONTINUED = 3  # of distinct minima, lowest first
_LONGEST_KEY = 12.0  # a longer key has no minimum near
# Steps of central differences for a Hessian. Where an attention has kinks the risk may have a term of third order in
# the size of a step, and differences an error of first order, which a second step removes.
_STEP, _STEPS_AT_KINKS = (0.01,), (0.01, 0.005)
_CURVED = 1e-5  # an eigenvalue below this is not told from zero


class LocalMinimum(eqx.Module):
    """A local minimum of the risk with several heads or features.

    It has the risk, the overlaps, the attention with its optimised biases and head weights, and the eigenvalues of the
    Hessian of the risk at the best `v`, with respect to the keys (with one direction outside the features) and the free
    biases.
    """

    recorded: ClassVar = (
        *("risk", "overlaps", "head_weights", "biases", "kind", "lowest_eigenvalue"),
        "gradient_norm",
    )
    risk: Estimate
    overlaps: Overlaps
    attention: AbstractAttention
    kind: Kind = eqx.field(static=True)
    eigenvalues: Float[np.ndarray, " n"]
    gradient_norm: float
    result: Result = eqx.field(static=True)

    @property
    def head_weights(self) -> list[float] | None:
        """`c_h` of heads that are normalised one by one."""
        weights = self.attention.head_weights
        return None if weights is None else np.asarray(weights, float).tolist()

    @property
    def biases(self) -> list[float] | None:
        """The bias of each head, if it has an effect."""
        squares = jnp.diagonal(jnp.asarray(self.overlaps.Q))[:-1]
        biases = np.ravel(self.attention.given_norms(squares).bias)
        is_used = self.attention.free_bias or self.attention.is_joint or np.any(biases)
        return biases.tolist() if is_used else None

    @property
    def lowest_eigenvalue(self) -> float | None:
        """Lowest eigenvalue of the Hessian, if it was computed."""
        return float(self.eigenvalues[0]) if self.eigenvalues.size else None


class HeadsMinimum(eqx.Module):
    """The lowest of the local minima found; `minima` lists those with distinct risks, lowest first, without saddles.

    It is not proved to be the global minimum: the search uses a finite number of initialisations.
    """

    recorded: ClassVar = (
        *("risk", "overlaps", "head_weights", "biases", "attained", "result", "converged"),
    )
    minima: tuple[LocalMinimum, ...]

    @property
    def lowest(self) -> LocalMinimum:
        """The minimum of lowest risk."""
        return self.minima[0]

    @property
    def risk(self) -> Estimate:
        """The lowest risk."""
        return self.lowest.risk

    @property
    def overlaps(self) -> Overlaps:
        """The overlaps at the lowest minimum."""
        return self.lowest.overlaps

    @property
    def attention(self) -> AbstractAttention:
        """The attention with its optimised biases and head weights."""
        return self.lowest.attention

    @property
    def head_weights(self) -> list[float] | None:
        """`c_h` of heads that are normalised one by one."""
        return self.lowest.head_weights

    @property
    def biases(self) -> list[float] | None:
        """The bias of each head, if it has an effect."""
        return self.lowest.biases

    @property
    def result(self) -> Result:
        """The reason why the descent stopped."""
        return self.lowest.result

    @property
    def attained(self) -> bool:
        """Whether finite vectors attain the lowest risk."""
        return not self.result.is_infimum

    @property
    def converged(self) -> bool:
        """Whether the descent ended at a minimum, or at an infimum, and not at a saddle."""
        return self.result.converged


def heads_minimum(
    task: AbstractTask,
    attention: AbstractAttention,
    seed: int = 0,
    certify: bool = True,
    random_starts: int = _RANDOM_STARTS,
) -> HeadsMinimum:
    """Lowest risk over keys in the span of the features, `v` along `v*`, free biases and free head weights.

    Args:
        task: The task, with a shifted token.
        attention: The attention.
        seed: Seed of the random initialisations and random sequences.
        certify: Whether to continue the search with the exact risk and to compute the Hessian. If not, the result is
            the exact risk of heads near a minimum, an upper bound of the lowest risk.
        random_starts: Number of random initialisations, besides those on the components of the law of shifts; 12 by
            default.

    Returns:
        A `HeadsMinimum` with all minima found with distinct risks, lowest first.
    """
    task = check_needle(task, "several heads")
    of_type("attention", attention, AbstractAttention, "an attention")
    seed = whole("seed", seed, minimum=0)
    problem, exact = ManifoldProblem(task, attention), has_exact_heads(task, attention)
    longest = int(task.length.longest)
    (check_continuous_kernel if exact else check_continuous)(attention, longest)
    integral, starts = (
        _search_integral(task, attention, exact, seed),
        _starts(problem, seed, random_starts),
    )
    ends = _distinct(_descend(problem, integral, starts, _SEARCH_TOLERANCE, _SEARCH_STEPS))
    if exact and certify:
        integral = _engine_at(problem, [end.at for end in ends])
        places = [np.asarray(end.at) for end in ends]
        ends = _distinct(_descend(problem, integral, places, _TOLERANCE, _STEPS))
    minima = [_certified(problem, integral, end, exact and certify, seed) for end in ends]
    minima.sort(key=lambda each: float(each.risk))
    return HeadsMinimum(tuple(each for each in minima if each.kind != "saddle") or tuple(minima))


def _search_integral(
    task: AbstractNeedle, attention: AbstractAttention, exact: bool, seed: int
) -> Any:
    """Random sequences, or a coarse exact engine for long sequences and discontinuous weights."""
    lengths = np.asarray(task.length.lengths)
    fields = task.features * int(lengths[-1])
    if exact and (
        fields > _MOST_FIELDS
        or lengths.size > 1
        or not (attention.analytic or is_continuous(attention, int(lengths[-1])))
    ):
        reach = float(task.strength) + 1.0
        within = HeadRange(reach * _widest(task), reach * float(task.strength), -2.0 * reach, 2.0)
        return heads_engine(task, attention, within, _ROUGH)
    if lengths.size > 1:
        raise refuse("length", str(task.length), "a single length for this attention and task")
    log2 = min(_MOST_LOG2_POINTS, math.floor(_LOG2_NUMBERS - math.log2(fields)))
    if 2**log2 < _LEAST_POINTS:
        most = 2**_LOG2_NUMBERS // _LEAST_POINTS // task.features
        raise refuse("length", str(task.length), f"at most {most} for this attention and task")
    dimension = 1 + task.shift_uniforms + fields
    return RandomSequences(sobol(dimension, log2, 1, seed)[0])


def _widest(task: AbstractNeedle) -> float:
    """Standard deviation of a relevant field, in units of that of the other tokens."""
    spreads = np.asarray(task.shift_law.all_covariances)
    return math.sqrt(float(task.spread) ** 2 + float(np.linalg.eigvalsh(spreads).max(initial=0.0)))


def _starts(problem: ManifoldProblem, seed: int, random: int) -> Float[np.ndarray, "s n"]:
    """Heads on the components of the law, on both sides of each, and random ones, small and large.

    Initial biases make a head respond to tokens that are more likely relevant than not.
    """
    task, heads, features = problem.task, problem.attention.keys, problem.task.features
    rng, strength = np.random.default_rng(seed), max(float(task.strength), 0.5)
    law = task.shift_law
    values, frames = np.linalg.eigh(np.asarray(law.all_covariances, float))
    widths = np.sqrt(np.maximum(values, 0.0))[:, None, :] * frames
    sides = [
        side * axis
        for j in range(len(widths))
        for axis in widths[j].T[::-1]
        for side in (1.0, -1.0)
    ]
    likely = [mean for mean in np.asarray(law.means, float) if np.any(mean)]
    likely += [side for side in sides if np.any(side)]
    likely = likely or [np.ones(features)]
    turns = [
        np.stack([likely[(first + h) % len(likely)] for h in range(heads)]) for first in range(2)
    ]
    keys = [scale * turn for turn in turns for scale in (0.7, 1.0)]
    keys += [
        strength * rng.uniform(0.2, 1.2) * rng.normal(size=(heads, features)) / math.sqrt(features)
        for _ in range(random)
    ]
    squares = np.stack([(each**2).sum(1) for each in keys])
    biases = problem.first_biases(squares)
    padded = np.pad(np.stack(keys), ((0, 0), (0, 0), (0, 1)))
    return np.concatenate([padded.reshape(len(keys), -1), biases], 1)


class _Run(eqx.Module):
    """A descent, with all of its numbers as arrays."""

    problem: ManifoldProblem
    integral: Any
    start: Float[Any, " n"]
    tolerance: Any
    steps: Any

    def __call__(self) -> Descent:
        loss = partial(self.problem.loss, self.integral)
        return minimise_bfgs(loss, self.start, self.tolerance, self.steps)


def _descend(
    problem: ManifoldProblem, integral: Any, starts: Iterable[Any], tolerance: float, steps: int
) -> list[Descent]:
    """Descend from all initialisations in one compiled call."""
    runs = [_Run(problem, integral, start, tolerance, steps) for start in starts]
    arrays = [jax.tree.map(lambda leaf: np.asarray(leaf, float), run) for run in runs]
    return map_batch(operator.call, arrays)


def _distinct(found: Sequence[Descent]) -> list[Descent]:
    """The lowest descents with risks that differ."""
    kept: list[Descent] = []
    for end in sorted(found, key=lambda end: float(end.value)):
        risks = [abs(math.exp(-float(end.value)) - math.exp(-float(other.value))) for other in kept]
        if math.isfinite(end.value) and not any(apart < _DISTINCT for apart in risks):
            kept.append(end)
    return kept[:_MOST_CONTINUED]


def _engine_at(problem: ManifoldProblem, points: Sequence[Any]) -> AbstractEngine:
    """An exact engine for scores near those of these points."""
    keys, biases = [], []
    for point in points:
        own, attention = problem.unpack(jnp.asarray(point))
        squares = jnp.sum(own**2, 1)
        keys.append(float(jnp.sqrt(jnp.max(squares))))
        biases.append(np.asarray(attention.key_biases(squares)))
    length = 1.1 * max(keys) + 0.1
    within = HeadRange(
        length * _widest(problem.task),
        length * float(problem.task.strength),
        float(np.min(biases)) - 1.0,
        float(np.max(biases)) + 1.0,
    )
    joint = problem.attention.keys if problem.attention.is_joint else 1
    return heads_engine(problem.task, problem.attention, within, _FINENESS[joint])


def _certified(
    problem: ManifoldProblem, integral: Any, end: Descent, exact: bool, seed: int
) -> LocalMinimum:
    """The risk at the end of a descent, with its error and its Hessian."""
    point, features = np.asarray(end.at), problem.task.features
    keys, attention = problem.unpack(jnp.asarray(point))
    longest = float(jnp.sqrt(jnp.max(jnp.sum(keys**2, 1))))
    label, power = (np.asarray(each) for each in _compiled(*as_arrays((problem, integral, point))))
    if label.ndim:
        weights = np.asarray(best_weights(jnp.asarray(label), jnp.asarray(power)))
        factor = float(weights.sum())
        attention = attention.with_head_weights(weights / factor)  # type: ignore[attr-defined]
    else:
        factor = float(label / power)
    M = np.zeros((len(keys) + 1, features + 1))
    M[:-1, :-1], M[-1, -1] = np.asarray(keys)[:, :features], factor
    overlaps = Overlaps(M, M @ M.T)
    attention = jax.tree.map(np.asarray, attention)
    risk = population_risk(problem.task, attention, overlaps, seed=seed + 1)
    norm = float(np.linalg.norm(end.gradient))
    kind: Kind = "not certified"
    eigenvalues = np.zeros(0)
    result = Result.CONVERGED if problem.task.spread == 1.0 else Result.ON_MANIFOLD
    if exact:
        kind, eigenvalues = _curvature(problem, integral, end)
        result = Result.SADDLE if kind == "saddle" else result
    if not norm < (1e2 * _TOLERANCE if exact else 1e2 * _SEARCH_TOLERANCE):
        result = Result.K_DIVERGES if longest > _LONGEST_KEY else Result.NOT_STATIONARY
    elif exact:  # what a descent that stops at this gradient may be above the minimum
        curvature = max(float(np.min(eigenvalues, initial=np.inf)), _CURVED)
        explained = float(problem.task.label_variance) - float(risk)
        risk = Estimate(risk.value, risk.error + explained * norm**2 / (2.0 * curvature), risk.kind)
    return LocalMinimum(risk, overlaps, attention, kind, eigenvalues, norm, result)


@eqx.filter_jit
def _compiled(problem: ManifoldProblem, integral: Any, point: Array) -> tuple[Array, Array]:
    return problem.correlations(integral, point)


def _curvature(problem: ManifoldProblem, integral: Any, end: Descent) -> tuple[Kind, np.ndarray]:
    """Classification of a point by the eigenvalues of the Hessian of `E[y²] − A²/B`.

    From central differences of the gradient, which a descent of one step gives. Where the gradient vanishes it is
    `A²/B` times the Hessian of the loss. Where there may be kinks, differences over two steps are extrapolated, and an
    eigenvalue within the change of the extrapolation counts as zero; at a concave kink both are far below zero.
    """
    steps = _STEP if problem.attention.analytic else _STEPS_AT_KINKS
    size = end.at.size
    moves = np.array(steps)[:, None, None, None] * np.array([1.0, -1.0])[:, None, None]
    places = (np.asarray(end.at) + moves * np.eye(size)).reshape(-1, size)
    found = _descend(problem, integral, places, 0.0, 1)
    above, below = (
        np.stack([each.gradient for each in found])
        .reshape(len(steps), 2, size, size)
        .swapaxes(0, 1)
    )
    slopes = math.exp(-float(end.value)) * (above - below) / (2.0 * np.array(steps)[:, None, None])
    last = (slopes[-1] + slopes[-1].T) / 2.0
    change = last - (slopes[0] + slopes[0].T) / 2.0
    eigenvalues, vectors = np.linalg.eigh(last + change)
    unsure = _CURVED + abs(float(vectors[:, 0] @ change @ vectors[:, 0]))
    if eigenvalues[0] < -unsure:
        return "saddle", eigenvalues
    return ("minimum" if eigenvalues[0] > unsure else "flat"), eigenvalues
