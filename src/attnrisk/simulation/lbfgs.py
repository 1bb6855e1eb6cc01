"""L-BFGS from several starts at once: one evaluation serves them all, as a pass over the data costs the same for one.

Each start has its own line search (strong Wolfe conditions; where rounding hides the decrease, the approximate ones of
Hager and Zhang 2005), so that they need not agree on when a step is good.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._results import Result

_MEMORY = 20  # pairs kept
_DECREASE, _CURVATURE = 1e-4, 0.9  # of the Wolfe conditions, as usual for quasi-Newton steps
_MOST_TRIALS = 20  # of a line search
_FARTHER = 4.0  # a step that is too short, times this
_INSIDE = 0.1  # a step keeps this share of its bracket from both ends
_MOVES = "accepted", "given up"  # verdicts on a step after which there is a new direction
_CURVED = 1e-10  # a pair with less curvature than this, relative, is left out

Evaluate = Callable[[Array], tuple[Array, Array]]
Watch = Callable[[int, float], None]


class Descent(NamedTuple):
    """Where each start ended. `result`: `converged`, `steps over`, `stalled` or `interrupted`."""

    points: Float[Array, "starts size"]
    values: Float[np.ndarray, " starts"]
    gradient_norms: Float[np.ndarray, " starts"]
    iterations: np.ndarray
    evaluations: int
    results: list[Any]


class Trial(NamedTuple):
    """A step along a direction, and the objective and its slope there."""

    step: float
    value: float
    slope: float


class Search(NamedTuple):
    """A line search: the origin, the best trial so far, and one on the other side of the minimum if known."""

    origin: Trial
    low: Trial
    high: Trial | None
    trials: int = 0

    def accepts(self, tried: Trial, slack: float) -> bool:
        """Whether the Wolfe conditions hold, or the approximate ones up to a rounding of `slack`."""
        start = self.origin
        flat = abs(tried.slope) <= -_CURVATURE * start.slope
        lower = tried.value <= start.value + _DECREASE * tried.step * start.slope
        level = tried.value <= start.value + slack
        return flat and (lower or (level and tried.slope <= (2 * _DECREASE - 1) * start.slope))

    def narrowed(self, tried: Trial, slack: float) -> "Search":
        """The search after a trial that was not good; it goes by slopes, which rounding spares more than values."""
        descends = tried.slope < 0 and tried.value <= self.origin.value + slack
        counted = self._replace(trials=self.trials + 1)
        return counted._replace(low=tried) if descends else counted._replace(high=tried)

    @property
    def next_step(self) -> float:
        """Where the slope would vanish between both ends, not too near to either; farther if there is one end."""
        low, high = self.low, self.high
        if high is None:
            return low.step * _FARTHER
        share = low.slope / (low.slope - high.slope) if high.slope >= 0 else 0.5
        return low.step + (high.step - low.step) * min(max(share, _INSIDE), 1.0 - _INSIDE)


class _Memory(NamedTuple):
    """The last steps and changes of gradient of one start, newest first, with `1/s·y` (0: not used)."""

    steps: Float[Array, "m size"]
    changes: Float[Array, "m size"]
    inverse: Float[Array, " m"]


class _State(NamedTuple):
    """One start: its point, the gradient there, the direction it follows, and its memory."""

    point: Float[Array, " size"]
    gradient: Float[Array, " size"]
    direction: Float[Array, " size"]
    memory: _Memory


class _Run(NamedTuple):
    """One start as seen from the host: its line search, the next step to try, and why it stopped, if it did."""

    search: Search
    step: float
    norm: float
    iterations: int = 0
    steepest: bool = True
    result: str | None = None

    def judged(self, tried: Trial, slack: float) -> tuple[str, "_Run"]:
        """Whether the trial is accepted, followed by another, or the direction given up."""
        if self.result is not None:
            return "over", self
        slack *= abs(self.search.origin.value)
        if self.search.accepts(tried, slack):
            return "accepted", self
        search = self.search.narrowed(tried, slack)
        if search.trials < _MOST_TRIALS:
            return "again", self._replace(search=search, step=search.next_step)
        if self.steepest:
            return "over", self._replace(result=Result.STALLED)
        return "given up", self

    def onward(self, verdict: str, value: float, slope: float, norm: float, first: float) -> "_Run":
        """The run in its new direction."""
        if verdict == "accepted":
            begun = _begun(value, slope, norm, 1.0)
            return begun._replace(iterations=self.iterations + 1, steepest=False)
        if verdict == "given up":
            begun = _begun(self.search.origin.value, slope, norm, first)
            return begun._replace(iterations=self.iterations)
        return self

    def stopped(self, tolerance: float, most_iterations: int) -> "_Run":
        """The run, over if there is a reason."""
        if self.result is not None:
            return self
        if self.norm <= tolerance:
            return self._replace(result=Result.CONVERGED)
        if self.iterations >= most_iterations:
            return self._replace(result=Result.MAX_STEPS)
        return self if self.search.origin.slope < 0 else self._replace(result=Result.STALLED)


def _begun(value: float, slope: float, norm: float, step: float) -> _Run:
    origin = Trial(0.0, float(value), float(slope))
    return _Run(Search(origin, origin, None), float(step), float(norm))


def minimise(
    evaluate: Evaluate,
    starts: Float[Array, "starts size"],
    tolerance: float,
    slack: float,
    most_iterations: int,
    watch: Watch | None = None,
) -> Descent:
    """Go down from every start until the norm of its gradient is at most `tolerance`.

    `slack` is the rounding of the objective, relative. An interrupt ends the descent where it is.
    """
    values, gradients = evaluate(starts)
    state = _begin(starts, gradients)
    runs = [_begun(*each) for each in zip(np.asarray(values), *_measured(state), strict=True)]
    evaluations = 1
    try:
        while True:
            runs = [run.stopped(tolerance, most_iterations) for run in runs]
            if watch is not None:
                watch(max(run.iterations for run in runs), max(run.norm for run in runs))
            if all(run.result for run in runs):
                break
            state, runs = _tried(evaluate, state, runs, slack)
            evaluations += 1
    except KeyboardInterrupt:
        runs = [run._replace(result=run.result or Result.INTERRUPTED) for run in runs]
    return Descent(
        state.point,
        np.array([run.search.origin.value for run in runs]),
        np.array([run.norm for run in runs]),
        np.array([run.iterations for run in runs]),
        evaluations,
        [run.result for run in runs],
    )


def _tried(
    evaluate: Evaluate, state: _State, runs: list[_Run], slack: float
) -> tuple[_State, list[_Run]]:
    """One evaluation, at the next step of every run that is not over."""
    steps = np.array([0.0 if run.result else run.step for run in runs])
    ahead = _ahead(state, steps)
    found, gradients = evaluate(ahead)
    values, slopes = map(np.asarray, (found, _slopes(state, gradients)))
    trials = map(Trial, steps.tolist(), values.tolist(), slopes.tolist())
    judged = [run.judged(trial, slack) for run, trial in zip(runs, trials, strict=True)]
    verdicts, runs = [verdict for verdict, _ in judged], [run for _, run in judged]
    accepted, given_up = (np.array([v == word for v in verdicts]) for word in _MOVES)
    if not (accepted | given_up).any():
        return state, runs
    state = _advanced(state, ahead, gradients, accepted, given_up)
    told = zip(runs, verdicts, values, *_measured(state), strict=True)
    return state, [run.onward(verdict, *numbers) for run, verdict, *numbers in told]


@jax.jit
@jax.vmap
def _begin(point: Array, gradient: Array) -> _State:
    empty = jnp.zeros((_MEMORY, point.size))
    return _State(point, gradient, -gradient, _Memory(empty, empty, jnp.zeros(_MEMORY)))


def _measured(state: _State) -> tuple[np.ndarray, ...]:
    """Slope, norm of the gradient, and a first step for steepest descent, of every start."""
    return tuple(map(np.asarray, _measure(state)))


@jax.jit
@jax.vmap
def _measure(state: _State) -> tuple[Array, Array, Array]:
    norm, size = jnp.linalg.norm(state.gradient), jnp.linalg.norm(state.point)
    first = jnp.where((norm > 0) & (size > 0), jnp.minimum(1.0, size / norm), 1.0)
    return state.direction @ state.gradient, norm, first


@jax.jit
@jax.vmap
def _ahead(state: _State, step: Array) -> Array:
    return state.point + step * state.direction


@jax.jit
@jax.vmap
def _slopes(state: _State, gradient: Array) -> Array:
    return state.direction @ gradient


@jax.jit
@jax.vmap
def _advanced(
    state: _State, point: Array, gradient: Array, accepted: Array, given_up: Array
) -> _State:
    """The accepted point with a new direction, the old one with an empty memory, or no change."""
    remembered = _remember(state.memory, point - state.point, gradient - state.gradient)
    forgotten = state.memory._replace(inverse=jnp.zeros(_MEMORY))
    moved = _State(point, gradient, _quasi_newton(remembered, gradient), remembered)
    reset = _State(state.point, state.gradient, -state.gradient, forgotten)

    def choose(moved: Array, reset: Array, old: Array) -> Array:
        return jnp.where(accepted, moved, jnp.where(given_up, reset, old))

    return jax.tree.map(choose, moved, reset, state)


def _remember(memory: _Memory, step: Array, change: Array) -> _Memory:
    """The newest pair in front; one without curvature is of no use."""
    curvature = step @ change
    curved = curvature > _CURVED * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    inverse = jnp.where(curved, 1.0 / jnp.where(curved, curvature, 1.0), 0.0)

    def push(old: Array, new: Array) -> Array:
        return jnp.roll(old, 1, 0).at[0].set(new)

    pushed = (push(memory.steps, step), push(memory.changes, change), push(memory.inverse, inverse))
    return jax.tree.map(lambda new, old: jnp.where(curved, new, old), _Memory(*pushed), memory)


def _quasi_newton(memory: _Memory, gradient: Array) -> Array:
    """`−H g` by the two-loop recursion (Nocedal and Wright, algorithm 7.4)."""

    def back(vector: Array, pair: _Memory) -> tuple[Array, Array]:
        share = pair.inverse * (pair.steps @ vector)
        return vector - share * pair.changes, share

    def forth(vector: Array, shared: tuple[_Memory, Array]) -> tuple[Array, None]:
        pair, share = shared
        return vector + (share - pair.inverse * (pair.changes @ vector)) * pair.steps, None

    vector, shares = jax.lax.scan(back, gradient, memory)
    power = memory.changes[0] @ memory.changes[0]
    used = memory.inverse[0] > 0
    vector = vector * jnp.where(used, 1.0 / jnp.where(used, memory.inverse[0] * power, 1.0), 1.0)
    return -jax.lax.scan(forth, vector, (memory, shares), reverse=True)[0]
