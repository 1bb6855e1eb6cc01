"""The minimisation inside each sample of empirical risk minimisation (sections 6 and 10), global, in one batch.

The energy is smooth in the scores, `L` for each of `H` key vectors, and may have several minima. For one kernel or
element-wise attention the Hessian is a diagonal plus a matrix of rank two or three, and a step takes a time that grows
like `L` (section 6.1).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.linalg import LowRank, solve
from .energy import (
    Fitted,
    Sample,
    apply,
    energy,
    energy_at,
    fit,
    residual,
    residual_of_sums,
    summands,
)
from .moves import all_moves, best_moves
from .unknowns import Response

_ROUGH_STEPS, _LAST_STEPS, _WARM_STEPS = 12, 8, 3
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e8
_LONGEST_STEP = 2.0  # of a score: the scale of an attention is one


class _Rough(NamedTuple):
    """A point with its residual and energy, the damping, and the next point to evaluate."""

    chi: Array
    residual: Array
    slope: Array
    energy: Array
    damping: Array
    ahead: Array


def _descend_roughly(
    attention: AbstractAttention,
    start: Float[Array, "n H L"],
    samples: Sample,
    response: Response,
) -> tuple[Float[Array, "n H L"], Float[Array, " n"]]:
    """Gauss–Newton with Levenberg–Marquardt damping of some samples, and the energies where it ends.

    There is one residual, so that the matrix of a step is `V_k⁻¹` plus an outer product, with a known inverse. Loops
    are outside the batch, here and below: a batched loop takes several times as long to trace.
    """

    def step(at: _Rough, sample: Sample) -> _Rough:
        left, slope = jax.value_and_grad(residual, 1)(attention, at.ahead, sample, response)
        value = energy_at(left, at.ahead, sample, response)
        there = at.ahead, left, slope, value, at.damping / 10.0
        here = *at[:4], jnp.maximum(10.0 * at.damping, _FIRST_DAMPING)
        lower = value <= at.energy
        chi, left, slope, value, damping = (
            jnp.where(lower, *each) for each in zip(there, here, strict=True)
        )
        away, kept = chi - sample.keys, 1.0 + damping
        loose = apply(response.k, slope) * sample.variance
        curvature = jnp.sum(slope * loose)
        along = (left * curvature + jnp.sum(slope * away)) / (kept + curvature)
        move = ((along - left) * loose - away) / kept
        move *= jnp.minimum(1.0, _LONGEST_STEP / (jnp.max(jnp.abs(move)) + 1e-30))
        return _Rough(chi, left, slope, value, damping, chi + move)

    zero = jnp.zeros(len(start))
    first = _Rough(
        start, zero, jnp.zeros_like(start), zero + jnp.inf, zero + 10.0 * _FIRST_DAMPING, start
    )
    end = jax.lax.fori_loop(0, 1 + _ROUGH_STEPS, lambda _, at: jax.vmap(step)(at, samples), first)
    return end.chi, end.energy


class Minimum(NamedTuple):
    """Scores that minimise the energy, and its derivatives there."""

    chi: Float[Array, "H L"]
    gradient: Float[Array, "H L"]
    hessian: Float[Array, "n n"] | LowRank

    def solve(self, vector: Float[Array, "H L"]) -> Float[Array, "H L"]:
        """The inverse of the Hessian applied to a vector."""
        flat = vector.ravel()
        if isinstance(self.hessian, LowRank):
            return self.hessian.solve(flat).reshape(vector.shape)
        return solve(self.hessian, flat).reshape(vector.shape)


def _expand(
    attention: Any, chi: Array, sample: Sample, response: Response
) -> tuple[Array, Array, LowRank]:
    """The energy, its gradient and its Hessian, from the first two derivatives of each token."""
    scores = jnp.squeeze(chi, 0)
    top, one = attention.log_scale(scores), jnp.ones_like(scores)

    def first(scores: Array) -> tuple[Array, Array]:
        return jax.jvp(
            lambda it: jnp.stack(summands(attention, it, sample, top)), (scores,), (one,)
        )

    (terms, slopes), (_, bends) = jax.jvp(first, (scores,), (one,))
    sums = jnp.sum(terms, 1)

    def by_sums(sums: Array) -> tuple[Array, tuple[Array, Array]]:
        loss, slope = jax.value_and_grad(
            lambda it: residual_of_sums(attention, it, sample, response, top) ** 2 / 2.0
        )(sums)
        return slope, (loss, slope)

    core, (loss, slope) = jax.jacfwd(by_sums, has_aux=True)(sums)
    stiffness = response.stiffness[0, 0] / sample.variance
    away = scores - jnp.squeeze(sample.keys, 0)
    gradient = jnp.sum(slope[:, None] * slopes, 0) + stiffness * away
    diagonal = jnp.sum(slope[:, None] * bends, 0) + stiffness
    value = loss + jnp.sum(stiffness * away**2) / 2.0
    return value, gradient[None], LowRank(diagonal, slopes, core)


class _Descent(NamedTuple):
    """The lowest point, its energy, the damping, and the next point to evaluate."""

    minimum: Minimum
    energy: Array
    damping: Array
    ahead: Array


def _descend(
    attention: AbstractAttention,
    start: Float[Array, "n H L"],
    samples: Sample,
    response: Response,
    steps: Any,
) -> Minimum:
    """Newton's method with Levenberg–Marquardt damping, of some samples; no energy ever increases."""
    size, structured = start[0].size, attention.has_sums

    def stiffness(sample: Sample) -> Array:
        if structured:
            return response.stiffness[0, 0] / sample.variance
        return jnp.kron(response.stiffness, jnp.diag(1.0 / sample.variance))

    def expand(chi: Array, sample: Sample) -> tuple[Array, Minimum]:
        if structured:
            value, gradient, bends = _expand(attention, chi, sample, response)
            return value, Minimum(chi, gradient, bends)

        def slope(chi: Array) -> tuple[Array, tuple[Array, Array]]:
            value, gradient = jax.value_and_grad(energy, 1)(attention, chi, sample, response)
            return gradient, (value, gradient)

        hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(chi)
        return value, Minimum(chi, gradient, hessian.reshape(size, size))

    def damped(at: Minimum, more: Array) -> Minimum:
        if isinstance(at.hessian, LowRank):
            diagonal = at.hessian.diagonal + more
            return at._replace(hessian=at.hessian._replace(diagonal=diagonal))
        return at._replace(hessian=at.hessian + more)

    def step(at: _Descent, sample: Sample) -> _Descent:
        value, there = expand(at.ahead, sample)
        lower = value <= at.energy
        found = jax.tree.map(lambda new, old: jnp.where(lower, new, old), there, at.minimum)
        damping = jnp.where(lower, at.damping / 8.0, jnp.maximum(4.0 * at.damping, _FIRST_DAMPING))
        damping = jnp.clip(damping, _LEAST_DAMPING, _MOST_DAMPING)
        ahead = found.chi - damped(found, damping * stiffness(sample)).solve(found.gradient)
        return _Descent(found, jnp.where(lower, value, at.energy), damping, ahead)

    zero = jnp.zeros(len(start))
    hessian: Any = jax.vmap(stiffness)(samples)
    if structured:  # only the number of sums is asked for
        one = jax.tree.map(lambda leaf: leaf[0], samples)
        sums = len(summands(attention, one.keys[0], one, jnp.zeros(())))
        rows, core = (jnp.zeros((len(start), sums, each)) for each in (size, sums))
        hessian = LowRank(hessian, rows, core)
    nowhere = Minimum(start, jnp.zeros_like(start), hessian)
    first = _Descent(nowhere, zero + jnp.inf, zero + 8.0 * _FIRST_DAMPING, start)
    return jax.lax.fori_loop(0, 1 + steps, lambda _, at: jax.vmap(step)(at, samples), first).minimum


