"""Where gradient flow comes to rest: minima and saddles, and how often each is found (section 5)."""

from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.minimum import Minimum, population_minimum
from ..population.overlaps import Overlaps, overlaps_of, vectors_of
from ..population.risk import ROUNDING, SHARPEST, extrapolate, light_plan
from ..tasks import AbstractTask
from .flow import (
    Flow,
    follow,
    random_starts,
    report,
    risk_at,
    risks_at,
    stage_for,
)

Kind = Literal["minimum", "saddle", "flat", "not stationary", "not attained"]

_FLAT = 1e-6  # curvatures carry some 10^-8 of noise: an eigenvalue below this is not told from zero
_STATIONARY = 1e-5  # norm of a gradient
_SAME_RISK = 1e-6
_FINENESS = (1.0, 1.25)  # of the rules whose distance is the error
_STEP = 0.1  # along the direction that leaves a saddle
_REACHES = (2.8, 8.0, SHARPEST, 2 * SHARPEST)  # fewer than a flow has: problems share compiled code
_PRECISE = 1e-8, 1e-3  # tolerance and accuracy of a flow whose end is to be certified

# Of a flow that is only asked where it goes. Its plan is right to 10^-5: it ends that near to a minimum, at a risk that
# is higher by the square of it, and a start that it takes to the wrong one lies on the boundary.
_ROUGH, _ROUGH_FINENESS, _ROUGHLY_SAME_RISK = (1e-6, 1e-2), 0.6, 1e-5
_ROUGH_REACHES = (2.8, 4.0, 8.0, SHARPEST, 2 * SHARPEST)

# Many times at which a run that goes to infinity shows how its risk approaches a limit.
_LONG_TIMES = np.geomspace(1.0, 1e9, 91)
_OUTWARD = np.sqrt(2.0) ** -np.arange(
    4
)  # lengths of k, in units of the last, that the limit is drawn through


class Stationary(eqx.Module):
    """A point where the gradient vanishes, and what the Hessian says of it.

    `eigenvalues` are those of the Hessian in `k` and `v` (and a free bias), ascending, with three directions outside
    the teacher's span, which is enough for any dimension; a turn of both vectors there, which changes nothing, is left
    out. `escape` is what a step down from a saddle leads to. `matched` tells whether this is the minimum of
    `population_minimum`. A point that is `not attained` is the limit of a `k` that grows without bound; its overlaps
    are the last that were followed.
    """

    risk: Estimate
    overlaps: Overlaps
    attention: AbstractAttention
    kind: Kind = eqx.field(static=True)
    gradient_norm: float
    eigenvalues: Float[np.ndarray, " n"]
    escape: Overlaps | None
    matched: bool = eqx.field(static=True, default=False)


def certify(task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps) -> Stationary:
    """What kind of point these overlaps are, with the bias that `attention` has."""
    state = _state(attention, overlaps)
    risk, gradient, hessian = _expansion(task, attention, state)
    frame = _without_turns(state)
    eigenvalues, vectors = np.linalg.eigh(frame.T @ hessian @ frame)
    norm = float(np.linalg.norm(gradient))
    kind = _kind(norm, eigenvalues)
    down = frame @ vectors[:, 0]
    down = down if down @ gradient <= 0 else -down
    moved = overlaps_of(jnp.asarray(_vectors(state + _STEP * down)))
    escape = jax.tree.map(float, moved) if kind == "saddle" else None
    return Stationary(risk, overlaps, attention, kind, norm, eigenvalues, escape)


def _state(attention: AbstractAttention, overlaps: Overlaps) -> np.ndarray:
    """`k` and `v` with one direction to spare outside the span of all four vectors, and the free bias."""
    vectors = np.pad(np.asarray(vectors_of(overlaps)), ((0, 0), (0, 1))).ravel()
    if not attention.free_bias:
        return vectors
    return np.append(vectors, float(getattr(attention, "bias", 0.0)))


def _vectors(state: np.ndarray) -> np.ndarray:
    return state[:10].reshape(2, 5)


def _expansion(
    task: AbstractTask, attention: AbstractAttention, state: np.ndarray
) -> tuple[Estimate, np.ndarray, np.ndarray]:
    """The risk, its gradient and its Hessian."""
    stage = stage_for(task, attention, _vectors(state)[:1], _REACHES)
    coarse, fine = (light_plan(task, attention, *stage, fineness) for fineness in _FINENESS)
    rough = np.asarray(_risk_at(as_arrays((state, task, attention, coarse))))
    found = _expand(as_arrays((state, task, attention, fine)))
    value, gradient, hessian = map(np.asarray, found)
    error = abs(float(value - rough)) + ROUNDING * (1.0 + abs(float(value)))
    return Estimate(float(value), error), gradient, (hessian + hessian.T) / 2


