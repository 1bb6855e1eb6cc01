"""An attention as a function of NumPy arrays, for computations that are not compiled as a whole."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..attention import AbstractKernel

# Scores in a call of the attention, which is compiled for these numbers alone: for one integral, and for a scan.
_BLOCK, _LARGE_BLOCK = 512, 2**15


class Functions(NamedTuple):
    """`log φ`, share or weight of NumPy arrays, for an attention that is `known` at `length` tokens."""

    attention: Any
    known: Any
    length: np.ndarray
    bias: Any

    @property
    def features(self) -> tuple[float, ...]:
        return self.known.features

    @property
    def constant(self) -> float:
        return self.known.constant

    def log_phi(self, argument: np.ndarray) -> np.ndarray:
        """`log φ` of score plus bias."""
        return self._blocks(argument)[0]

    def weight(self, argument: np.ndarray) -> np.ndarray:
        """The weight of an element-wise attention."""
        return self._blocks(argument)[0]

    def share(self, argument: np.ndarray) -> Any:
        """The part of `φ` that stands in the numerator."""
        if type(self.known).share is AbstractKernel.share:
            return 1.0
        return self._blocks(argument)[1]

    def _blocks(self, argument: np.ndarray) -> np.ndarray:
        flat = np.ravel(argument)
        block = _BLOCK if flat.size < _LARGE_BLOCK else _LARGE_BLOCK
        padded = np.zeros((-(-flat.size // block), block))
        padded.ravel()[: flat.size] = flat
        parts = [np.asarray(_call(self.attention, each, self.length)) for each in padded]
        return np.stack(parts, 1).reshape(2, -1)[:, : flat.size].reshape(2, *np.shape(argument))


def in_numpy(attention: Any, length: float = 1.0) -> Functions:
    """The functions of an attention at its bias, for `length` tokens if its formula contains the length."""
    known, _ = attention.at_length(length)
    return Functions(attention.with_bias(0.0), known, np.asarray(length), float(known.bias))


@jax.jit
def _call(attention: Any, argument: Any, length: Any) -> Any:
    """The values of an attention on a block of scores at this length, as two rows."""
    known, _ = attention.at_length(length)
    if known.family != "kernel":
        return jnp.stack([known.weight(argument)] * 2)
    found = known.log_phi(argument), known.share(argument)
    return jnp.stack([jnp.broadcast_to(each, argument.shape) for each in found])
