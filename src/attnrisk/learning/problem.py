"""The equations of empirical risk minimisation of one attention on one task: their fixed points, and values at them.

Section 6 of the theory, and section 10 for several heads.
"""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from .._check import whole
from .._results import ErrorKind, Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.qmc import mean_estimate
from ..population.engines.base import HeadRange
from ..population.overlaps import Overlaps
from ..population.plan import has_exact_heads, heads_engine, light_plan
from ..tasks import AbstractTask
from .asymptotics import ERMAsymptotics, Ridge
from .copies import as_copies
from .equations import RANDOMISATIONS, Averages, map_step, probes
from .newton import (
    LONGEST_STEP,
    MOST_NEAR,
    MOST_STEPS,
    FixedPointSolution,
    Start,
    distinct,
    run_newton,
)
from .samples import draw
from .scope import (
    check_seed,
    join_bias,
    learnable,
    learner,
    level_bias,
    split_bias,
)
from .stability import stability
from .unknowns import Order, Unknowns, pack

_FEW = 2  # randomisations at least on which fixed points are located, before all are used
_SAME_START = 1e-3  # distance, relative and in all, of two starts on all points that are one

_FINENESS = 0.7  # of the rule for the test risk of several heads or features: right to 10^-5
_WIDENED = 1.3  # steps of another rule of the same shape, relative, as for the population risk
_VANISHING = 1e-12  # a pivot of Q − M Mᵀ that is taken for zero
# Scores, at least so large, whose weights are compared with those of a bias beyond, relative: those of softmax are the
# same, and those of any attention are where scores are near zero.
_SCORES, _LEAST_SCORE, _BEYOND, _SAME_WEIGHT = 64, 0.1, 3.0, 1e-3
# How wide a difference of the map is: in standard errors, and at least so much relative to the unknowns.
_WIDE, _NARROWEST = 2.0, 0.02
# Largest error of the test risk, relative to the risk of no prediction, of a converged result: the sum over tokens in
# `V̂_v` has a noise that grows with their number, most where weights are not divided by their sum.
_LARGEST_ERROR = 0.5


