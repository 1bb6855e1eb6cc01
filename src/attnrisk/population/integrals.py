"""`A` and `B` at many places, for searches that go on side by side.

A search is a generator: it yields the integrals that it wants next, is sent their values, and returns what it found.
What several searches want at a time is one compiled call.
"""

from collections.abc import Generator, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..tasks import AbstractTask
from .correlations import Correlations
from .lanes import alike, lanes_for, over_lanes, shape_of, stacked
from .risk import Plan, profile

LENGTHS, BIASES = 20, 25  # of a scan, at most

_T = TypeVar("_T")


class Known(NamedTuple):
    """All that an integral depends on but its place, its numbers as arrays; see `known_of`."""

    task: AbstractTask
    attention: AbstractAttention
    plan: Plan


def known_of(task: AbstractTask, attention: AbstractAttention, plan: Plan) -> Known:
    """The same, as arrays, so that compiled code is shared between their values."""

    def convert(leaf: Any) -> Any:
        return np.asarray(leaf, float) if eqx.is_array_like(leaf) else leaf

    return jax.tree.map(convert, Known(task, attention, plan))


class Integrals(NamedTuple):
    """`A` and `B`, wanted at pairs of a length of `k` and a bias."""

    known: Known
    places: Sequence[tuple[float, float]]


Search: TypeAlias = Generator[Integrals, list[Correlations], _T]


def followed(searches: Sequence[Search[_T]]) -> list[_T]:
    """What each of the searches finds."""
    found: dict[int, _T] = {}
    sent: dict[int, Any] = dict.fromkeys(range(len(searches)))
    stacks: Stacks = {}
    while sent:
        wanted: dict[int, Integrals] = {}
        for index, values in sent.items():
            try:
                wanted[index] = searches[index].send(values)
            except StopIteration as end:
                found[index] = end.value
        sent = dict(zip(wanted, integrated([*wanted.values()], stacks), strict=True))
    return [found[index] for index in range(len(searches))]


class _Stack(NamedTuple):
    """What the lanes of a call know, and from whom."""

    members: list[Known]
    lanes: Known


Stacks: TypeAlias = dict[Hashable, _Stack]


def integrated(wanted: Sequence[Integrals], stacks: Stacks) -> list[list[Correlations]]:
    """The values, with `stacks` that the next call can use; a first call compiles, even for no places at all."""
    found: dict[int, list[Correlations]] = {}
    for some in alike([each.known for each in wanted]):
        stack = _stack([wanted[index].known for index in some], stacks)
        one = stack.members[0]
        room = LENGTHS * (BIASES if one.attention.free_bias else 1)
        counts = np.zeros(lanes_for(one), int)
        places = np.zeros((counts.size, room, 2))
        for lane, index in enumerate(some):
            counts[lane] = len(wanted[index].places)
            places[lane, : counts[lane]] = np.reshape(wanted[index].places, (-1, 2))
        values = np.asarray(_in_lanes(stack.lanes, places, counts))
        for lane, index in enumerate(some):
            found[index] = [Correlations(*pair) for pair in values[lane, : counts[lane]]]
    return [found[index] for index in range(len(wanted))]


def _stack(members: list[Known], stacks: Stacks) -> _Stack:
    """The last one of this shape if it is of the same members, or a new one."""
    shape = shape_of(members[0])
    last = stacks.get(shape)
    if last is None or [*map(id, members)] != [*map(id, last.members)]:
        stacks[shape] = last = _Stack(members, stacked(members))
    return last


@eqx.filter_jit
def _in_lanes(known: Known, places: Any, counts: Any) -> Float[Array, "lanes room ..."]:
    return over_lanes(_at_places, known, places, counts)


def _at_places(known: Known, places: Any, count: Any) -> Float[Array, "room ..."]:
    """`A` and `B` at the first `count` of the places; from Python each would be a call longer than its integral."""
    task, attention, plan = known

    def at(place: Any) -> Any:
        return jnp.stack(profile(task, attention.with_bias(place[1]), place[0], plan))

    def step(i: Any, found: Any) -> Any:
        return found.at[i].set(at(places[i]))

    # A value, or one per randomisation.
    each = () if plan.points is None else plan.points[0].shape[:1]
    return jax.lax.fori_loop(0, count, step, jnp.zeros((places.shape[0], 2, *each)))
