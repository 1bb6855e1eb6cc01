"""One step of the equations of empirical risk minimisation, with its derivatives (sections 6 and 10).

With the score `t = ∂ log G_ε` of the location, Gaussian integration by parts gives for the keys of any task

    M̂ = α E[Σ_ℓ g_ℓ t_ℓᵀ] ,   V̂ = (M̂ Mᵀ − α E[Σ_ℓ g_ℓ ω_ℓᵀ]) Q⁻¹

and for `v`, with `c = 1/(1+Δ²)`, `t = (ω_ε − m c y)/(q − m² c)`,

    m̂_v = α c E[f_ε (y − m t)] ,   V̂_v = −α E[t f_ε] − α E[Σ_{ℓ≠ε} ω f]/q .
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.linalg import solve
from ..tasks import AbstractSamplable
from .proximal import (
    Fitted,
    Sample,
    fit,
    follow,
    is_stationary,
    search,
    stiffness,
)
from .samples import CavitySamples, Locations, Points, cavity_samples, locate
from .unknowns import Layout, Order, Unknowns, pack, updated

_AT_A_TIME = 2048

Problem = tuple[AbstractSamplable, AbstractAttention, tuple[Points, ...]]


class Hats(NamedTuple):
    """`M̂/α`, `Q̂/α`, `V̂/α` of both blocks, and the training error, per randomisation."""

    unknowns: Unknowns
    train: Float[Array, " r"]


class MapStep(NamedTuple):
    """One step of the map with its derivatives in the unknowns and in the ridges, and per randomisation."""

    target: Float[Array, " n"]
    jacobian: Float[Array, "n n"]
    by_ridge: Float[Array, "n 2"]
    replicates: Float[Array, "r n"]
    train: Float[Array, " r"]
    train_slope: Float[Array, " n"]
    hats: Unknowns


def layout_of(task: AbstractSamplable, attention: AbstractAttention) -> Layout:
    """The shape of the unknowns."""
    return Layout(attention.keys, task.features)


def hats(task: AbstractSamplable, unknowns: Unknowns, seen: CavitySamples, fitted: Fitted) -> Hats:
    """The means over the points of each randomisation, for any pulls `f = (χ−ω)/V` of the samples."""
    M, Q, _ = unknowns.keys
    (m,), (q,) = unknowns.values.M[0], unknowns.values.Q[0]
    share = 1.0 / (1.0 + task.noise**2)

    def mean(values: Array) -> Array:
        weights = seen.probability.reshape(*seen.probability.shape, *(1,) * (values.ndim - 3))
        return jnp.mean(jnp.sum(weights * values, 2), 1)

    def outer(left: Float[Array, "r n e p L"], right: Float[Array, "r n e t L"]) -> Array:
        return mean(jnp.sum(left[..., :, None, :] * right[..., None, :, :], -1))

    pull_k, pull_v = fitted.pull_k, fitted.pull_v
    M_hat = outer(pull_k, seen.score)
    drag = M_hat @ M.T - outer(pull_k, seen.sample.keys)
    V_hat = jax.vmap(jax.vmap(partial(solve, Q)))(drag)
    keys = Order(M_hat, outer(pull_k, pull_k), (V_hat + jnp.swapaxes(V_hat, 1, 2)) / 2)
    own = jnp.sum(seen.location * pull_v, -1)
    others = jnp.sum((1.0 - seen.location) * seen.sample.values * pull_v, -1)
    values = Order(
        share * mean(own * (seen.sample.label - m * seen.excess)),
        mean(jnp.sum(pull_v**2, -1)),
        -mean(seen.excess * own) - mean(others) / q,
    )
    one_by_one = Order(*(each[:, None, None] for each in values))
    return Hats(Unknowns(keys, one_by_one), mean(fitted.loss))


@eqx.filter_jit
def search_all(problem: Problem, x: Array, last: Any) -> tuple[Array, ...]:
    """Displacements `χ − ω` of all samples at their lowest minimum; `last` are those that were found before."""
    task, attention, points = problem
    unknowns, found = layout_of(task, attention).unpack(x), []
    response, correlation = unknowns.response, unknowns.correlation
    for at, group in enumerate(points):
        seen = cavity_samples(task, unknowns, group, locate(task, correlation, group))
        start = seen.sample.keys if last is None else seen.sample.keys + last[at]

        def one(each: Any) -> Array:
            chi, sample = each
            return search(attention, chi, sample, response) - sample.keys

        found.append(_over_samples(one, (start, seen.sample), seen.sample.label.shape))
    return tuple(found)


def _over_samples(function: Any, trees: Any, shape: tuple[int, ...]) -> Any:
    """A function of one sample over all, some at a time."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), trees)
    mapped = jax.lax.map(function, flat, batch_size=_AT_A_TIME)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), mapped)


