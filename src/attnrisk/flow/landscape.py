"""Where gradient flow comes to rest: minima and saddles, and how often each is found (sections 5 and 10)."""

from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._results import ErrorKind, Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.minimum import Minimum, population_minimum
from ..population.overlaps import Overlaps, swapped
from ..population.plan import SHARPEST, is_exact
from ..population.risk import extrapolate
from ..tasks import AbstractTask
from .flow import random_starts
from .state import FEW_REACHES, flow_plan, limits_of, overlaps_at, pack, risk_at, unpack, values_at

Kind = Literal["minimum", "saddle", "flat", "not stationary", "not attained"]

_FLAT = 1e-6  # curvatures carry some 10^-8 of noise: an eigenvalue below this is not told from zero
_STATIONARY = 1e-5  # norm of a gradient
_DEVIATIONS = 4.0  # standard errors that tell a number found from random points from zero
_SEEDS = range(1, 9)  # of random points for a Hessian; the first are those of a flow
_SAME_RISK = 1e-6
_STEP = 0.1  # along the direction that leaves a saddle

# Of a flow that is only asked where it goes. Its plan is right to 10^-5: it ends that near to a minimum, at a risk that
# is higher by the square of it, and a start that it takes to the wrong one lies on the boundary.
_ROUGH, _ROUGHLY_SAME_RISK = (1e-6, 1e-2, 0.6, (2.8, 4.0, 8.0, SHARPEST, 2 * SHARPEST)), 1e-5
_PRECISE = 1e-8, 1e-3, 1.0, FEW_REACHES  # of a flow whose end is to be certified

# Many times at which a run that goes to infinity shows how its risk approaches a limit, and lengths of k, in units of
# the last, that the limit is drawn through.
_LONG_TIMES = np.geomspace(1.0, 1e9, 91)
_OUTWARD = np.sqrt(2.0) ** -np.arange(4)

# Of central differences of fourth order. Random points have no second derivatives to rely on, since those of each are
# zero or undefined at the kinks of an attention; there the differences are taken over a wider step.
_NODES, _WEIGHTS = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([1.0, -8.0, 8.0, -1.0]) / 12.0
_EXACT_STEP, _RANDOM_STEP = 0.01, 0.05


class Stationary(eqx.Module):
    """A point where the gradient vanishes, and what the Hessian says of it.

    `eigenvalues` are those of the Hessian in the student vectors (and a free bias), ascending, without common rotations
    outside the teacher's span, which change nothing. `escape` is what a step down from a saddle leads to. `matched`
    tells whether this is the minimum of `population_minimum`. A point that is `not attained` is the limit of keys that
    grow without bound; its overlaps are the last that were followed. `result` is why the flow stopped that led here.
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
    result: Result = eqx.field(static=True, default=Result.CONVERGED)

    @property
    def converged(self) -> bool:
        """Whether the flow came to rest, or its limit is known."""
        return self.result.converged

    @property
    def lowest_eigenvalue(self) -> float | None:
        """Of the Hessian, where there is one."""
        return float(self.eigenvalues[0]) if self.eigenvalues.size else None


def certify(task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps) -> Stationary:
    """What kind of point these overlaps are, with the bias that `attention` has.

    One coordinate outside the span of teacher and student is enough for any dimension: there the Hessian is `2 E_Q` in
    each direction, and zero between two of them and between them and the span.
    """
    (state,) = states = pack(attention, jax.tree.map(lambda leaf: leaf[None], overlaps), spare=1)
    risk = jax.tree.map(lambda leaf: leaf[0], values_at(task, attention, states)[0])
    (limits,) = limits_of(task, attention, states, FEW_REACHES)
    exact = is_exact(task, attention)
    plans = [flow_plan(task, attention, limits, seed=s) for s in ([1] if exact else _SEEDS)]
    known = as_arrays((state, task, attention))
    step = _EXACT_STEP if exact else _RANDOM_STEP
    found = [_gradient_and_hessian(*known, as_arrays(how), step) for how in plans]
    gradients, hessians = (np.stack(part) for part in zip(*found, strict=True))
    frame = _without_rotations(state, task, attention)
    gradient, hessian = gradients.mean(0), frame.T @ hessians.mean(0) @ frame
    eigenvalues, vectors = np.linalg.eigh(hessian)
    norm, down = float(np.linalg.norm(gradient)), frame @ vectors[:, 0]
    flat, still = _FLAT, _STATIONARY
    if not exact:
        curvatures = np.einsum("i,sij,j->s", down, hessians, down)[:, None]
        flat, still = (
            _DEVIATIONS * float(np.linalg.norm(sample.std(0, ddof=1))) / len(plans) ** 0.5
            for sample in (curvatures, gradients)
        )
    kind: Kind = "minimum" if eigenvalues[0] > flat else "flat"
    if eigenvalues[0] < -flat:
        kind = "saddle"
    if not norm < still:
        kind = "not stationary"
    lower = state + _STEP * (down if down @ gradient <= 0 else -down)
    escape = overlaps_at(lower, task, attention) if kind == "saddle" else None
    return Stationary(risk, overlaps, attention, kind, norm, eigenvalues, escape)


@eqx.filter_jit
def _gradient_and_hessian(state: Array, *problem: Any) -> tuple[Array, Array]:
    """The Hessian as differences of gradients, of which only one is compiled."""
    *rest, step = problem
    steps = step * jnp.eye(state.size) * _NODES[:, None, None]
    points = jnp.concatenate([state[None], (state + steps).reshape(-1, state.size)])
    gradients = jax.lax.map(lambda point: jax.grad(risk_at)(point, *rest), points)
    hessian = jnp.tensordot(_WEIGHTS / step, gradients[1:].reshape(steps.shape), 1)
    return gradients[0], (hessian + hessian.T) / 2.0


def _without_rotations(
    state: np.ndarray, task: AbstractTask, attention: AbstractAttention
) -> np.ndarray:
    """A basis of the directions that are not a common rotation of the student vectors outside the teacher's span."""
    vectors, _ = unpack(state, attention)
    rotations = []
    for i, j in combinations(range(task.features + 1, vectors.shape[1]), 2):
        rotated = np.zeros_like(vectors)
        rotated[:, i], rotated[:, j] = -vectors[:, j], vectors[:, i]
        rotations.append(np.pad(rotated.ravel(), (0, state.size - rotated.size)))
    directions, sizes, _ = np.linalg.svd(np.array(rotations).T)
    return directions[:, int(np.sum(sizes > 1e-4)) :]


