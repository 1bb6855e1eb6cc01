"""Empirical risk minimisation with finite data, `N, D → ∞` at `α = N/D` (section 6).

    minimise  Σ_μ ½(y_μ − σ(χ_μ)·z_μ)² + (r_k/2)|k|² + (r_v/2)|v|²

Its overlaps solve six equations, whose right-hand sides are means over one sample. They are solved by Newton's method
with the derivatives of the minimisers inside (implicit ones), on one fixed set of Sobol points.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import real
from ..attention import AbstractAttention
from ..estimate import Estimate
from ..population.overlaps import Overlaps
from ..population.risk import as_arrays, is_exact, light_plan, plan, risk
from ..tasks import AbstractTask, MaxSLR, SpikedSLR
from .channel import Hats, Located, Order, Sequences, Student, draw, hats, locate, sequences
from .proximal import Fitted, Sample, fit, follow, is_stationary, search, stiffness
from .scope import Solvable, solvable

RANDOMISATIONS = 16
LOG2_POINTS = 9
_LONGEST = {SpikedSLR: 32, MaxSLR: 32}

_TOLERANCE = 1e-8  # of a step of the map, relative
_PLAIN_STEPS, _MOST_STEPS = 6, 80
_FAR = 0.05  # a step after which all minima are searched for again
_SEARCHES, _JUMP = (
    4,
    2.0,
)  # after so many, and if the map then moves by no more than so many standard errors
_FARTHEST, _DAMPING = 0.5, 0.7  # a Newton step, relative to each unknown; and a plain one
_LEAST = 1e-20  # of q − m², which is zero where an attention does not look at its scores
_AT_A_TIME = 2048
_RARE = 1e-3  # a share of samples that does not matter


class Ridge(eqx.Module):
    """`r_k` and `r_v`."""

    k: Any
    v: Any

    def __check_init__(self) -> None:
        real("ridge_k", self.k, above=0.0)
        real("ridge_v", self.v, above=0.0)


class ERMAsymptotics(eqx.Module):
    """What empirical risk minimisation arrives at; errors cover sampling and what the fixed point still moves.

    `start` tells from where this fixed point was found, and `rivals` are the others, of higher objective. `slope` is
    the derivative of the test risk in the two ridges; `identities` holds `r m − αE[χ* f]` and `r q − αE[χ f]`.
    Where `replicon` is above one, replica symmetry is unstable. `unresolved` is the share of samples without a
    stationary minimum. In both cases everything here is an approximation, and `warning` says so.
    """

    test_risk: Estimate
    train_error: Estimate
    objective: Estimate
    m_k: Estimate
    q_k: Estimate
    V_k: Estimate
    m_v: Estimate
    q_v: Estimate
    V_v: Estimate
    alpha: float
    ridge: Ridge
    result: str = eqx.field(static=True)
    start: str = eqx.field(static=True)
    residual: float
    identities: Float[np.ndarray, "4"]
    replicon: float
    unresolved: float
    slope: Float[np.ndarray, "2"]
    rivals: tuple["ERMAsymptotics", ...] = ()

    @property
    def converged(self) -> bool:
        """Whether this is a fixed point."""
        return self.result == "converged"

    @property
    def warning(self) -> str | None:
        """What to distrust, if anything."""
        if self.unresolved > _RARE:
            return (
                f"{self.unresolved:.0%} of the samples have their minimum at a kink of the attention, or it was not "
                "found: the values are approximate"
            )
        if self.replicon >= 1.0:
            return "replica symmetry is unstable here, as at low regularisation: the values are approximate"
        return None

    @property
    def overlaps(self) -> Overlaps:
        """Of the learned directions; the cross overlaps vanish by symmetry."""
        return Overlaps(
            m_kk=float(self.m_k), m_vv=float(self.m_v), q_kk=float(self.q_k), q_vv=float(self.q_v)
        )


def erm_asymptotics(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    ridge: Ridge,
    seed: int = 0,
    log2_points: int = LOG2_POINTS,
) -> ERMAsymptotics:
    """The fixed point of lowest objective, of those found from no information and from the teacher."""
    alpha = float(real("alpha", alpha, above=0.0))
    points = draw(learnable(task), log2_points, RANDOMISATIONS, seed)
    problem = Problem(learnable(task), attention, points)
    return choose([problem.settle(alpha, ridge, start)[0] for start in starts(task, ridge)])


def learnable(task: AbstractTask) -> Solvable:
    """The task, if this room has the equations for it."""
    return solvable(task, _LONGEST, "learning from finite data")


def starts(task: AbstractTask, ridge: Ridge) -> tuple["Start", ...]:
    """Next to nothing known, and nearly all."""
    sharpness = min(float(getattr(task, "shift", getattr(task, "sharpness", 1.0))), 2.0)
    loose_k, loose_v = (min(0.5 / float(r), 1.0) for r in (ridge.k, ridge.v))
    little = np.array([0.05, 0.2, loose_k, 0.05, 0.2, loose_v])
    much = np.array([sharpness, 1.1 * sharpness**2 + 0.1, min(loose_k, 0.3), 1.0, 1.1, 0.1])
    return Start("no information", little), Start("teacher", much)


def choose(found: list[ERMAsymptotics]) -> ERMAsymptotics:
    """The lowest objective among the converged; others that differ from it are its rivals."""
    ordered = sorted(found, key=lambda it: (not it.converged, float(it.objective)))
    best = ordered[0]
    rivals = tuple(
        it
        for it in ordered[1:]
        if it.converged and abs(float(it.m_v) - float(best.m_v)) > 1e-4 + float(best.m_v.error)
    )
    return replace(best, rivals=rivals)


class Moved(NamedTuple):
    """One step of the map with its derivatives in the unknowns and in the ridges, and per randomisation."""

    target: Float[Array, "6"]
    jacobian: Float[Array, "6 6"]
    by_ridge: Float[Array, "6 2"]
    spread: Float[Array, "r 6"]
    train: Float[Array, " r"]
    train_slope: Float[Array, "6"]
    hats: Hats


class Problem(NamedTuple):
    """One attention on one task, with the points that everything is averaged over."""

    task: Solvable
    attention: AbstractAttention
    points: tuple[Sequences, ...]

    def settle(self, alpha: float, ridge: Ridge, start: "Start") -> tuple[ERMAsymptotics, "Start"]:
        """The fixed point that Newton's method finds from a start, and itself as a start for the next."""
        known = as_arrays((self.task, self.attention, self.points))
        numbers = as_arrays((alpha, ridge.k, ridge.v))
        x, chi, result = np.array(start.x), start.displacements, "steps over"
        far, newton, searches = chi is None, chi is not None, 0
        for step in range(_MOST_STEPS):
            if far:
                chi = _searched(known, as_arrays(x), chi)
            chi, moved = _moved(known, as_arrays(x), chi, numbers)
            moved = jax.tree.map(np.asarray, moved)
            if _is_small(moved.target - x, x):
                # Fixed; but is every sample at its lowest minimum? If not, on from there. A sample that has two
                # equally low ones jumps at every step, and may, as long as that is little beside the sampling.
                chi = _searched(known, as_arrays(x), chi)
                moved = jax.tree.map(np.asarray, _moved(known, as_arrays(x), chi, numbers)[1])
                searches += 1
                jump = np.abs(moved.target - x)
                noise = np.std(moved.spread, 0, ddof=1) / np.sqrt(RANDOMISATIONS)
                if np.all(jump <= (_TOLERANCE if searches < _SEARCHES else _JUMP * noise)):
                    result = "converged"
                    break
            ahead = _stepped(x, moved, newton or step >= _PLAIN_STEPS)
            far = bool(np.any(np.abs(ahead - x) > _FAR * (0.1 + np.abs(x))))
            x = ahead
        doubts = map(float, _doubts(known, as_arrays(x), chi, numbers[0]))
        report = _report(self, alpha, ridge, start.name, x, moved, result, *doubts)
        return report, Start(start.name, x, chi)


