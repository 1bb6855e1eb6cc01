"""Gradient flow of the population risk (section 5).

On `k, v ∈ R^D` the flow closes on the seven overlaps. It is integrated on the two vectors that `vectors_of` gives,
four coordinates each, where it has the same form as in `R^D`: the overlaps stay valid by construction. A free bias
flows along.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._check import real, refuse
from .._results import Estimate, Result
from ..attention import AbstractAttention, AbstractElementwise
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps, overlaps_of, swapped, vectors_of
from ..population.risk import ROUNDING, SHARPEST, Plan, light_plan, risk
from ..tasks import AbstractSelected, AbstractTask

DEFAULT_TIMES = np.concatenate([[0.0], np.geomspace(1e-2, 1e5, 99)])

# Lengths of k up to which it is followed, each at a higher price than the one before. A longer one leaves the domain.
_REACHES = (2.0, 2.8, 4.0, 8.0, SHARPEST, 2 * SHARPEST)
_TOKENWISE_REACHES = (4.0, SHARPEST, 2 * SHARPEST)  # where one token at a time costs little
MARGIN = 0.9  # of a reach, for the step that passes it
_SHARP = 8.0  # a longer k is not planned for before it comes
_QUIET = 1.0  # what a score may vary given its field, while k follows its teacher
_FINER = 1.25  # of the rule that risks along a path are reported with, and whose distance from the first is the error
_AT_A_TIME = 64  # states whose risks are found together


class Flow(eqx.Module):
    """Paths of gradient flow: a row for each start (none for a single one), a column for each time.

    A run that converged stays where it is. `risk` has the error of quadrature at the recorded overlaps; `end` and
    `end_time` tell where and when each run stopped, and `result` why: `converged`, `time over`, `left the domain`.
    """

    times: Float[np.ndarray, " times"]
    overlaps: Overlaps
    bias: Float[np.ndarray, "*runs times"]
    risk: Estimate
    gradient_norm: Float[np.ndarray, "*runs times"]
    end: Overlaps
    end_bias: Float[np.ndarray, "*runs"]
    end_time: Float[np.ndarray, "*runs"]
    end_risk: Estimate
    result: np.ndarray

    @property
    def converged(self) -> np.ndarray:
        """Whether each run came to rest."""
        return self.result == Result.CONVERGED


def random_starts(key: PRNGKeyArray, runs: int, size: float = 0.1) -> Overlaps:
    """Overlaps of small random vectors: each of the `m`, and each component outside the teacher's span, is
    `size · N(0, 1)`."""
    if runs < 1:
        raise refuse("runs", runs, "a whole number ≥ 1")
    size = real("size", size, above=0.0)
    return jax.vmap(overlaps_of)(size * jax.random.normal(key, (runs, 2, 4)))


def swapped_starts(key: PRNGKeyArray, runs: int, size: float = 0.1) -> Overlaps:
    """`random_starts` around the exchanged roles `k = v*`, `v = k*`."""
    around = vectors_of(swapped())
    return jax.vmap(lambda one: overlaps_of(around + vectors_of(one)))(
        random_starts(key, runs, size)
    )


def gradient_flow(
    task: AbstractTask,
    attention: AbstractAttention,
    start: Overlaps,
    times: Any = DEFAULT_TIMES,
    tolerance: float = 1e-6,
    accuracy: float = 1e-4,
) -> Flow:
    """Follow the flow from `start`, whose entries may be arrays of many starts, until its gradient on `k, v` has a
    norm below `tolerance` or the last of `times` is reached. `accuracy` is relative, per step.
    """
    times = _read_times(times)
    tolerance = real("tolerance", tolerance, above=0.0)
    accuracy = real("accuracy", accuracy, above=0.0)
    single = np.ndim(start.m_kk) == 0
    batch = jax.tree.map(np.atleast_1d, start)
    runs, result = follow(task, attention, batch, times, (float(tolerance), float(accuracy)))
    return report(task, attention, times, runs, result, single)


def follow(
    task: AbstractTask,
    attention: AbstractAttention,
    starts: Overlaps,
    times: np.ndarray,
    settings: tuple[float, float],
    known: tuple[float, ...] = _REACHES,
    fineness: float = 1.0,
) -> tuple["Runs", np.ndarray]:
    """The runs and why each stopped; `settings` are the tolerance and the accuracy, `fineness` is that of the plans."""
    states = _states(attention, starts)
    runs = Runs(states, np.zeros(len(states)), np.repeat(states[:, None], times.size, 1))
    result = np.full(len(states), Result.LEFT_DOMAIN, object)
    reaches = reaches_of(task, attention, known), known
    while stages := _stages(task, reaches, runs.state, result == Result.LEFT_DOMAIN):
        for stage, which in stages.items():
            problem = task, attention, light_plan(task, attention, *stage, fineness), stage
            result[which] = runs.advance(which, times, problem, settings)
    return runs, result


def _stages(
    task: AbstractTask,
    reaches: tuple[tuple[float, ...], tuple[float, ...]],
    states: np.ndarray,
    moving: np.ndarray,
) -> dict[tuple[float, float, float], np.ndarray]:
    """Runs that are still moving, by the reach of the plan that they need: in `|k|`, in what a field leaves of a score,
    and in `m_kk`. While `k` follows its teacher little is left, and elsewhere `m_kk` is small."""
    length, noise, sharpness = _length(states), _noise(states), np.abs(states[:, 0])
    stages: dict[tuple[float, float, float], list[int]] = {}
    for run in np.flatnonzero(moving).tolist():
        reach = next((r for r in reaches[0] if length[run] < MARGIN * r), None)
        if reach is None:
            continue
        stage = reach, reach, reach
        if isinstance(task, AbstractSelected):
            quiet = noise[run] < MARGIN * _QUIET
            blunt = next(r for r in reaches[1] if sharpness[run] < MARGIN * r)
            stage = (reach, _QUIET, reach) if quiet else (reach, reach, min(reach, blunt))
        stages.setdefault(stage, []).append(run)
    return {stage: np.array(which) for stage, which in stages.items()}


def _read_times(times: Any) -> np.ndarray:
    read = np.atleast_1d(np.asarray(times, float))
    finite = read.size and read.ndim == 1 and np.all(np.isfinite(read))
    if not finite or read[0] < 0 or np.any(np.diff(read) <= 0):
        raise refuse("times", times, "finite, ≥ 0 and ascending")
    return read


def reaches_of(
    task: AbstractTask, attention: AbstractAttention, known: tuple[float, ...] = _REACHES
) -> tuple[float, ...]:
    """From one that will do if the student becomes as sharp as the teacher, to the longest."""
    tokenwise = isinstance(attention, AbstractElementwise)
    longest, sharpness = 2 * SHARPEST, getattr(task, "shift", 0.0)
    if isinstance(task, AbstractSelected):
        longest, sharpness = SHARPEST, task.sharpness
    elif tokenwise:
        return (longest,)
    least = min(float(sharpness) / MARGIN, _SHARP)
    known = _TOKENWISE_REACHES if tokenwise else known
    return tuple(reach for reach in known if least <= reach <= longest)


def stage_for(
    task: AbstractTask,
    attention: AbstractAttention,
    states: np.ndarray,
    known: tuple[float, ...] = _REACHES,
) -> tuple[float, float, float]:
    """The reach of a plan that serves all these states, as in `_stages`; one of few, to share compiled code."""
    reach = _rounded_up(_length(states), reaches_of(task, attention, known))
    noise, sharpness = (_rounded_up(of, known) for of in (_noise(states), np.abs(states[:, 0])))
    return reach, min(reach, noise), min(reach, sharpness)


def _rounded_up(values: np.ndarray, known: tuple[float, ...]) -> float:
    longest = float(values.max())
    return next((reach for reach in known if reach >= longest), longest)


def _length(states: np.ndarray) -> np.ndarray:
    return np.linalg.norm(states[..., :4], axis=-1)


def _noise(states: np.ndarray) -> np.ndarray:
    """What a score varies given its field."""
    return np.linalg.norm(states[..., 1:4], axis=-1)


def _states(attention: AbstractAttention, starts: Overlaps) -> np.ndarray:
    """`k`, `v` and the free bias of every start as one row."""
    for leaves in zip(*(leaf.tolist() for leaf in jax.tree.leaves(starts)), strict=True):
        Overlaps(*leaves)  # refuses what is not valid
    vectors = np.array(jax.vmap(vectors_of)(as_arrays(starts))).reshape(-1, 8)
    if not attention.free_bias:
        return vectors
    bias = np.full((len(vectors), 1), float(getattr(attention, "bias", 0.0)))
    return np.concatenate([vectors, bias], 1)


def risk_at(
    state: Float[Array, " n"], task: AbstractTask, attention: AbstractAttention, plan: Plan
) -> Any:
    """The risk of `k`, `v` and, where one more coordinate is left, of a bias."""
    half = state.shape[0] // 2
    if state.shape[0] % 2:
        attention = eqx.tree_at(lambda it: it.bias, attention, state[-1])
    return risk(task, attention, overlaps_of(state[: 2 * half].reshape(2, half)), plan)


class Runs(NamedTuple):
    """All runs: their state, their time, and the states at the recorded times."""

    state: np.ndarray
    time: np.ndarray
    path: np.ndarray

    def advance(
        self, which: np.ndarray, times: np.ndarray, problem: Any, settings: tuple[float, float]
    ) -> np.ndarray:
        """Follow some of them as far as the plan reaches, and say why each stopped."""
        from .integration import integrate  # with diffrax, a third of a second that only flows pay

        starts = self.state[which], np.minimum(self.time[which], float(times[-1]))
        saved, state, time, converged, left = integrate(*starts, times, problem, settings)
        here = np.isfinite(saved).all(-1) & (times >= self.time[which][:, None])
        later = times > time[:, None]
        path = np.where(here[..., None], saved, self.path[which])
        self.path[which] = np.where(later[..., None], state[:, None], path)
        self.state[which], self.time[which] = state, time
        stopped = np.where(left, str(Result.LEFT_DOMAIN), str(Result.TIME_OVER))
        return np.where(converged, str(Result.CONVERGED), stopped)


def report(
    task: AbstractTask,
    attention: AbstractAttention,
    times: np.ndarray,
    runs: Runs,
    result: np.ndarray,
    single: bool,
) -> Flow:
    """What the runs were at these times, with risks; a `single` one without its row."""
    states = np.concatenate([runs.path, runs.state[:, None]], 1)
    risks, norms = _values(task, attention, states.reshape(-1, states.shape[-1]))
    shape = states.shape[:2]
    value, error, norms = (part.reshape(shape) for part in (*risks, norms))
    overlaps = jax.tree.map(np.asarray, jax.vmap(jax.vmap(_overlaps_of_state))(as_arrays(states)))
    bias = states[..., 8] if states.shape[-1] == 9 else np.zeros(shape)
    past, end = np.s_[:, :-1], np.s_[:, -1]
    flow = Flow(
        times=times,
        overlaps=jax.tree.map(lambda leaf: leaf[past], overlaps),
        bias=bias[past],
        risk=Estimate(value[past], error[past]),
        gradient_norm=norms[past],
        end=jax.tree.map(lambda leaf: leaf[end], overlaps),
        end_bias=bias[end],
        end_time=runs.time,
        end_risk=Estimate(value[end], error[end]),
        result=result,
    )
    if not single:
        return flow
    first = jax.tree.map(lambda leaf: leaf[0], flow)
    return eqx.tree_at(lambda flow: flow.times, first, times)


def _overlaps_of_state(state: Float[Array, " n"]) -> Overlaps:
    return overlaps_of(state[:8].reshape(2, 4))


def risks_at(task: AbstractTask, attention: AbstractAttention, states: np.ndarray) -> np.ndarray:
    """Risks at these states, right to some 10^-8."""
    plan = _plan_for(task, attention, states, 1.0)
    return np.asarray(_risks(*as_arrays((states, (task, attention, plan)))))


def _plan_for(
    task: AbstractTask, attention: AbstractAttention, states: np.ndarray, fineness: float
) -> Plan:
    longest = reaches_of(task, attention)[-1]
    reach, noise, sharpness = (min(r, longest) for r in stage_for(task, attention, states))
    return light_plan(task, attention, reach, noise, sharpness, fineness)


def _values(
    task: AbstractTask, attention: AbstractAttention, states: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Risks with their errors, and norms of gradients."""
    rough, plan = risks_at(task, attention, states), _plan_for(task, attention, states, _FINER)
    known = as_arrays((states, (task, attention, plan)))
    value, norm = map(np.asarray, _risks_and_slopes(*known))
    return (value, np.abs(value - rough) + ROUNDING * (1.0 + np.abs(value))), norm


@eqx.filter_jit
def _risks(states: Array, problem: Any) -> Array:
    return jax.lax.map(lambda state: risk_at(state, *problem), states, batch_size=_AT_A_TIME)


@eqx.filter_jit
def _risks_and_slopes(states: Array, problem: Any) -> tuple[Array, Array]:
    def one(state: Array) -> tuple[Array, Array]:
        value, gradient = jax.value_and_grad(risk_at)(state, *problem)
        return value, jnp.linalg.norm(gradient)

    return jax.lax.map(one, states, batch_size=_AT_A_TIME)
