"""Approximate message passing: the Bayes-optimal estimates of `k*` and `v*` from a dataset (section 7.1)."""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import one_of, real, whole
from .._results import AbstractResult, Estimate, Result
from ..attention import Softmax
from ..attention.base import Mask
from ..attention.general import AbstractGeneral
from ..learning.optimal import informed_start
from ..learning.scope import optimisable
from ..numerics.arrays import as_arrays
from ..population import Overlaps, population_risk
from ..tasks import AbstractSamplable, AbstractTask
from ..tasks.location import AbstractLocation
from .data import AbstractDataset, check_data, longest_of
from .messages import Messages, State, advance, place_of

STARTS = ("nothing", "teacher")
MOST_STEPS, _LIMIT = 500, 10**6  # steps if not told otherwise, and at most
TOLERANCE = 1e-6  # root mean square of a step, where coordinates are of order one
_LARGEST_EXCESS = 4.0  # of `|w|²/D` over `1 − V` of an estimate, either way, in units of 1/√D
_CLOSEST = 1e-3  # 1 − q_v of the start at the teacher, which leaves something to find

Watch = Callable[[int, float], None]


class Path(eqx.Module):
    """Overlaps at the start and after each step: `k·k*/D` and `v·v*/D`, and `1 − V`, the algorithm's own estimates."""

    q_k: Float[np.ndarray, " steps"]
    q_v: Float[np.ndarray, " steps"]
    expected_q_k: Float[np.ndarray, " steps"]
    expected_q_v: Float[np.ndarray, " steps"]


class AMPFit(AbstractResult):
    """Estimates of `k*` and `v*` by approximate message passing.

    `residual` is the root mean square of the last step, of `k` or `v`, whichever is larger. `location` is the posterior
    distribution of the location given the estimate of `k`.
    """

    recorded: ClassVar = (
        *("risk", "q_k", "q_v", "expected_q_k", "expected_q_v", "overlaps"),
        *("iterations", "residual", "result", "converged"),
    )
    task: AbstractTask
    location: AbstractLocation
    overlaps: Overlaps
    k: Float[np.ndarray, " D"]
    v: Float[np.ndarray, " D"]
    path: Path
    residual: float

    @property
    def q_k(self) -> float:
        """`k·k*/D` at the end of `path`."""
        return float(self.path.q_k[-1])

    @property
    def q_v(self) -> float:
        """`v·v*/D` at the end of `path`."""
        return float(self.path.q_v[-1])

    @property
    def expected_q_k(self) -> float:
        """`1 − V_k`, the algorithm's own estimate of `q_k`."""
        return float(self.path.expected_q_k[-1])

    @property
    def expected_q_v(self) -> float:
        """`1 − V_v`, the algorithm's own estimate of `q_v`."""
        return float(self.path.expected_q_v[-1])

    @property
    def iterations(self) -> int:
        """Number of steps."""
        return len(self.path.q_k) - 1

    @property
    def risk(self) -> Estimate:
        """Population risk of the posterior mean of a label, label noise included."""
        scale = self.location.softmax_scale
        if scale is None:
            return population_risk(self.task, LocationAttention(self.location), self.overlaps)
        return population_risk(self.task, Softmax(), self.overlaps.stretched(float(scale)))


def fit_amp(
    data: AbstractDataset,
    task: AbstractTask | None = None,
    *,
    start: str = "nothing",
    damping: float = 0.0,
    most_steps: int = MOST_STEPS,
    watch: Watch | None = None,
) -> AMPFit:
    """Estimate `k*` and `v*` from a dataset by approximate message passing (section 7.1).

    Divergence and an interrupt (Ctrl-C) return the last valid estimates, and `result` says so.

    Args:
        data: The dataset.
        task: The task that the algorithm assumes; that of the data if not given.
        start: `"nothing"` (uninformed), or `"teacher"` (near the true vectors, to test whether the optimum is a fixed
            point).
        damping: Damping of the steps, from 0 (none) to below 1.
        most_steps: Largest number of steps; 500 by default.
        watch: A function that is called with the number of steps and the last residual.

    Returns:
        An `AMPFit` with `k` and `v` of shape `(D,)`, their overlaps and the risk.

    Examples:
        >>> data = ar.sample(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(1), n=1600, dim=800)
        >>> fit = ar.fit_amp(data)
        >>> print(f"{fit.q_k:.2f} {fit.q_v:.2f}", fit.result)
        0.79 1.00 converged
    """
    check_data(data)
    task = optimisable(data.task if task is None else task, "message passing")
    damping = float(real("damping", damping, minimum=0.0, below=1.0))
    most_steps = whole("most_steps", most_steps, 1, _LIMIT)
    state = _begin(data, task, one_of("start", start, STARTS))
    held, (known, alpha, least) = data.traceable(), as_arrays((task, data.alpha, damping))
    path = [np.asarray(place_of(data.teacher, state.messages))]
    residual, result = np.inf, Result.MAX_STEPS
    try:
        for step in range(1, most_steps + 1):
            ahead = advance(held, known, alpha, least, state)
            if not ahead.is_sound:
                result = Result.DIVERGED
                break
            state, residual = ahead.state, float(ahead.residual)
            path.append(np.asarray(ahead.place))
            if watch is not None:
                watch(step, residual)
            if residual <= TOLERANCE:
                result = Result.CONVERGED
                break
    except KeyboardInterrupt:
        result = Result.INTERRUPTED
    vectors = np.asarray(state.messages.vectors)
    excess = np.abs(np.mean(vectors**2, 1) - path[-1][2:])
    # Of another task than that of the data, lengths and variances differ at any fixed point.
    is_checked = result in (Result.CONVERGED, Result.MAX_STEPS) and eqx.tree_equal(task, data.task)
    if is_checked and np.max(excess) > _LARGEST_EXCESS / np.sqrt(data.dim):
        result = Result.OVERCONFIDENT
    return AMPFit(
        task=data.task,
        location=task.location_given(state.messages.variances[0]),
        overlaps=data.overlaps(vectors),
        k=vectors[0],
        v=vectors[1],
        path=Path(*np.array(path).T),
        result=result,
        residual=residual,
    )


def _begin(data: AbstractDataset, task: AbstractSamplable, start: str) -> State:
    """Initial estimates: zero, or noisy copies of the teacher."""
    depth = np.zeros(2)
    if start == "teacher":
        depth = np.minimum(informed_start(task, data.alpha), [np.inf, -np.log(_CLOSEST)])
    known, left = -np.expm1(-depth)[:, None], np.exp(-depth)
    noise = np.asarray(jax.random.normal(jax.random.key(0), data.teacher.shape))
    vectors = known * np.asarray(data.teacher) + np.sqrt(known * left[:, None]) * noise
    shapes = ((*group.lengths.shape, longest_of(group), 2) for group in data.groups)
    reactions = tuple(jnp.asarray(np.zeros(shape)) for shape in shapes)
    messages = Messages(jnp.asarray(vectors), jnp.asarray(left), reactions)
    still = jnp.asarray(np.zeros_like(vectors))
    return State(messages, still, jnp.asarray(0.0), jnp.asarray(1.0))


class LocationAttention(AbstractGeneral):
    """The distribution of the location given the scores of the estimate of `k`, as an attention."""

    name: ClassVar[str] = "location"
    location: AbstractLocation

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        return self.location.law(scores[None], mask)
