"""Test whether an attention is continuous, which gradients of averages require."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._check import refuse
from ..attention import AbstractAttention, Elementwise
from ..numerics.arrays import as_arrays

_LINES, _PARTS, _CUTS, _JUMP = 64, 16, 10, 1e-6  # the last parts are 10^-12 of a line


def check_continuous(attention: AbstractAttention, longest: int) -> None:
    """Refuse a discontinuous attention: the gradient of an average over points misses the jumps."""
    if not is_continuous(attention, longest):
        allowed = "continuous in the scores where the risk is found from random points"
        raise refuse("attention", attention.name, allowed)


def check_continuous_kernel(attention: AbstractAttention, longest: int) -> None:
    """Refuse heads of a discontinuous kernel: the gradient of an integral over its scores misses the jumps.

    The weights may jump where all kernels vanish, as for ReLU: the transform integrates over that.
    """
    known, _ = attention.at_length(longest)
    kernel: Any = known.one_head
    plain = Elementwise(lambda scores: kernel.share(scores) * jnp.exp(kernel.log_phi(scores)))
    if not kernel.analytic and not is_continuous(plain, longest):
        raise refuse("attention", attention.head_name, "a kernel that is continuous in the score")


def is_continuous(attention: AbstractAttention, longest: int) -> bool:
    """Whether weights change little with the scores.

    On lines through random scores of up to `longest` tokens, the part with the largest change of a weight is bisected
    repeatedly.
    """
    shape = _LINES, attention.keys, min(longest, _LINES)
    start, end = 3.0 * np.random.default_rng(0).standard_normal((2, *shape))
    for _ in range(_CUTS):
        parts = np.linspace(start, end, _PARTS + 1)
        change = np.abs(np.diff(_weights(attention, as_arrays(parts)), axis=0)).max(-1)
        cut, line = change.argmax(0), np.arange(_LINES)
        start, end = parts[cut, line], parts[cut + 1, line]
    return bool(np.max(change) <= _JUMP)


@eqx.filter_jit
def _weights(attention: AbstractAttention, scores: Array) -> Array:
    return jax.vmap(jax.vmap(attention.attend))(scores)
