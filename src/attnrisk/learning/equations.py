"""One step of the equations of empirical risk minimisation, with its derivatives (sections 6 and 10).

With the score `t = ∂ log G_ε` of the location, Gaussian integration by parts gives for the keys of any task

    M̂ = α E[Σ_ℓ g_ℓ t_ℓᵀ] ,   V̂ = (M̂ Mᵀ − α E[Σ_ℓ g_ℓ ω_ℓᵀ]) Q⁻¹

and for `v`, with `c = 1/(1+Δ²)`, `t = (ω_ε − m c y)/(q − m² c)`,

    m̂_v = α c E[f_ε (y − m t)] ,   V̂_v = −α E[t f_ε] − α E[Σ_{ℓ≠ε} ω f]/q .

A bias that is learned moves all fields `ω` of its key alike; it is stationary where `r_b b = α E[Σ_ℓ g_ℓ]`. Where the
relevant token has a spread `γ`, its fields are `γ` times those of a Gaussian token, and its pull counts `γ` times.

Only what is done for each sample is compiled; means and small matrices are NumPy's.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..tasks import AbstractTask
from .asymptotics import Ridge
from .proximal import Fitted, Minimum, Sample, minimise, respond
from .samples import CavitySamples, Points, cavity_samples, locate
from .unknowns import Layout, Order, Unknowns, pack, updated

# Of a difference, relative to an unknown, or to the second number where the unknown is smaller.
_STEP, _SMALL = 1e-5, 1e-2
_THREADS = 2  # compiled code runs outside the interpreter's lock

# Displacements `χ − ω` of the samples: for each randomisation, for each length of the law.
Displacements = list[tuple[Float[np.ndarray, "ne H L"], ...]]
_T = TypeVar("_T")


class Hats(NamedTuple):
    """`M̂/α`, `Q̂/α`, `V̂/α` of both blocks with `E[Σ_ℓ g_ℓ]` of each bias, and the training error."""

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
    pace: Float[np.ndarray, " B"]  # of a step of the biases


class Averages(NamedTuple):
    """One attention on one task, and points for each randomisation and length over which the equations average.

    The attention has no bias where one is learned.
    """

    task: AbstractTask
    attention: AbstractAttention
    points: Sequence[tuple[Points, ...]]
    first_bias: Float[np.ndarray, " B"] = np.zeros(0)  # of the biases that are learned

    @property
    def layout(self) -> Layout:
        """The shape of the unknowns."""
        return Layout(self.attention.keys, self.task.features, self.first_bias.size)


def hats(task: AbstractTask, unknowns: Unknowns, seen: CavitySamples, fitted: Fitted) -> Hats:
    """The means over some sequences, for any pulls `f = (χ−ω)/V` of the samples."""
    M, Q, _ = unknowns.keys
    m, q = (each[:, 0] for each in unknowns.values[:2])
    weights = seen.probability / seen.probability.shape[1]
    variance, spread = seen.sample.variance, float(task.spread)
    fields = seen.sample.keys
    if unknowns.bias.size:
        fields = fields - unknowns.bias[:, None, None, :, None]

    def outer(left: Any, right: Any) -> Float[np.ndarray, "m p t"]:
        return np.einsum("mnepl,mnetl->mpt", left, right)

    pull_k, pull_v = weights[..., None, None] * fitted.pull_k, fitted.pull_v
    M_hat = outer(pull_k, seen.score)
    drag = M_hat @ M.swapaxes(1, 2) - outer(pull_k, fields)
    V_hat = drag @ np.linalg.pinv(Q, hermitian=True)
    Q_hat = outer(pull_k * variance[..., None, :], fitted.pull_k)
    keys = Order(M_hat, Q_hat, (V_hat + V_hat.swapaxes(1, 2)) / 2)
    bias = np.einsum("mnepl->mp", pull_k)[:, : unknowns.bias.shape[-1]]
    own = spread * np.sum(seen.location * pull_v, -1)
    share = spread**2 / (spread**2 + float(task.noise) ** 2)
    others = np.sum((1.0 - seen.location) * seen.sample.values * pull_v, -1)
    terms = (
        own * (seen.sample.label / spread - m[..., None] * seen.excess) * share,
        np.sum(variance * pull_v**2, -1),
        -seen.excess * own - others / q[..., None],
        fitted.loss,
    )
    *values, train = (np.sum(weights * each, (1, 2)) for each in terms)
    return Hats(Unknowns(keys, Order(*(each[:, None, None] for each in values)), bias), train)


def map_step(
    averages: Averages,
    x: Float[np.ndarray, " n"],
    alpha: float,
    ridge: Ridge,
    last: Displacements | None = None,
    anew: bool = True,
    known: MapStep | None = None,
) -> tuple[Displacements, MapStep]:
    """The displacements of all samples, and the step of the map from them.

    All minima are searched for `anew`, or followed from the `last`. Derivatives are differences, in which the minima
    move to first order; or those of a step that is `known` already, from nearby.
    """
    ridges = np.array([float(ridge.k), float(ridge.v)])
    nearby = probes(averages.layout, x) if known is None else x[None]
    unknowns = averages.layout.unpack(nearby)
    found = per_randomisation(averages, last, partial(_hats_of, averages, unknowns, anew))
    total: Hats = jax.tree.map(lambda *each: np.stack(each), *(hats for _, hats in found))
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(total)):
        raise FloatingPointError("the equations overflow")

    pooled = jax.tree.map(lambda each: np.mean(each, 0), total)
    here = jax.tree.map(lambda each: each[0], pooled)
    bias, steps = unknowns.bias, np.diag(nearby[1:] - x)
    if known is None:
        place = averages.layout.places.bias
        pull = (
            alpha * pooled.unknowns.bias - float(ridge.b) * bias
        )  # minus the slope of the objective
        bend = -np.diag((pull[1 + place] - pull[0]) / steps[place, None])
        # A step of the bias shorter than Newton's, and at most as long as that of a score.
        stiff = 1.0 / np.diag(unknowns.keys.V[0])[: bias.shape[-1]]
        pace = 1.0 / (stiff + np.maximum(bend, 0.0))
    else:
        pace = known.pace

    def target(hats: Hats, bias: Any, ridges: Any) -> Float[np.ndarray, "*batch n"]:
        moved = updated(jax.tree.map(lambda hat: alpha * hat, hats.unknowns), ridges)
        ahead = bias + pace * (moved.bias - float(ridge.b) * bias)
        return pack(moved._replace(bias=ahead))

    targets = target(pooled, bias, ridges)
    here_alone = {
        "target": targets[0],
        "replicates": target(jax.tree.map(lambda each: each[:, 0], total), bias[0], ridges),
        "train": total.train[:, 0],
        "hats": here.unknowns,
    }
    displacements = [displaced for displaced, _ in found]
    if known is not None:
        return displacements, known._replace(**here_alone)
    by_ridge = [target(here, bias[0], ridges + 1e-30j * unit).imag / 1e-30 for unit in np.eye(2)]
    return displacements, MapStep(
        **here_alone,
        jacobian=((targets[1:] - targets[0]) / steps[:, None]).T,
        by_ridge=np.stack(by_ridge, 1),
        train_slope=(pooled.train[1:] - pooled.train[0]) / steps,
        pace=pace,
    )


def probes(layout: Layout, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "m n"]:
    """The unknowns, and each of them moved by a little: an overlap towards zero, where it stays valid."""
    steps = _STEP * np.maximum(np.abs(x), _SMALL)
    for M, Q, V in layout.places.blocks:
        rows, columns = np.tril_indices(len(Q), -1)
        inward = np.concatenate([M.ravel(), Q[rows, columns], V[rows, columns]])
        steps[inward] *= np.where(x[inward] > 0, -1.0, 1.0)
    return np.concatenate([x[None], x + np.diag(steps)])


def per_randomisation(
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
        samples = flat(seen.sample)
        first = jax.tree.map(lambda leaf: leaf[0], samples)
        minima = minima_of(attention, first, where_first, near, anew)
        displaced.append(np.asarray(minima.chi) - first.keys)
        fitted = respond(attention, minima, samples, responses)
        shape = seen.probability.shape
        fitted = Fitted(*(np.asarray(leaf).reshape(*shape, *leaf.shape[2:]) for leaf in fitted))
        # What is not finite ends in an error of the caller.
        with np.errstate(invalid="ignore", over="ignore"):
            parts.append((group.weight, hats(task, unknowns, seen, fitted)))
    total = [jax.tree.map(partial(np.multiply, weight), part) for weight, part in parts]
    return tuple(displaced), jax.tree.map(lambda *each: sum(each), *total)


def flat(sample: Sample) -> Sample:
    """With one axis for point and location."""
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1, *leaf.shape[3:]), sample)


def minima_of(
    attention: Any, samples: Sample, unknowns: Unknowns, near: Any, anew: bool
) -> Minimum:
    start = samples.keys if near is None else samples.keys + near
    return minimise(attention, start, samples, unknowns.response, np.asarray(anew))
