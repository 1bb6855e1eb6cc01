"""Stochastic gradient descent on a dataset, in the time of the gradient flow of section 5.

A step of size `dt` moves each vector `w` by `−dt D ∂_w E`, where `E` is the mean of `(y − σ(χ)·z)²` over a mini-batch.
As `dt → 0` and `D dt/batch → 0` it follows the flow at `time = steps · dt`.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._check import LARGEST, prng_key, real, whole
from .._results import Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from ..population.plan import check_problem
from .data import AbstractDataset, check_data
from .erm import AbstractFit, check_padding, check_start, default_starts, sequence_losses

Watch = Callable[[int, int], None]


class SGDPath(AbstractFit):
    """Overlaps along a path of stochastic gradient descent (leading axis: times), and the final vectors, keys first."""

    recorded: ClassVar[tuple[str, ...]] = ("steps", "result", "converged")
    times: Float[np.ndarray, " records"]
    overlaps: Overlaps
    vectors: Float[np.ndarray, "P D"]
    steps: int
    result: Result = eqx.field(static=True)


def fit_sgd(
    data: AbstractDataset,
    attention: AbstractAttention,
    step: float,
    batch: int,
    epochs: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    start: Float[Any, "P D"] | None = None,
    key: PRNGKeyArray | None = None,
    records: int = 50,
    watch: Watch | None = None,
) -> SGDPath:
    """Stochastic gradient descent on a dataset, in mini-batches of random order.

    Divergence and an interrupt (Ctrl-C) return the last valid point.

    Args:
        data: The dataset. Data from `stream` with one epoch are new at every step.
        attention: The attention, with `H` heads; its bias is fixed.
        step: Step size `dt`, in the time of gradient flow.
        batch: Number of sequences in a mini-batch.
        epochs: Number of passes over the data.
        momentum: Averages gradients over `1/(1 − momentum)` steps; the time scale does not change.
        weight_decay: A value of `2 r/α` acts as a ridge penalty `r` on all vectors.
        start: Initial vectors of shape `(H+1, D)`; small and random if not given.
        key: JAX random key of the initial vectors and of the order; `jax.random.key(0)` if not given.
        records: Approximate number `T` of times at which the overlaps are measured.
        watch: A function that is called there with the number of steps done and the total number.

    Returns:
        An `SGDPath`: `times` of shape `(T,)`, overlaps with a leading axis of times, and the final vectors.

    Examples:
        >>> data = ar.sample(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(0), n=120, dim=30)
        >>> path = ar.fit_sgd(data, ar.Softmax(), step=0.1, batch=120, epochs=50)
        >>> path.steps, path.vectors.shape
        (50, (2, 30))
    """
    check_problem(check_data(data).task, attention)
    step = real("step", step, above=0.0)
    momentum = real("momentum", momentum, minimum=0.0, below=1.0)
    rates = as_arrays((step, momentum, real("weight_decay", weight_decay, minimum=0.0)))
    batch, epochs = whole("batch", batch, 1, data.n), whole("epochs", epochs, 1, 2**31)
    records = whole("records", records, 1, 2**31)
    key = jax.random.key(0) if key is None else prng_key("key", key)
    check_padding(data, attention)
    if start is None:
        start = default_starts(data, attention, key)["random"]
    point = check_start("start", data, attention, start)
    arrays = data.traceable(), as_arrays(attention), rates
    per_epoch = max(1, data.n // batch)
    total = epochs * per_epoch
    state, path = (point, jnp.zeros_like(point)), [(0, data.overlaps(point))]
    result = Result.FINISHED
    try:
        for rows in _batches(data, per_epoch, epochs, key, -(-total // records)):
            ahead = _descend(*arrays, state, rows)
            if not float(jnp.sum(ahead[0] ** 2)) <= LARGEST * data.dim:
                result = Result.DIVERGED
                break
            state = ahead
            path.append((path[-1][0] + len(rows[0]), data.overlaps(state[0])))
            if watch is not None:
                watch(path[-1][0], total)
    except KeyboardInterrupt:
        result = Result.INTERRUPTED
    steps, overlaps = zip(*path, strict=True)
    stacked = jax.tree.map(lambda *each: np.array(each), *overlaps)
    return SGDPath(
        times=step * np.array(steps),
        overlaps=stacked,
        vectors=np.asarray(state[0]),
        steps=steps[-1],
        result=result,
    )


def _batches(
    data: AbstractDataset, steps: int, epochs: int, key: PRNGKeyArray, most: int
) -> Iterator[tuple[Int[Array, "steps b"], ...]]:
    """Rows of each group for up to `most` steps at a time, of `steps` in an epoch.

    Every group has its share in each step; one with fewer sequences than steps repeats them.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    rows = [np.flatnonzero(np.asarray(group.lengths)) for group in data.groups]
    for _ in range(epochs):
        orders = [np.resize(rng.permutation(own), (steps, -(-own.size // steps))) for own in rows]
        for first in range(0, steps, most):
            yield tuple(jnp.asarray(order[first : first + most]) for order in orders)


@eqx.filter_jit
def _descend(
    data: AbstractDataset,
    attention: AbstractAttention,
    rates: tuple[Array, Array, Array],
    state: tuple[Array, Array],
    rows: tuple[Int[Array, "steps b"], ...],
) -> tuple[Array, Array]:
    """The point and the average of gradients after a step for each row of indices."""
    step, momentum, weight_decay = rates
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
