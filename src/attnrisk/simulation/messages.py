"""One step of approximate message passing (section 7.1).

At large `D` its overlaps follow `state_evolution`. Hence three choices:

- No damping as long as steps are orthogonal, as in the state evolution. Once a step reverses half of the
  one before, estimates and reaction terms are damped together, so that each reaction still belongs to its estimate.
- The response of `v` has the control variate of `evidence`, which makes it exact both where locations are known and
  where nothing is. With the plain sum of squares, `V_v` diverges from the true error for labels without noise; if it
  still does, the noise of the labels is set to the size of the residuals.
- Relevant tokens have a mean along `k*`. It multiplies the share of `k*` in `v̂`, of order `1/√D`, by about
  `−q_v(ν−1)` a step, which soon is no longer small. Hence the step of `v̂` along `k̂` is divided by the curvature met
  there. This moves neither the fixed point nor the limit of large `D`.
- So is the step of `k̂` along itself on selected tasks. At large `ν` the locations depend on the direction of `k` alone,
  and its length is known from the prior only: with the precision `1 + q̂_k` of other directions, an error of order
  `1/√D` in the length would take some `1 + q̂_k` steps to fade. In the limit a step is orthogonal to the estimate.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..tasks import AbstractSamplable
from .data import Block

_LONGEST_ESTIMATE = 100.0  # |k̂|²/D or |v̂|²/D; a posterior mean has about one at most
_ROUNDING = 64.0  # of a field, in units of the last digit of the tokens
_TAKEN_BACK = 0.5  # cosine of the angle between a step and the opposite of the one before
_MOST_DAMPING = 0.9
_RELAXED = 0.95  # what is left of a damping after a step that takes nothing back
_MISSED = 1.2  # by this factor labels may be missed by more than expected: more than chance does at large N


class Messages(NamedTuple):
    """The estimates, their variances, and the Onsager terms of the fields."""

    vectors: Float[Array, "2 D"]
    variances: Float[Array, "2"]
    reactions: tuple[Float[Array, "blocks s L 2"], ...]


class State(NamedTuple):
    """The messages, the last step, the damping, and a factor on `V_v` if the residuals of the labels are larger."""

    messages: Messages
    step: Float[Array, "2 D"]
    damping: Float[Array, ""]
    noise_inflation: Float[Array, ""]


class Advance(NamedTuple):
    """A state, its place on the path, the size of the step that led there, and whether it is finite."""

    state: State
    place: Float[Array, "4"]
    residual: Float[Array, ""]
    is_sound: Bool[Array, ""]


class Sums(NamedTuple):
    """Over all sequences: `xᵀf`, `Σf²` for both directions, `Σw²`, `Σ w (y−ω_z)²/(Δ²+V_v) − 1`, and the leverage.

    The leverage of `k̂` is `(Σ_ℓ ω_χ f_k)²` and `Σ_ℓ (x k̂)² f_v²`: the squared scores of both directions along `k̂`.
    """

    messages: Float[Array, "2 D"]
    signals: Float[Array, "2"]
    certainty: Float[Array, ""]
    excess: Float[Array, ""]
    leverage: Float[Array, "2"]


@eqx.filter_jit
def advance(
    data: Any, task: AbstractSamplable, alpha: Array, least_damping: Array, state: State
) -> Advance:
    """One pass over the data: fields, their scores, and the new estimates."""
    old = state.messages
    rounding = (_ROUNDING * np.finfo(data.precision).eps) ** 2
    label_variance = jnp.maximum(
        state.noise_inflation * (task.noise**2 + old.variances[1]), rounding
    )
    location = task.location_given(old.variances[0])

    def at_block(sums: Sums, block: Block, reaction: Array) -> tuple[Sums, Array]:
        """The sums with those of a block, and its scores `f`; an empty row adds nothing."""
        fields, there = block.fields(old.vectors), block.lengths > 0
        cavity = fields - reaction
        missing = block.labels[:, None] - cavity[..., 1]
        misfit = missing**2 / label_variance
        weights = jax.vmap(location.weigh)(cavity[..., None, :, 0], block.mask | ~there[:, None])
        found = jax.vmap(location.posterior)(weights, -misfit / 2)
        posterior = jnp.where(block.mask, found.probability, 0.0)
        score_v = posterior * missing / label_variance
        scores = jnp.stack([jnp.where(block.mask, found.score[:, 0], 0.0), score_v], -1)
        along = jnp.sum(cavity[..., 0] * scores[..., 0], 1), fields[..., 0] * score_v
        added = Sums(
            block.transposed(scores),
            jnp.sum(scores**2, (0, 1)),
            jnp.sum(posterior**2),
            jnp.sum(posterior * misfit) - jnp.sum(there),
            jnp.stack([jnp.sum(each**2) for each in along]),
        )
        return jax.tree.map(jnp.add, sums, added), scores

    zero = Sums(jnp.zeros_like(old.vectors), jnp.zeros(2), *2 * (jnp.zeros(()),), jnp.zeros(2))
    sums, scores = data.scan(at_block, zero, old.reactions)
    # `q̂_k` and `q̂_v`, as `evidence` has them.
    surplus = sums.certainty / (alpha * data.dim) * sums.excess / label_variance
    responses = (sums.signals - jnp.stack([jnp.zeros(()), surplus])) / data.dim
    variances = 1.0 / (1.0 + responses)
    normalisation = alpha * location.precision[0, 0]
    pulls = responses - jnp.stack([normalisation, jnp.zeros(())])
    vectors = variances[:, None] * (sums.messages + pulls[:, None] * old.vectors)
    centred = location.has_centred_scores
    vectors = vectors + _along_key(old.vectors, vectors, responses, sums, centred)
    new = Messages(vectors, variances, tuple(variances * each for each in scores))
    damping = _damping(state, vectors - old.vectors, least_damping)
    kept = jax.tree.map(lambda a, b: damping * a + (1.0 - damping) * b, old, new)
    missed = 1.0 + sums.excess / (alpha * data.dim)
    noise_inflation = jnp.maximum(missed / _MISSED, 1.0)
    ahead = State(kept, kept.vectors - old.vectors, damping, noise_inflation)
    residual = jnp.sqrt(jnp.max(jnp.mean((vectors - old.vectors) ** 2, 1)))
    square = jnp.mean(kept.vectors**2, 1)
    is_positive = jnp.isfinite(kept.variances) & (kept.variances > 0)
    is_sound = jnp.all(is_positive & (square < _LONGEST_ESTIMATE))
    return Advance(ahead, place_of(data.teacher, kept), residual, is_sound)


def _damping(state: State, step: Float[Array, "2 D"], least: Array) -> Float[Array, ""]:
    """The damping: increased if a step reverses the previous one, otherwise slowly decreased."""
    lengths = jnp.linalg.norm(state.step, axis=1) * jnp.linalg.norm(step, axis=1)
    taken_back = -jnp.sum(state.step * step, 1) > _TAKEN_BACK * lengths
    more = jnp.minimum((1.0 + state.damping) / 2, _MOST_DAMPING)
    return jnp.maximum(jnp.where(jnp.any(taken_back), more, _RELAXED * state.damping), least)


def _along_key(
    old: Float[Array, "2 D"],
    new: Float[Array, "2 D"],
    responses: Float[Array, "2"],
    sums: Sums,
    has_centred_scores: bool,
) -> Float[Array, "2 D"]:
    """Corrections of the estimates, so that their steps along `k̂` use the measured precision.

    That is one plus the mean square of the scores along `k̂`, in place of `1 + q̂`. Where scores of `k` have a mean, as
    on a planted task, only `v̂` is treated so.
    """
    square = jnp.sum(old[0] ** 2)
    known = (square > 0) & (sums.signals[1] > 0)
    square = jnp.where(known, square, 1.0)
    responses = jnp.maximum(responses, 0.0)
    met = sums.leverage / square
    signal = jnp.where(known, sums.signals[1], 1.0)
    met = met.at[1].set(responses[1] * sums.leverage[1] / signal * old.shape[1] / square)
    gains = (1.0 + responses) / (1.0 + met)
    if not has_centred_scores:
        gains = gains.at[0].set(1.0)
    along = (new - old) @ old[0] / square
    return jnp.where(known, gains - 1.0, 0.0)[:, None] * along[:, None] * old[0]


def place_of(teacher: Float[Array, "2 D"], messages: Messages) -> Float[Array, "4"]:
    measured = jnp.sum(teacher * messages.vectors, 1) / teacher.shape[1]
    return jnp.concatenate([measured, 1.0 - messages.variances])
