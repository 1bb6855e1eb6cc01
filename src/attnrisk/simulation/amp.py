"""Approximate message passing: the Bayes-optimal estimates of `k*` and `v*` from a dataset (section 7.1)."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import one_of, real, whole
from .._results import Estimate, Result
from ..attention import AbstractAttention, Softmax
from ..attention.base import Mask
from ..attention.general import AbstractGeneral
from ..learning.optimal import informed_start
from ..learning.scope import optimisable
from ..numerics.arrays import as_arrays
from ..population import Overlaps, population_risk
from ..tasks import AbstractSamplable, AbstractTask
from ..tasks.location import AbstractLocation
from .data import AbstractDataset, check_data, longest_of
from .messages import Advance, Messages, State, advance, place_of

STARTS = ("nothing", "teacher")
MOST_STEPS, _LIMIT = 500, 10**6  # steps if not told otherwise, and at most
TOLERANCE = 1e-6  # root mean square of a step, where coordinates are of order one
_CLOSEST = 1e-3  # 1 − q_v of the start at the teacher, which leaves something to find

Watch = Callable[[int, float], None]


class Path(eqx.Module):
    """Overlaps at the start and after each step: those with the teacher, and those expected without knowing it."""

    q_k: Float[np.ndarray, " steps"]
    q_v: Float[np.ndarray, " steps"]
    expected_q_k: Float[np.ndarray, " steps"]
    expected_q_v: Float[np.ndarray, " steps"]


class AMPFit(eqx.Module):
    """Estimates of `k*` and `v*`, and the test risk of the predictor made of them, noise included.

    `residual` is the root mean square of the last step, of `k` or of `v`, whichever is larger.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        "risk",
        "q_k",
        "q_v",
        "expected_q_k",
        "expected_q_v",
        "overlaps",
        "iterations",
        "residual",
        "result",
        "converged",
    )
    risk: Estimate
    overlaps: Overlaps
    k: Float[np.ndarray, " D"]
    v: Float[np.ndarray, " D"]
    path: Path
    result: Result = eqx.field(static=True)
    residual: float

    @property
    def q_k(self) -> float:
        """`k·k*/D`."""
        return float(self.path.q_k[-1])

    @property
    def q_v(self) -> float:
        """`v·v*/D`."""
        return float(self.path.q_v[-1])

    @property
    def expected_q_k(self) -> float:
        """`1 − V_k`, what the data tell of `q_k` without the teacher."""
        return float(self.path.expected_q_k[-1])

    @property
    def expected_q_v(self) -> float:
        """`1 − V_v`, what the data tell of `q_v` without the teacher."""
        return float(self.path.expected_q_v[-1])

    @property
    def iterations(self) -> int:
        """Steps taken."""
        return len(self.path.q_k) - 1

    @property
    def converged(self) -> bool:
        """Whether the estimates no longer change."""
        return self.result.converged


def fit_amp(
    data: AbstractDataset,
    task: AbstractTask | None = None,
    *,
    start: str = "nothing",
    damping: float = 0.0,
    most_steps: int = MOST_STEPS,
    watch: Watch | None = None,
) -> AMPFit:
    """Estimate `k*` and `v*` as one who knows the `task`, that of the data if not given.

    `start` is `nothing`, or `teacher`: near the truth, to see whether the optimum is a fixed point. `watch` is told the
    steps done and the last residual. Divergence and an interrupt leave the last good estimates, and `result` says so.
    """
    check_data(data)
    task = optimisable(data.task if task is None else task, "message passing")
    reached = pass_messages(data, task, start, damping, most_steps, watch)
    vectors = np.asarray(reached.state.messages.vectors)
    overlaps = data.overlaps(vectors)
    predictor, scale = _predictor(task.location_given(reached.state.messages.variances[0]))
    return AMPFit(
        risk=population_risk(data.task, predictor, overlaps.stretched(scale)),
        overlaps=overlaps,
        k=vectors[0],
        v=vectors[1],
        path=Path(*np.array(reached.path).T),
        result=reached.result,
        residual=reached.residual,
    )


class Reached(NamedTuple):
    """Where the iteration stands, the way it came, and how it ended."""

    state: State
    path: tuple[np.ndarray, ...]
    residual: float = np.inf
    result: Result = Result.MAX_STEPS

    @property
    def steps(self) -> int:
        return len(self.path) - 1


def pass_messages(
    data: AbstractDataset,
    task: AbstractSamplable,
    start: str = "nothing",
    damping: float = 0.0,
    most_steps: int = MOST_STEPS,
    watch: Watch | None = None,
) -> Reached:
    """The iteration alone."""
    damping = float(real("damping", damping, minimum=0.0, below=1.0))
    most_steps = whole("most_steps", most_steps, 1, _LIMIT)
    first = _begin(data, task, one_of("start", start, STARTS))
    held = data.traceable()
    task_, alpha, damping_ = as_arrays((task, data.alpha, damping))
    origin = Reached(first, (np.asarray(place_of(data.teacher, first.messages)),))

    def step(state: State) -> Advance:
        return advance(held, task_, alpha, damping_, state)

    return _iterate(step, origin, most_steps, watch)


def _begin(data: AbstractDataset, task: AbstractSamplable, start: str) -> State:
    """No estimates, or such as a noisy look at the teacher gives."""
    depth = np.zeros(2)
    if start == "teacher":
        depth = np.minimum(informed_start(task, data.alpha), [np.inf, -np.log(_CLOSEST)])
    known, left = -np.expm1(-depth)[:, None], np.exp(-depth)
    noise = jax.random.normal(jax.random.key(0), data.teacher.shape)
    vectors = known * data.teacher + np.sqrt(known * left[:, None]) * noise
    shapes = ((*group.lengths.shape, longest_of(group), 2) for group in data.groups)
    reactions = tuple(jnp.zeros(shape) for shape in shapes)
    messages = Messages(vectors, jnp.asarray(left), reactions)
    return State(messages, jnp.zeros_like(vectors), jnp.zeros(()), jnp.ones(()))


def _iterate(
    step: Callable[[State], Advance], reached: Reached, most_steps: int, watch: Watch | None
) -> Reached:
    """Step until the estimates no longer change."""
    try:
        while reached.steps < most_steps:
            ahead = step(reached.state)
            if not ahead.sound:
                return reached._replace(result=Result.DIVERGED)
            path = (*reached.path, np.asarray(ahead.place))
            reached = Reached(ahead.state, path, float(ahead.residual))
            if watch is not None:
                watch(reached.steps, reached.residual)
            if reached.residual <= TOLERANCE:
                return reached._replace(result=Result.CONVERGED)
    except KeyboardInterrupt:
        return reached._replace(result=Result.INTERRUPTED)
    return reached


class LocationAttention(AbstractGeneral):
    """The law of the location given the scores of the estimate of `k`, as an attention."""

    name: ClassVar[str] = "location"
    location: AbstractLocation

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        return self.location.law(scores[None], mask)


def _predictor(location: AbstractLocation) -> tuple[AbstractAttention, float]:
    """The attention that makes the posterior mean of a label out of the estimates, and the scale of its scores."""
    scale = location.softmax_scale
    if scale is None:
        return LocationAttention(location), 1.0
    return Softmax(), float(scale)