@eqx.filter_jit
def map_step(
    problem: Problem, x: Array, last: tuple[Array, ...], numbers: Any
) -> tuple[tuple[Array, ...], MapStep]:
    """New displacements near the last, and the step of the map from them; `numbers` are `α` and the two ridges."""
    task, attention, points = problem
    alpha, ridges = numbers[0], jnp.stack(numbers[1:])
    layout = layout_of(task, attention)
    correlation = layout.unpack(x).correlation
    locations = tuple(locate(task, correlation, group) for group in points)

    def target_of(hats: Unknowns, ridges: Array) -> Array:
        return pack(updated(jax.tree.map(lambda hat: alpha * hat, hats), ridges))

    def pooled(x: Array) -> tuple[Array, Any]:
        displaced, total = mean_hats(problem, layout.unpack(x), locations, last)
        means = jax.tree.map(lambda each: jnp.mean(each, 0), total)
        return jnp.append(target_of(means.unknowns, ridges), means.train), (displaced, total, means)

    jacobian, (displaced, total, means) = jax.jacfwd(pooled, has_aux=True)(x)
    step = MapStep(
        target=target_of(means.unknowns, ridges),
        jacobian=jacobian[:-1],
        by_ridge=jax.jacfwd(partial(target_of, means.unknowns))(ridges),
        replicates=jax.vmap(target_of, (0, None))(total.unknowns, ridges),
        train=total.train,
        train_slope=jacobian[-1],
        hats=means.unknowns,
    )
    return displaced, step


def mean_hats(
    problem: Problem,
    unknowns: Unknowns,
    locations: tuple[Locations, ...],
    last: tuple[Array, ...],
) -> tuple[tuple[Array, ...], Hats]:
    """Displacements and hats, the lengths of the law averaged."""
    task, attention, points = problem
    response = unknowns.response

    def one(start: Array, sample: Sample) -> tuple[Array, Fitted]:
        chi = follow(attention, start, sample, response)
        return chi, fit(attention, chi, sample, response)

    displaced, parts = [], []
    for group, where, displacement in zip(points, locations, last, strict=True):
        seen = cavity_samples(task, unknowns, group, where)
        over_samples = jax.vmap(jax.vmap(jax.vmap(one)))
        chi, fitted = over_samples(seen.sample.keys + displacement, seen.sample)
        displaced.append(jax.lax.stop_gradient(chi - seen.sample.keys))
        scale = partial(jnp.multiply, group.weight)
        parts.append(jax.tree.map(scale, hats(task, unknowns, seen, fitted)))
    return tuple(displaced), jax.tree.map(lambda *each: sum(each), *parts)


@eqx.filter_jit
def stability(
    problem: Problem, x: Array, last: tuple[Array, ...], alpha: Array
) -> tuple[Float[Array, "n n"], Array]:
    """The matrix of `δ → α V E[Σ (∂g/∂ω) δ (∂g/∂ω)ᵀ] V` on block-diagonal `δ`, and the share of unresolved samples.

    Replica symmetry is unstable where an eigenvalue of the first exceeds one; a sample is unresolved if it is not at a
    stationary minimum.
    """
    task, attention, points = problem
    unknowns = layout_of(task, attention).unpack(x)
    response, correlation = unknowns.response, unknowns.correlation
    growth, unresolved = jnp.zeros(()), jnp.zeros(())

    def one(each: Any) -> tuple[Array, Array]:
        chi, sample = each[0] + each[1].keys, each[1]
        found = is_stationary(attention, chi, sample, response)
        return stiffness(attention, chi, sample, response), 1.0 - found

    for group, displacement in zip(points, last, strict=True):
        seen = cavity_samples(task, unknowns, group, locate(task, correlation, group))
        shape = seen.sample.label.shape
        stiff, missed = _over_samples(one, (displacement, seen.sample), shape)
        weights = group.weight * seen.probability / np.prod(shape[:2])
        growth = growth + jnp.einsum("rne,rneab->ab", weights, stiff)
        unresolved += jnp.sum(weights * missed)
    V = unknowns.keys.V
    both = jax.scipy.linalg.block_diag(jnp.kron(V, V), unknowns.values.V**2)
    return alpha * both @ growth, unresolved
