"""Empirical risk minimisation on a dataset: the experiment of section 8.

minimise  Σ_μ ½(y_μ − σ(χ_μ)·z_μ)² + (r_k/2)|k|² + (r_v/2)|v|²,    χ = X k/√D,  z = X v/√D
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._check import real, refuse
from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..learning import Ridge
from ..learning.scope import learner
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from ..population.risk import population_risk
from ..tasks import AbstractTask
from .data import MOST_SEQUENCES, AbstractDataset, Block, longest_of, stream, whole
from .lbfgs import Watch, minimise

# Of the gradient, relative to the norm of the labels, and of the objective, relative. A gradient summed in single
# precision is known to some 1e-6.
TOLERANCE = {"float32": 1e-5, "float64": 1e-6}
_SLACK = {"float32": 1e-7, "float64": 1e-12}
_MOST_ITERATIONS = 2000
_SMALL = 0.1  # standard deviation of each entry of a random start
_SHARPEST = 2.0  # a start at the teacher is no sharper
_SAME = 1e-8  # objectives that differ by less, relative, are one minimum


class ERMFit(eqx.Module):
    """What was learned from a dataset; `objective` is per dimension, as in `ERMAsymptotics`.

    `gradient_norm` is relative to the norm of the labels. `start` tells from where this minimum was found, and `rivals`
    are what the other starts led to, of higher or equal objective.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        "test_risk",
        "train_error",
        "objective",
        "overlaps",
        "iterations",
        "result",
        "converged",
    )
    k: Float[np.ndarray, " D"]
    v: Float[np.ndarray, " D"]
    task: AbstractTask
    attention: AbstractAttention
    ridge: Ridge
    overlaps: Overlaps
    train_error: float
    objective: float
    gradient_norm: float
    iterations: int
    evaluations: int
    alpha: float
    start: str = eqx.field(static=True)
    result: Result = eqx.field(static=True)
    rivals: tuple["ERMFit", ...] = ()

    @property
    def converged(self) -> bool:
        """Whether this is a minimum."""
        return self.result == "converged"

    @property
    def test_risk(self) -> Estimate:
        """The population risk at the measured overlaps: no test set is needed (section 4)."""
        return population_risk(self.task, self.attention, self.overlaps)


def fit_erm(
    data: AbstractDataset,
    attention: AbstractAttention,
    ridge: Ridge,
    key: PRNGKeyArray | None = None,
    starts: Mapping[str, Float[Any, "2 D"]] | None = None,
    tolerance: float | None = None,
    most_iterations: int = _MOST_ITERATIONS,
    watch: Watch | None = None,
) -> ERMFit:
    """The lowest minimum that L-BFGS finds from `starts`, pairs `k, v` by name.

    If not given, they are small random vectors (from `key`) and the teacher. `watch` is told the iteration and the norm
    of the gradient, relative to that of the labels; an interrupt returns the best so far.
    """
    suited = compiled_for(data, learner(attention))
    tolerance = real("tolerance", tolerance or TOLERANCE[data.precision], above=0.0)
    most_iterations = whole("most_iterations", most_iterations, 1, 2**31)
    given = default_starts(data, key) if starts is None else _read_starts(data, starts)
    known = data.traceable(), as_arrays(suited), as_arrays(ridge)
    scale = float(np.sqrt(_label_power(known[0])))

    def evaluate(points: Array) -> tuple[Array, Array]:
        return objective(*known, points)

    descent = minimise(
        evaluate,
        jnp.stack(list(given.values())).reshape(len(given), -1),
        tolerance * scale,
        _SLACK[data.precision],
        most_iterations,
        None if watch is None else lambda step, norm: watch(step, norm / scale),
    )
    fits = [_fit(data, attention, ridge, name, descent, at, scale) for at, name in enumerate(given)]
    return _best(fits)


def default_starts(
    data: AbstractDataset, key: PRNGKeyArray | None = None
) -> dict[str, Float[Array, "2 D"]]:
    """Next to nothing known, and nearly all."""
    key = jax.random.key(0) if key is None else key
    sharpness = float(getattr(data.task, "shift", getattr(data.task, "sharpness", 1.0)))
    scales = jnp.array([[min(sharpness, _SHARPEST)], [1.0]])
    small = _SMALL * jax.random.normal(key, data.teacher.shape)
    return {"random": small, "teacher": scales * data.teacher}


def _read_starts(
    data: AbstractDataset, starts: Mapping[str, Float[Any, "2 D"]]
) -> dict[str, Float[Array, "2 D"]]:
    if not starts:
        raise refuse("starts", "{}", "one start or more")
    read = {name: np.asarray(start, float) for name, start in starts.items()}
    for name, start in read.items():
        if start.shape != (2, data.dim) or not np.all(np.isfinite(start)):
            raise refuse(f"starts[{name!r}]", f"of shape {start.shape}", "two finite vectors k, v")
    return {name: jnp.asarray(start) for name, start in read.items()}


