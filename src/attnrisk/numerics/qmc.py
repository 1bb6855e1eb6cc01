"""Scrambled Sobol points: several independent randomisations, so that every mean carries a standard error."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._results import ErrorKind, Estimate


@lru_cache(maxsize=16)
def sobol(dimension: int, log2_points: int, randomisations: int, seed: int) -> np.ndarray:
    """`randomisations` scramblings of `2^log2_points` points in the open unit cube."""
    from scipy.stats import qmc  # a second of import that only random points pay

    seeds = np.random.SeedSequence(seed).spawn(randomisations)
    points = [
        qmc.Sobol(dimension, rng=np.random.default_rng(child)).random_base2(log2_points)
        for child in seeds
    ]
    return np.clip(np.stack(points), 1e-16, 1 - 1e-16)


def across(replicates: Float[Array, " r"]) -> Estimate:
    """The mean over randomisations and its standard error."""
    error = jnp.std(replicates, ddof=1) / np.sqrt(replicates.size)
    return Estimate(jnp.mean(replicates), error, ErrorKind.STANDARD)
