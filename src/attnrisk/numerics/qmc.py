"""Scrambled Sobol points in several independent randomisations, which give a standard error of every mean."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def mean_estimate(replicates: Any) -> Estimate:
    """The mean over randomisations, the first axis, and its standard error."""
    traced = isinstance(replicates, jax.core.Tracer)
    xp: Any = jnp if traced else np
    values = replicates if traced else np.asarray(replicates)
    error = xp.std(values, 0, ddof=1) / np.sqrt(len(values))
    return Estimate(xp.mean(values, 0), error, ErrorKind.STANDARD)
