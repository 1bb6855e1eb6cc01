"""Scrambled Sobol points in several independent randomisations, which give a standard error of every mean."""

from functools import lru_cache
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._results import ErrorKind, Estimate

_BITS = 30  # of a coordinate


@lru_cache(maxsize=16)
def sobol(dimension: int, log2_points: int, randomisations: int, seed: int) -> np.ndarray:
    """`randomisations` scramblings of `2^log2_points` points in the open unit cube.

    Those of `scipy.stats.qmc.Sobol`, bit for bit, without the import of `scipy.stats`, which takes longer than most
    questions that need points: a random lower triangular matrix for the digits of each coordinate, and a random shift.
    """
    place = np.arange(_BITS, dtype=np.uint32)
    directions = _directions(dimension, log2_points)
    digits = (directions[..., None] >> place[::-1] & 1).astype(np.float32)  # the first digit first
    points = []
    for child in np.random.SeedSequence(seed).spawn(randomisations):
        rng = np.random.default_rng(child.spawn(1)[0])
        shift = rng.integers(2, size=(dimension, _BITS), dtype=np.uint32) @ (1 << place)
        lower = rng.integers(2, size=(dimension, _BITS, _BITS), dtype=np.uint32).astype(np.float32)
        lower = np.tril(lower, -1) + np.eye(_BITS, dtype=np.float32)
        scrambled = (digits @ lower.swapaxes(1, 2)).astype(np.uint32) % 2 @ (1 << place[::-1])
        found = shift[None]
        for direction in scrambled.T:  # in the order of Gray's code
            found = np.concatenate([found, found[::-1] ^ direction])
        points.append(found * 2.0**-_BITS)
    return np.clip(np.stack(points), 1e-16, 1 - 1e-16)


def _directions(dimension: int, count: int) -> np.ndarray:
    """The first direction numbers of each coordinate, of Joe and Kuo (2008), from the table that SciPy has on disk.

    With a primitive polynomial of degree `s` and coefficients `a`: `m_k = m_{k−s} ⊕ 2^s m_{k−s} ⊕ Σ_i a_i 2^i m_{k−i}`.
    """
    with (files("scipy") / "stats" / "_sobol_direction_numbers.npz").open("rb") as file:
        table = np.load(file)
        polynomials, first = table["poly"][:dimension], table["vinit"][:dimension]
    if dimension > len(polynomials):
        raise ValueError(f"Sobol points have at most {len(polynomials)} coordinates")
    degrees = np.frexp(polynomials)[1] - 1
    numbers = np.ones((dimension, count), np.int64)
    for k in range(count):
        for s in np.unique(degrees[1:]):  # of the first coordinate all are one
            at = np.flatnonzero(degrees == s)
            if k < s:
                numbers[at, k] = first[at, k]
                continue
            numbers[at, k] = numbers[at, k - s]
            for i in range(1, s + 1):
                taken = polynomials[at] >> (s - i) & 1
                numbers[at, k] ^= taken * numbers[at, k - i] << i
    return (numbers << np.arange(_BITS - 1, _BITS - 1 - count, -1)).astype(np.uint32)


def mean_estimate(replicates: Any) -> Estimate:
    """The mean over randomisations, the first axis, and its standard error."""
    traced = isinstance(replicates, jax.core.Tracer)
    xp: Any = jnp if traced else np
    values = replicates if traced else np.asarray(replicates)
    error = xp.std(values, 0, ddof=1) / np.sqrt(len(values))
    return Estimate(xp.mean(values, 0), error, ErrorKind.STANDARD)
