"""L-BFGS from several initialisations at once: one pass over the data costs about as much for all as for one.

SciPy's L-BFGS-B on the same compiled objective, one start after the other, takes longer (a row of
benchmarks/simulation.py). Each start has its own line search: strong Wolfe conditions, or where rounding hides the
decrease, the approximate ones of Hager and Zhang (2005).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._results import Result

MEMORY = 20  # pairs kept
_DECREASE, _CURVATURE = 1e-4, 0.9  # of the Wolfe conditions, as usual for quasi-Newton steps
_MOST_TRIALS = 20  # of a line search
_EXPANSION = 4.0  # of a step that is too short
_INSIDE = 0.1  # a step keeps this share of its bracket from both ends
_CURVED = 1e-10  # a pair with less curvature than this, relative, is left out
_RUNNING, _CONVERGED, _MAX_STEPS, _STALLED = range(4)
_RESULTS = Result.INTERRUPTED, Result.CONVERGED, Result.MAX_STEPS, Result.STALLED

Evaluate = Callable[[Array], tuple[Array, Array]]
Watch = Callable[[int, float], None]


class Minima(NamedTuple):
    """The end point of each initialisation, and the reason why it stopped."""

    points: Float[np.ndarray, "starts size"]
    values: Float[np.ndarray, " starts"]
    gradient_norms: Float[np.ndarray, " starts"]
    iterations: Int[np.ndarray, " starts"]
    evaluations: int
    results: list[Result]


class Trial(NamedTuple):
    """A step along a direction, and the objective and its slope there."""

    step: Float[Array, ""]
    value: Float[Array, ""]
    slope: Float[Array, ""]


class LineSearch(NamedTuple):
    """The origin, the next step to try, the best trial so far, and one beyond the minimum (`inf` before there is)."""

    origin: Trial
    step: Float[Array, ""]
    low: Trial
    high: Trial
    trials: Int[Array, ""]

    def accepts(self, trial: Trial, rounding: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the Wolfe conditions hold, or the approximate ones up to this rounding of the values."""
        origin = self.origin
        is_flat = jnp.abs(trial.slope) <= -_CURVATURE * origin.slope
        is_lower = trial.value <= origin.value + _DECREASE * trial.step * origin.slope
        is_level = trial.value <= origin.value + rounding
        return is_flat & (
            is_lower | (is_level & (trial.slope <= (2 * _DECREASE - 1) * origin.slope))
        )

    def narrowed(self, trial: Trial, rounding: Float[Array, ""]) -> "LineSearch":
        """The search after a trial that was not accepted; it goes by slopes, which suffer less from rounding."""
        is_short = (trial.slope < 0) & (trial.value <= self.origin.value + rounding)
        low = _where(is_short, trial, self.low)
        high = _where(is_short, self.high, trial)
        # Where the slope would vanish between both ends.
        share = jnp.where(high.slope >= 0, low.slope / (low.slope - high.slope), 0.5)
        inside = low.step + (high.step - low.step) * jnp.clip(share, _INSIDE, 1.0 - _INSIDE)
        step = jnp.where(jnp.isinf(high.step), _EXPANSION * low.step, inside)
        return LineSearch(self.origin, step, low, high, self.trials + 1)


def new_search(value: Array, slope: Array, step: Array) -> LineSearch:
    """A search along a direction with this slope, which tries this step first."""
    origin = Trial(jnp.zeros(()), value, slope)
    beyond = Trial(jnp.full((), jnp.inf), value, slope)
    return LineSearch(origin, step, origin, beyond, jnp.zeros((), int))


class _Memory(NamedTuple):
    """The last steps and changes of the gradient, newest first, with `1/(step·change)` (0: no pair)."""

    steps: Float[Array, "m size"]
    changes: Float[Array, "m size"]
    inverse: Float[Array, " m"]


class _State(NamedTuple):
    """One start; `result` is an index of `_RESULTS`."""

    point: Float[Array, " size"]
    gradient: Float[Array, " size"]
    direction: Float[Array, " size"]
    memory: _Memory
    search: LineSearch
    iterations: Int[Array, ""]
    is_steepest: Bool[Array, ""]  # whether the direction is that of steepest descent
    result: Int[Array, ""]


