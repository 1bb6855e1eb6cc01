"""One step of the equations of empirical risk minimisation, with its derivatives (sections 6 and 10).

With the score `t = ∂ log G_ε` of the location, Gaussian integration by parts gives for the keys of any task

    M̂ = α E[Σ_ℓ g_ℓ t_ℓᵀ] ,   V̂ = (M̂ Mᵀ − α E[Σ_ℓ g_ℓ ω_ℓᵀ]) Q⁻¹

and for `v`, with `c = 1/(1+Δ²)`, `t = (ω_ε − m c y)/(q − m² c)`,

    m̂_v = α c E[f_ε (y − m t)] ,   V̂_v = −α E[t f_ε] − α E[Σ_{ℓ≠ε} ω f]/q .

A bias that is learned moves all fields `ω` of its key alike; it is stationary where `r_b b = α E[Σ_ℓ g_ℓ]`. Where the
relevant token has a spread `γ`, its fields are `γ` times those of a Gaussian token, and so is its response.

Only the computations per sample are compiled; means and small matrices use NumPy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..tasks import AbstractTask
from .asymptotics import Ridge
from .controls import Held, Moments, ValueLaw, hold
from .energy import Fitted, Sample
from .proximal import Minimum, minimise, respond
from .samples import CavitySamples, Points, cavity_samples, locate
from .unknowns import Layout, Order, Response, Unknowns, pack, updated

# Of a difference, relative to an unknown, or to the second number where the unknown is smaller.
_STEP, _SMALL = 1e-5, 1e-2
RANDOMISATIONS = 16
_THREADS = 2  # compiled code runs outside the interpreter's lock

# Points of a group of randomisations, where there are two groups or more: fewer take no less time.
_POINTS_PER_GROUP = 1024

# Displacements `χ − ω` of the samples: for each group of randomisations, for each length of the law.
Displacements = list[tuple[Float[np.ndarray, "ne H L"], ...]]
_T = TypeVar("_T")


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
        return Layout(self.attention.keys, self.task.features, self.first_bias.size)

    @property
    def sample_count(self) -> int:
        return sum(len(each.label) for each in self.points[0])

    @property
    def group_size(self) -> int:
        """How many randomisations are computed at once, a power of two."""
        most = np.clip(_POINTS_PER_GROUP // self.sample_count, 1, RANDOMISATIONS // _THREADS)
        return 1 << (int(most).bit_length() - 1)

    @property
    def joined(self) -> tuple[Points, ...]:
        """The points of all randomisations as those of one, for each length."""
        if len(self.points) == 1:
            return self.points[0]
        return tuple(
            Points(each[0].weight, *map(np.concatenate, list(zip(*each, strict=True))[1:]))
            for each in zip(*self.points, strict=True)
        )


def terms(
    task: AbstractTask, unknowns: Unknowns, seen: CavitySamples, fitted: Fitted
) -> Float[np.ndarray, "m n k"]:
    """The contribution of each point to the means, for given responses `f = (χ−ω)/V` of the samples.

    For the keys `g tᵀ`, `g gᵀ`, `g ωᵀ`, `g`, summed over tokens; for `v` the terms of `m̂`, `q̂`, `V̂`; and the loss.
    """
    m, q = (each[:, 0] for each in unknowns.values[:2])
    variance, spread = seen.sample.variance, float(task.spread)
    fields, pull_k, pull_v = seen.sample.keys, fitted.pull_k, fitted.pull_v
    if unknowns.bias.size:
        fields = fields - unknowns.bias[:, None, None, :, None]

    def outer(right: Any) -> Float[np.ndarray, "m n k"]:
        found = np.einsum("mnepl,mnetl->mnpt", weighted, right)
        return found.reshape(*found.shape[:2], -1)

    weighted = seen.probability[..., None, None] * pull_k
    own = spread * np.sum(seen.location * pull_v, -1)
    share = spread**2 / (spread**2 + float(task.noise) ** 2)
    others = np.sum((1.0 - seen.location) * seen.sample.values * pull_v, -1)
    of_values = (
        own * (seen.sample.label / spread - m[..., None] * seen.excess) * share,
        np.sum(variance * pull_v**2, -1),
        -seen.excess * own - others / q[..., None],
        fitted.loss,
    )
    rights = seen.score, variance[..., None, :] * pull_k, fields
    return np.concatenate(
        [
            *map(outer, rights),
            np.einsum("mnepl->mnp", weighted),
            np.stack([np.sum(seen.probability * each, 2) for each in of_values], -1),
        ],
        -1,
    )


def hats(unknowns: Unknowns, means: Float[np.ndarray, "*r m k"]) -> tuple[Unknowns, Any]:
    """From means of the terms `M̂/α`, `Q̂/α`, `V̂/α` with `E[Σ_ℓ g_ℓ]` of each bias, and the training error."""
    M, Q, _ = unknowns.keys
    heads, features = M.shape[1:]
    shapes = (heads, features), (heads, heads), (heads, heads)
    ends = np.cumsum([np.prod(shape) for shape in shapes] + [heads])
    *blocks, bias, values = np.split(means, ends, -1)
    M_hat, Q_hat, fields = (
        each.reshape(*means.shape[:-1], *shape) for each, shape in zip(blocks, shapes, strict=True)
    )
    V_hat = (M_hat @ M.swapaxes(1, 2) - fields) @ np.linalg.pinv(Q, hermitian=True)
    keys = Order(M_hat, Q_hat, (V_hat + V_hat.swapaxes(-1, -2)) / 2)
    *of_values, train = np.moveaxis(values, -1, 0)
    learned = bias[..., : unknowns.bias.shape[-1]]
    of_v = Order(*(each[..., None, None] for each in of_values))
    return Unknowns(keys, of_v, learned), train


def controls(
    task: AbstractTask, unknowns: Unknowns, seen: CavitySamples, held: Held
) -> Float[np.ndarray, "m n k"]:
    """The terms with scores fixed at the cavity fields, minus their means given the scores; zero if unknown."""
    apart = held.pulls.pull_k - held.mean_pull_k
    found = terms(task, unknowns, seen, held.pulls._replace(pull_k=apart))
    found[..., -4:] -= np.einsum("ne,mnek->mnk", seen.probability, held.mean_value_terms)
    heads, features = unknowns.keys.M.shape[1:]
    # `g gᵀ` is of the fourth order in the fields.
    found[..., features * heads + np.arange(heads**2)] = 0.0
    return found


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

    All minima are searched `anew`, or followed from the `last`. Derivatives are finite differences, in which the minima
    move to first order; or those of a `known` step nearby.
    """
    ridges = np.array([float(ridge.k), float(ridge.v)])
    nearby = probes(averages.layout, x) if known is None else x[None]
    unknowns = averages.layout.unpack(nearby)
    found = in_groups(averages, last, partial(_moments_of, unknowns, anew))
    moments: Moments = jax.tree.map(
        lambda *each: np.concatenate(each), *(each for _, each in found)
    )
    others = moments.of_others
    # Of a control that vanishes at x by symmetry the coefficients would jump between x and a probe.
    controlled = moments.controlled(others.coefficients(others.varies[:, :1]))
    total, train = hats(unknowns, controlled)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((total, train))):
        raise FloatingPointError("the equations overflow")

    pooled = jax.tree.map(lambda each: np.mean(each, 0), total)
    here = jax.tree.map(lambda each: each[0], pooled)
    bias, steps = unknowns.bias, np.diag(nearby[1:] - x)
    if known is None:
        place = averages.layout.places.bias
        pull = alpha * pooled.bias - float(ridge.b) * bias  # minus the slope of the objective
        bend = -np.diag((pull[1 + place] - pull[0]) / steps[place, None])
        # A step of the bias shorter than Newton's, and at most as long as that of a score.
        stiff = 1.0 / np.diag(unknowns.keys.V[0])[: bias.shape[-1]]
        pace = 1.0 / (stiff + np.maximum(bend, 0.0))
    else:
        pace = known.pace

    def target(hats: Unknowns, bias: Any, ridges: Any) -> Float[np.ndarray, "*batch n"]:
        moved = updated(jax.tree.map(lambda hat: alpha * hat, hats), ridges)
        ahead = bias + pace * (moved.bias - float(ridge.b) * bias)
        return pack(moved._replace(bias=ahead))

    targets = target(pooled, bias, ridges)
    here_alone = {
        "target": targets[0],
        "replicates": target(jax.tree.map(lambda each: each[:, 0], total), bias[0], ridges),
        "train": train[:, 0],
        "hats": here,
    }
    displacements = [displaced for displaced, _ in found]
    if known is not None:
        return displacements, known._replace(**here_alone)
    by_ridge = [target(here, bias[0], ridges + 1e-30j * unit).imag / 1e-30 for unit in np.eye(2)]
    return displacements, MapStep(
        **here_alone,
        jacobian=((targets[1:] - targets[0]) / steps[:, None]).T,
        by_ridge=np.stack(by_ridge, 1),
        train_slope=np.mean(train[:, 1:] - train[:, :1], 0) / steps,
        pace=pace,
    )


