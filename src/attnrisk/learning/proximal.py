"""The minimisation inside each sample of empirical risk minimisation (sections 6 and 10), global, in one batch.

    (χ, z) = argmin ½(y − a(χ)·z)² + ½Σ_ℓ (χ_ℓ−ω_ℓ)ᵀ V_k⁻¹ (χ_ℓ−ω_ℓ) + |z−ω_z|²/(2V_v)

`z` is eliminated exactly. The rest is smooth in the scores, `L` for each of `H` key vectors, and may have several
minima. The scores of one kernel, or of one element-wise attention, meet only in two or three sums over tokens: the
Hessian is a diagonal plus a matrix of that rank, and a step takes a time that grows like `L` (section 6.1).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.linalg import LowRank, solve
from .unknowns import Response

_ROUGH_STEPS, _LAST_STEPS, _WARM_STEPS = 12, 8, 3
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-2, 1e-6, 1e8
_LONGEST_STEP = 2.0  # of a score: the scale of an attention is one
# Moves of scores that are tried before any descent: with weak ridges the best one is long.
_MOVES = np.array([0.7, 1.5, 3.0, 5.0, 8.0, 13.0, 22.0, 40.0])
_MOST_STARTS = 6  # tokens from whose moves a descent begins, for each kind of move


class Sample(NamedTuple):
    """The cavity fields of one sequence (plus a learned bias), its label, and the variance `γ²` of each token."""

    keys: Float[Any, "H L"]
    values: Float[Any, " L"]
    label: Float[Any, ""]
    variance: Float[Any, " L"]


class Fitted(NamedTuple):
    """The responses `f = V⁻¹(χ−ω)` of a sample for the scores and the values, and the residual of its label."""

    pull_k: Float[Any, "H L"]
    pull_v: Float[Any, " L"]
    loss: Float[Any, ""]


def _apply(matrix: Float[Array, "H H"], fields: Float[Array, "H L"]) -> Float[Array, "H L"]:
    """Their product, as a sum that is fused with what surrounds it."""
    return jnp.sum(matrix[:, :, None] * fields, 1)


def residual(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """The residual of the label after eliminating `z`; the sample minimises half its square."""
    weights = attention.attend(chi)
    missed = sample.label - jnp.sum(weights * sample.values)
    return missed / jnp.sqrt(1.0 + response.v * jnp.sum(sample.variance * weights**2))


def energy(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """The function that the sample minimises, after eliminating `z`."""
    return _energy(residual(attention, chi, sample, response), chi, sample, response)


def _energy(left: Array, chi: Array, sample: Sample, response: Response) -> Float[Array, ""]:
    away = chi - sample.keys
    bent = _apply(response.stiffness, away) / sample.variance
    return left**2 / 2.0 + jnp.sum(away * bent) / 2.0


def fit(attention: AbstractAttention, chi: Array, sample: Sample, response: Response) -> Fitted:
    """The responses at scores that minimise the energy."""
    weights = attention.attend(chi)
    width = 1.0 + response.v * jnp.sum(sample.variance * weights**2)
    left = (sample.label - jnp.sum(weights * sample.values)) / width
    pull = _apply(response.stiffness, chi - sample.keys) / sample.variance
    return Fitted(pull, weights * left, left**2)


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
        value = _energy(left, at.ahead, sample, response)
        there = at.ahead, left, slope, value, at.damping / 10.0
        here = *at[:4], jnp.maximum(10.0 * at.damping, _FIRST_DAMPING)
        lower = value <= at.energy
        chi, left, slope, value, damping = (
            jnp.where(lower, *each) for each in zip(there, here, strict=True)
        )
        away, kept = chi - sample.keys, 1.0 + damping
        loose = _apply(response.k, slope) * sample.variance
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


def _summands(
    attention: Any, scores: Float[Array, " L"], sample: Sample, top: Array
) -> tuple[Float[Array, " L"], ...]:
    """The terms of each token in the sums: `φz`, `γ²φ²` and, for normalised weights, the term of the denominator."""
    own, counted = attention.strengths(scores, top)
    added = own * sample.values, sample.variance * own**2
    return added if counted is None else (*added, counted)


def _residual_of_sums(
    attention: Any, sums: Any, sample: Sample, response: Response, top: Any
) -> Float[Array, "*batch"]:
    """`residual` as a function of the sums, in an array or a tuple."""
    total = attention.total(sums[-1], top)
    return (sample.label * total - sums[0]) / jnp.sqrt(total**2 + response.v * sums[1])


def _expand(
    attention: Any, chi: Array, sample: Sample, response: Response
) -> tuple[Array, Array, LowRank]:
    """The energy, its gradient and its Hessian, from the first two derivatives of each token."""
    scores = jnp.squeeze(chi, 0)
    top, one = attention.log_scale(scores), jnp.ones_like(scores)

    def first(scores: Array) -> tuple[Array, Array]:
        return jax.jvp(
            lambda it: jnp.stack(_summands(attention, it, sample, top)), (scores,), (one,)
        )

    (summands, slopes), (_, bends) = jax.jvp(first, (scores,), (one,))
    sums = jnp.sum(summands, 1)

    def by_sums(sums: Array) -> tuple[Array, tuple[Array, Array]]:
        loss, slope = jax.value_and_grad(
            lambda it: _residual_of_sums(attention, it, sample, response, top) ** 2 / 2.0
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
        sums = len(_summands(attention, one.keys[0], one, jnp.zeros(())))
        rows, core = (jnp.zeros((len(start), sums, each)) for each in (size, sums))
        hessian = LowRank(hessian, rows, core)
    nowhere = Minimum(start, jnp.zeros_like(start), hessian)
    first = _Descent(nowhere, zero + jnp.inf, zero + 8.0 * _FIRST_DAMPING, start)
    return jax.lax.fori_loop(0, 1 + steps, lambda _, at: jax.vmap(step)(at, samples), first).minimum


def search(
    attention: AbstractAttention,
    last: Float[Array, "n H L"],
    samples: Sample,
    response: Response,
) -> Float[Array, "n H L"]:
    """Points near the lowest minima, searched from the last minima, the cavity fields, and moves off them."""
    moves = (_best_moves if attention.has_sums else _moves)(attention, samples, response)
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
    near = jax.lax.cond(anew, lambda: search(attention, last, samples, response), lambda: last)
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


def _moves(
    attention: AbstractAttention, samples: Sample, response: Response
) -> Float[Array, "moves n H L"]:
    """Displacements of the scores from which the lowest minima may be reached."""
    lengths = jnp.asarray(_MOVES)

    def of_one(sample: Sample) -> Float[Array, "moves H L"]:
        def best(directions: Float[Array, "directions H L"]) -> Float[Array, "H L"]:
            """Of several directions, the one that leads lowest, with its length."""
            moves = (lengths[:, None, None, None] * directions).reshape(-1, *sample.keys.shape)
            energies = jax.lax.map(
                lambda move: energy(attention, sample.keys + move, sample, response), moves
            )
            return moves[jnp.argmin(energies)]

        groups = (_comparing if attention.compares_tokens else _separate)(attention, sample)
        heads = jnp.eye(len(sample.keys))[:, None, None, :, None]
        directions = heads * groups[:, :, None]  # those of each head alone
        return jax.lax.map(best, directions.reshape(-1, groups.shape[1], *sample.keys.shape))

    return jax.vmap(of_one, out_axes=1)(samples)


Directions = Float[Array, "groups directions L"]  # of each group one direction is enough


def _separate(attention: AbstractAttention, sample: Sample) -> Directions:
    """Moves for an element-wise attention: one score up or down, or all others."""
    one = jnp.eye(sample.values.size)
    return jnp.concatenate([one, -one, 2.0 * one - 1.0, 1.0 - 2.0 * one])[:, None]


def _comparing(attention: AbstractAttention, sample: Sample) -> Directions:
    """Moves for a normalised attention: a token gains weight, alone or while the heaviest other token loses it."""
    one = jnp.eye(sample.values.size)
    others = jnp.where(one > 0, -jnp.inf, attention.attend(sample.keys))
    heaviest = jax.nn.one_hot(jnp.argmax(others, 1), len(one))
    up = jnp.concatenate([one, (one - heaviest) / 2.0])
    return jnp.stack([up, -up], 1)


class _Before(NamedTuple):
    """A sample before any move: what each token adds to the sums, the largest other token of each, and the scale."""

    summands: tuple[Float[Array, " L"], ...]
    rival: Any
    top: Array


def _best_moves(attention: Any, samples: Sample, response: Response) -> Float[Array, "moves n 1 L"]:
    """Those of `_moves` that lead lowest, all tokens compared at once: replacing a token in the sums costs nothing."""
    length = samples.values.shape[-1]

    def prepare(sample: Sample) -> _Before:
        scores, rival = sample.keys[0], None
        top = attention.log_scale(scores)
        if attention.compares_tokens:
            order = jax.lax.top_k(attention.attend(sample.keys), min(2, length))[1]
            rival = jnp.where(jnp.arange(length) == order[0], order[-1], order[0])
        return _Before(_summands(attention, scores, sample, top), rival, top)

    def try_length(move: Array, sample: Sample, before: _Before) -> Float[Array, "directions L"]:
        """The energy after each move of this length, with its sign."""
        rest, rival, top = before
        scores = sample.keys[0]

        def add(scores: Array) -> tuple[Array, ...]:
            return _summands(attention, scores, sample, top)

        def replaced(rest: Array, added: Array) -> Array:
            return jnp.sum(rest) - rest + added

        # Sums stay apart: in one array XLA would evaluate the kernel again for each of them.
        def energies(sums: tuple[Array, ...], bent: Array) -> Float[Array, " L"]:
            return _residual_of_sums(attention, sums, sample, response, top) ** 2 / 2.0 + bent

        bent = response.stiffness[0, 0] / sample.variance * move**2 / 2.0
        moved = add(scores + move)
        alone = tuple(map(replaced, rest, moved))
        if not attention.compares_tokens:
            others = tuple(map(replaced, add(scores - move), moved))
            both = jnp.full(length, jnp.sum(bent))
            return jnp.stack([energies(alone, bent), energies(others, both)])
        half, half_bent = move / 2.0, bent / 4.0
        shared = tuple(
            replaced(here, gains) + (loses - here)[rival]
            for here, gains, loses in zip(rest, add(scores + half), add(scores - half), strict=True)
        )
        return jnp.stack([energies(alone, bent), energies(shared, half_bent + half_bent[rival])])

    def choose(
        found: Float[Array, "signed directions L"], before: _Before
    ) -> Float[Array, "moves 1 L"]:
        """Of each direction and sign, a few tokens with their best lengths: the least are often all of one kind."""
        found = found.reshape(2, len(_MOVES), 2, length)
        least, at = jnp.min(found, 1), jnp.argmin(found, 1)
        token = jax.lax.top_k(-least, min(_MOST_STARTS, length))[1]  # sign, direction, few
        sign = jnp.array([1.0, -1.0])[:, None, None]
        move = sign * jnp.asarray(_MOVES)[jnp.take_along_axis(at, token, 2)]
        one = jax.nn.one_hot(token, length)
        other = 2.0 * one - 1.0
        if attention.compares_tokens:
            other = (one - jax.nn.one_hot(before.rival[token], length)) / 2.0
        moves = jnp.where(jnp.arange(2)[:, None, None] == 0, one, other) * move[..., None]
        return moves.reshape(-1, 1, length)

    before = jax.vmap(prepare)(samples)
    tried = jax.vmap(try_length, (None, 0, 0))
    lengths = jnp.concatenate([jnp.asarray(_MOVES), -jnp.asarray(_MOVES)])
    found = jax.lax.map(lambda move: tried(move, samples, before), lengths)
    return jax.vmap(choose, (1, 0), 1)(found, before)