class Start(NamedTuple):
    """Unknowns to start from, and the displacements `χ − ω` that were found there, if any were."""

    name: str
    x: Float[np.ndarray, "6"]
    displacements: Any = None


def _is_small(step: np.ndarray, x: np.ndarray) -> bool:
    return bool(np.all(np.abs(step) <= _TOLERANCE * (1.0 + np.abs(x))))


def _stepped(x: np.ndarray, moved: Moved, newton: bool) -> np.ndarray:
    """Newton's step, shortened to what is near, where it goes the way of the plain one; or that, damped."""
    target = _tamed(x, np.asarray(moved.target))
    here = _free(x)
    plain = _free(target) - here
    if newton and np.all(target == moved.target):
        slope = _free_slope(target) @ moved.jacobian @ np.linalg.inv(_free_slope(x))
        step = np.linalg.solve(np.eye(6) - slope, plain)
        size = np.where(np.arange(6) % 3, 1.0, 0.1 + np.abs(here))
        step *= min(1.0, _FARTHEST / float(np.max(np.abs(step) / size)))
        if (step / size) @ (plain / size) > 0:
            return _unfree(here + step)
    return _unfree(here + _DAMPING * plain)


def _tamed(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The target, where it is valid. At a `r + V̂ < 0`, which no fixed point has, as at a stiffness half of that now."""
    v, ahead = x.reshape(2, 3)[:, 2], target.reshape(2, 3)
    ratio = np.where(ahead[:, 2] > 0, 1.0, 2.0 * v / ahead[:, 2])
    return np.asarray((ahead * np.stack([ratio, ratio**2, ratio], 1)).ravel())


def _free(x: np.ndarray) -> np.ndarray:
    """`m`, `log(q − m²)`, `log V` for both directions: any six numbers are valid."""
    m, q, v = x.reshape(2, 3).T
    return np.stack([m, np.log(np.maximum(q - m**2, _LEAST)), np.log(v)], 1).ravel()


def _unfree(y: np.ndarray) -> np.ndarray:
    m, log_own, log_v = y.reshape(2, 3).T
    return np.stack([m, m**2 + np.exp(log_own), np.exp(log_v)], 1).ravel()


def _free_slope(x: np.ndarray) -> Float[np.ndarray, "6 6"]:
    """The derivatives of the free numbers."""
    slope = np.zeros((6, 6))
    for at, (m, q, v) in zip((0, 3), x.reshape(2, 3), strict=True):
        own = max(q - m**2, _LEAST)
        block = np.diag([1.0, 1.0 / own, 1.0 / v])
        block[1, 0] = -2.0 * m / own
        slope[at : at + 3, at : at + 3] = block
    return slope


def _student(x: Float[Array, "6"]) -> Student:
    return Student(Order(*x[:3]), Order(*x[3:]))


@eqx.filter_jit
def _searched(known: Any, x: Array, last: Any) -> tuple[Array, ...]:
    """Displacements `χ − ω` of all samples at their lowest minimum; `last` are those that were known before."""
    task, attention, points = known
    student, found = _student(x), []
    for at, group in enumerate(points):
        seen = sequences(task, student, group, locate(task, student.k, group))
        start = seen.sample.scores if last is None else seen.sample.scores + last[at]

        def one(each: Any) -> Array:
            chi, sample = each
            return search(attention, chi, sample, student.response) - sample.scores

        found.append(_over_samples(one, (start, seen.sample), seen.sample.label.shape))
    return tuple(found)


def _over_samples(function: Any, trees: Any, shape: tuple[int, ...]) -> Any:
    """A function of one sample over all, some at a time."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), trees)
    mapped = jax.lax.map(function, flat, batch_size=_AT_A_TIME)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), mapped)


