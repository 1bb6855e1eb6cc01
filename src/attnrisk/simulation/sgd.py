"""Stochastic gradient descent on a dataset, in the time of the gradient flow of section 5.

A step of size `dt` moves each vector `w` by `−dt D ∂_w E`, where `E` is the mean of `(y − σ(χ)·z)²` over a mini-batch.
As `dt → 0` and `D dt/batch → 0` it follows the flow at `time = steps · dt`. A bias that is free moves by `−dt ∂_b E`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._check import LARGEST, prng_key, real, refuse, whole
from .._results import Result
from ..attention import AbstractAttention
from ..learning.scope import join_bias, split_bias
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from ..population.plan import check_problem
from .data import AbstractDataset, check_data
from .erm import AbstractFit, check_padding, check_start, default_starts, sequence_losses

Watch = Callable[[int, int], None]
# Vectors and biases, and the same of the average.
_State = tuple[tuple[Array, Array], tuple[Array, Array]]


class SGDPath(AbstractFit):
    """Overlaps along a path of stochastic gradient descent (leading axis: times), and the final vectors, keys first.

    `biases` are the learned biases along the path; `attention` has the final one. With early stopping, `validation` is
    the mean of `(y − σ(χ)·z)²` over the held-out sequences, and vectors and attention are those of its lowest value, at
    the record `best`.
    """

    recorded: ClassVar[tuple[str, ...]] = ("steps", "result", "converged")
    times: Float[np.ndarray, " records"]
    overlaps: Overlaps
    biases: Float[np.ndarray, "records B"]
    attention: AbstractAttention
    vectors: Float[np.ndarray, "P D"]
    steps: int
    validation: Float[np.ndarray, " records"]
    best: int


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
    held_out: float = 0.0,
    patience: int = 10,
) -> SGDPath:
    """Stochastic gradient descent on a dataset, in mini-batches of random order.

    Divergence and an interrupt (Ctrl-C) return the last valid point.

    Args:
        data: The dataset. Data from `stream` with one epoch are new at every step.
        attention: The attention, with `H` heads; a free bias of one head is learned, starting from the given one.
        step: Step size `dt`, in the time of gradient flow.
        batch: Number of sequences in a mini-batch.
        epochs: Number of passes over the data.
        momentum: Averages gradients over `1/(1 − momentum)` steps; the time scale does not change.
        weight_decay: A value of `2 r/α` acts as a ridge penalty `r` on all vectors.
        start: Initial vectors of shape `(H+1, D)`; small and random if not given.
        key: JAX random key of the initial vectors and of the order; `jax.random.key(0)` if not given.
        records: Number of times after the start at which the overlaps are measured, evenly spaced; at most one a step.
        watch: A function that is called there with the number of steps done and the total number.
        held_out: Fraction of the sequences held out for early stopping; 0 for none.
        patience: The path ends if the loss on the held-out sequences has not decreased for this number of records,
            and the vectors are those of its lowest value.

    Returns:
        An `SGDPath` with `times` of shape `(records + 1,)`, overlaps with a leading axis of times, and the final
        vectors.

    Examples:
        >>> data = ar.sample(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(0), n=120, dim=30)
        >>> path = ar.fit_sgd(data, ar.Softmax(), step=0.1, batch=120, epochs=50)
        >>> path.steps, path.vectors.shape
        (50, (2, 30))
    """
    check_problem(check_data(data).task, attention)
    attention = attention.as_one_head()
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
    bare, first = split_bias(attention)
    bias, arrays = jnp.asarray(first), (data.traceable(), as_arrays(bare), rates)
    held_out = float(real("held_out", held_out, minimum=0.0, below=1.0))
    patience = whole("patience", patience, 1, 2**31)
    kept, held = _split(data, held_out, key)
    shares = [len(each) / max(sum(map(len, held)), 1) for each in held]
    per_epoch = max(1, sum(len(each) for each in kept) // batch)
    total = epochs * per_epoch
    ends = set(np.linspace(0, total, min(records, total) + 1).round().astype(int)[1:].tolist())
    state = (point, bias), (jnp.zeros_like(point), jnp.zeros_like(bias))
    path = [(0, data.overlaps(point), np.asarray(bias))]
    losses = [float(_loss(*arrays[:2], state[0], held, shares))] if held_out else []
    result, best, ended = Result.FINISHED, 0, state[0]
    try:
        for rows in _batches(kept, per_epoch, epochs, key, ends):
            ahead = _descend(*arrays, state, rows)
            if not float(jnp.sum(ahead[0][0] ** 2)) <= LARGEST * data.dim:
                result = Result.DIVERGED
                break
            state = ahead
            point, bias = state[0]
            path.append((path[-1][0] + len(rows[0]), data.overlaps(point), np.asarray(bias)))
            if held_out:
                losses.append(float(_loss(*arrays[:2], state[0], held, shares)))
            if not held_out or losses[-1] < losses[best]:
                best, ended = len(path) - 1, state[0]
            if watch is not None:
                watch(path[-1][0], total)
            if len(path) - 1 - best >= patience:
                result = Result.STOPPED_EARLY
                break
    except KeyboardInterrupt:
        result = Result.INTERRUPTED
    steps, overlaps, biases = zip(*path, strict=True)
    stacked = jax.tree.map(lambda *each: np.array(each), *overlaps)
    return SGDPath(
        times=step * np.array(steps),
        overlaps=stacked,
        biases=np.array(biases),
        attention=join_bias(bare, biases[best]),
        vectors=np.asarray(ended[0]),
        steps=steps[-1],
        result=result,
        validation=np.array(losses),
        best=best,
    )


def _split(
    data: AbstractDataset, share: float, key: PRNGKeyArray
) -> tuple[list[Int[np.ndarray, " n"]], list[Int[np.ndarray, " n"]]]:
    """Rows of each group to learn from, and those held out."""
    rng = np.random.default_rng([1, *np.asarray(jax.random.key_data(key)).tolist()])
    rows = [np.flatnonzero(np.asarray(group.lengths)) for group in data.groups]
    if share == 0.0:
        return rows, [row[:0] for row in rows]
    counts = [min(max(1, round(share * row.size)), row.size - 1) for row in rows]
    if min(counts) < 1:
        raise refuse("held_out", share, "0 where a group of equal lengths has one sequence")
    parts = [np.split(rng.permutation(row), [n]) for row, n in zip(rows, counts, strict=True)]
    return [np.sort(kept) for _, kept in parts], [held for held, _ in parts]


def _batches(
    rows: list[Int[np.ndarray, " n"]], steps: int, epochs: int, key: PRNGKeyArray, ends: set[int]
) -> Iterator[tuple[Int[Array, "steps b"], ...]]:
    """Rows of each group for the steps up to each of the `ends`, with `steps` in an epoch, across epochs.

    Every group has its share in each step; one with fewer sequences than steps repeats them.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    waiting: list[list[np.ndarray]] = [[] for _ in rows]
    for epoch in range(epochs):
        orders = [np.resize(rng.permutation(own), (steps, -(-own.size // steps))) for own in rows]
        for at in range(steps):
            for group, order in zip(waiting, orders, strict=True):
                group.append(order[at])
            if epoch * steps + at + 1 in ends:
                yield tuple(jnp.asarray(np.stack(group)) for group in waiting)
                waiting = [[] for _ in rows]


@eqx.filter_jit
def _loss(
    data: AbstractDataset,
    attention: AbstractAttention,
    at: tuple[Array, Array],
    rows: Sequence[Int[Any, " n"]],
    shares: Sequence[Any],
) -> Float[Array, ""]:
    """The mean of `(y − σ(χ)·z)²` over some rows of each group, each with this share in the mean."""
    total = jnp.zeros(())
    for group, own, share in zip(data.groups, rows, shares, strict=True):
        picked = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[own], group)  # noqa: B023
        losses = sequence_losses(attention, data.open(picked), *(each[None] for each in at))
        total += 2.0 * share * jnp.mean(losses)
    return total


@eqx.filter_jit
def _descend(
    data: AbstractDataset,
    attention: AbstractAttention,
    rates: tuple[Array, Array, Array],
    state: _State,
    rows: tuple[Int[Array, "steps b"], ...],
) -> _State:
    """The point and the average of gradients after a step for each row of indices."""
    step, momentum, weight_decay = rates
    counts = [jnp.sum(group.lengths > 0) for group in data.groups]
    shares = [count / sum(counts) for count in counts]
    slope = jax.grad(partial(_loss, data, attention))

    def one(state: _State, chosen: tuple[Array, ...]) -> tuple[_State, None]:
        at, average = state
        by_point, by_bias = slope(at, chosen, shares)
        slopes = data.dim * by_point + weight_decay * at[0], by_bias
        average = jax.tree.map(
            lambda old, new: momentum * old + (1.0 - momentum) * new, average, slopes
        )
        return (jax.tree.map(lambda at, by: at - step * by, at, average), average), None

    return jax.lax.scan(one, state, rows)[0]