class Problem(Averages):
    @classmethod
    def of(
        cls, task: AbstractTask, attention: AbstractAttention, log2_points: int, seed: int
    ) -> "Problem":
        """Draw the points, after checking that the equations cover the task and that the attention has a minimum."""
        attention = learner(attention)
        task = learnable(task, attention)
        log2_points, seed = whole("log2_points", log2_points, 1, 24), check_seed(seed)
        points = draw(task, attention.keys, log2_points, RANDOMISATIONS, seed)
        bare, first = split_bias(attention)
        return cls(task, bare, points, first)

    def on_part(self, randomisations: int) -> "Problem":
        """The problem restricted to the first few randomisations."""
        return self._replace(points=self.points[:randomisations])

    def first_points(self, halvings: int) -> "Problem":
        """The problem on the first points of each randomisation; their number is halved `halvings` times."""

        def cut(points: Any) -> Any:
            count = max(len(points.label) >> max(halvings, 0), 1)
            return points._make([points.weight, *(each[:count] for each in points[1:])])

        return self._replace(points=[tuple(map(cut, some)) for some in self.points])

    def starts(self, ridge: Ridge) -> tuple[Start, ...]:
        """Uninformed and informed initialisation, and copies of one vector for heads without `as_copies`.

        With the teacher, heads are on different features, or have opposite signs. A bias that is learned begins as
        given, and with the teacher where equal scores have weights of sum one.
        """
        heads, features, _ = self.layout
        strength = min(float(self.task.strength), 2.0)
        V_k, V_v = (min(0.5 / float(r), 1.0) for r in (ridge.k, ridge.v))
        signs = np.where(np.arange(heads) // features % 2, -1.0, 1.0)[:, None]
        own = signs * np.eye(features)[np.arange(heads) % features]

        def start(
            name: str, M: Any, residual: Any, V_k: float, values: Any, bias: Any = self.first_bias
        ) -> Start:
            keys = Order(M, M @ M.T + residual, V_k * eye)
            m_v, q_v, V_v = (np.array([[each]]) for each in values)
            return Start(name, pack(Unknowns(keys, Order(m_v, q_v, V_v), bias)))

        eye, much = np.eye(heads), 0.1 * strength**2 + 0.1
        level = self.first_bias
        if level.size:
            level = level + level_bias(self.task, self.attention)
        found = (
            start("no information", 0.05 * own, (0.2 - 0.05**2) * eye, V_k, (0.05, 0.2, V_v)),
            start("teacher", strength * own, much * eye, min(V_k, 0.3), (1.0, 1.1, 0.1), level),
        )
        if heads == 1 or self.attention.as_copies() is not None:
            return found
        return (*found, start("copies", 0.0 * own, 0.2 + 1e-3 * eye, V_k, (0.6, 0.6, V_v)))

    def locate(
        self, alpha: float, ridge: Ridge, most_steps: int = MOST_STEPS
    ) -> list[FixedPointSolution]:
        """The end points of Newton's method from each start, on few points."""
        part = self.on_part(max(_FEW, self.group_size))
        return [
            run_newton(part, alpha, ridge, start, most_steps=most_steps)
            for start in self.starts(ridge)
        ]

    def find_all(
        self, alpha: float, ridge: Ridge, near: Start | None = None
    ) -> list[FixedPointSolution]:
        """The fixed points found from all starts, each located on few points first, and from one `near` a fixed point.

        A start that does not converge on few points is tried on all of them; with one `near`, it stops after fewer
        steps, and is tried on all points only if nothing else converges.
        """
        starts = [] if near is None else [near]
        located = self.locate(alpha, ridge, MOST_STEPS if near is None else MOST_NEAR)
        for start, there in zip(self.starts(ridge), located, strict=True):
            if not there.result.converged:
                starts += [start] if near is None else []
            elif not any(np.allclose(there.x, it.x, _SAME_START, _SAME_START) for it in starts):
                starts.append(Start(start.name, there.x, True))
        found = [run_newton(self, alpha, ridge, start) for start in starts]
        if near is not None and not any(it.result.converged for it in found):
            found += [run_newton(self, alpha, ridge, start) for start in self.starts(ridge)]
        return found

    def solve(
        self, alpha: float, ridge: Ridge, all_points: "Problem", near: Start | None = None
    ) -> ERMAsymptotics:
        """The fixed point of lowest objective, with the others as rivals."""
        best, *rivals = map(self.report, self.fixed_points(alpha, ridge, all_points, near))
        return replace(best, rivals=tuple(rivals))

    def fixed_points(
        self, alpha: float, ridge: Ridge, all_points: "Problem", near: Start | None = None
    ) -> list[FixedPointSolution]:
        """Those found from all starts, by their objective.

        All are found on these points and moved to `all_points`, which can change their order or merge two of them.
        """
        found = distinct(self.find_all(alpha, ridge, near))
        if all_points.sample_count > self.sample_count:
            found = distinct([all_points.moved_from(each) for each in found])
        return found

    def copies(
        self, heads: AbstractAttention, alpha: float, ridge: Ridge, all_points: "Problem"
    ) -> list[ERMAsymptotics]:
        """The fixed points of heads that are copies of the one head of this problem (section 10.1)."""
        total = replace(ridge, k=heads.keys * ridge.k)
        found = self.fixed_points(alpha, total, all_points)
        return [
            as_copies(self, each.rough or each, self.report(each), heads, ridge) for each in found
        ]

    def moved_from(self, rough: FixedPointSolution) -> FixedPointSolution:
        """The fixed point of these points that is near one of fewer points, with the derivatives of that one."""
        if not rough.result.converged:
            return rough
        near = Start(rough.start, rough.x, True)
        found = run_newton(self, rough.alpha, rough.ridge, near, rough.step)
        return found._replace(rough=rough)

    def report(self, found: FixedPointSolution) -> ERMAsymptotics:
        """The values at a fixed point, their errors, and how far replica symmetry can be trusted.

        Stability and derivatives of the map are computed with the points of this problem, on which it was found first.
        """
        alpha, rough = found.alpha, found.rough or found
        growth, unresolved = stability(self, rough.x, rough.displacements, alpha)
        jacobian, jumps = self._with_jumps(rough)
        step, x = found.step, found.x
        jumping = found._replace(step=step._replace(jacobian=jacobian))

        def error(*slopes: Any) -> float:
            """The larger, since a map that bends over the distance of a jump looks as if samples jumped."""
            return max(found.error(*slopes), jumping.error(*slopes))

        risk, by_unknowns = self.test_risk(x)
        train = float(np.mean(step.train))
        own = step.train - train
        _, penalty = found.layout.penalty(found.ridge, x)
        errors = np.array([error(unit) for unit in np.eye(x.size)])
        matrices = (self.layout.unpack(each).matrices() for each in (x, errors))
        M, Q, V = (Estimate(a, b, ErrorKind.STANDARD) for a, b in zip(*matrices, strict=True))
        result, bias = found.result, None
        if self.first_bias.size:
            at = self.layout.places.bias
            shape = np.shape(self.attention.bias)
            known = np.where(found.determined, errors, np.inf)[at]
            bias = Estimate(x[at].reshape(shape), known.reshape(shape), ErrorKind.STANDARD)
            is_lost = float(found.ridge.b) == 0.0 and not math.isfinite(float(bias.error))
            if result.converged and is_lost and self._is_softmax(x):
                result = Result.BECOMES_SOFTMAX

        risk_error = float(np.hypot(error(by_unknowns), risk.error))
        largest = _LARGEST_ERROR * float(self.task.label_variance)
        if result.converged and risk_error > largest:
            result = Result.TOO_FEW_POINTS

        def estimate(value: float, *slopes: Any) -> Estimate:
            return Estimate(value, error(*slopes), ErrorKind.STANDARD)

        return ERMAsymptotics(
            test_risk=Estimate(risk.value, risk_error, ErrorKind.STANDARD),
            train_error=estimate(train, step.train_slope, own),
            objective=estimate(
                found.objective, alpha * step.train_slope / 2 + penalty, alpha * own / 2
            ),
            M=M,
            Q=Q,
            V=V,
            bias=bias,
            alpha=alpha,
            ridge=found.ridge,
            result=result,
            start=found.start,
            residual=float(np.max(np.abs(step.target - x))),
            steps=found.steps,
            identities=_identities(found),
            replicon=float(np.max(np.linalg.eigvals(growth).real)),
            unresolved=unresolved,
            jumps=jumps,
            slope=jumping.slope(by_unknowns),
        )

    def test_risk(self, x: np.ndarray) -> tuple[Estimate, np.ndarray]:
        """The test risk and its derivatives in the unknowns."""
        nearby = probes(self.layout, x)
        matrices = [self.layout.unpack(each).matrices() for each in nearby]
        M, Q, _ = (np.stack(each) for each in zip(*matrices, strict=True))
        biases = np.stack([np.asarray(self.with_bias(each).bias, float) for each in nearby])
        longest = float(np.sqrt(np.max(self.layout.unpack(x).keys.Q)))
        engines = self._engines(x, longest, biases)
        # In one program: all overlaps with the first engine, then the first overlaps with the others.
        others = range(1, len(engines))
        rows = np.array([*range(len(nearby)), *(0 for _ in others)])
        which = np.array([*(0 for _ in nearby), *others])
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *engines)
        arrays = as_arrays((self.task, self.attention, stacked))
        risks = np.asarray(risks_at(arrays, M[rows], Q[rows], biases[rows], which))
        values, rough = np.split(np.mean(risks.reshape(len(rows), -1), 1), [len(nearby)])
        slope = (values[1:] - values[0]) / np.diag(nearby[1:] - x)
        if risks.ndim > 1:
            return mean_estimate(risks[0]), slope
        error = float(np.max(np.abs(values[0] - rough), initial=0.0))
        return Estimate(float(values[0]), error, ErrorKind.STANDARD), slope

    def _engines(self, x: np.ndarray, longest: float, biases: np.ndarray) -> list[Any]:
        """An engine for the risk; for several heads or features also another of its shape, which gives the error."""
        task: Any = self.task
        has_one = self.attention.keys == 1 and not task.has_random_shift
        if has_one or not has_exact_heads(task, self.attention):
            scale = 2.0 ** max(1, int(np.ceil(np.log2(longest))))
            return [light_plan(task, self.with_bias(x), scale, scale, scale)]
        strength = float(task.strength)
        deviation, shift = longest * math.hypot(1.0, strength), longest * strength
        within = HeadRange(deviation, shift, float(np.min(biases)), float(np.max(biases)))
        return [
            heads_engine(task, self.attention, within, _FINENESS, widened)
            for widened in (1.0, _WIDENED)
        ]

    def with_bias(self, x: np.ndarray) -> AbstractAttention:
        """The attention with the bias among the unknowns, if one is."""
        return join_bias(self.attention, self.layout.unpack(x).bias)

    def _is_softmax(self, x: np.ndarray) -> bool:
        """Whether scores as large as those of the keys have the same weights with a larger bias of the same sign."""
        scale = max(float(np.sqrt(self.layout.unpack(x).keys.Q[0, 0])), _LEAST_SCORE)
        scores: Any = scale * np.random.default_rng(0).standard_normal((1, _SCORES))
        student = self.with_bias(x)
        more = student.with_bias(student.bias + math.copysign(_BEYOND, student.bias))
        weights, beyond = (np.asarray(each.attend(scores)) for each in (student, more))
        return student.compares_tokens and np.allclose(weights, beyond, _SAME_WEIGHT, 0.0)

    def _with_jumps(self, found: FixedPointSolution) -> tuple[np.ndarray, float]:
        """The derivative of the map with samples that jump between minima, and their share of it.

        The derivatives of the minimisers do not include them. One difference of the map, every sample searched anew on
        both sides, corrects the derivative where it matters: in the direction in which the sampling moves the fixed
        point most, and over about as far.
        """
        x, step, layout = found.x, found.step, found.layout
        free = layout.to_free(x)
        slope = np.linalg.inv(layout.free_slope(free))
        size, matters = layout.sizes(free), layout.matters(free, _VANISHING)
        spread = np.where(matters, found.shifts @ slope.T / size, 0.0)
        _, deviations, directions = np.linalg.svd(spread, full_matrices=False)
        error = deviations[0] / len(spread)
        reach = np.clip(_WIDE * error, _NARROWEST, LONGEST_STEP) * size * directions[0]
        sides = [layout.from_free(free + side * reach) for side in (1.0, -1.0)]
        given = found.alpha, found.ridge, found.displacements
        above, below = (map_step(self, side, *given, known=step)[1].target for side in sides)
        apart = sides[0] - sides[1]
        missed = above - below - step.jacobian @ apart
        toward = slope.T @ (reach / size**2)
        update = np.outer(missed, toward / (toward @ apart))
        share = np.linalg.norm(np.where(matters, slope @ missed / size, 0.0))
        jumps = float(share / (2.0 * np.linalg.norm(reach / size)))
        return step.jacobian + update, jumps


