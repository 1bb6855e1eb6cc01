"""Several problems of one shape in one compiled call, each a lane of `jax.vmap`.

A call has as many lanes for any number of problems, so that an answer does not depend on its company, to the last
digit.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

LANES = 8
_MOST_BYTES = 2**25  # in all lanes: copies of large tables would cost more than they save


def shape_of(problem: Any) -> Hashable:
    """Problems that agree in this can be lanes of one call."""
    leaves, structure = jax.tree.flatten(problem)
    return structure, tuple(leaf.shape if _is_array(leaf) else leaf for leaf in leaves)


def lanes_for(problem: Any) -> int:
    """Lanes of a call for problems of this shape."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(problem) if _is_array(leaf))
    return max(1, min(LANES, _MOST_BYTES // max(1, size)))


def alike(problems: Sequence[Any]) -> Iterator[list[int]]:
    """Their places in the list, by calls."""
    groups: dict[Hashable, list[int]] = {}
    for index, problem in enumerate(problems):
        groups.setdefault(shape_of(problem), []).append(index)
    for group in groups.values():
        lanes = lanes_for(problems[group[0]])
        yield from (group[start : start + lanes] for start in range(0, len(group), lanes))


def stacked(problems: Sequence[Any]) -> Any:
    """Their arrays along a new first axis, the last problem repeated in lanes that are left; all else is the same."""
    left = lanes_for(problems[0]) - len(problems)

    def together(*leaves: Any) -> Any:
        return jax.device_put(np.stack(leaves)) if _is_array(leaves[0]) else leaves[0]

    return jax.tree.map(together, *problems, *[problems[-1]] * left)


def over_lanes(function: Callable[..., Array], problems: Any, *more: Any) -> Array:
    """A function of one problem, and of as many more arguments, at each of them.

    For integrals whose arrays fill a cache: on a CPU eight of them side by side take several times as long as one after
    another, so that there `vmap` makes a loop.
    """
    arrays, rest = eqx.partition(problems, eqx.is_array)

    def at(arrays: Any, *more: Any) -> Array:
        return function(eqx.combine(arrays, rest), *more)

    if jax.default_backend() == "cpu":
        at = _one_after_another(at)
    return jax.vmap(at)(arrays, *more)


def _one_after_another(function: Callable[..., Array]) -> Callable[..., Array]:
    """The same function, whose `vmap` over all its arguments is a loop."""
    looped = jax.custom_batching.custom_vmap(function)

    @looped.def_vmap
    def _(_: int, __: Any, *lanes: Any) -> tuple[Array, bool]:
        return jax.lax.map(lambda lane: function(*lane), lanes), True

    return looped


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array)