def probes(layout: Layout, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "m n"]:
    """The unknowns, and copies with one of them perturbed; overlaps are moved towards zero, where they stay valid."""
    steps = _STEP * np.maximum(np.abs(x), _SMALL)
    for M, Q, V in layout.places.blocks:
        rows, columns = np.tril_indices(len(Q), -1)
        inward = np.concatenate([M.ravel(), Q[rows, columns], V[rows, columns]])
        steps[inward] *= np.where(x[inward] > 0, -1.0, 1.0)
    return np.concatenate([x[None], x + np.diag(steps)])


def in_groups(
    averages: Averages, last: Displacements | None, function: Callable[..., _T]
) -> list[_T]:
    """The values of a function of each group of randomisations (as `Averages` over it) and the displacements there.

    Two run at a time.
    """
    size = math.gcd(averages.group_size, len(averages.points))
    groups = [averages.points[at : at + size] for at in range(0, len(averages.points), size)]
    attention = as_arrays(averages.attention)
    given = [averages._replace(attention=attention, points=each) for each in groups]
    near = [[None] * len(averages.points[0])] * len(groups) if last is None else last
    if len(near) != len(groups):
        raise ValueError(f"displacements of {len(near)} groups for {len(groups)}")
    if len(groups) == 1:
        return [function(given[0], near[0])]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, given, near))


