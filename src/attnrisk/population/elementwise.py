"""Minima of analytic element-wise attentions, for several tasks in one call.

At `k = m_kk k*` a score is `m_kk` times its field, so that `A` and `B` are sums over one grid of fields, with weights
that depend on the task alone (section 4.1). With that little to integrate, a search is one compiled function: it scans
lengths of `k` and biases, then descends by Newton's method. Tasks are its lanes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import LARGEST
from ..attention import AbstractElementwise, Softmax
from ..numerics.arrays import as_arrays
from ..numerics.gaussian import equal_steps, runaway_steps, trapezoid_for
from ..numerics.laplace import log_complement, transforms_at
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask
from .correlations import Correlations
from .lanes import alike, stacked

_TIE = 1e-12  # losses as close are one
_MOST_STEPS = 400
_LONGEST_STEP = 2.0
_DAMPING, _FAINTEST = 1e-3, 1e-15  # at first, and after many steps that helped
_FAINTER = 8.0  # after each of them, and stronger after one that did not help
_ROUNDING = 1e-16  # a promise this small is none
_LAST_GAIN = 2e-15  # and one this small may be broken by rounding
SHORT = 1e-14  # of the least loss, where steps that promise more than rounding are over


class Fields(NamedTuple):
    """A grid of fields, with weights for which `A = label · h` and `B = power · h²`."""

    nodes: Any
    label: Any
    power: Any


def fields_of(task: AbstractTask, scale: float, fineness: float) -> Fields:
    """For functions of a score of deviation up to `scale`, right to `10^{-8·fineness}` or so."""
    lengths, spread = task.length, float(getattr(task, "spread", 1.0))
    x, mass = equal_steps(trapezoid_for(scale * max(1.0, spread), 0.0, 1.0, fineness).step)
    match task:
        case AbstractSelected():
            return Fields(x, mass * _relevance(task, x, mass, fineness), lengths.mean() * mass)
        case AbstractPlanted():
            here, there = spread**2 * mass, lengths.mean(lengths.lengths - 1.0) * mass
            return Fields(
                np.concatenate([task.shift + spread * x, x]),
                np.concatenate([here, np.zeros_like(x)]),
                np.concatenate([here, there]),
            )
    raise TypeError(f"no grid of fields serves {type(task).__name__}")


def _relevance(
    task: AbstractSelected, x: Float[Any, " x"], mass: Float[Any, " x"], fineness: float
) -> Float[Any, " x"]:
    """Density of the relevant token's field over that of any token's, at nodes that integrate up to its sharpness."""
    sharpness, longest = float(task.sharpness), float(task.length.longest)
    if np.isinf(sharpness):
        return np.asarray(task.length.powers(_log_normal(x), 1, drop=0))
    rule = trapezoid_for(sharpness, 0.0, longest, fineness)
    window = rule.window * sharpness
    u, du = runaway_steps(-window - rule.before, window + np.log(longest), rule)
    lost, first, _ = transforms_at(Softmax(), sharpness * x, u[:, None])
    return (du * np.asarray(task.length.powers(log_complement(lost @ mass), 1, drop=0))) @ first


def _log_normal(x: Float[Any, " x"]) -> Float[Any, " x"]:
    """`log P(N(0, 1) ≤ x)`."""
    tail = 0.5 * np.array([math.erfc(abs(each) / math.sqrt(2.0)) for each in x.tolist()])
    return np.where(x > 0, np.log1p(-tail), np.log(tail))


class Terrain(NamedTuple):
    """Where to look for one minimum: lengths of `k`, biases at each, and two grids, the better one last."""

    lengths: Float[Any, " m"]
    biases: Float[Any, "m b"]
    light: Fields
    finer: Fields


class Descent(NamedTuple):
    """Where a descent from the best place of a scan came to, and `A` and `B` there by either grid.

    It is a minimum if it `ended`, and the least of all unless the risk is still `falling` at the longest `k`.
    """

    m_kk: Any
    bias: Any
    light: Correlations
    finer: Correlations
    falling: Any
    ended: Any


def descents(
    attention: AbstractElementwise, terrains: Sequence[Terrain], flat: float
) -> list[Descent]:
    """One for each terrain; those whose grids have the same sizes share a call.

    The risk is falling where the longest `k` is the best by more than `flat`.
    """
    attention = as_arrays(attention)
    found: dict[int, Descent] = {}
    for some in alike(terrains):
        lanes = stacked([terrains[index] for index in some])
        ends = jax.tree.map(np.asarray, _in_lanes(attention, lanes, flat))
        for lane, index in enumerate(some):
            found[index] = jax.tree.map(lambda leaf, lane=lane: leaf[lane].item(), ends)
    return [found[index] for index in range(len(terrains))]


@eqx.filter_jit
def _in_lanes(attention: AbstractElementwise, terrains: Terrain, flat: Any) -> Descent:
    return jax.vmap(lambda terrain: _descent(attention, terrain, flat))(terrains)


def _descent(attention: AbstractElementwise, terrain: Terrain, flat: Any) -> Descent:
    """One lane."""

    def at_length(row: tuple[Array, Float[Array, " b"]]) -> Float[Array, " b"]:
        m_kk, biases = row
        return jax.vmap(lambda bias: _loss_of(profile(attention, terrain.light, m_kk, bias)))(
            biases
        )

    losses = jax.lax.map(at_length, (terrain.lengths, terrain.biases))
    length, bias = _best(terrain, losses)
    longest = jnp.max(jnp.abs(terrain.lengths))
    inner = jnp.abs(terrain.lengths) < 0.99 * longest
    falling = jnp.min(losses) < jnp.min(jnp.where(inner[:, None], losses, jnp.inf)) - flat
    (m_kk, bias), ended = _newton(attention, terrain.light, jnp.stack([length, bias]), longest)
    light, finer = (
        profile(attention, fields, m_kk, bias) for fields in (terrain.light, terrain.finer)
    )
    return Descent(m_kk, bias, light, finer, falling, ended)


def profile(attention: AbstractElementwise, fields: Fields, m_kk: Any, bias: Any) -> Correlations:
    """`A` and `B`."""
    weight = attention.weight(bias + m_kk * fields.nodes)
    return Correlations(jnp.sum(fields.label * weight), jnp.sum(fields.power * weight**2))


def _loss_of(profile: Correlations) -> Array:
    """`−log(A²/B)`; infinite where the best `v` would be longer than any that is allowed."""
    a, b = jnp.abs(profile.label), profile.power
    sound = (a > 0) & (a < np.sqrt(LARGEST) * b) & jnp.isfinite(b)
    return jnp.where(sound, jnp.log(b) - 2.0 * jnp.log(a), jnp.inf)


def _best(terrain: Terrain, losses: Float[Array, "m b"]) -> tuple[Array, Array]:
    """The length and the bias of the least loss; of several, the least bias, and then a `k` along `k*`."""
    ties = losses <= jnp.min(losses) + _TIE
    against = jnp.abs(terrain.biases) + 1e-6 * (terrain.lengths[:, None] < 0)
    row, column = jnp.unravel_index(jnp.argmin(jnp.where(ties, against, jnp.inf)), losses.shape)
    return terrain.lengths[row], terrain.biases[row, column]


class _Step(NamedTuple):
    """The best place so far and the loss around it, and the place to try next with what it promises."""

    at: Float[Array, " 2"]
    loss: Array
    slope: Float[Array, " 2"]
    bend: Float[Array, "2 2"]
    ahead: Float[Array, " 2"]
    promise: Array
    damping: Any
    steps: Any
    ended: Any


def _newton(
    attention: AbstractElementwise, fields: Fields, start: Float[Array, " 2"], longest: Any
) -> tuple[Float[Array, " 2"], Array]:
    """The local minimum around `start`, and whether it was reached: steps of Newton's method, damped until each
    helps."""
    reach = jnp.stack([longest, jnp.inf])

    def step(now: _Step) -> _Step:
        tried = now.ahead, *_expanded(attention, fields, now.ahead)
        helped = tried[1] < now.loss
        broken = ~helped & (jnp.abs(now.promise) < _LAST_GAIN)
        at, loss, slope, bend = (jnp.where(helped, *pair) for pair in zip(tried, now, strict=False))
        factor = jnp.where(helped, 1.0 / _FAINTER, _FAINTER)
        damping = jnp.maximum(now.damping * factor, _FAINTEST)
        ahead = jnp.clip(at + _damped(slope, bend, damping), -reach, reach)
        move = ahead - at
        promise = -(slope @ move + move @ bend @ move / 2.0)
        ended = broken | (jnp.abs(promise) < _ROUNDING)
        return _Step(at, loss, slope, bend, ahead, promise, damping, now.steps + 1, ended)

    def goes_on(now: _Step) -> Array:
        return ~now.ended & (now.steps < _MOST_STEPS)

    nowhere = jnp.asarray(jnp.inf)
    first = _Step(
        start, nowhere, jnp.zeros(2), jnp.zeros((2, 2)), start, nowhere, _DAMPING, 0, False
    )
    last = jax.lax.while_loop(goes_on, step, first)
    return last.at, last.ended & jnp.isfinite(last.loss)


def _expanded(
    attention: AbstractElementwise, fields: Fields, at: Float[Array, " 2"]
) -> tuple[Array, Float[Array, " 2"], Float[Array, "2 2"]]:
    """The loss at a length and a bias with its first and second derivatives, those of a bias that is set being zero."""
    scores = at[1] + at[0] * fields.nodes
    ones = jnp.ones_like(scores)
    h, h1, h2 = _derivatives(attention.weight, scores, ones)
    by = jnp.stack([fields.nodes, ones if attention.free_bias else 0.0 * ones])  # of a score

    def moments(weights: Array, value: Array, slope: Array, bend: Array) -> tuple[Array, ...]:
        slopes = jnp.sum(by * (weights * slope), -1)
        bends = jnp.sum(by * by[:, None] * (weights * bend), -1)
        return jnp.sum(weights * value), slopes, bends

    a, da, dda = moments(fields.label, h, h1, h2)
    b, db, ddb = moments(fields.power, h**2, 2.0 * h * h1, 2.0 * (h1**2 + h * h2))
    da, dda, db, ddb = da / a, dda / a, db / b, ddb / b
    bend = ddb - jnp.outer(db, db) - 2.0 * (dda - jnp.outer(da, da))
    return _loss_of(Correlations(a, b)), db - 2.0 * da, bend


def _derivatives(function: Callable[[Array], Array], at: Array, ones: Array) -> tuple[Array, ...]:
    """A function of each number, its derivative and its second derivative."""

    def both(at: Array) -> tuple[Array, Array]:
        return jax.jvp(function, (at,), (ones,))

    (value, slope), (_, bend) = jax.jvp(both, (at,), (ones,))
    return value, slope, bend


def _damped(slope: Float[Array, " 2"], bend: Float[Array, "2 2"], damping: Any) -> Array:
    """`−(bend + shift)⁻¹ slope`, where the shift leaves no direction in which the loss bends down; not too long."""
    mean, apart = (bend[0, 0] + bend[1, 1]) / 2.0, (bend[0, 0] - bend[1, 1]) / 2.0
    spread = jnp.sqrt(apart**2 + bend[0, 1] ** 2)
    lowest, largest = mean - spread, jnp.abs(mean) + spread
    shift = jnp.maximum(-2.0 * lowest, 0.0) + damping * largest + 1e-100
    a, b, c = bend[0, 0] + shift, bend[0, 1], bend[1, 1] + shift
    move = jnp.stack([b * slope[1] - c * slope[0], b * slope[0] - a * slope[1]]) / (a * c - b * b)
    return move / jnp.maximum(1.0, jnp.sqrt(move @ move) / _LONGEST_STEP)