@eqx.filter_jit
def _risk_at(problem: Any) -> Array:
    return risk_at(*problem)


@eqx.filter_jit
def _expand(problem: Any) -> tuple[Array, Array, Array]:
    state, *rest = problem

    def slope(state: Array) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(risk_at)(state, *rest)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(state)
    return value, gradient, hessian


def _without_turns(state: np.ndarray) -> np.ndarray:
    """A basis of the directions that are not a common turn of `k` and `v` around the teacher's span."""
    turns = []
    for i, j in ((2, 3), (2, 4), (3, 4)):
        turn = np.zeros((5, 5))
        turn[i, j], turn[j, i] = 1.0, -1.0
        moved = np.zeros_like(state)
        moved[:10] = (_vectors(state) @ turn).ravel()
        turns.append(moved)
    directions, sizes, _ = np.linalg.svd(np.array(turns).T)
    return directions[:, int(np.sum(sizes > 1e-4)) :]


def _kind(gradient_norm: float, eigenvalues: np.ndarray) -> Kind:
    if not gradient_norm < _STATIONARY:
        return "not stationary"
    if eigenvalues[0] < -_FLAT:
        return "saddle"
    return "minimum" if eigenvalues[0] > _FLAT else "flat"


def matched_minimum(task: AbstractTask, attention: AbstractAttention) -> Stationary:
    """The minimum of `population_minimum`, certified, where it is attained."""
    best = population_minimum(task, attention)
    found = certify(task, best.attention, best.overlaps)
    kind = found.kind if best.attained else "not attained"
    return replace(found, risk=best.risk, kind=kind, matched=True)


def mismatched_minimum(
    task: AbstractTask, attention: AbstractAttention, best: Minimum | None = None
) -> Stationary:
    """Where the flow from `k = v*`, `v = k*` leads; `best` is what `population_minimum` gives, where it is known.

    To a trap; or, where there is none, to the well-matched minimum (`matched`); or, as with linear attention, on and
    on with a `k` that grows (`not attained`).
    """
    swapped = Overlaps(*map(np.atleast_1d, (0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0)))
    runs, result = follow(task, attention, swapped, _LONG_TIMES, _PRECISE, _REACHES)
    end = jax.tree.map(float, overlaps_of(jnp.asarray(runs.state[0, :8].reshape(2, 4))))
    student = attention.with_bias(float(runs.state[0, -1]))
    if result[0] == Result.LEFT_DOMAIN:
        flow = report(task, attention, _LONG_TIMES, runs, result, single=True)
        norm = float(flow.gradient_norm[-1])
        return Stationary(_limit(flow), end, student, "not attained", norm, np.zeros(0), None)
    found = certify(task, student, end)
    best = best or population_minimum(task, attention)
    return replace(found, matched=bool(_is_same(found.risk.value, best.risk)))


def _is_same(risk: Any, best: Estimate) -> Any:
    return np.abs(risk - float(best.value)) < _SAME_RISK + float(best.error)


def _limit(flow: Flow) -> Estimate:
    """The risk at the end of a path along which `k` grows: a polynomial in `1/|k|²` through a few of its points."""
    squares = np.asarray(flow.overlaps.q_kk)
    moving = flow.times <= float(flow.end_time)
    squares = np.where(moving, squares, 0.0)
    picked = [int(np.argmin(np.abs(squares - squares.max() * part**2))) for part in _OUTWARD]
    points = np.array(sorted(set(picked), key=lambda at: -squares[at]))
    risks = [Estimate(float(flow.risk.value[at]), float(flow.risk.error[at])) for at in points]
    return extrapolate(squares[points], risks, np.inf)


class Basins(eqx.Module):
    """Of many runs of gradient flow, how many ended in the well-matched minimum (within 1e-5 of its risk, at rest or
    nearly so), how many came to rest elsewhere, and how many did neither. `risks` are those of the ends."""

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
    return Estimate(share, float(np.sqrt(max(share * (1 - share), 1 / runs) / runs)))


def basins(
    task: AbstractTask,
    attention: AbstractAttention,
    key: PRNGKeyArray,
    runs: int = 100,
    size: float = 1.0,
) -> Basins:
    """Where gradient flow goes from random starts of a given size."""
    starts = jax.tree.map(np.asarray, random_starts(key, runs, size))
    how = _LONG_TIMES[-1:], _ROUGH, _ROUGH_REACHES, _ROUGH_FINENESS
    ends, result = follow(task, attention, starts, *how)
    risks, converged = risks_at(task, attention, ends.state), result == Result.CONVERGED
    best = float(population_minimum(task, attention).risk.value)
    same = np.abs(risks - best) < _ROUGHLY_SAME_RISK  # from there no flow leads on, at rest or not
    matched, mismatched = int(same.sum()), int((converged & ~same).sum())
    return Basins(matched, mismatched, runs - matched - mismatched, risks)