@eqx.filter_jit
def minimise(
    attention: AbstractAttention,
    last: Float[Array, "n H L"],
    samples: Sample,
    response: Response,
    anew: Any,
) -> Minimum:
    """The minima of some samples: the lowest if they are searched for `anew`, else those near the last ones.

    Newton's method, which takes most of the time to compile, serves both.
    """

    def search() -> Float[Array, "n H L"]:
        """Near the lowest minima, from the last minima, the cavity fields, and moves off them."""
        moves = (best_moves if attention.has_sums else all_moves)(attention, samples, response)
        starts = jnp.concatenate([last[None], samples.keys[None], samples.keys + moves])
        # One after another: arrays of all starts would be spread over threads, which costs more than they gain. An
        # accelerator waits for small arrays, and takes all at once.
        at_once = None if jax.default_backend() == "cpu" else len(starts)
        ends, energies = jax.lax.map(
            lambda start: _descend_roughly(attention, start, samples, response),
            starts,
            batch_size=at_once,
        )
        lowest = jnp.argmin(energies, 0)[None, :, None, None]
        return jnp.take_along_axis(ends, lowest, 0)[0]

    near = jax.lax.cond(anew, search, lambda: last)
    steps = jnp.where(anew, _LAST_STEPS, _WARM_STEPS)
    return _descend(attention, near, samples, response, steps)


def respond(
    attention: AbstractAttention, at: Minimum, sample: Sample, response: Response
) -> Fitted:
    """The pulls of a sample near one whose minimum is given, to first order in the distance.

    One Newton step from that minimum, of the change of the gradient.
    """
    change = jax.grad(energy, 1)(attention, at.chi, sample, response) - at.gradient
    return fit(attention, at.chi - at.solve(change), sample, response)
