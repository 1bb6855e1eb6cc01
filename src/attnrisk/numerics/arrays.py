"""Conversion of numbers to arrays, so that compiled code is shared between their values."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._check import is_traced, refuse_single_precision


def as_arrays(tree: Any) -> Any:
    """The same tree with every number as an array of double precision."""
    if not jax.config.read("jax_enable_x64"):
        raise refuse_single_precision()

    def convert(leaf: Any) -> Any:
        if not eqx.is_array_like(leaf):
            return leaf
        if is_traced(leaf):
            return jnp.asarray(leaf, float)
        # A transfer, where `jnp.asarray` would compile a conversion for each type of number.
        return jax.device_put(np.asarray(leaf, float))

    return jax.tree.map(convert, tree)
