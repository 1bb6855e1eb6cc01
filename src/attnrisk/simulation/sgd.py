"""Stochastic gradient descent on a dataset, in the time of the gradient flow of section 5.

A step of size `dt` moves `k` by `−dt D ∂_k E`, where `E` is the mean of `(y − σ(χ)·z)²` over a mini-batch, and likewise
`v`. As `dt → 0` and `D dt/batch → 0` it follows the flow at `time = steps · dt`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._check import LARGEST, real, refuse
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from .data import AbstractDataset, whole
from .erm import compiled_for, default_starts, sequence_losses

Told = Callable[[int, int], None]


class SGDPath(eqx.Module):
    """Overlaps along a path, and where it ended. `result`: `finished`, `diverged` or `interrupted`."""

    times: Float[np.ndarray, " records"]
    overlaps: Overlaps
    k: Float[np.ndarray, " D"]
    v: Float[np.ndarray, " D"]
    steps: int
    result: str = eqx.field(static=True)


def fit_sgd(
    data: AbstractDataset,
    attention: AbstractAttention,
    step: float,
    batch: int,
    epochs: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    start: Float[Any, "2 D"] | None = None,
    key: PRNGKeyArray | None = None,
    records: int = 50,
    watch: Told | None = None,
) -> SGDPath:
    """Go through the data in mini-batches, in a new random order each epoch.

    Data from `stream` with one epoch are new at every step. `momentum` averages gradients over `1/(1 − momentum)` steps
    and leaves the time as it is; `weight_decay = 2 r/α` acts as a ridge `r`. `start` is a pair `k, v`, small and random
    if not given; `watch` is told the steps done and all of them.
    """
    step = real("step", step, above=0.0)
    momentum = real("momentum", momentum, minimum=0.0)
    if momentum >= 1.0:
        raise refuse("momentum", momentum, "a number ≥ 0 and < 1")
    rates = as_arrays((step, momentum, real("weight_decay", weight_decay, minimum=0.0)))
    batch, epochs = whole("batch", batch, 1, data.n), whole("epochs", epochs, 1, 2**31)
    records = whole("records", records, 1, 2**31)
    key = jax.random.key(0) if key is None else key
    point = default_starts(data, key)["random"] if start is None else jnp.asarray(start, float)
    if point.shape != (2, data.dim) or not np.all(np.isfinite(point)):
        raise refuse("start", f"of shape {point.shape}", "two finite vectors k, v")
    known = data.traceable(), as_arrays(compiled_for(data, attention)), rates
    total = epochs * _steps_of(data, batch)
    state, path, result = (point, jnp.zeros_like(point)), [(0, data.overlaps(point))], "finished"
    try:
        for rows in _pieces(data, batch, epochs, key, -(-total // records)):
            ahead = _descend(known, state, rows)
            if not float(jnp.sum(ahead[0] ** 2)) <= LARGEST * data.dim:
                result = "diverged"
                break
            state = ahead
            path.append((path[-1][0] + len(rows[0]), data.overlaps(state[0])))
            if watch is not None:
                watch(path[-1][0], total)
    except KeyboardInterrupt:
        result = "interrupted"
    return _path(path, np.asarray(state[0]), step, result)


def _path(
    path: list[tuple[int, Overlaps]], vectors: np.ndarray, step: float, result: str
) -> SGDPath:
    steps, overlaps = zip(*path, strict=True)
    stacked = jax.tree.map(lambda *each: np.array(each), *overlaps)
    k, v = vectors
    return SGDPath(step * np.array(steps), stacked, k, v, steps[-1], result=result)


def _steps_of(data: AbstractDataset, batch: int) -> int:
    """Steps of an epoch."""
    return max(1, data.n // batch)


def _pieces(
    data: AbstractDataset, batch: int, epochs: int, key: PRNGKeyArray, most: int
) -> Iterator[tuple[Int[Array, "steps b"], ...]]:
    """Rows of each group for some steps at a time. Every group has its share in each step, if need be by turns."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    steps = _steps_of(data, batch)
    rows = [np.flatnonzero(np.asarray(group.lengths)) for group in data.groups]
    for _ in range(epochs):
        orders = [np.resize(rng.permutation(own), (steps, -(-own.size // steps))) for own in rows]
        for first in range(0, steps, most):
            yield tuple(jnp.asarray(order[first : first + most]) for order in orders)


@eqx.filter_jit
def _descend(
    known: tuple[AbstractDataset, AbstractAttention, Any],
    state: tuple[Array, Array],
    rows: tuple[Int[Array, "steps b"], ...],
) -> tuple[Array, Array]:
    """The point and the average of gradients after a step for each row of indices."""
    data, attention, (step, momentum, weight_decay) = known
    counts = [jnp.sum(group.lengths > 0) for group in data.groups]
    shares = [count / sum(counts) for count in counts]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), data.groups)

    def gradient(point: Array, chosen: tuple[Array, ...]) -> Array:
        total = jnp.zeros_like(point)
        for group, share, own in zip(flat, shares, chosen, strict=True):
            block = data.open(jax.tree.map(lambda leaf: leaf[own], group))  # noqa: B023

            def loss(fields: Array) -> Array:
                losses = sequence_losses(attention, block, fields[..., None, :])  # noqa: B023
                return 2.0 * share * jnp.mean(losses)  # noqa: B023

            total += block.transposed(jax.grad(loss)(block.fields(point)))
        return data.dim * total

    def one(state: tuple[Array, Array], chosen: tuple[Array, ...]) -> tuple[Any, None]:
        point, average = state
        slope = gradient(point, chosen) + weight_decay * point
        average = momentum * average + (1.0 - momentum) * slope
        return (point - step * average, average), None

    return jax.lax.scan(one, state, rows)[0]