@eqx.filter_jit
def _moved(known: Any, x: Array, last: tuple[Array, ...], numbers: Any) -> tuple[Any, Moved]:
    """New displacements near the last, and the step of the map from them."""
    alpha, *ridge = numbers
    located = tuple(locate(known[0], _student(x).k, group) for group in known[2])

    def pooled(x: Array) -> tuple[Array, Any]:
        displaced, total = _means(known, _student(x), located, last)
        flat = jnp.stack([jnp.mean(part) for part in total])
        target = _target(alpha * flat[:6], jnp.stack(ridge))
        return jnp.append(target, flat[6]), (displaced, total)

    jacobian, (displaced, total) = jax.jacfwd(pooled, has_aux=True)(x)
    means = alpha * jnp.stack([jnp.mean(part) for part in total[:6]])
    by_ridge = jax.jacfwd(lambda ridge: _target(means, ridge))(jnp.stack(ridge))
    spread = jax.vmap(lambda *each: _target(alpha * jnp.stack(each), jnp.stack(ridge)))(*total[:6])
    target = _target(means, jnp.stack(ridge))
    moved = Moved(target, jacobian[:6], by_ridge, spread, total.train, jacobian[6], total)
    return displaced, moved


def _means(
    known: Any, student: Student, located: tuple[Located, ...], last: tuple[Array, ...]
) -> tuple[Any, Hats]:
    """Displacements and hats, the lengths of the law averaged."""
    task, attention, points = known
    displaced, parts = [], []
    for group, where, displacement in zip(points, located, last, strict=True):
        seen = sequences(task, student, group, where)

        def one(start: Array, sample: Sample) -> tuple[Array, Fitted]:
            chi = follow(attention, start, sample, student.response)
            return chi, fit(attention, chi, sample, student.response)

        over_samples = jax.vmap(jax.vmap(jax.vmap(one)))
        chi, fitted = over_samples(seen.sample.scores + displacement, seen.sample)
        displaced.append(jax.lax.stop_gradient(chi - seen.sample.scores))
        parts.append(
            jax.tree.map(
                lambda mean: group.weight * mean,  # noqa: B023
                hats(task, student, seen, fitted),
            )
        )
    return tuple(displaced), jax.tree.map(lambda *each: sum(each), *parts)


