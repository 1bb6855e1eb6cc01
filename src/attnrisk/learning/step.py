"""One step of the six equations of empirical risk minimisation, with its derivatives (section 6)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .channel import Hats, Located, Order, Student, hats, locate, sequences
from .proximal import Fitted, Sample, fit, follow, is_stationary, search, stiffness

_AT_A_TIME = 2048


class Moved(NamedTuple):
    """One step of the map with its derivatives in the unknowns and in the ridges, and per randomisation."""

    target: Float[Array, "6"]
    jacobian: Float[Array, "6 6"]
    by_ridge: Float[Array, "6 2"]
    spread: Float[Array, "r 6"]
    train: Float[Array, " r"]
    train_slope: Float[Array, "6"]
    hats: Hats


def student_at(x: Float[Array, "6"]) -> Student:
    """The six unknowns by name."""
    return Student(Order(*x[:3]), Order(*x[3:]))


@eqx.filter_jit
def search_all(known: Any, x: Array, last: Any) -> tuple[Array, ...]:
    """Displacements `χ − ω` of all samples at their lowest minimum; `last` are those that were known before."""
    task, attention, points = known
    student, found = student_at(x), []
    for at, group in enumerate(points):
        seen = sequences(task, student, group, locate(task, student.k, group))
        start = seen.sample.scores if last is None else seen.sample.scores + last[at]

        def one(each: Any) -> Array:
            chi, sample = each
            return search(attention, chi, sample, student.response) - sample.scores

        found.append(_over_samples(one, (start, seen.sample), seen.sample.label.shape))
    return tuple(found)


def _over_samples(function: Any, trees: Any, shape: tuple[int, ...]) -> Any:
    """A function of one sample over all, some at a time."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), trees)
    mapped = jax.lax.map(function, flat, batch_size=_AT_A_TIME)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), mapped)


@eqx.filter_jit
def move(known: Any, x: Array, last: tuple[Array, ...], numbers: Any) -> tuple[Any, Moved]:
    """New displacements near the last, and the step of the map from them."""
    alpha, *ridge = numbers
    located = tuple(locate(known[0], student_at(x).k, group) for group in known[2])

    def pooled(x: Array) -> tuple[Array, Any]:
        displaced, total = mean_hats(known, student_at(x), located, last)
        flat = jnp.stack([jnp.mean(part) for part in total])
        target = new_orders(alpha * flat[:6], jnp.stack(ridge))
        return jnp.append(target, flat[6]), (displaced, total)

    jacobian, (displaced, total) = jax.jacfwd(pooled, has_aux=True)(x)
    means = alpha * jnp.stack([jnp.mean(part) for part in total[:6]])
    by_ridge = jax.jacfwd(lambda ridge: new_orders(means, ridge))(jnp.stack(ridge))
    spread = jax.vmap(lambda *each: new_orders(alpha * jnp.stack(each), jnp.stack(ridge)))(
        *total[:6]
    )
    target = new_orders(means, jnp.stack(ridge))
    moved = Moved(target, jacobian[:6], by_ridge, spread, total.train, jacobian[6], total)
    return displaced, moved


def mean_hats(
    known: Any, student: Student, located: tuple[Located, ...], last: tuple[Array, ...]
) -> tuple[Any, Hats]:
    """Displacements and hats, the lengths of the law averaged."""
    task, attention, points = known
    displaced, parts = [], []
    for group, where, displacement in zip(points, located, last, strict=True):
        seen = sequences(task, student, group, where)

        def one(start: Array, sample: Sample) -> tuple[Array, Fitted]:
            chi = follow(attention, start, sample, student.response)
            return chi, fit(attention, chi, sample, student.response)

        over_samples = jax.vmap(jax.vmap(jax.vmap(one)))
        chi, fitted = over_samples(seen.sample.scores + displacement, seen.sample)
        displaced.append(jax.lax.stop_gradient(chi - seen.sample.scores))
        parts.append(
            jax.tree.map(
                lambda mean: group.weight * mean,  # noqa: B023
                hats(task, student, seen, fitted),
            )
        )
    return tuple(displaced), jax.tree.map(lambda *each: sum(each), *parts)


@eqx.filter_jit
def doubts(known: Any, x: Array, last: tuple[Array, ...], alpha: Array) -> tuple[Array, Array]:
    """The largest eigenvalue of `α V_a² E[Σ(∂f_a/∂ω_b)²]`, above which replica symmetry is unstable if it exceeds
    one; and the share of samples that are not at a stationary minimum."""
    task, attention, points = known
    student, growth, lost = student_at(x), jnp.zeros((2, 2)), jnp.zeros(())
    for group, displacement in zip(points, last, strict=True):
        seen = sequences(task, student, group, locate(task, student.k, group))

        def one(each: Any) -> tuple[Array, Array]:
            chi, sample = each[0] + each[1].scores, each[1]
            found = is_stationary(attention, chi, sample, student.response)
            return stiffness(attention, chi, sample, student.response), 1.0 - found

        shape = seen.sample.label.shape
        stiff, missed = _over_samples(one, (displacement, seen.sample), shape)
        weights = group.weight * seen.probability / np.prod(shape[:2])
        growth += jnp.einsum("rne,rneab->ab", weights, stiff)
        lost += jnp.sum(weights * missed)
    growth = alpha * jnp.array([student.k.V, student.v.V])[:, None] ** 2 * growth
    trace, determinant = jnp.trace(growth), jnp.linalg.det(growth)
    return trace / 2 + jnp.sqrt(jnp.maximum(trace**2 / 4 - determinant, 0.0)), lost


def new_orders(hat: Float[Array, "6"], ridge: Float[Array, "2"]) -> Float[Array, "6"]:
    """`m = m̂/(r+V̂)`, `q = (m̂² + q̂)/(r+V̂)²`, `V = 1/(r+V̂)` for both directions."""
    m, q, v = hat.reshape(2, 3).T
    stiff = ridge + v
    return jnp.stack([m / stiff, (m**2 + q) / stiff**2, 1.0 / stiff], 1).ravel()
