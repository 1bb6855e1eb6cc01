"""Learning with several heads from `N = αD` samples: the matrix form of the fixed point (section 10).

The equations are those of `erm`, with a matrix for the key vectors. Heads may be copies of each other (collapsed) or
differ (specialised), and which of the two has the lower objective depends on `α` and the ridge: the search starts from
both. Where replica symmetry is unstable (`replicon` above one), different starts of a descent end in different minima.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from .._check import Refusal, of_type, refuse, whole
from .._results import ErrorKind, Estimate
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.engines.base import HeadRange
from ..population.overlaps import Overlaps
from ..population.plan import has_exact_heads, heads_engine
from ..tasks import AbstractTask, FeatureSLR, SpikedSLR
from .asymptotics import ERMAsymptotics, Ridge
from .equations import probes
from .erm import LOG2_POINTS, LOG2_SLOPES, RANDOMISATIONS, Problem, risks_at
from .newton import FixedPointSolution, Start
from .samples import draw
from .scope import check_alpha, check_noise, check_ridge, check_seed, learner
from .unknowns import Order, Unknowns, pack

MOST_HEADS, LONGEST = 3, 10
_FINENESS = 0.7  # of the rule for the test risk: right to 10^-5
_SAME = 1e-2  # distance, relative and in all, of two fixed points that are one


def heads_asymptotics(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    ridge: Ridge,
    seed: int = 0,
    log2_points: int = LOG2_POINTS,
) -> ERMAsymptotics:
    """Empirical risk minimisation with several heads and one value vector, in the limit `N, D → ∞` (section 10).

    The equations are solved from three initialisations: no information, heads on the features and their opposites, and
    identical heads.

    Args:
        task: A `FeatureSLR` or `SpikedSLR` (spread 1), with up to 10 tokens.
        attention: An attention with up to three heads. A free bias of one head is learned, those of several are fixed.
        alpha: Number of samples per dimension, `α = N/D`.
        ridge: Ridge penalties; `k` applies to every key.
        seed: Seed of the Sobol points.
        log2_points: Averages use `2^log2_points` points in each of 16 randomisations.

    Returns:
        An `ERMAsymptotics`: the fixed point of lowest objective, with the others as `rivals`.
    """
    alpha, ridge = check_alpha(alpha), check_ridge(ridge)
    problem = HeadsProblem.of(task, attention, log2_points, seed)
    try:
        first = problem.first_points(log2_points - LOG2_SLOPES)
        return first.solve(alpha, ridge, problem, _distinct)
    except FloatingPointError:
        raise Refusal(
            "alpha, features, noise or ridges so extreme are not allowed: the equations overflow"
        ) from None


def check_heads(task: AbstractTask, attention: AbstractAttention) -> None:
    """Refuse what the equations of several heads do not cover."""
    if not isinstance(task, FeatureSLR | SpikedSLR) or task.spread != 1.0:
        given = task.name if isinstance(task, AbstractTask) else repr(task)
        raise refuse("task", given, "features or spiked (of spread 1) where heads are learned")
    if int(task.length.longest) > LONGEST:
        raise refuse("length", str(task.length), f"at most {LONGEST} where heads are learned")
    if not 1 <= learner(attention).keys <= MOST_HEADS:
        raise refuse("heads", attention.keys, f"at most {MOST_HEADS} where they are learned")


def head_separation(overlaps: Overlaps) -> float:
    """Mean of `1 − Q_hh'/√(Q_hh Q_h'h')` over pairs of keys.

    Args:
        overlaps: Overlaps of two or more heads.

    Returns:
        0 for identical directions, 1 for orthogonal keys, 2 for a pair of opposite keys.
    """
    Q = np.asarray(of_type("overlaps", overlaps, Overlaps, "of type Overlaps").Q)[:-1, :-1]
    if len(Q) < 2:
        raise refuse("overlaps", f"(of {len(Q)} key vector)", "those of two heads or more")
    sizes = np.sqrt(np.maximum(np.diag(Q), 1e-300))
    rows, columns = np.triu_indices(len(Q), 1)
    return float(np.mean(1.0 - Q[rows, columns] / (sizes[rows] * sizes[columns])))


def _distinct(found: list[FixedPointSolution]) -> list[FixedPointSolution]:
    """Sorted by objective, converged ones first; others that did not converge, or are the same, are left out."""
    ranked = sorted(found, key=lambda it: (not it.result.converged, it.objective))
    kept = ranked[:1]
    for each in ranked[1:]:
        same = any(np.allclose(each.x, it.x, _SAME, _SAME) for it in kept)
        if each.result.converged and not same:
            kept.append(each)
    return kept


class HeadsProblem(Problem):
    """The equations of several heads on one needle task."""

    @classmethod
    def of(
        cls, task: AbstractTask, attention: AbstractAttention, log2_points: int, seed: int
    ) -> Problem:
        check_heads(task, attention)
        log2_points = whole("log2_points", log2_points, 1, 24)
        points = draw(
            check_noise(task), attention.keys, log2_points, RANDOMISATIONS, check_seed(seed)
        )
        return cls.with_free_bias(task, attention, points)

    def starts(self, ridge: Ridge) -> tuple[Start, ...]:
        """Also heads that are copies, without a feature."""
        usual = super().starts(ridge)
        heads, features, _ = self.layout
        if heads == 1:
            return usual
        V_k, V_v = (min(0.5 / float(r), 1.0) for r in (ridge.k, ridge.v))
        Q = 0.2 * np.ones((heads, heads)) + 1e-3 * np.eye(heads)
        keys = Order(np.zeros((heads, features)), Q, V_k * np.eye(heads))
        values = Order(*(np.array([[each]]) for each in (0.6, 0.6, V_v)))
        return (*usual, Start("copies", pack(Unknowns(keys, values))))

    def test_risk(self, x: np.ndarray) -> tuple[Estimate, Float[np.ndarray, " n"]]:
        """By the exact engine, where there is one."""
        task: Any = self.task
        if not has_exact_heads(task, self.attention):
            return super().test_risk(x)
        keys = self.layout.unpack(x).keys
        nearby = probes(self.layout, x)
        biases = np.stack([np.asarray(self.with_bias(each).bias, float) for each in nearby])
        longest = float(np.sqrt(np.max(keys.Q)))
        strength = float(task.strength)
        deviation = longest * np.hypot(1.0, strength)
        within = HeadRange(
            deviation, longest * strength, float(np.min(biases)), float(np.max(biases))
        )
        matrices = [self.layout.unpack(each).matrices() for each in nearby]
        M, Q, _ = (np.stack(each) for each in zip(*matrices, strict=True))
        fine, rough = (
            heads_engine(task, self.attention, within, each)
            for each in (_FINENESS, 0.7 * _FINENESS)
        )
        values = np.asarray(risks_at(as_arrays((task, self.attention, fine)), M, Q, biases))
        arrays = as_arrays((task, self.attention, rough))
        other = float(risks_at(arrays, M[:1], Q[:1], biases[:1])[0])
        slope = (values[1:] - values[0]) / np.diag(nearby[1:] - x)
        error = abs(float(values[0]) - other)
        return Estimate(float(values[0]), error, ErrorKind.STANDARD), slope
