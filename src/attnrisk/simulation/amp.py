"""Approximate message passing: the Bayes-optimal estimates of `k*` and `v*` from a dataset (section 7.1).

At large `D` the overlaps of its iterates follow `state_evolution`, step by step. Hence three choices:

- No damping as long as steps are orthogonal, as those of the state evolution are. Once a step takes back half of the
  one before, estimates and reaction terms are damped together, so that each reaction still belongs to its estimate.
- The response of `v` has the control variate of `evidence`, which makes it exact both where locations are known and
  where nothing is. The bare sum of squares lets `V_v` run away from the true error once labels have no noise; if it
  does so still, labels are taken to be about as noisy as they are missed by.
- Relevant tokens have a mean along `k*`. It multiplies the share of `k*` in `v̂`, of order `1/√D`, by about
  `−q_v(ν−1)` a step, which soon is no longer small. Hence the step of `v̂` along `k̂` is divided by the curvature met
  there. This moves neither the fixed point nor the limit of large `D`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._check import one_of, real, refuse
from ..attention import AbstractAttention, Softmax
from ..attention.general import AbstractGeneral
from ..estimate import Estimate
from ..learning.optimal import LONGEST, informed_start
from ..learning.scope import Solvable, solvable
from ..learning.selection import NoiseTable, select, tabulate
from ..population import Overlaps, population_risk
from ..population.risk import as_arrays, stretched
from ..tasks import AbstractPlanted, AbstractTask
from .data import AbstractDataset, Block, longest_of, whole

STARTS = ("nothing", "teacher")
MOST_STEPS, _LIMIT = 500, 10**6  # steps if not told otherwise, and at most
TOLERANCE = 1e-6  # root mean square of a step, where coordinates are of order one
_CLOSEST = 1e-3  # 1 − q_v of the start at the teacher, which leaves something to find
_LONGEST_ESTIMATE = 100.0  # |k̂|²/D or |v̂|²/D; a posterior mean has about one at most
_ROUNDING = 64.0  # of a field, in units of the last digit of the tokens
_TAKEN_BACK = 0.5  # cosine of the angle between a step and the opposite of the one before
_MOST_DAMPING, _RELAXED = 0.9, 0.95  # damping at most, and what is left of it after a step in peace
_MISSED = 1.2  # by this factor labels may be missed by more than expected: more than chance does at large N

Watch = Callable[[int, float], None]
Channel = Callable[[Array, Array, Array], tuple[Array, Array]]


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

    risk: Estimate
    overlaps: Overlaps
    k: Float[np.ndarray, " D"]
    v: Float[np.ndarray, " D"]
    path: Path
    result: str
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
        """Whether the estimates have come to rest."""
        return self.result == "converged"


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
    task = solvable(data.task if task is None else task, LONGEST, "message passing")
    reached = pass_messages(data, task, start, damping, most_steps, watch)
    vectors = np.asarray(reached.state.messages.vectors)
    overlaps = data.overlaps(vectors)
    predictor, scale = _predictor(task, float(reached.state.messages.variances[0]))
    return AMPFit(
        risk=population_risk(data.task, predictor, stretched(overlaps, scale)),
        overlaps=overlaps,
        k=vectors[0],
        v=vectors[1],
        path=Path(*np.array(reached.path).T),
        result=reached.result,
        residual=reached.residual,
    )


class Messages(NamedTuple):
    """The estimates, the variances that they leave, and what each token sees of itself in its fields."""

    vectors: Float[Array, "2 D"]
    variances: Float[Array, "2"]
    reactions: tuple[Float[Array, "blocks s L 2"], ...]


class State(NamedTuple):
    """The messages, the step that led to them, the damping, and how much more than `V_v` labels are missed by."""

    messages: Messages
    step: Float[Array, "2 D"]
    damping: Float[Array, ""]
    surprise: Float[Array, ""]


class Advance(NamedTuple):
    """A state, its place on the path, the size of the step that led there, and whether to go on from it."""

    state: State
    place: Float[Array, "4"]
    residual: Float[Array, ""]
    sound: Bool[Array, ""]


class Reached(NamedTuple):
    """Where the iteration stands, the way it came, and how it ended."""

    state: State
    path: tuple[np.ndarray, ...]
    residual: float = np.inf
    result: str = "interrupted"

    @property
    def steps(self) -> int:
        return len(self.path) - 1


def pass_messages(
    data: AbstractDataset,
    task: Solvable,
    start: str = "nothing",
    damping: float = 0.0,
    most_steps: int = MOST_STEPS,
    watch: Watch | None = None,
) -> Reached:
    """The iteration alone."""
    damping = as_damping(damping)
    most_steps = whole("most_steps", most_steps, 1, _LIMIT)
    first = _begin(data, task, one_of("start", start, STARTS))
    held = data.traceable()
    task_, alpha, damping_ = as_arrays((task, data.alpha, damping))
    origin = Reached(first, (np.asarray(_place(data.teacher, first.messages)),))

    def step(state: State) -> Advance:
        return _step(held, task_, alpha, damping_, state)

    return _iterate(step, origin, most_steps, watch)


def as_damping(value: Any) -> float:
    """The share of the old estimate in the new one."""
    damping = float(real("damping", value, minimum=0.0))
    if damping >= 1.0:
        raise refuse("damping", f"{damping:g}", "a number ≥ 0 and < 1")
    return damping


def _begin(data: AbstractDataset, task: Solvable, start: str) -> State:
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
    """Step until the estimates rest."""
    try:
        while reached.steps < most_steps:
            ahead = step(reached.state)
            if not ahead.sound:
                return reached._replace(result=f"diverged at step {reached.steps + 1}")
            path = (*reached.path, np.asarray(ahead.place))
            reached = Reached(ahead.state, path, float(ahead.residual))
            if watch is not None:
                watch(reached.steps, reached.residual)
            if reached.residual <= TOLERANCE:
                return reached._replace(result="converged")
    except KeyboardInterrupt:
        return reached._replace(result=f"interrupted after {reached.steps} steps")
    moving = f"still moving by {reached.residual:.1g} a step after {reached.steps} steps"
    return reached._replace(result=moving)


class Sums(NamedTuple):
    """Over all sequences: `xᵀf`, `Σf²` for both directions, `Σw²`, `Σ w (y−ω_z)²/(Δ²+V_v) − 1` and `Σ(x k̂)² f_v²`."""

    messages: Float[Array, "2 D"]
    signals: Float[Array, "2"]
    certainty: Float[Array, ""]
    excess: Float[Array, ""]
    leverage: Float[Array, ""]


@eqx.filter_jit
def _step(data: Any, task: Any, alpha: Array, least_damping: Array, state: State) -> Advance:
    """One pass over the data: fields, what they say, and the estimates that follow."""
    old = state.messages
    rounding = (_ROUNDING * np.finfo(data.precision).eps) ** 2
    label_variance = jnp.maximum(state.surprise * (task.noise**2 + old.variances[1]), rounding)
    sums, scores = _pass(data, _channel(task, old.variances[0]), label_variance, old)
    responses = _responses(sums, alpha, label_variance, data.dim)
    variances = 1.0 / (1.0 + responses)
    pulls = responses - jnp.stack([_normalisation(task, alpha), jnp.zeros(())])
    vectors = variances[:, None] * (sums.messages + pulls[:, None] * old.vectors)
    vectors = vectors.at[1].add(_shortening(old.vectors, vectors[1], responses[1], sums))
    new = Messages(vectors, variances, tuple(variances * each for each in scores))
    damping = _damping(state, vectors - old.vectors, least_damping)
    kept = jax.tree.map(lambda a, b: damping * a + (1.0 - damping) * b, old, new)
    missed = 1.0 + sums.excess / (alpha * data.dim)
    surprise = jnp.maximum(missed / _MISSED, 1.0)
    ahead = State(kept, kept.vectors - old.vectors, damping, surprise)
    residual = jnp.sqrt(jnp.max(jnp.mean((vectors - old.vectors) ** 2, 1)))
    return Advance(ahead, _place(data.teacher, kept), residual, _is_sound(kept))


def _pass(
    data: Any, look: Channel, label_variance: Array, old: Messages
) -> tuple[Sums, tuple[Array, ...]]:
    """The sums, and the scores `f` of all tokens."""

    def at_block(sums: Sums, block: Block, reaction: Array) -> tuple[Sums, Array]:
        fields = block.fields(old.vectors)
        scores, added = _gather(look, label_variance, fields, fields - reaction, block)
        return jax.tree.map(jnp.add, sums, added), scores

    none = Sums(jnp.zeros_like(old.vectors), jnp.zeros(2), *3 * (jnp.zeros(()),))
    return data.scan(at_block, none, old.reactions)


def _damping(state: State, step: Float[Array, "2 D"], least: Array) -> Float[Array, ""]:
    """More where a step takes back the one before, and slowly less where it does not."""
    lengths = jnp.linalg.norm(state.step, axis=1) * jnp.linalg.norm(step, axis=1)
    taken_back = -jnp.sum(state.step * step, 1) > _TAKEN_BACK * lengths
    more = jnp.minimum((1.0 + state.damping) / 2, _MOST_DAMPING)
    return jnp.maximum(jnp.where(jnp.any(taken_back), more, _RELAXED * state.damping), least)


def _channel(task: Any, left: Array) -> Channel:
    """The posterior `w` of the location of one sequence, and `∂ log Z/∂ω_χ`.

    They are functions of the fields `ω_χ`, the log likelihood of the label at each token, and which tokens there are.
    """
    if isinstance(task, AbstractPlanted):
        return partial(_planted, task.shift)
    slope = 1.0 / jnp.sqrt(left + 1.0 / task.sharpness**2)
    return partial(_selected, slope, tabulate(slope * jnp.sqrt(left)))


def _planted(
    shift: Array, fields: Array, log_likelihood: Array, present: Array
) -> tuple[Array, Array]:
    posterior = jax.nn.softmax(jnp.where(present, shift * fields + log_likelihood, -jnp.inf))
    return posterior, shift * posterior


def _selected(
    slope: Array, table: NoiseTable, fields: Array, log_likelihood: Array, present: Array
) -> tuple[Array, Array]:
    law, rivalry = select(slope * fields, present, table)
    posterior = jax.nn.softmax(jnp.log(law) + log_likelihood)
    odds = jnp.where(present, posterior / jnp.where(present, law, 1.0), 0.0)
    return posterior, slope * (odds * jnp.sum(rivalry, 0) - odds @ rivalry)


def _gather(
    look: Channel,
    label_variance: Array,
    fields: Float[Array, "s L 2"],
    cavity: Float[Array, "s L 2"],
    block: Block,
) -> tuple[Float[Array, "s L 2"], Sums]:
    """The scores `f` of a block and its part in the sums; an empty row adds nothing."""
    there = block.lengths > 0
    missing = block.labels[:, None] - cavity[..., 1]
    misfit = missing**2 / label_variance
    posterior, score_k = jax.vmap(look)(cavity[..., 0], -misfit / 2, block.mask | ~there[:, None])
    posterior = jnp.where(block.mask, posterior, 0.0)
    score_v = posterior * missing / label_variance
    scores = jnp.stack([jnp.where(block.mask, score_k, 0.0), score_v], -1)
    added = Sums(
        block.transposed(scores),
        jnp.sum(scores**2, (0, 1)),
        jnp.sum(posterior**2),
        jnp.sum(posterior * misfit) - jnp.sum(there),
        jnp.sum((fields[..., 0] * score_v) ** 2),
    )
    return scores, added


def _responses(sums: Sums, alpha: Array, label_variance: Array, dim: int) -> Float[Array, "2"]:
    """`q̂_k` and `q̂_v`, as `evidence` has them."""
    certainty = sums.certainty / (alpha * dim)
    surplus = certainty * sums.excess / label_variance
    return (sums.signals - jnp.stack([jnp.zeros(()), surplus])) / dim


def _normalisation(task: Any, alpha: Array) -> Array:
    """What the factor `e^{−ν|k|²/2D}` of each planted sequence adds to the precision of the prior of `k`."""
    return alpha * task.shift**2 if isinstance(task, AbstractPlanted) else jnp.zeros(())


def _shortening(
    old: Float[Array, "2 D"], new: Float[Array, " D"], response: Array, sums: Sums
) -> Float[Array, " D"]:
    """What to add to `v̂`, so that along `k̂` its step is that of a precision `1 + q̂_v E[ξ²]` in place of `1 + q̂_v`.

    `ξ` is the field of the unit vector along `k̂`, weighted by `f_v²`.
    """
    square = jnp.sum(old[0] ** 2)
    known = (square > 0) & (sums.signals[1] > 0)
    square = jnp.where(known, square, 1.0)
    spread = jnp.where(known, sums.leverage / jnp.where(known, sums.signals[1], 1.0), 0.0)
    response = jnp.maximum(response, 0.0)
    gain = (1.0 + response) / (1.0 + response * spread * old.shape[1] / square)
    return jnp.where(known, gain - 1.0, 0.0) * old[0] * (old[0] @ (new - old[1])) / square


def _place(teacher: Float[Array, "2 D"], messages: Messages) -> Float[Array, "4"]:
    """The overlaps on the path."""
    measured = jnp.sum(teacher * messages.vectors, 1) / teacher.shape[1]
    return jnp.concatenate([measured, 1.0 - messages.variances])


def _is_sound(messages: Messages) -> Bool[Array, ""]:
    """Whether the estimates are finite and not absurd."""
    square = jnp.mean(messages.vectors**2, 1)
    positive = jnp.isfinite(messages.variances) & (messages.variances > 0)
    return jnp.all(positive & (square < _LONGEST_ESTIMATE))


class Location(AbstractGeneral):
    """The law of the location in a selected task, given fields of the estimate of `k` that leave a variance `left`."""

    name: ClassVar[str] = "location"
    sharpness: Any
    left: Any

    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        slope = 1.0 / jnp.sqrt(self.left + 1.0 / self.sharpness**2)
        table = tabulate(slope * jnp.sqrt(self.left))
        return select(slope * scores, jnp.ones(scores.shape, bool), table).probability


def _predictor(task: Solvable, left: float) -> tuple[AbstractAttention, float]:
    """The attention that makes the posterior mean of a label out of the estimates, and the scale of its scores."""
    if isinstance(task, AbstractPlanted):
        return Softmax(), float(task.shift)
    return Location(task.sharpness, left), 1.0
