"""Moves of the scores of a sample from which the descents to its lowest minimum begin (sections 6 and 6.1)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from .energy import Sample, energy, residual_of_sums, summands
from .unknowns import Response

# Moves of scores that are tried before any descent: with weak ridges the best one is long.
_MOVES = np.array([0.7, 1.5, 3.0, 5.0, 8.0, 13.0, 22.0, 40.0])
_MOST_STARTS = 6  # tokens from whose moves a descent begins, for each kind of move


def all_moves(
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


def best_moves(attention: Any, samples: Sample, response: Response) -> Float[Array, "moves n 1 L"]:
    """Those of `all_moves` that lead lowest, all tokens compared at once: replacing one in the sums costs nothing."""
    length = samples.values.shape[-1]

    def prepare(sample: Sample) -> _Before:
        scores, rival = sample.keys[0], None
        top = attention.log_scale(scores)
        if attention.compares_tokens:
            order = jax.lax.top_k(attention.attend(sample.keys), min(2, length))[1]
            rival = jnp.where(jnp.arange(length) == order[0], order[-1], order[0])
        return _Before(summands(attention, scores, sample, top), rival, top)

    def try_length(move: Array, sample: Sample, before: _Before) -> Float[Array, "directions L"]:
        """The energy after each move of this length, with its sign."""
        rest, rival, top = before
        scores = sample.keys[0]

        def add(scores: Array) -> tuple[Array, ...]:
            return summands(attention, scores, sample, top)

        def replaced(rest: Array, added: Array) -> Array:
            return jnp.sum(rest) - rest + added

        # Sums stay apart: in one array XLA would evaluate the kernel again for each of them.
        def energies(sums: tuple[Array, ...], bent: Array) -> Float[Array, " L"]:
            return residual_of_sums(attention, sums, sample, response, top) ** 2 / 2.0 + bent

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
