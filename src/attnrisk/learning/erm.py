"""Empirical risk minimisation with finite data, `N, D → ∞` at `α = N/D` (sections 6 and 10).

    minimise  Σ_μ ½(y_μ − a(χ_μ + b)·z_μ)² + ½ Σ_p r_p |w_p|² + ½ D r_b b²

Its overlaps solve the equations of `equations`, whose right-hand sides are means over one sample. They are solved by
Newton's method on one fixed set of Sobol points, first on a part of it.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._check import Refusal, whole
from .._results import ErrorKind, Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.qmc import mean_estimate
from ..population.overlaps import Overlaps
from ..population.plan import light_plan
from ..tasks import AbstractTask
from .asymptotics import ERMAsymptotics, Ridge
from .equations import Averages, Displacements, MapStep, map_step, probes
from .samples import draw
from .scope import check_alpha, check_ridge, check_seed, learnable, learner, learns_bias, level_bias
from .stability import stability
from .unknowns import Layout, Order, Unknowns, pack

RANDOMISATIONS = 16
LOG2_POINTS = 9
_FEW = 2  # randomisations on which fixed points are located, before all are used
LOG2_SLOPES = 10  # points of a randomisation, a power of two, on which derivatives are taken

_TOLERANCE = 1e-8  # of a step of the map, relative
_PLAIN_STEPS, _MOST_STEPS = 6, 80
_SAME = 1e-3  # distance, relative and in all, of two fixed points that are one
_FLAT = 1e-4  # a singular value of `1 − T'`, relative to the largest, that differences do not tell from zero
_FAR = 0.05  # a step after which all minima are searched for again
# Standard errors that the map may still move by: in the first searches, and after so many.
_SLIGHT, _SEARCHES, _JUMP = 0.05, 4, 2.0
_LONGEST_STEP, _DAMPING = 0.5, 0.7  # a Newton step, relative to each unknown; and a plain one
_ROUNDING = 1e-13  # a singular value of the matrix of a Newton step, relative, that is rounding
_VANISHING = 1e-12  # a pivot of Q − M Mᵀ that is taken for zero
# How wide a difference of the map is: in standard errors, and at least so much relative to the unknowns.
_WIDE, _NARROWEST = 2.0, 0.02
# An error of the test risk, relative to the risk of no prediction, with which an answer says nothing: the sum over
# tokens in `V̂_v` has a noise that grows with their number, most where weights are not divided by their sum.
_USELESS = 0.5


def erm_asymptotics(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    ridge: Ridge,
    seed: int = 0,
    log2_points: int = LOG2_POINTS,
) -> ERMAsymptotics:
    """Test risk after training (empirical risk minimisation) on `N = αD` sequences, as `D → ∞` (section 6).

    Solves the replica-symmetric equations from an uninformed and an informed initialisation, and returns the fixed
    point with the lowest objective.

    Args:
        task: A planted task (`SpikedSLR`, of any spread), with up to 1000 tokens for kernels and element-wise
            attentions and up to 32 for others; or a selected (`MaxSLR`) or weighted one, with up to 32 tokens.
        attention: The attention; a free bias is learned, starting from the given one.
        alpha: Number of sequences per dimension, `α = N/D > 0`.
        ridge: Ridge penalties on `k`, `v` and a free bias.
        seed: Seed of the Sobol points.
        log2_points: Averages use `2^log2_points` points in each of 16 randomisations. If the equations visit each of
            the `L` locations of a sequence, this counts sequences and locations together. The error falls like the
            power −0.8 of the number of points; for softmax and `L = 3`, 13 gives about 1e-4.

    Returns:
        An `ERMAsymptotics`: `test_risk`, `train_error`, the order parameters, `result`, `warning` and `rivals`.

    Examples:
        >>> task, ridge = ar.SpikedSLR(nu=2.0, length=3), ar.Ridge(k=1.0, v=1.0)
        >>> found = ar.erm_asymptotics(task, ar.Softmax(), alpha=4.0, ridge=ridge)
        >>> print(f"{found.test_risk:.2f}", found.result)
        0.60 converged
    """
    alpha, ridge = check_alpha(alpha), check_ridge(ridge)
    problem = Problem.of(task, attention, log2_points, seed)
    try:
        first = problem.first_points(log2_points - LOG2_SLOPES)
        found = distinct(first.find_all(alpha, ridge))
        best, *rivals = (first.report(it, problem) for it in found)
    except FloatingPointError:
        raise Refusal(
            "alpha, nu, noise or ridges so extreme are not allowed: the equations overflow"
        ) from None
    return replace(best, rivals=tuple(rivals))


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

    @property
    def objective(self) -> float:
        """Per dimension."""
        penalty, _ = self.layout.penalty(self.ridge, self.x)
        return self.alpha * float(np.mean(self.step.train)) / 2 + penalty

    @property
    def answer(self) -> Float[np.ndarray, "n n"]:
        """`(1 − T')⁻¹`: how the fixed point answers to a small change of the map.

        Along a direction in which fixed points lie side by side, as of heads that share a length, not at all.
        """
        return np.linalg.pinv(np.eye(self.x.size) - self.step.jacobian, rcond=_FLAT)

    @property
    def shifts(self) -> Float[np.ndarray, "r n"]:
        """How far the fixed point of each randomisation is from that of all, `(1 − T')⁻¹(T_r − T)`."""
        return np.asarray((self.step.replicates - self.step.target) @ self.answer.T)

    def error(self, gradient: Any, own: Any = 0.0) -> float:
        """Of a function of the unknowns with this gradient, to which each randomisation adds `own`."""
        replicates = self.shifts @ gradient + own
        left = self.answer @ (self.step.target - self.x)
        return float(np.std(replicates, ddof=1) / np.sqrt(len(replicates)) + abs(left @ gradient))

    def slope(self, by_unknowns: Float[np.ndarray, " n"]) -> Float[np.ndarray, "2"]:
        """The derivative in the two ridges of a function of the unknowns."""
        return np.asarray(by_unknowns @ self.answer @ self.step.by_ridge)


def distinct(found: list[FixedPointSolution]) -> list[FixedPointSolution]:
    """The lowest objective among the converged, and those others that converged to another value overlap."""
    best, *others = sorted(found, key=lambda it: (not it.result.converged, it.objective))
    at = best.layout.places.values.M[0, 0]
    same = 1e-4 + best.error(np.eye(best.x.size)[at])
    return [best, *(it for it in others if it.result.converged and abs(it.x - best.x)[at] > same)]


class Problem(Averages):
    """The equations of one attention on one task."""

    @classmethod
    def of(
        cls, task: AbstractTask, attention: AbstractAttention, log2_points: int, seed: int
    ) -> "Problem":
        """With random points, if the equations cover the task and the attention has a minimum."""
        task, attention = learnable(task, learner(attention)), attention
        log2_points, seed = whole("log2_points", log2_points, 1, 24), check_seed(seed)
        points = draw(task, attention.keys, log2_points, RANDOMISATIONS, seed)
        return cls.with_free_bias(task, attention, points)

    @classmethod
    def with_free_bias(
        cls, task: AbstractTask, attention: AbstractAttention, points: Any
    ) -> "Problem":
        """With the bias among the unknowns, where it is learned."""
        if not learns_bias(attention):
            return cls(task, attention, points)
        first = np.atleast_1d(np.array(attention.bias, float))
        return cls(task, attention.with_bias(np.zeros_like(attention.bias)), points, first)

    def on_part(self, randomisations: int) -> "Problem":
        """The same on the first few randomisations."""
        return self._replace(points=self.points[:randomisations])

    def first_points(self, halvings: int) -> "Problem":
        """The same on the first points of each randomisation, a net of their own, halved so often."""

        def cut(points: Any) -> Any:
            count = max(len(points.label) >> max(halvings, 0), 1)
            return points._make([points.weight, *(each[:count] for each in points[1:])])

        return self._replace(points=[tuple(map(cut, some)) for some in self.points])

    @property
    def sample_count(self) -> int:
        """Points of a randomisation."""
        return sum(len(each.label) for each in self.points[0])

    def starts(self, ridge: Ridge) -> tuple[Start, ...]:
        """Uninformed and informed initialisation; heads start on different features, or with opposite signs.

        A bias that is learned begins as given, and with the teacher where equal scores have weights of sum one.
        """
        heads, features, _ = self.layout
        strength = min(float(self.task.strength), 2.0)
        V_k, V_v = (min(0.5 / float(r), 1.0) for r in (ridge.k, ridge.v))
        signs = np.where(np.arange(heads) // features % 2, -1.0, 1.0)[:, None]
        own = signs * np.eye(features)[np.arange(heads) % features]

        def start(
            name: str, overlap: float, residual: float, V_k: float, values: Any, bias: Any
        ) -> Start:
            M = overlap * own
            keys = Order(M, M @ M.T + residual * np.eye(heads), V_k * np.eye(heads))
            m_v, q_v, V_v = (np.array([[each]]) for each in values)
            return Start(name, pack(Unknowns(keys, Order(m_v, q_v, V_v), bias)))

        much = 0.1 * strength**2 + 0.1
        level = self.first_bias + (
            level_bias(self.task, self.attention) if self.layout.biases else 0
        )
        return (
            start("no information", 0.05, 0.2 - 0.05**2, V_k, (0.05, 0.2, V_v), self.first_bias),
            start("teacher", strength, much, min(V_k, 0.3), (1.0, 1.1, 0.1), level),
        )

    def find_all(self, alpha: float, ridge: Ridge) -> list[FixedPointSolution]:
        """The fixed points found from all starts, each located on few points first."""
        part, starts = self.on_part(_FEW), []
        for start in self.starts(ridge):
            near = part.find_fixed_point(alpha, ridge, start)
            if not near.result.converged:
                starts.append(start)
            elif not any(np.allclose(near.x, it.x, _SAME, _SAME) for it in starts):
                starts.append(Start(start.name, near.x, True))
        return [self.find_fixed_point(alpha, ridge, start) for start in starts]

    def find_fixed_point(
        self, alpha: float, ridge: Ridge, start: Start, known: MapStep | None = None
    ) -> FixedPointSolution:
        """The fixed point that Newton's method finds from a start, with the derivatives of a step if one is `known`.

        Not a library's root finder: the start is to decide which fixed point is found. Hence the first steps are those
        of the plain iteration (unless the start is near a fixed point), later ones agree with it in direction and are
        short, and no step is taken for the last before every sample has been searched for a lower minimum.
        """
        x, last, result = np.array(start.x), start.displacements, Result.MAX_STEPS
        anew, searches = last is None, 0
        for count in range(_MOST_STEPS):
            last, step = map_step(self, x, alpha, ridge, last, anew, known)
            if np.all(np.abs(step.target - x) <= _TOLERANCE * (1.0 + np.abs(x))):
                # Fixed; but is every sample at its lowest minimum? If not, on from there. A sample that has two
                # equally low ones jumps at every step, and may, if that is little beside the sampling; its share is in
                # the error.
                if not anew:
                    last, step = map_step(self, x, alpha, ridge, last, known=known)
                searches += 1
                jump = np.abs(step.target - x)
                noise = np.std(step.replicates, 0, ddof=1) / np.sqrt(len(step.replicates))
                most = _SLIGHT if searches < _SEARCHES else _JUMP
                if np.all(jump <= np.maximum(_TOLERANCE, most * noise)):
                    result = Result.CONVERGED
                    break
            if count == _MOST_STEPS - 1:
                break
            ahead = _stepped(self.layout, x, step, start.near or count >= _PLAIN_STEPS)
            anew = bool(np.any(np.abs(ahead - x) > _FAR * (0.1 + np.abs(x))))
            x = ahead
        assert last is not None
        return FixedPointSolution(
            self.layout, alpha, ridge, start.name, x, last, step, count + 1, result
        )

    def report(self, found: FixedPointSolution, all_points: "Problem") -> ERMAsymptotics:
        """The values at a fixed point, their errors, and how far replica symmetry can be trusted.

        The latter and the derivatives of the map are known from these points, the rest from `all_points`.
        """
        alpha = found.alpha
        growth, unresolved = stability(self, found.x, found.displacements, alpha)
        jacobian, jumps = self._with_jumps(found)
        if found.result.converged and all_points.sample_count > self.sample_count:
            near = Start(found.start, found.x, True)
            found = all_points.find_fixed_point(alpha, found.ridge, near, found.step)
        step, x = found.step._replace(jacobian=jacobian), found.x
        found = found._replace(step=step)
        risk, by_unknowns = self.test_risk(x)
        train = float(np.mean(step.train))
        own = step.train - train
        _, penalty = found.layout.penalty(found.ridge, x)
        errors = np.array([found.error(unit) for unit in np.eye(x.size)])
        matrices = zip(
            self.layout.unpack(x).matrices(), self.layout.unpack(errors).matrices(), strict=True
        )
        M, Q, V = (Estimate(*each, ErrorKind.STANDARD) for each in matrices)
        result, bias = found.result, None
        if self.first_bias.size:
            at = self.layout.places.bias
            shape = np.shape(self.attention.bias)
            bias = Estimate(x[at].reshape(shape), errors[at].reshape(shape), ErrorKind.STANDARD)
            if result.converged and self.with_bias(x).ignores_shifts:
                result = Result.BECOMES_SOFTMAX

        risk_error = float(np.hypot(found.error(by_unknowns), risk.error))
        if result.converged and risk_error > _USELESS * float(self.task.label_variance):
            result = Result.TOO_FEW_POINTS

        def estimate(value: float, *slopes: Any) -> Estimate:
            return Estimate(value, found.error(*slopes), ErrorKind.STANDARD)

        return ERMAsymptotics(
            test_risk=Estimate(
                risk.value,
                risk_error,
                ErrorKind.STANDARD,
            ),
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
            slope=found.slope(by_unknowns),
        )

    def test_risk(self, x: np.ndarray) -> tuple[Estimate, np.ndarray]:
        """The test risk and its derivatives in the unknowns."""
        longest = np.sqrt(np.max(self.layout.unpack(x).keys.Q))
        scale = 2.0 ** max(1, int(np.ceil(np.log2(longest))))
        attention = self.with_bias(x)
        engine = light_plan(self.task, attention, scale, scale, scale)
        nearby = probes(self.layout, x)
        matrices = [self.layout.unpack(each).matrices() for each in nearby]
        M, Q, _ = (np.stack(each) for each in zip(*matrices, strict=True))
        biases = np.stack([np.asarray(self.with_bias(each).bias, float) for each in nearby])
        risks = np.asarray(risks_at(as_arrays((self.task, attention, engine)), M, Q, biases))
        values = np.mean(risks.reshape(len(nearby), -1), 1)
        slope = (values[1:] - values[0]) / np.diag(nearby[1:] - x)
        if risks.ndim == 1:
            return Estimate(float(values[0]), 0.0, ErrorKind.STANDARD), slope
        return mean_estimate(risks[0]), slope

    def with_bias(self, x: np.ndarray) -> AbstractAttention:
        """The attention with the bias among the unknowns, if one is."""
        if not self.first_bias.size:
            return self.attention
        bias = self.layout.unpack(x).bias
        return self.attention.with_bias(bias.reshape(np.shape(self.attention.bias)))

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
        reach = np.clip(_WIDE * error, _NARROWEST, _LONGEST_STEP) * size * directions[0]
        sides = [layout.from_free(free + side * reach) for side in (1.0, -1.0)]
        above, below = (self.searched(found, side) for side in sides)
        apart = sides[0] - sides[1]
        missed = above - below - step.jacobian @ apart
        toward = slope.T @ (reach / size**2)
        update = np.outer(missed, toward / (toward @ apart))
        share = np.linalg.norm(np.where(matters, slope @ missed / size, 0.0))
        jumps = float(share / (2.0 * np.linalg.norm(reach / size)))
        return step.jacobian + update, jumps

    def searched(self, found: FixedPointSolution, x: np.ndarray) -> np.ndarray:
        """Where the map leads from other unknowns nearby, every sample searched anew."""
        return map_step(self, x, found.alpha, found.ridge, found.displacements)[1].target


@eqx.filter_jit
def risks_at(
    arrays: Any, M: Float[Any, "m P T"], Q: Float[Any, "m P P"], biases: Float[Any, "m *heads"]
) -> Array:
    """The risk at several overlaps; per randomisation where the engine has random points."""
    task, attention, engine = arrays

    def risk(at: Any) -> Array:
        M, Q, bias = at
        return engine.risk(task, attention.with_bias(bias), Overlaps(M, Q))

    return jax.lax.map(risk, (M, Q, biases))


def _identities(found: FixedPointSolution) -> np.ndarray:
    """`r M − αE[g h*ᵀ]`, `r Q − αE[g hᵀ]` of both blocks and `r_b b − αE[Σg]`, zero at a fixed point."""
    unknowns, ridges = found.layout.unpack(found.x), (found.ridge.k, found.ridge.v)
    blocks = zip(ridges, unknowns.blocks, found.step.hats.blocks, strict=True)
    parts = [float(found.ridge.b) * unknowns.bias - found.alpha * found.step.hats.bias]
    for ridge, (M, Q, V), hat in blocks:
        parts.append(ridge * M - found.alpha * (hat.M - hat.V @ M))
        parts.append(ridge * Q - found.alpha * (hat.Q @ V + hat.M @ M.T - hat.V @ Q))
    return np.concatenate([part.ravel() for part in parts])


def _stepped(layout: Layout, x: np.ndarray, step: MapStep, newton: bool) -> np.ndarray:
    """Newton's step, of limited length, where it agrees with the plain one; or that, damped."""
    target, valid = layout.tamed(x, step.target)
    here, there = layout.to_free(x), layout.to_free(target)
    plain = there - here
    if newton and valid:
        by_here, by_there = map(layout.free_slope, (here, there))
        slope = np.linalg.solve(by_there, step.jacobian @ by_here)
        # Flat directions, of a bias that has no effect where the weights vanish, are left alone.
        ahead = np.linalg.pinv(np.eye(x.size) - slope, rcond=_ROUNDING) @ plain
        size = layout.sizes(here)
        ahead *= min(1.0, _LONGEST_STEP / float(np.max(np.abs(ahead) / size)))
        if (ahead / size) @ (plain / size) > 0:
            return layout.from_free(here + ahead)
    return layout.from_free(here + _DAMPING * plain)
