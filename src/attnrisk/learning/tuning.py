"""Ridge penalties of lowest test risk, `E_σ(α)` (section 6), by gradient descent through the fixed point."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import Refusal, of_type, refuse, whole
from .._results import Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..tasks import AbstractTask
from .asymptotics import ERMAsymptotics, Ridge
from .erm import LOG2_POINTS, solve_erm
from .newton import MOST_NEAR, MOST_STEPS, Start, distinct, run_newton
from .problem import Problem
from .scope import check_alpha, learner, learns_bias
from .unknowns import Order, Unknowns, pack

_SMALLEST, _LARGEST = np.log(1e-3), np.log(1e3)  # relative to those of `ridge_scale`
# A factor on the scores up to which it is taken for one, and the largest.
_USUAL, _LARGEST_FACTOR = 4.0, 1e3
_FLAT = 1e-4  # a slope of the test risk in log r below this gains less than 10^-4 over a factor e
_STEEP = 5e-3  # a slope beyond the noise with which the ridges may not be the best
# Where samples jump between minima the derivative is rough: risks this far downhill decide, so often at most.
_DOWNHILL, _MOST_PROBES = 0.5, 4
# Evaluations in all, and after the lowest risk: where samples jump, a line search may find nothing.
_MOST_EVALUATIONS, _PATIENCE = 30, 4
_FIRST_STEP = 0.5  # of the descent, in log r
# A step of the descent that gains less ends it: in standard errors of the risk, and at most.
_GAIN, _MOST_GAIN = 0.1, 1e-4
# Points on the way, a power of two, and randomisations at least: near the best ridges the risk hardly depends on them.
_LOG2_FEW, _PART = 11, 4
# Where the fixed point is not found, or is worse than no prediction, the descent starts at ridges larger by this.
_STIFFER, _MOST_RESTARTS = np.log(3.0), 4
_BEYOND = 1.3  # factor on the increase of the penalties that makes two objectives equal
# Where the risk stays above this share of that of no prediction, ridges (k, v) smaller by these factors are tried: the
# risk is flat in the ridge on k where k = 0, and in long sequences something is learned only with a small one.
_WEAKER = (
    (0.9, 32.0, 1.0),
    (0.9, 8.0, 8.0),
    (0.9, 64.0, 64.0),
    (0.99, 64.0, 8.0),
    (0.99, 512.0, 8.0),
)
# A gain over no prediction, whose risk is at least 1, without which nothing is learned.
_VANISHING = 1e-6
_NOT_FOUND = 1e3  # a risk that no line search accepts, where there is no fixed point


class KnownFixedPoint(NamedTuple):
    """The ridge penalties and the packed order parameters of a known fixed point."""

    ridge: Ridge
    x: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, found: ERMAsymptotics) -> "KnownFixedPoint":
        """The fixed point of a result."""
        M, Q, V = (each.value for each in (found.M, found.Q, found.V))
        keys = Order(M[:-1, :-1], Q[:-1, :-1], V[:-1, :-1])
        values = Order(M[-1:, -1:], Q[-1:, -1:], V[-1:, -1:])
        bias = np.zeros(0) if found.bias is None else np.ravel(found.bias.value)
        return cls(found.ridge, pack(Unknowns(keys, values, bias)))


def tuned_erm_asymptotics(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    seed: int = 0,
    log2_points: int = LOG2_POINTS,
    start: Ridge | ERMAsymptotics | KnownFixedPoint | None = None,
) -> ERMAsymptotics:
    """Empirical risk minimisation with the ridge penalties of lowest test risk, between 10^-3 and 10^3.

    Where equal weights have a sum `s > 1`, as those of linear attention, the largest penalty on `v` is `10^3 s²`. Where
    scores are multiplied by a factor `c` far from one, as in softmax of `χ/8`, the range of the penalty on `k` is
    multiplied by `c²`. Follows the derivative of the test risk with respect to the penalties. Each fixed point starts
    from the previous one, on a subset of the points. At the end other fixed points are searched from all
    initialisations, on few points first, and the one of lowest objective is computed on all points.

    Args:
        task: As in `erm_asymptotics`.
        attention: The attention; a free bias is learned, without a ridge penalty.
        alpha: Number of sequences per dimension, `α = N/D > 0`.
        seed: Seed of the Sobol points.
        log2_points: As in `erm_asymptotics`; 9 by default.
        start: Ridge penalties to start from, if a good guess is known, cut to that range; or the result at another
            `alpha` nearby, from whose fixed point the search then starts as well.

    Returns:
        An `ERMAsymptotics`; `ridge` has the best penalties.

    Examples:
        >>> found = ar.tuned_erm_asymptotics(ar.SpikedSLR(nu=2.0, length=3), ar.Softmax(), alpha=4.0)
        >>> print(f"{found.test_risk:.2f}")
        0.54
    """
    alpha = check_alpha(alpha)
    log2_points, attention = whole("log2_points", log2_points, 1, 24), learner(attention)
    problem = Problem.of(task, attention, log2_points, seed)
    part = problem.first_points(log2_points - _LOG2_FEW)
    part = part.on_part(max(_PART, 2 ** max(_LOG2_FEW - log2_points, 0)))
    first, smallest, largest = ridge_range(task, attention)
    descent = Descent(part, alpha, smallest, largest)
    if isinstance(start, ERMAsymptotics):
        start = KnownFixedPoint.of(start)
    if isinstance(start, KnownFixedPoint):
        first = start.ridge
        if start.x.size != problem.starts(first)[0].x.size:
            raise refuse("start", start.x, "a result of the same task and attention")
        descent.last = Start("given", start.x, True)
    elif start is not None:
        first = of_type("start", start, Ridge, "a Ridge, or a result of tuned_erm_asymptotics")
    best = descent.run(np.log([float(first.k), float(first.v)]))
    near = descent.last and descent.last._replace(displacements=None)  # those are of other points

    def answer_at(logs: np.ndarray) -> ERMAsymptotics:
        ridge = Ridge(*np.exp(logs).tolist())
        return solve_erm(task, attention, alpha, ridge, seed, log2_points, near)

    answer = answer_at(best)
    for _ in range(_MOST_RESTARTS):
        converged = [each for each in answer.rivals if each.converged]
        other = min(converged, key=lambda it: float(it.test_risk), default=answer)
        if float(other.test_risk) >= float(answer.test_risk):
            break
        # The descent followed a fixed point that is not the lowest with these ridges.
        best = np.minimum(best + ridge_increase(answer, other), largest)
        near = Start(other.start, KnownFixedPoint.of(other).x, True)
        answer = answer_at(best)
    if not answer.converged:
        return answer
    for _ in range(_MOST_PROBES):
        error = float(answer.test_risk.error)
        slope = answer.slope * np.exp(best)
        outward = (slope > 0) & (best <= smallest) | (slope < 0) & (best >= largest)
        slope = np.where(outward, 0.0, slope)
        if np.all(np.abs(slope) <= _STEEP + 3.0 * error):
            break
        ahead = best - _DOWNHILL * slope / np.max(np.abs(slope))
        ahead = np.clip(ahead, smallest, largest)
        try:
            other = answer_at(ahead)
        except Refusal:  # no fixed point there
            return replace(answer, result=Result.MAX_STEPS)
        if not other.converged:
            return replace(answer, result=Result.MAX_STEPS)
        if float(answer.test_risk) - float(other.test_risk) <= error:
            break
        best, answer = ahead, other
    else:
        return replace(answer, result=Result.MAX_STEPS)
    nothing, risk = float(problem.task.label_variance), answer.test_risk
    is_worse = float(risk) > nothing + 3.0 * float(risk.error)  # large ridges are better
    # With a learned bias all weights can vanish, which no ridge changes.
    is_dead = learns_bias(attention) and nothing - float(risk) < _VANISHING
    if is_worse or is_dead:
        return replace(answer, result=Result.MAX_STEPS)
    return answer


def ridge_range(
    task: AbstractTask, attention: AbstractAttention
) -> tuple[Ridge, Float[np.ndarray, "2"], Float[np.ndarray, "2"]]:
    """The first ridges of a descent, and the logarithms of the smallest and the largest."""
    of_scores, of_values = ridge_scale(task, attention)
    scale = np.log([of_scores, of_values])
    return Ridge(of_scores, of_values), _SMALLEST + scale * [1.0, 0.0], _LARGEST + scale


def ridge_scale(task: AbstractTask, attention: AbstractAttention) -> tuple[float, float]:
    """Factors on the penalties on `k` and `v`: the square of a factor on the scores, and of a sum of weights above one.

    Both are found at equal scores; a bias that is learned levels the sum.
    """
    equal = np.zeros((attention.keys, round(task.length.mean())))
    weights, slopes = map(np.asarray, _along_first(*as_arrays((attention, equal))))
    share = 1.0 - 1.0 / weights.size if attention.compares_tokens else 1.0  # of softmax
    slope, weight = float(slopes[0]), share * float(weights[0])
    factor = slope / weight if slope > 0 and weight > 0 else 1.0
    # The slope of a general attention at equal scores may be steep for another reason, as that of sparsemax.
    usual = not _USUAL < max(factor, 1.0 / factor) < _LARGEST_FACTOR
    if usual or attention.family == "general":
        factor = 1.0
    total = 1.0 if learns_bias(attention) else max(float(np.sum(weights)), 1.0)
    return factor**2, total**2


@eqx.filter_jit
def _along_first(
    attention: AbstractAttention, scores: Float[Array, "H L"]
) -> tuple[Float[Array, " L"], Float[Array, " L"]]:
    """The weights, and their derivative in the first score of all heads."""
    first = jnp.zeros_like(scores).at[:, 0].set(1.0)
    return jax.jvp(attention.attend, (scores,), (first,))


def ridge_increase(lower: ERMAsymptotics, other: ERMAsymptotics) -> Float[np.ndarray, "2"]:
    """The shortest increase of the log penalties after which the `other` fixed point has the lower objective.

    To first order, with `∂/∂r_p` of the objective `½ Σ Q_pp`, which is larger for a fixed point that overfits.
    """

    def by_logs(found: ERMAsymptotics) -> Float[np.ndarray, "2"]:
        lengths = np.diag(found.Q.value)
        ridges = np.array([float(found.ridge.k), float(found.ridge.v)])
        return ridges * np.array([np.sum(lengths[:-1]), lengths[-1]]) / 2

    faster = np.maximum(by_logs(lower) - by_logs(other), 0.0)
    gap = float(other.objective) - float(lower.objective)
    rise = _BEYOND * gap * faster / max(float(faster @ faster), _FLAT**2)
    return rise * min(1.0, _STIFFER / max(float(np.max(rise)), _FLAT))


@dataclass
class Descent:
    """The test risk as a function of the logarithms of the ridges; each fixed point starts from the one before."""

    problem: Problem
    alpha: float
    smallest: Float[np.ndarray, "2"]
    largest: Float[np.ndarray, "2"]
    last: Start | None = None
    evaluations: int = 0
    error: float = 0.0

    def __call__(self, logs: np.ndarray) -> tuple[float, Float[np.ndarray, "2"]]:
        self.evaluations += 1
        ridge = Ridge(*np.exp(logs).tolist())
        try:
            start = self.last or self._first_start(ridge)
            most_steps = MOST_NEAR if start.near else MOST_STEPS
            best = run_newton(self.problem, self.alpha, ridge, start, most_steps=most_steps)
        except FloatingPointError:
            return _NOT_FOUND, np.zeros(2)
        if not best.result.converged:
            return _NOT_FOUND, np.zeros(2)
        self.last = Start(best.start, best.x, True, best.displacements)
        risk, by_unknowns = self.problem.test_risk(best.x)
        self.error = best.error(by_unknowns)
        return float(risk), best.slope(by_unknowns) * np.exp(logs)

    def _first_start(self, ridge: Ridge) -> Start:
        """Near the fixed point of lowest objective on few points, if one is found there."""
        found = distinct(self.problem.locate(self.alpha, ridge))[0]
        return Start(found.start, found.x, found.result.converged)

    def run(self, logs: np.ndarray) -> np.ndarray:
        """L-BFGS-B within the bounds, from the first ridges whose fixed point has a lower risk than predicting zero.

        If nothing is learned there, the risk is flat; smaller penalties are tried, and the best start is used.
        """
        from scipy.optimize import minimize  # a tenth of a second of import that only tuning pays

        logs = np.clip(logs, self.smallest, self.largest)
        nothing = float(self.problem.task.label_variance)
        for _ in range(_MOST_RESTARTS):
            if (here := self(logs))[0] <= nothing:
                break
            logs, self.last = np.minimum(logs + _STIFFER, self.largest), None
        else:
            here = self(logs)
        for learned, *weaker in _WEAKER:
            if here[0] < learned * nothing:
                break
            others = np.maximum(logs - np.log(weaker), self.smallest)
            last, error, self.last = self.last, self.error, None
            there = self(others)
            if there[0] < here[0]:
                here, logs = there, others
            else:
                self.last, self.error = last, error
        bounds = list(zip(self.smallest, self.largest, strict=True))
        # L-BFGS-B begins with a step of the length of the gradient, which is far too short here.
        scale = _FIRST_STEP / max(float(np.linalg.norm(here[1])), _FLAT)
        gain = max(_FLAT**2, min(_GAIN * self.error, _MOST_GAIN))
        gain /= max(here[0], 1.0 / scale)  # relative, as `ftol` is
        seen = [(here[0], logs, self.last)]

        def scaled(at: np.ndarray) -> tuple[float, np.ndarray]:
            if np.array_equal(at, logs):
                return scale * here[0], scale * here[1]
            risks = [each[0] for each in seen]
            if len(risks) - np.argmin(risks) > _PATIENCE:
                return scale * min(risks), np.zeros(2)  # which ends the search
            risk, slope = self(at)
            seen.append((risk, np.array(at), self.last))
            return scale * risk, scale * slope

        options = {"maxfun": _MOST_EVALUATIONS, "gtol": scale * _FLAT, "ftol": gain}
        minimize(scaled, logs, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        _, best, self.last = min(seen, key=lambda each: each[0])
        return best
