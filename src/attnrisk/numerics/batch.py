"""Several problems of one shape in one compiled call.

A call always has room for the same number of problems, so that results are bitwise independent of the batch.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

BATCH = 8
_MOST_BYTES = (
    2**25
)  # in all problems of a call: copies of large tables would cost more than they save


def _capacity(problem: Any) -> int:
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(problem) if eqx.is_array(leaf))
    return max(1, min(BATCH, _MOST_BYTES // max(1, size)))


def group_by_shape(problems: Sequence[Any]) -> Iterator[list[int]]:
    """The places in the list of problems that fit into one call."""
    groups: dict[Hashable, list[int]] = {}
    for index, problem in enumerate(problems):
        leaves, structure = jax.tree.flatten(problem)
        shapes = tuple(leaf.shape if eqx.is_array(leaf) else leaf for leaf in leaves)
        groups.setdefault((structure, shapes), []).append(index)
    for group in groups.values():
        size = _capacity(problems[group[0]])
        yield from (group[start : start + size] for start in range(0, len(group), size))


def map_batch(function: Callable[[Any], Any], problems: Sequence[Any]) -> list[Any]:
    """A function of one problem at each of them, in one call; they are of one shape, and few enough for it.

    On a CPU a loop, since arrays that fill a cache for one problem leave it for eight; on an accelerator `vmap`.
    """
    size = _capacity(problems[0])
    padded = [*problems, *[problems[-1]] * (size - len(problems))]
    split = [eqx.partition(problem, eqx.is_array) for problem in padded]
    arrays = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *(a for a, _ in split))
    found = _mapped(function, arrays, split[0][1], jnp.asarray(len(problems)))
    found = jax.tree.map(np.asarray, found)
    return [jax.tree.map(lambda leaf: leaf[at], found) for at in range(len(problems))]  # noqa: B023


@eqx.filter_jit
def _mapped(function: Callable[[Any], Any], arrays: Any, rest: Any, count: Any) -> Any:
    def one(arrays: Any) -> Any:
        return function(eqx.combine(arrays, rest))

    if jax.default_backend() != "cpu":
        return jax.vmap(one)(arrays)
    size = jax.tree.leaves(arrays)[0].shape[0]
    first = jax.tree.map(lambda leaf: leaf[0], arrays)
    empty = jax.tree.map(
        lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), jax.eval_shape(one, first)
    )

    def step(at: Any, found: Any) -> Any:
        result = one(jax.tree.map(lambda leaf: leaf[at], arrays))
        return jax.tree.map(lambda leaves, leaf: leaves.at[at].set(leaf), found, result)

    return jax.lax.fori_loop(0, count, step, empty)