@eqx.filter_jit
def _doubts(known: Any, x: Array, last: tuple[Array, ...], alpha: Array) -> tuple[Array, Array]:
    """The largest eigenvalue of `α V_a² E[Σ(∂f_a/∂ω_b)²]`, above which replica symmetry is unstable if it exceeds
    one; and the share of samples that are not at a stationary minimum."""
    task, attention, points = known
    student, growth, lost = _student(x), jnp.zeros((2, 2)), jnp.zeros(())
    for group, displacement in zip(points, last, strict=True):
        seen = sequences(task, student, group, locate(task, student.k, group))

        def one(each: Any) -> tuple[Array, Array]:
            chi, sample = each[0] + each[1].scores, each[1]
            found = is_stationary(attention, chi, sample, student.response)
            return stiffness(attention, chi, sample, student.response), 1.0 - found

        shape = seen.sample.label.shape
        stiff, missed = _over_samples(one, (displacement, seen.sample), shape)
        weights = group.weight * seen.probability / np.prod(shape[:2])
        growth += jnp.einsum("rne,rneab->ab", weights, stiff)
        lost += jnp.sum(weights * missed)
    growth = alpha * jnp.array([student.k.V, student.v.V])[:, None] ** 2 * growth
    trace, determinant = jnp.trace(growth), jnp.linalg.det(growth)
    return trace / 2 + jnp.sqrt(jnp.maximum(trace**2 / 4 - determinant, 0.0)), lost


def _target(hat: Float[Array, "6"], ridge: Float[Array, "2"]) -> Float[Array, "6"]:
    """`m = m̂/(r+V̂)`, `q = (m̂² + q̂)/(r+V̂)²`, `V = 1/(r+V̂)` for both directions."""
    m, q, v = hat.reshape(2, 3).T
    stiff = ridge + v
    return jnp.stack([m / stiff, (m**2 + q) / stiff**2, 1.0 / stiff], 1).ravel()