def minimise(
    evaluate: Evaluate,
    starts: Float[Array, "starts size"],
    tolerance: float,
    rounding: float,
    steps: int,
    watch: Watch | None = None,
) -> Minima:
    """Descend from every start until the norm of its gradient is at most `tolerance`.

    - `evaluate`: gives the objective and its gradient at each row of an array.
    - `rounding`: of the objective, relative.
    - `steps`: the largest number of iterations.
    - `watch`: called before each evaluation with the iterations done and the largest norm of a gradient.

    An interrupt ends the descent at the last accepted points.
    """
    state = _begin(starts, *evaluate(starts), tolerance, steps)
    evaluations = 1
    try:
        while True:
            norms = np.linalg.norm(state.gradient, axis=1)
            if watch is not None:
                watch(int(np.max(state.iterations)), float(np.max(norms)))
            if np.all(np.asarray(state.result)):
                break
            ahead = state.point + state.search.step[:, None] * state.direction
            state = _update(state, ahead, *evaluate(ahead), tolerance, rounding, steps)
            evaluations += 1
    except KeyboardInterrupt:
        norms = np.linalg.norm(state.gradient, axis=1)
    point, value, iterations, results = jax.device_get(
        (state.point, state.search.origin.value, state.iterations, state.result)
    )
    return Minima(point, value, norms, iterations, evaluations, [_RESULTS[at] for at in results])


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, 0, None, None))
def _begin(point: Array, value: Array, gradient: Array, tolerance: Array, steps: Array) -> _State:
    empty = jnp.zeros((MEMORY, point.size))
    memory = _Memory(empty, empty, jnp.zeros(MEMORY))
    state = _steepest(point, value, gradient, memory, jnp.zeros((), int))
    return state._replace(result=_stop(state, tolerance, steps))


def _steepest(
    point: Array, value: Array, gradient: Array, memory: _Memory, iterations: Array
) -> _State:
    """Steepest descent, with a first step no longer than the point."""
    norm, size = jnp.linalg.norm(gradient), jnp.linalg.norm(point)
    first = jnp.where((norm > 0) & (size > 0), jnp.minimum(1.0, size / norm), 1.0)
    search = new_search(value, -(gradient @ gradient), first)
    empty = memory._replace(inverse=jnp.zeros(MEMORY))
    flag, running = jnp.array(True), jnp.array(_RUNNING)
    return _State(point, gradient, -gradient, empty, search, iterations, flag, running)


def _stop(state: _State, tolerance: Array, steps: Array) -> Int[Array, ""]:
    """The result of a start, if there is a reason to stop."""
    result = jnp.where(state.search.origin.slope < 0, _RUNNING, _STALLED)
    result = jnp.where(state.iterations >= steps, _MAX_STEPS, result)
    return jnp.where(jnp.linalg.norm(state.gradient) <= tolerance, _CONVERGED, result)


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None, None))
def _update(
    state: _State,
    point: Array,
    value: Array,
    gradient: Array,
    tolerance: Array,
    rounding: Array,
    steps: Array,
) -> _State:
    """The start after a trial at this point: there, at another trial, or restarted by steepest descent."""
    origin, rounding = state.search.origin, rounding * jnp.abs(state.search.origin.value)
    trial = Trial(state.search.step, value, state.direction @ gradient)
    memory = _remember(state.memory, point - state.point, gradient - state.gradient)
    direction, iterations = _quasi_newton(memory, gradient), state.iterations + 1
    search = new_search(value, direction @ gradient, jnp.ones(()))
    flags = jnp.array(False), state.result
    moved = _State(point, gradient, direction, memory, search, iterations, *flags)
    again = state._replace(search=state.search.narrowed(trial, rounding))
    reset = _steepest(state.point, origin.value, state.gradient, memory, state.iterations)
    is_over = again.search.trials >= _MOST_TRIALS
    accepted = state.search.accepts(trial, rounding)
    new = _where(accepted, moved, _where(is_over & ~state.is_steepest, reset, again))
    stalled = ~accepted & is_over & state.is_steepest
    new = new._replace(result=jnp.where(stalled, _STALLED, _stop(new, tolerance, steps)))
    return _where(state.result == _RUNNING, new, state)


def _where(condition: Array, chosen: Any, other: Any) -> Any:
    return jax.tree.map(lambda one, two: jnp.where(condition, one, two), chosen, other)


def _remember(memory: _Memory, step: Array, change: Array) -> _Memory:
    """The memory with the newest pair in front; one without curvature is of no use."""
    curvature = step @ change
    is_curved = curvature > _CURVED * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    pair = _Memory(step, change, 1.0 / jnp.where(is_curved, curvature, 1.0))
    pushed = jax.tree.map(lambda old, new: jnp.roll(old, 1, 0).at[0].set(new), memory, pair)
    return _where(is_curved, pushed, memory)


def _quasi_newton(memory: _Memory, gradient: Array) -> Array:
    """`−H g` by the two-loop recursion (Nocedal and Wright, algorithm 7.4)."""

    def first_loop(vector: Array, pair: _Memory) -> tuple[Array, Array]:
        share = pair.inverse * (pair.steps @ vector)
        return vector - share * pair.changes, share

    def second_loop(vector: Array, shared: tuple[_Memory, Array]) -> tuple[Array, None]:
        pair, share = shared
        return vector + (share - pair.inverse * (pair.changes @ vector)) * pair.steps, None

    vector, shares = jax.lax.scan(first_loop, gradient, memory)
    power = memory.inverse[0] * (memory.changes[0] @ memory.changes[0])
    vector = vector / jnp.where(power > 0, power, 1.0)
    return -jax.lax.scan(second_loop, vector, (memory, shares), reverse=True)[0]
