"""Empirical risk minimisation on a dataset: the experiment of section 8.

minimise  Σ_μ ½(y_μ − σ(χ_μ + b)·z_μ)² + (r_k/2)|k|² + (r_v/2)|v|² + (r_b/2) D b²,    χ = X k/√D,  z = X v/√D

A student is an array of `P` vectors, its keys first and the value vector `v` last; `r_k` acts on all keys. A bias that
is free is learned too. As a parameter it is `√D b`, like the entry of `k` along a direction in which all tokens agree,
so that steps of `k` and `b` are of one size.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._check import numbers, of_type, prng_key, real, refuse, whole
from .._results import AbstractResult, ErrorKind, Estimate
from ..attention import AbstractAttention
from ..learning import Ridge
from ..learning.scope import check_noise, join_bias, learner, split_bias
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from ..population.risk import population_risk
from ..tasks import AbstractTask
from .data import (
    MOST_SEQUENCES,
    AbstractDataset,
    Block,
    check_data,
    check_memory,
    longest_of,
    stream,
)
from .lbfgs import MEMORY, Watch, minimise

# Of the gradient, relative to the norm of the labels, and of the objective, relative. A gradient summed in single
# precision is known to some 1e-6.
TOLERANCE = {"float32": 1e-5, "float64": 1e-6}
_ROUNDING = {"float32": 1e-7, "float64": 1e-12}
_STEPS = 2000
_SMALL = 0.1  # standard deviation of each entry of a random start
_LONGEST_KEY = 2.0  # of a start at the teacher, in units of |k*|
_SAME = 1e-8  # objectives that differ by less, relative, are one minimum


class AbstractFit(AbstractResult):
    """A student learned from a dataset: its vectors, keys first and the value vector last."""

    vectors: eqx.AbstractVar[Float[np.ndarray, "P D"]]

    @property
    def k(self) -> Float[np.ndarray, " D"]:
        """The key vector of the first head."""
        return self.vectors[0]

    @property
    def v(self) -> Float[np.ndarray, " D"]:
        """The value vector."""
        return self.vectors[-1]


class ERMFit(AbstractFit):
    """A minimum of the regularised empirical risk.

    `vectors` has shape `(H+1, D)`, keys first. `objective` is per dimension, as in `ERMAsymptotics`. `gradient_norm` is
    relative to the norm of the labels. `start` names the initialisation that led here; `rivals` are the results of the
    other initialisations, of higher or equal objective.
    """

    recorded: ClassVar = (
        *("test_risk", "train_error", "objective", "overlaps"),
        *("iterations", "result", "converged"),
    )
    vectors: Float[np.ndarray, "P D"]
    task: AbstractTask
    attention: AbstractAttention  # with the bias that was learned
    ridge: Ridge
    overlaps: Overlaps
    train_error: float
    objective: float
    gradient_norm: float
    iterations: int
    evaluations: int
    alpha: float
    start: str = eqx.field(static=True)
    rivals: tuple["ERMFit", ...] = ()

    @property
    def test_risk(self) -> Estimate:
        """Population risk at the measured overlaps, without a test set (section 4)."""
        return population_risk(self.task, self.attention, self.overlaps)


def fit_erm(
    data: AbstractDataset,
    attention: AbstractAttention,
    ridge: Ridge,
    key: PRNGKeyArray | None = None,
    starts: Mapping[str, Float[Any, "P D"]] | None = None,
    tolerance: float | None = None,
    steps: int = _STEPS,
    watch: Watch | None = None,
) -> ERMFit:
    """Empirical risk minimisation on a dataset, with L-BFGS from several initialisations.

    An interrupt (Ctrl-C) returns the best point so far.

    Args:
        data: The dataset, from `sample` or `stream`.
        attention: The attention, with `H` heads; a free bias of one head is learned, starting from the given one.
        ridge: Ridge penalties on the keys, on `v` and on a free bias.
        key: JAX random key of the random initialisation; `jax.random.key(0)` if not given.
        starts: Initial vectors of shape `(H+1, D)` by name; if not given, `random` (small vectors) and `teacher` (the
            true directions).
        tolerance: Norm of the gradient, relative to the norm of the labels, at which to stop. By default it
            depends on the precision.
        steps: Largest number of iterations; 2000 by default.
        watch: A function that is called with the iteration and the relative norm of the gradient.

    Returns:
        The `ERMFit` of lowest objective.

    Examples:
        >>> data = ar.sample(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(0), n=1200, dim=300)
        >>> fit = ar.fit_erm(data, ar.Softmax(), ar.Ridge(k=1.0, v=1.0))
        >>> print(f"{fit.test_risk:.3f}", fit.k.shape, fit.result)
        0.608 (300,) converged
    """
    attention = learner(attention)
    check_padding(check_data(data), attention)
    check_noise(data.task)
    of_type("ridge", ridge, Ridge, "of type Ridge, such as Ridge(k=1.0, v=1.0)")
    tolerance = TOLERANCE[data.precision] if tolerance is None else tolerance
    tolerance, steps = real("tolerance", tolerance, above=0.0), whole("steps", steps, 1, 2**31)
    if starts is None:
        starts = default_starts(data, attention, key)
    if not of_type("starts", starts, Mapping, "vectors by name"):
        raise refuse("starts", "{}", "one start or more")
    points = [
        check_start(f"starts[{name!r}]", data, attention, start) for name, start in starts.items()
    ]
    memory = 2 * MEMORY * sum(point.nbytes for point in points)
    check_memory(memory, f"L-BFGS from {len(points)} starts, dim = {data.dim}")
    bare, first = split_bias(attention)
    arrays = data.traceable(), as_arrays(bare), as_arrays(ridge)
    scale, root = float(jnp.sqrt(_label_power(arrays[0]))), np.sqrt(data.dim)
    shape, size = (-1, *points[0].shape), points[0].size
    vectors = np.stack(points).reshape(len(points), -1)
    biases = np.tile(root * first, (len(points), 1))
    found = minimise(
        lambda flat: _flat_objective(*arrays, flat, shape),
        jnp.asarray(np.concatenate([vectors, biases], 1)),
        tolerance * scale,
        _ROUNDING[data.precision],
        steps,
        None if watch is None else lambda step, norm: watch(step, norm / scale),
    )
    fits = []
    for at, start in enumerate(starts):
        flat, value = np.asarray(found.points[at]), float(found.values[at])
        vectors, bias = flat[:size].reshape(shape)[0], flat[size:] / root
        penalty = 0.5 * float(np.sum(np.asarray(_stiffness(ridge, vectors)) * vectors**2))
        penalty += 0.5 * float(ridge.b) * data.dim * float(bias @ bias)
        fit = ERMFit(
            vectors=vectors,
            task=data.task,
            attention=join_bias(bare, bias),
            ridge=ridge,
            overlaps=data.overlaps(vectors),
            train_error=2.0 * (value - penalty) / data.n,
            objective=value / data.dim,
            gradient_norm=float(found.gradient_norms[at]) / scale,
            iterations=int(found.iterations[at]),
            evaluations=found.evaluations,
            alpha=data.alpha,
            start=start,
            result=found.results[at],
        )
        fits.append(fit)
    lowest = min(fit.objective for fit in fits)

    def rank(fit: ERMFit) -> tuple[bool, bool, float]:
        is_higher = fit.objective > lowest + _SAME * abs(lowest)
        return is_higher, not fit.converged, fit.objective

    best, *others = sorted(fits, key=rank)
    return replace(best, rivals=tuple(others))


def default_starts(
    data: AbstractDataset, attention: AbstractAttention, key: PRNGKeyArray | None = None
) -> dict[str, Float[np.ndarray, "P D"]]:
    """Uninformed and informed initialisation.

    `random` are small vectors; in `teacher`, the keys lie along the teacher's directions, further ones opposite,
    and `v = v*`. Keys beyond twice their number stay small and random, since identical keys would stay identical.
    """
    key = jax.random.key(0) if key is None else prng_key("key", key)
    small = _SMALL * np.asarray(jax.random.normal(key, (attention.keys + 1, data.dim)))
    *features, value = np.asarray(data.teacher, float)
    directions = np.stack([*features, *np.negative(features)])[: attention.keys]
    near = small.copy()
    near[: len(directions)] = min(float(data.task.strength), _LONGEST_KEY) * directions
    near[-1] = value
    return {"random": small, "teacher": near}


def check_start(
    name: str, data: AbstractDataset, attention: AbstractAttention, start: Float[Any, "P D"]
) -> Float[Array, "P D"]:
    """The initial vectors; refused if their shape does not fit the attention."""
    allowed = f"{attention.keys + 1} finite vectors of {data.dim} numbers, keys first, v last"
    vectors = numbers(name, start, allowed)
    if vectors.shape != (attention.keys + 1, data.dim):
        raise refuse(name, f"of shape {vectors.shape}", allowed)
    return jnp.asarray(vectors)


def check_padding(data: AbstractDataset, attention: AbstractAttention) -> None:
    """Refuse an attention without a mask for padded sequences."""
    exact = all(
        np.all(np.isin(np.asarray(group.lengths), (0, longest_of(group)))) for group in data.groups
    )
    if not exact and not attention.takes_mask:
        allowed = "one that takes a mask where there are so many lengths that sequences are padded"
        raise refuse("attention", attention.name, allowed)


def sequence_losses(
    attention: AbstractAttention,
    block: Block,
    points: Float[Array, "S P D"],
    biases: Float[Array, "S B"],
) -> Float[Array, "s S"]:
    """`½(y − σ(χ + b)·z)²` of every sequence at every point; one bias for each key, or none at all."""
    shifts = jnp.pad(biases, ((0, 0), (0, points.shape[1] - biases.shape[1])))
    fields = block.fields(points.reshape(-1, points.shape[-1]))
    fields = fields.reshape(*fields.shape[:2], *points.shape[:2]) + shifts

    def one(fields: Float[Array, "L P"], label: Array, mask: Array) -> Array:
        *keys, value = fields.T
        weights = attention.attend(jnp.stack(keys), mask if attention.takes_mask else None)
        return 0.5 * (label - weights @ value) ** 2

    over_points = jax.vmap(one, in_axes=(1, None, None))
    return jax.vmap(over_points)(fields, block.labels, block.mask)


@eqx.filter_jit
def objective(
    data: AbstractDataset,
    attention: AbstractAttention,
    ridge: Ridge,
    points: Float[Array, "S P D"],
    biases: Float[Array, "S B"] | None = None,
) -> tuple[Float[Array, " S"], tuple[Float[Array, "S P D"], Float[Array, "S B"]]]:
    """The objective and its gradient at several points, in one pass over the data.

    `biases` are added to the scores before the bias of the attention.
    """
    at = points, jnp.zeros((len(points), 0)) if biases is None else biases

    def step(sums: Any, block: Block, _: None) -> tuple[Any, None]:
        def total(at: tuple[Array, Array]) -> tuple[Array, Array]:
            losses = sequence_losses(attention, block, *at)
            return jnp.sum(losses), jnp.sum(losses, 0)

        slopes, losses = jax.grad(total, has_aux=True)(at)
        return jax.tree.map(jnp.add, sums, (losses, slopes)), None

    (value, slopes), _ = data.scan(step, (jnp.zeros(len(points)), jax.tree.map(jnp.zeros_like, at)))
    stiffness = _stiffness(ridge, points[0]), ridge.b * data.dim
    for stiff, each in zip(stiffness, at, strict=True):
        value += 0.5 * jnp.sum(stiff * each**2, tuple(range(1, each.ndim)))
    return value, tuple(
        slope + stiff * each for slope, stiff, each in zip(slopes, stiffness, at, strict=True)
    )


@eqx.filter_jit
def _flat_objective(
    data: AbstractDataset,
    attention: AbstractAttention,
    ridge: Ridge,
    flat: Float[Array, "S n"],
    shape: tuple[int, ...],
) -> tuple[Float[Array, " S"], Float[Array, "S n"]]:
    """The objective and its gradient at vectors of this shape and `√D` times the biases, in one array."""
    size, root = math.prod(shape[1:]), np.sqrt(data.dim)
    vectors, biases = flat[:, :size].reshape(shape), flat[:, size:] / root
    value, (by_vectors, by_biases) = objective(data, attention, ridge, vectors, biases)
    return value, jnp.concatenate([by_vectors.reshape(-1, size), by_biases / root], 1)


def _stiffness(ridge: Ridge, vectors: Float[Any, "P D"]) -> Float[Array, "P 1"]:
    """`r_k` for each key and `r_v` for the value vector."""
    return jnp.stack([*(len(vectors) - 1) * [jnp.asarray(ridge.k)], jnp.asarray(ridge.v)])[:, None]


@eqx.filter_jit
def _label_power(data: AbstractDataset) -> Float[Array, ""]:
    """`Σ y²`."""

    def step(total: Array, block: Block, _: None) -> tuple[Array, None]:
        return total + jnp.sum(block.labels**2), None

    return data.scan(step, jnp.zeros(()))[0]


def measure_risk(data: AbstractDataset, fit: ERMFit, key: PRNGKeyArray, n: int) -> Estimate:
    """Mean loss on new sequences of the same teacher: an independent check of `fit.test_risk`.

    Args:
        data: The dataset of the fit.
        fit: The fit.
        key: JAX random key of the new sequences.
        n: Number of new sequences.

    Returns:
        The mean loss with its standard error, an `Estimate` of a scalar.

    Examples:
        >>> data = ar.sample(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(0), n=120, dim=30)
        >>> fit = ar.fit_erm(data, ar.Softmax(), ar.Ridge(k=1.0, v=1.0))
        >>> measured = ar.measure_risk(data, fit, jax.random.key(1), n=10_000)
        >>> abs(float(measured) - float(fit.test_risk)) < 4 * float(measured.error)
        True
    """
    of_type("fit", fit, ERMFit, "what fit_erm returns")
    check_start("fit", check_data(data), fit.attention, fit.vectors)
    drawn = stream(data.task, key, whole("n", n, 2, MOST_SEQUENCES), data.dim, data.precision)
    drawn = eqx.tree_at(lambda it: it.teacher, drawn, data.teacher)
    check_padding(drawn, fit.attention)
    sums = _loss_sums(drawn.traceable(), as_arrays(fit.attention), jnp.asarray(fit.vectors))
    mean, square = (float(total) / n for total in sums)
    error = np.sqrt(max(square - mean**2, 0.0) / (n - 1))
    return Estimate(mean, error, ErrorKind.STANDARD)


@eqx.filter_jit
def _loss_sums(
    data: AbstractDataset, attention: AbstractAttention, vectors: Float[Array, "P D"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sums of the squared errors and of their squares."""

    def step(carry: tuple[Array, Array], block: Block, _: None) -> tuple[Any, None]:
        squared = 2.0 * sequence_losses(attention, block, vectors[None], jnp.zeros((1, 0)))
        return (carry[0] + jnp.sum(squared), carry[1] + jnp.sum(squared**2)), None

    return data.scan(step, (jnp.zeros(()), jnp.zeros(())))[0]