def _moments_of(
    unknowns: Unknowns, anew: bool, averages: Averages, last: Any
) -> tuple[tuple[np.ndarray, ...], Moments]:
    """The displacements of one group at the first unknowns, and the moments of its randomisations at all of them."""
    task, attention = averages.task, averages.attention
    responses, displaced, parts = unknowns.response, [], []
    count, most = len(responses.v), 1 + pack(unknowns).shape[-1]
    where_first = jax.tree.map(lambda each: each[0], unknowns)
    m, q = (each[:, 0, 0] for each in unknowns.values[:2])
    laws = ValueLaw(m, q, np.full_like(m, float(task.label_variance)))
    for group, near in zip(averages.joined, last, strict=True):
        where = locate(task, where_first.correlation, group)
        seen = cavity_samples(task, unknowns, group, where)
        samples = flat(seen.sample)
        first = jax.tree.map(lambda leaf: leaf[0], samples)
        minima = minima_of(attention, first, where_first, near, anew)
        displaced.append(np.asarray(minima.chi) - first.keys)
        location: Any = np.tile(seen.location, (len(group.label), 1))
        # One program serves one unknown and all probes: arrays are filled up, and what is asked for is computed.
        given = jax.tree.map(
            lambda leaf: np.resize(leaf, (most, *leaf.shape[1:])), (samples, responses, laws)
        )
        found = pulls(attention, minima, location, given, np.asarray(count))
        fitted, held = jax.tree.map(
            lambda leaf, shape=(count, *seen.probability.shape): np.asarray(leaf)[:count].reshape(
                *shape, *leaf.shape[2:]
            ),
            found,
        )

        def split(terms: Float[np.ndarray, "m rn k"]) -> Float[np.ndarray, "r m n k"]:
            each = terms.reshape(count, len(averages.points), -1, terms.shape[-1])
            return each.swapaxes(0, 1)

        # What is not finite ends in an error of the caller.
        with np.errstate(invalid="ignore", over="ignore"):
            moments = Moments.of(
                split(terms(task, unknowns, seen, fitted)),
                split(controls(task, unknowns, seen, held)),
            )
            parts.append(Moments(*(group.weight * each for each in moments)))
    return tuple(displaced), jax.tree.map(lambda *each: sum(each), *parts)


@eqx.filter_jit
def pulls(
    attention: AbstractAttention,
    minima: Minimum,
    location: Float[Array, "n L"],
    given: tuple[Sample, Response, ValueLaw],
    count: Any,
) -> tuple[Fitted, Held]:
    """The pulls of the samples of the first `count` unknowns, and those with scores held at the cavity.

    Unknowns are along the first axis of what is given. The minima are those of the first.
    """

    def one(at: Minimum, here: Array, sample: Sample, *of_unknowns: Any) -> tuple[Fitted, Held]:
        fitted = respond(attention, at, sample, of_unknowns[0])
        return fitted, hold(attention, sample, here, *of_unknowns)

    over_samples = jax.vmap(one, (0, 0, 0, None, None))

    def step(index: Any, found: Any) -> Any:
        here = jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), given
        )
        return jax.tree.map(
            lambda all_of_them, new: jax.lax.dynamic_update_index_in_dim(
                all_of_them, new, index, 0
            ),
            found,
            over_samples(minima, location, *here),
        )

    none = Fitted(*map(jnp.zeros_like, given[0][:3]))
    held = Held(none, none.pull_k, jnp.zeros((*none.loss.shape, 4)))
    return jax.lax.fori_loop(0, count, step, (none, held))


def samples_at(
    averages: Averages, unknowns: Unknowns, last: Any
) -> Iterator[tuple[Points, Float[np.ndarray, " n"], Sample, Minimum]]:
    """For each length its points, and of their cavity samples at one set of unknowns the weights and the minima."""
    one = jax.tree.map(lambda each: each[None], unknowns)
    for group, near in zip(averages.joined, last, strict=True):
        where = locate(averages.task, unknowns.correlation, group)
        seen = cavity_samples(averages.task, one, group, where)
        sample = jax.tree.map(lambda leaf: leaf[0], flat(seen.sample))
        weights = group.weight * seen.probability.ravel() / len(seen.probability)
        yield group, weights, sample, minima_of(averages.attention, sample, unknowns, near, False)


def flat(sample: Sample) -> Sample:
    """With one axis for point and location."""
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1, *leaf.shape[3:]), sample)


def minima_of(
    attention: Any, samples: Sample, unknowns: Unknowns, near: Any, anew: bool
) -> Minimum:
    start = samples.keys if near is None else samples.keys + near
    return minimise(attention, start, samples, unknowns.response, np.asarray(anew))
