"""Gaussian integrals `E[F(mean + sd·x)]`, `x ~ N(0, 1)`, resolved at the scale of `F` as well as at that of `x`."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .panels import composite

# Beyond 9.5 standard deviations lies a mass of 2e-21: nothing, even for the largest of 10^6 tokens.
REACH = 9.5
_HALF = np.array([0.8, 1.6, 2.5, 3.4, 4.3, 5.2, 6.2, 7.6, REACH])
BULK = np.concatenate([-_HALF[::-1], [0.0], _HALF])

# Panels around a feature grow by this factor, from a unit that is narrow for a knee like that of softplus.
_GROWTH, _UNIT = 2.5, 0.4

# The integrand passes its transition within a few units of score, and a bulk panel is about one deviation wide.
_PER_CELL, _MOST_CELLS = 2.0, 8


class Rule(NamedTuple):
    """How finely to integrate one-token integrals.

    `order` points per panel; `grades` growing panels on each side of a feature, and `pinch` more that shrink towards
    it; each panel of the bulk cut into `cells`, or, with `cells = 0`, panels that follow the transition of the
    integrand, which suits scores of any scale.
    """

    order: int = 8
    grades: int = 6
    cells: int = 2
    pinch: int = 0


def rule_for(scale: float, order: int = 8, pinch: int = 0) -> Rule:
    """The cheapest rule for scores of standard deviation up to `scale`."""
    reach = max(REACH * scale, 1.0)
    grades = 2 + int(np.ceil(np.log(reach / _UNIT) / np.log(_GROWTH)))
    cells = int(np.ceil(scale / _PER_CELL))
    return Rule(order, grades, 2 ** (cells - 1).bit_length() if cells <= _MOST_CELLS else 0, pinch)


def feature_edges(features: tuple[float, ...], grades: int, pinch: int = 0) -> np.ndarray:
    """Scores at which panels meet around each of the features."""
    steps = _UNIT * _GROWTH ** np.arange(-pinch, grades)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])
    return np.concatenate([feature + offsets for feature in features] or [np.zeros(0)])


def standardise(scores: Any, mean: Any, deviation: Any) -> Array:
    """Scores as standard deviations from the mean, within reach."""
    narrow = 1e-100  # a field without variance: every score is out of reach
    return jnp.clip((scores - mean) / jnp.maximum(deviation, narrow), -REACH, REACH)


def subdivide(edges: np.ndarray, cells: int) -> np.ndarray:
    """Each panel cut into `cells` equal ones."""
    steps = np.arange(cells) / cells
    return np.append((edges[:-1, None] + np.diff(edges)[:, None] * steps).ravel(), edges[-1])


def bulk_edges(mean: Any, deviation: Any, scores: Any, cells: int = 1) -> Float[Array, " edges"]:
    """Edges in `x` for the Gaussian itself and for a few fixed scores, ascending."""
    bulk = subdivide(BULK, cells)
    if len(scores) == 0:
        return jnp.asarray(bulk)
    return jnp.sort(jnp.concatenate([bulk, standardise(scores, mean, deviation)]))


def normal_rule(
    edges: Float[Array, "*batch e"], order: int
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n"]]:
    """Nodes `x`, and weights that include the normal density."""
    x, weights = composite(edges, order)
    return x, weights * jnp.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