def compiled_for(data: AbstractDataset, attention: AbstractAttention) -> AbstractAttention:
    """The attention, if it can be applied to sequences of the lengths that share a group."""
    exact = all(
        np.all(np.isin(np.asarray(group.lengths), (0, longest_of(group)))) for group in data.groups
    )
    if exact or attention.takes_mask:
        return attention
    allowed = "one that takes a mask where there are so many lengths that sequences are padded"
    raise refuse("attention", attention.name, allowed)


def sequence_losses(
    attention: AbstractAttention, block: Block, fields: Float[Array, "s L starts 2"]
) -> Float[Array, "s starts"]:
    """`½(y − σ(χ)·z)²` of every sequence and start."""

    def one(fields: Float[Array, "L P"], label: Array, mask: Array) -> Array:
        *keys, value = fields.T
        weights = attention.attend(jnp.stack(keys), mask if attention.takes_mask else None)
        return 0.5 * (label - weights @ value) ** 2

    over_starts = jax.vmap(one, in_axes=(1, None, None))
    return jax.vmap(over_starts)(fields, block.labels, block.mask)


@eqx.filter_jit
def objective(
    data: AbstractDataset, attention: AbstractAttention, ridge: Ridge, points: Float[Array, "S P"]
) -> tuple[Float[Array, " S"], Float[Array, "S P"]]:
    """The objective and its gradient at several pairs `k, v`, in one pass over the data."""
    vectors = points.reshape(-1, data.dim)

    def step(carry: Any, block: Block, _: None) -> tuple[Any, None]:
        value, gradient = carry
        fields = block.fields(vectors)

        def total(fields: Array) -> tuple[Array, Array]:
            parts = sequence_losses(attention, block, fields.reshape(*fields.shape[:2], -1, 2))
            return jnp.sum(parts), jnp.sum(parts, 0)

        slope, parts = jax.grad(total, has_aux=True)(fields)
        return (value + parts, gradient + block.transposed(slope)), None

    zero = jnp.zeros(len(points)), jnp.zeros(vectors.shape)
    (value, gradient), _ = data.scan(step, zero)
    stiffness = jnp.repeat(jnp.stack([ridge.k, ridge.v]), data.dim)
    value += 0.5 * jnp.sum(stiffness * points**2, 1)
    return value, gradient.reshape(points.shape) + stiffness * points


@eqx.filter_jit
def _label_power(data: AbstractDataset) -> Float[Array, ""]:
    """`Σ y²`."""

    def step(total: Array, block: Block, _: None) -> tuple[Array, None]:
        return total + jnp.sum(block.labels**2), None

    return data.scan(step, jnp.zeros(()))[0]


def _fit(
    data: AbstractDataset,
    attention: AbstractAttention,
    ridge: Ridge,
    start: str,
    descent: Any,
    at: int,
    scale: float,
) -> ERMFit:
    vectors = np.asarray(descent.points[at]).reshape(2, -1)
    overlaps = data.overlaps(vectors)
    value = float(descent.values[at])
    penalty = 0.5 * data.dim * (float(ridge.k) * overlaps.q_kk + float(ridge.v) * overlaps.q_vv)
    return ERMFit(
        k=vectors[0],
        v=vectors[1],
        task=data.task,
        attention=attention,
        ridge=ridge,
        overlaps=overlaps,
        train_error=2.0 * (value - penalty) / data.n,
        objective=value / data.dim,
        gradient_norm=float(descent.gradient_norms[at]) / scale,
        iterations=int(descent.iterations[at]),
        evaluations=descent.evaluations,
        alpha=data.alpha,
        start=start,
        result=descent.results[at],
    )


def _best(fits: list[ERMFit]) -> ERMFit:
    """The lowest objective; of equal ones, one that converged."""
    lowest = min(fit.objective for fit in fits)

    def rank(fit: ERMFit) -> tuple[bool, bool, float]:
        higher = fit.objective > lowest + _SAME * abs(lowest)
        return higher, not fit.converged, fit.objective

    best, *others = sorted(fits, key=rank)
    return replace(best, rivals=tuple(others))


def measure_risk(data: AbstractDataset, fit: ERMFit, key: PRNGKeyArray, n: int) -> Estimate:
    """The mean loss on `n` new sequences of the same teacher, with its standard error: a check of `fit.test_risk`."""
    drawn = stream(data.task, key, whole("n", n, 2, MOST_SEQUENCES), data.dim, data.precision)
    drawn = eqx.tree_at(lambda it: it.teacher, drawn, data.teacher)
    vectors = jnp.stack([fit.k, fit.v])
    suited = as_arrays(compiled_for(drawn, fit.attention))
    total, squares = map(float, _moments(drawn.traceable(), suited, vectors))
    mean = total / n
    return Estimate(mean, np.sqrt(max(squares / n - mean**2, 0.0) / (n - 1)))


@eqx.filter_jit
def _moments(
    data: AbstractDataset, attention: AbstractAttention, vectors: Float[Array, "2 D"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sums of the squared errors and of their squares."""

    def step(carry: tuple[Array, Array], block: Block, _: None) -> tuple[Any, None]:
        squared = 2.0 * sequence_losses(attention, block, block.fields(vectors)[..., None, :])
        return (carry[0] + jnp.sum(squared), carry[1] + jnp.sum(squared**2)), None

    return data.scan(step, (jnp.zeros(()), jnp.zeros(())))[0]
