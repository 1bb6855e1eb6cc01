"""Several problems of one shape in one compiled call.

A call always has room for the same number of problems, so that results are bitwise independent of the batch.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

BATCH = 8
_MOST_BYTES = (
    2**25
)  # in all problems of a call: copies of large tables would cost more than they save


def map_batch(function: Callable[[Any], Any], problems: Sequence[Any]) -> list[Any]:
    """A function of one problem at each of them: those of one shape in one call, as many as fit.

    On a CPU a loop, since arrays that fill a cache for one problem leave it for eight; on an accelerator `vmap`.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, problem in enumerate(problems):
        leaves, structure = jax.tree.flatten(problem)
        shapes = tuple(leaf.shape if eqx.is_array(leaf) else leaf for leaf in leaves)
        groups.setdefault((structure, shapes), []).append(index)
    found: dict[int, Any] = {}
    for group in groups.values():
        arrays = [leaf for leaf in jax.tree.leaves(problems[group[0]]) if eqx.is_array(leaf)]
        needed = sum(leaf.nbytes for leaf in arrays)
        size = max(1, min(BATCH, _MOST_BYTES // max(1, needed)))
        for start in range(0, len(group), size):
            some = group[start : start + size]
            padded = [problems[at] for at in some] + [problems[some[-1]]] * (size - len(some))
            split = [eqx.partition(problem, eqx.is_array) for problem in padded]
            stacked = jax.tree.map(
                lambda *leaves: jax.device_put(np.stack(leaves)), *(each for each, _ in split)
            )
            values = _mapped(function, stacked, split[0][1], jnp.asarray(len(some)))
            values = jax.tree.map(np.asarray, values)
            for place, index in enumerate(some):
                found[index] = jax.tree.map(lambda leaf: leaf[place], values)  # noqa: B023
    return [found[index] for index in range(len(problems))]


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