@eqx.filter_jit
def risks_at(
    arrays: Any,
    M: Float[Any, "m P T"],
    Q: Float[Any, "m P P"],
    biases: Float[Any, "m *heads"],
    which: Int[Any, " m"],
) -> Array:
    """The risk at several overlaps, each with one of the engines; per randomisation where these have random points."""
    task, attention, engines = arrays

    def risk(at: Any) -> Array:
        M, Q, bias, number = at
        engine = jax.tree.map(lambda leaf: leaf[number], engines)
        return engine.risk(task, attention.with_bias(bias), Overlaps(M, Q))

    return jax.lax.map(risk, (M, Q, biases, which))


def _identities(found: FixedPointSolution) -> np.ndarray:
    """`r M − αE[g h*ᵀ]`, `r Q − αE[g hᵀ]` of both blocks and `r_b b − αE[Σg]`, zero at a fixed point."""
    unknowns, ridges = found.layout.unpack(found.x), (found.ridge.k, found.ridge.v)
    blocks = zip(ridges, unknowns.blocks, found.step.hats.blocks, strict=True)
    parts = [float(found.ridge.b) * unknowns.bias - found.alpha * found.step.hats.bias]
    for ridge, (M, Q, V), hat in blocks:
        parts.append(ridge * M - found.alpha * (hat.M - hat.V @ M))
        parts.append(ridge * Q - found.alpha * (hat.Q @ V + hat.M @ M.T - hat.V @ Q))
    return np.concatenate([part.ravel() for part in parts])
