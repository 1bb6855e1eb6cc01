"""One step of the equations of empirical risk minimisation, with its derivatives (sections 6 and 10).

With the score `t = ∂ log G_ε` of the location, Gaussian integration by parts gives for the keys of any task

    M̂ = α E[Σ_ℓ g_ℓ t_ℓᵀ] ,   V̂ = (M̂ Mᵀ − α E[Σ_ℓ g_ℓ ω_ℓᵀ]) Q⁻¹

and for `v`, with `c = 1/(1+Δ²)`, `t = (ω_ε − m c y)/(q − m² c)`,

    m̂_v = α c E[f_ε (y − m t)] ,   V̂_v = −α E[t f_ε] − α E[Σ_{ℓ≠ε} ω f]/q .

Only what is done for each sample is compiled; means and small matrices are NumPy's.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag

from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..tasks import AbstractSamplable
from .proximal import Fitted, Minimum, Sample, minimise, respond, weight_slopes
from .samples import CavitySamples, Points, cavity_samples, locate
from .unknowns import Layout, Order, Unknowns, pack, updated

# Of a difference, relative to an unknown, or to the second number where the unknown is smaller.
_STEP, _SMALL = 1e-5, 1e-2
_STATIONARY = 1e-4  # a gradient, in units of one over √V_k
_THREADS = 2  # compiled code runs outside the interpreter's lock

# Displacements `χ − ω` of the samples: for each randomisation, for each length of the law.
Displacements = list[tuple[Float[np.ndarray, "ne H L"], ...]]
_T = TypeVar("_T")


class Hats(NamedTuple):
    """`M̂/α`, `Q̂/α`, `V̂/α` of both blocks, and the training error."""

    unknowns: Unknowns
    train: Any


class MapStep(NamedTuple):
    """One step of the map with its derivatives in the unknowns and in the ridges, and per randomisation."""

    target: Float[np.ndarray, " n"]
    jacobian: Float[np.ndarray, "n n"]
    by_ridge: Float[np.ndarray, "n 2"]
    replicates: Float[np.ndarray, "r n"]
    train: Float[np.ndarray, " r"]
    train_slope: Float[np.ndarray, " n"]
    hats: Unknowns


class Averages(NamedTuple):
    """One attention on one task, and points for each randomisation and length over which the equations average."""

    task: AbstractSamplable
    attention: AbstractAttention
    points: Sequence[tuple[Points, ...]]

    @property
    def layout(self) -> Layout:
        """The shape of the unknowns."""
        return Layout(self.attention.keys, self.task.features)


def hats(task: AbstractSamplable, unknowns: Unknowns, seen: CavitySamples, fitted: Fitted) -> Hats:
    """The means over some sequences, for any pulls `f = (χ−ω)/V` of the samples."""
    M, Q, _ = unknowns.keys
    m, q = (each[:, 0] for each in unknowns.values[:2])
    weights = seen.probability / seen.probability.shape[1]

    def outer(left: Any, right: Any) -> Float[np.ndarray, "m p t"]:
        return np.einsum("mnepl,mnetl->mpt", left, right)

    pull_k, pull_v = weights[..., None, None] * fitted.pull_k, fitted.pull_v
    M_hat = outer(pull_k, seen.score)
    drag = M_hat @ M.swapaxes(1, 2) - outer(pull_k, seen.sample.keys)
    V_hat = drag @ np.linalg.pinv(Q, hermitian=True)
    keys = Order(M_hat, outer(pull_k, fitted.pull_k), (V_hat + V_hat.swapaxes(1, 2)) / 2)
    own = np.sum(seen.location * pull_v, -1)
    others = np.sum((1.0 - seen.location) * seen.sample.values * pull_v, -1)
    terms = (
        own * (seen.sample.label - m[..., None] * seen.excess) / (1.0 + float(task.noise) ** 2),
        np.sum(pull_v**2, -1),
        -seen.excess * own - others / q[..., None],
        fitted.loss,
    )
    *values, train = (np.sum(weights * each, (1, 2)) for each in terms)
    return Hats(Unknowns(keys, Order(*(each[:, None, None] for each in values))), train)


def map_step(
    averages: Averages,
    x: Float[np.ndarray, " n"],
    numbers: tuple[float, float, float],
    last: Displacements | None = None,
    anew: bool = True,
) -> tuple[Displacements, MapStep]:
    """The displacements of all samples, and the step of the map from them; `numbers` are `α` and the two ridges.

    All minima are searched for `anew`, or followed from the `last`. Derivatives are differences, in which the minima
    move to first order.
    """
    alpha, *ridges = numbers
    nearby = probes(averages.layout, x)
    unknowns = averages.layout.unpack(nearby)
    found = _per_randomisation(averages, last, partial(_hats_of, averages, unknowns, anew))
    total: Hats = jax.tree.map(lambda *each: np.stack(each), *(hats for _, hats in found))
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(total)):
        raise FloatingPointError("the equations overflow")

    def target(hats: Hats, ridges: Any) -> Float[np.ndarray, "*batch n"]:
        return pack(updated(jax.tree.map(lambda hat: alpha * hat, hats.unknowns), ridges))

    pooled = jax.tree.map(lambda each: np.mean(each, 0), total)
    here = jax.tree.map(lambda each: each[0], pooled)
    targets, steps = target(pooled, ridges), np.diag(nearby[1:] - x)
    by_ridge = [target(here, ridges + 1e-30j * unit).imag / 1e-30 for unit in np.eye(2)]
    step = MapStep(
        target=targets[0],
        jacobian=((targets[1:] - targets[0]) / steps[:, None]).T,
        by_ridge=np.stack(by_ridge, 1),
        replicates=target(jax.tree.map(lambda each: each[:, 0], total), ridges),
        train=total.train[:, 0],
        train_slope=(pooled.train[1:] - pooled.train[0]) / steps,
        hats=here.unknowns,
    )
    return [displaced for displaced, _ in found], step


def probes(layout: Layout, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "m n"]:
    """The unknowns, and each of them moved by a little: an overlap towards zero, where it stays valid."""
    steps = _STEP * np.maximum(np.abs(x), _SMALL)
    for M, Q, V in layout.places:
        rows, columns = np.tril_indices(len(Q), -1)
        inward = np.concatenate([M.ravel(), Q[rows, columns], V[rows, columns]])
        steps[inward] *= np.where(x[inward] > 0, -1.0, 1.0)
    return np.concatenate([x[None], x + np.diag(steps)])


def _per_randomisation(
    averages: Averages, last: Displacements | None, function: Callable[..., _T]
) -> list[_T]:
    """A function of the points of each randomisation and the displacements there; two run at a time."""
    near = [[None] * len(some) for some in averages.points] if last is None else last
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, averages.points, near))


def _hats_of(
    averages: Averages, unknowns: Unknowns, anew: bool, points: tuple[Points, ...], last: Any
) -> tuple[tuple[np.ndarray, ...], Hats]:
    """The displacements of one randomisation at the first unknowns, and its hats at all of them."""
    task, attention = averages.task, as_arrays(averages.attention)
    responses, displaced, parts = unknowns.response, [], []
    where_first = jax.tree.map(lambda each: each[0], unknowns)
    for group, near in zip(points, last, strict=True):
        where = locate(task, where_first.correlation, group)
        seen = cavity_samples(task, unknowns, group, where)
        samples = _flat(seen.sample)
        first = jax.tree.map(lambda leaf: leaf[0], samples)
        minima = _minima(attention, first, where_first, near, anew)
        displaced.append(np.asarray(minima.chi) - first.keys)
        fitted = respond(attention, minima, samples, responses)
        shape = seen.probability.shape
        fitted = Fitted(*(np.asarray(leaf).reshape(*shape, *leaf.shape[2:]) for leaf in fitted))
        # What is not finite ends in an error of the caller.
        with np.errstate(invalid="ignore", over="ignore"):
            parts.append((group.weight, hats(task, unknowns, seen, fitted)))
    total = [jax.tree.map(partial(np.multiply, weight), part) for weight, part in parts]
    return tuple(displaced), jax.tree.map(lambda *each: sum(each), *total)


def _flat(sample: Sample) -> Sample:
    """With one axis for point and location."""
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1, *leaf.shape[3:]), sample)


def _minima(attention: Any, samples: Sample, unknowns: Unknowns, near: Any, anew: bool) -> Minimum:
    start = samples.keys if near is None else samples.keys + near
    return minimise(attention, start, samples, unknowns.response, np.asarray(anew))


def stability(
    averages: Averages, x: Float[np.ndarray, " n"], last: Displacements, alpha: float
) -> tuple[Float[np.ndarray, "n n"], float]:
    """The matrix of `δ → α V E[Σ (∂g/∂ω) δ (∂g/∂ω)ᵀ] V` on block-diagonal `δ`, and the share of unresolved samples.

    Replica symmetry is unstable where an eigenvalue of the first exceeds one; a sample is unresolved if it is not at a
    stationary minimum.
    """
    unknowns = averages.layout.unpack(x)
    found = _per_randomisation(averages, last, partial(_stiffness_of, averages, unknowns))
    growth, unresolved = (np.mean(np.stack(each), 0) for each in zip(*found, strict=True))
    V = unknowns.keys.V
    both = block_diag(np.kron(V, V), unknowns.values.V**2)
    return alpha * both @ growth, float(unresolved)


def _stiffness_of(
    averages: Averages, unknowns: Unknowns, points: tuple[Points, ...], last: Any
) -> tuple[np.ndarray, float]:
    """Over the samples of one randomisation, the mean of `J ⊗ J` contracted on tokens, with `J = ∂f/∂ω`.

    With `B = ∂f_v/∂χ = −(∂²E/∂χ∂ω_z)ᵀ` and the Hessian `H` of the energy, the minimum moves by `H⁻¹K` and `H⁻¹Bᵀ` per
    unit of `ω_χ` and `ω_z`, so that `J` has the blocks `K H⁻¹K − K`, `K H⁻¹Bᵀ`, `B H⁻¹K`, `B H⁻¹Bᵀ + ∂f_v/∂ω_z`.
    """
    task, attention = averages.task, as_arrays(averages.attention)
    heads, response = averages.layout.heads, unknowns.response
    growth, unresolved = np.zeros((heads**2 + 1, heads**2 + 1)), 0.0
    for group, near in zip(points, last, strict=True):
        one = jax.tree.map(lambda each: each[None], unknowns)
        seen = cavity_samples(task, one, group, locate(task, unknowns.correlation, group))
        sample = jax.tree.map(lambda leaf: leaf[0], _flat(seen.sample))
        length = sample.values.shape[-1]
        weights = group.weight * seen.probability.ravel() / seen.probability.shape[1]
        at = jax.tree.map(np.asarray, _minima(attention, sample, unknowns, near, False))
        attended, by_chi = map(np.asarray, weight_slopes(attention, at.chi))
        by_chi = by_chi.reshape(*attended.shape, -1)
        width = 1.0 + response.v * np.sum(attended**2, -1)
        left = (sample.label - np.sum(attended * sample.values, -1)) / width
        by_left = -(sample.values + 2.0 * response.v * left[:, None] * attended) / width[:, None]
        B = (
            left[:, None, None] * by_chi
            + attended[:, :, None] * np.einsum("nl,nlx->nx", by_left, by_chi)[:, None]
        )
        K = np.kron(response.stiffness, np.eye(length))
        shared = np.broadcast_to(K, at.hessian.shape)
        moved_k, moved_v = (np.linalg.solve(at.hessian, it) for it in (shared, B.swapaxes(1, 2)))
        kk = (K @ moved_k - K).reshape(-1, heads, length, heads, length)
        kv = (K @ moved_v).reshape(-1, heads, length, length)
        vk = (B @ moved_k).reshape(-1, length, heads, length)
        vv = B @ moved_v - attended[:, :, None] * attended[:, None, :] / width[:, None, None]
        growth += np.block(
            [
                [
                    np.einsum("n,nalbm,ncldm->acbd", weights, kk, kk).reshape(heads**2, -1),
                    np.einsum("n,nalm,nclm->ac", weights, kv, kv).reshape(-1, 1),
                ],
                [
                    np.einsum("n,nlbm,nldm->bd", weights, vk, vk).reshape(1, -1),
                    np.einsum("n,nlm,nlm->", weights, vv, vv).reshape(1, 1),
                ],
            ]
        )
        squares = np.einsum("nal,ab,nbl->n", at.gradient, response.k, at.gradient)
        unresolved += float(np.sum(weights * ~(squares < _STATIONARY**2)))
    return growth, unresolved
