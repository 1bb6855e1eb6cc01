"""Composite Gauss–Legendre rules on panels whose edges are data.

Everything that this package integrates is smooth except at a few places that move with the parameters: the bulk
of a Gaussian, the knee of a kernel, the score at which `tφ` passes one. Panels that meet and shrink geometrically
at those places make one fixed number of nodes serve a scale of 10^-3 and of 10^3. The number of nodes is static,
their positions are not, so a rule can be compiled once and vmapped.
"""

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@cache
def legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss–Legendre rule on `[-1, 1]`."""
    return np.polynomial.legendre.leggauss(order)


def composite(edges: Any, order: int) -> tuple[Any, Any]:
    """Nodes and weights of `order` points on each panel between consecutive ascending edges (last axis)."""
    points, weights = legendre(order)
    half = (edges[..., 1:] - edges[..., :-1])[..., None] / 2
    middle = (edges[..., 1:] + edges[..., :-1])[..., None] / 2
    shape = (*edges.shape[:-1], -1)
    return (middle + half * points).reshape(shape), (half * weights).reshape(shape)


def merge(
    left: Float[Array, "*batch a"], right: Float[Array, "*batch b"]
) -> Float[Array, "*batch c"]:
    """Two ascending sequences as one.

    A bitonic network of minima and maxima: for these short rows `jnp.sort` takes ten times as long on a CPU.
    """
    size = left.shape[-1] + right.shape[-1]
    padded = 1 << (size - 1).bit_length()
    peak = jnp.full((*left.shape[:-1], padded - size), jnp.inf)
    row = jnp.concatenate([left, peak, right[..., ::-1]], -1)
    stride = padded // 2
    while stride:
        pairs = row.reshape(*row.shape[:-1], -1, 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        row = jnp.stack([jnp.minimum(low, high), jnp.maximum(low, high)], -2).reshape(row.shape)
        stride //= 2
    return row[..., :size]