def _report(
    problem: Problem,
    alpha: float,
    ridge: Ridge,
    name: str,
    x: np.ndarray,
    moved: Moved,
    result: str,
    replicon: float,
    unresolved: float,
) -> ERMAsymptotics:
    """Errors: each randomisation has its own fixed point, `(1 − T')⁻¹(T_r − T)` away."""
    inverse = np.linalg.inv(np.eye(6) - moved.jacobian)
    shifts = (moved.spread - moved.target) @ inverse.T
    left = inverse @ (moved.target - x)
    value, slope = population(problem.task, problem.attention, x)

    def error(gradient: Any, own: Any = 0.0) -> float:
        replicates = shifts @ gradient + own
        return float(np.std(replicates, ddof=1) / np.sqrt(len(shifts)) + abs(left @ gradient))

    m_k, q_k, v_k, m_v, q_v, v_v = (
        Estimate(float(value), error(unit)) for value, unit in zip(x, np.eye(6), strict=True)
    )
    train = float(np.mean(moved.train))
    own = moved.train - train
    half = np.array([0, ridge.k / 2, 0, 0, ridge.v / 2, 0], float)
    penalty = float(half @ x)
    objective = alpha * train / 2 + penalty
    total = Hats(*(float(np.mean(part)) for part in moved.hats))
    return ERMAsymptotics(
        test_risk=Estimate(value, error(slope)),
        train_error=Estimate(train, error(moved.train_slope, own)),
        objective=Estimate(objective, error(alpha * moved.train_slope / 2 + half, alpha * own / 2)),
        m_k=m_k,
        q_k=q_k,
        V_k=v_k,
        m_v=m_v,
        q_v=q_v,
        V_v=v_v,
        alpha=alpha,
        ridge=ridge,
        result=result,
        start=name,
        residual=float(np.max(np.abs(moved.target - x))),
        identities=_identities(x, alpha, ridge, total),
        replicon=replicon,
        unresolved=unresolved,
        slope=slope @ inverse @ moved.by_ridge,
    )


def _identities(x: np.ndarray, alpha: float, ridge: Ridge, hat: Hats) -> np.ndarray:
    """`r m − αE[χ* f]` and `r q − αE[χ f]` for both directions, zero at a fixed point."""
    m_k, q_k, v_k, m_v, q_v, v_v = x
    return np.array(
        [
            ridge.k * m_k - alpha * (hat.m_k - m_k * hat.V_k),
            ridge.k * q_k - alpha * (hat.q_k * v_k + m_k * hat.m_k - q_k * hat.V_k),
            ridge.v * m_v - alpha * (hat.m_v - m_v * hat.V_v),
            ridge.v * q_v - alpha * (hat.q_v * v_v + m_v * hat.m_v - q_v * hat.V_v),
        ]
    )


def population(
    task: Solvable, attention: AbstractAttention, x: np.ndarray
) -> tuple[float, np.ndarray]:
    """The test risk and its derivatives in the six unknowns."""
    scale = 2.0 ** max(1, int(np.ceil(np.log2(np.sqrt(x[1])))))
    exact = is_exact(task, attention)
    how = light_plan(task, attention, scale, scale, scale) if exact else plan(task, attention)
    value, slope = _population(as_arrays((task, attention, how)), as_arrays(x))
    return float(value), np.asarray(slope)


@eqx.filter_jit
def _population(known: Any, x: Array) -> tuple[Array, Array]:
    task, attention, how = known

    def at(x: Array) -> Array:
        overlaps = Overlaps(m_kk=x[0], m_vv=x[3], q_kk=x[1], q_vv=x[4])
        return jnp.mean(risk(task, attention, overlaps, how))

    return jax.value_and_grad(at)(x)