def mismatched_minimum(
    task: AbstractTask, attention: AbstractAttention, best: Minimum | None = None
) -> Stationary:
    """Where the flow from `k = v*`, `v = k*` leads; `best` is what `population_minimum` gives, where it is known.

    To a trap; or, where there is none, to the well-matched minimum (`matched`); or, as with linear attention, on and
    on with a `k` that grows (`not attained`).
    """
    from .integration import Settings, follow

    start = jax.tree.map(lambda leaf: leaf[None], swapped())
    runs = follow(task, attention, start, _LONG_TIMES, Settings(*_PRECISE))
    end, result = overlaps_at(runs.state[0], task, attention), runs.result[0]
    student = attention.with_bias(unpack(runs.state[0], attention)[1][()])
    if result is Result.LEFT_DOMAIN:
        risks, norms = values_at(task, attention, runs.path[0])
        squares = overlaps_at(runs.path[0], task, attention).q_kk * (runs.time[0] >= _LONG_TIMES)
        risk, norm, none = _limit(squares, risks), float(norms[-1]), np.zeros(0)
        why = Result.K_DIVERGES
        return Stationary(risk, end, student, "not attained", norm, none, None, result=why)
    rest = certify(task, student, end)
    best = best or population_minimum(task, attention)
    apart = abs(float(rest.risk.value) - float(best.risk.value))
    room = _SAME_RISK + float(best.risk.error)
    if best.risk.kind is ErrorKind.STANDARD:
        room += _DEVIATIONS * float(np.hypot(rest.risk.error, best.risk.error))
    return replace(rest, matched=apart < room, result=result)


def _limit(squares: np.ndarray, risks: Estimate) -> Estimate:
    """The risk at the end of a path along which `k` grows: a polynomial in `1/|k|²` through a few of its points."""
    picked = {int(np.argmin(np.abs(squares - squares.max() * part**2))) for part in _OUTWARD}
    points = np.array(sorted(picked, key=lambda at: -squares[at]))
    return extrapolate(
        squares[points], [Estimate(risks.value[at], risks.error[at]) for at in points], np.inf
    )


class Basins(eqx.Module):
    """Of many runs of gradient flow, how many ended in the well-matched minimum (within 1e-5 of its risk, at rest or
    nearly so), how many came to rest elsewhere, and how many did neither. `risks` are those of the ends."""

    recorded: ClassVar = "matched", "mismatched", "unfinished", "matched_fraction"
    matched: int
    mismatched: int
    unfinished: int
    risks: Float[np.ndarray, " runs"]

    @property
    def matched_fraction(self) -> Estimate:
        """Of all runs."""
        return share_of(self.matched, self.matched + self.mismatched + self.unfinished)


def share_of(count: int, runs: int) -> Estimate:
    """A share with its standard error; next to none or all, that of one run."""
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
    """Where gradient flow goes from random starts of a given size."""
    from .integration import Settings, follow

    starts = random_starts(key, runs, size, attention.keys, task.features)
    ends = follow(task, attention, starts, _LONG_TIMES[-1:], Settings(*_ROUGH))
    risks, _ = values_at(task, attention, ends.state)
    best = population_minimum(task, attention).risk
    room = _ROUGHLY_SAME_RISK
    if best.kind is ErrorKind.STANDARD:
        room += _DEVIATIONS * np.hypot(risks.error, best.error)
    same = np.abs(risks.value - float(best.value)) < room  # from there no flow leads on
    converged = ends.result == Result.CONVERGED
    matched, mismatched = int(same.sum()), int((converged & ~same).sum())
    return Basins(matched, mismatched, runs - matched - mismatched, risks.value)
