"""Functions written with NumPy or PyTorch, called from JAX through a callback."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._check import function as checked_function
from .words import IN_PYTORCH, TORCH_MISSING, reject, wrong_shape

_STEP = 1e-6  # of central differences, where a function has no gradient


@dataclass(frozen=True)
class Foreign:
    """A function of one sequence of scores that JAX cannot trace; values and Jacobian come from callbacks."""

    function: Callable[[Any], Any]
    library: str

    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        return _call(self, scores)

    def values(self, scores: np.ndarray) -> np.ndarray:
        """The weights of each sequence along the last axis."""
        rows = np.asarray(scores, float).reshape(-1, np.shape(scores)[-1])
        if self._vectorises:
            return _in_one_call(self.function, rows).reshape(np.shape(scores))
        return np.array([self._weights(row) for row in rows]).reshape(np.shape(scores))

    def jacobians(self, scores: np.ndarray) -> np.ndarray:
        """Their derivatives: PyTorch's own, and central differences for NumPy."""
        shape = np.shape(scores)
        rows = np.asarray(scores, float).reshape(-1, shape[-1])
        if self._vectorises:
            torch: Any = import_module("torch")
            return _in_one_call(torch.func.jacrev(self.function), rows).reshape(*shape, shape[-1])
        return np.array([self._jacobian(row) for row in rows]).reshape(*shape, shape[-1])

    @cached_property
    def _vectorises(self) -> bool:
        """Whether PyTorch can vectorise it over sequences; a branch on a value prevents that."""
        if self.library != "torch":
            return False
        torch: Any = import_module("torch")
        rows = np.array([[0.3, -0.2, 1.0], [-1.0, 2.0, 0.1]])
        try:
            values = _in_one_call(self.function, rows)
            _in_one_call(torch.func.jacrev(self.function), rows)
        except Exception:  # whatever it raises: it is called for each sequence then
            return False
        return values.shape == rows.shape and np.allclose(
            values, [self._weights(row) for row in rows], atol=1e-12
        )

    @property
    def precision(self) -> str:
        """The dtype of its weights for `float64` scores, which should be `float64`."""
        return str(self.raw(np.zeros(2)).dtype)

    def _weights(self, row: np.ndarray) -> np.ndarray:
        return np.real(self.raw(row)).astype(float)  # complex weights are refused by their type

    def raw(self, row: np.ndarray) -> np.ndarray:
        """The raw return value for one sequence; NumPy's floating-point warnings are disabled."""
        if self.library == "numpy":
            with np.errstate(all="ignore"):
                return np.asarray(self.function(row.copy()))
        torch: Any = import_module("torch")
        with torch.no_grad():
            return self.function(torch.tensor(row, dtype=torch.float64)).numpy()

    def _jacobian(self, row: np.ndarray) -> np.ndarray:
        if self.library == "numpy":
            steps = _STEP * np.eye(row.size)
            return np.stack(
                [
                    (self._weights(row + step) - self._weights(row - step)) / (2 * _STEP)
                    for step in steps
                ],
                -1,
            )
        torch: Any = import_module("torch")
        found = torch.autograd.functional.jacobian(
            self.function, torch.tensor(row, dtype=torch.float64)
        )
        return found.double().numpy()


def _in_one_call(function: Callable[[Any], Any], rows: np.ndarray) -> np.ndarray:
    torch: Any = import_module("torch")
    mapped = torch.func.vmap(function)(torch.tensor(rows, dtype=torch.float64))
    return mapped.detach().double().numpy()


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _call(foreign: Foreign, scores: Array) -> Array:
    shape = jax.ShapeDtypeStruct(scores.shape, scores.dtype)
    return jax.pure_callback(foreign.values, shape, scores, vmap_method="broadcast_all")


@_call.defjvp
def _(foreign: Foreign, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (scores,), (tangent,) = primals, tangents
    shape = jax.ShapeDtypeStruct((*scores.shape, scores.shape[-1]), scores.dtype)
    slopes = jax.pure_callback(foreign.jacobians, shape, scores, vmap_method="broadcast_all")
    return _call(foreign, scores), jnp.einsum("ij,j->i", slopes, tangent)


def from_torch(function: Callable[[Any], Any]) -> Foreign:
    """Call a PyTorch function from JAX, values and gradients, one sequence at a time.

    Args:
        function: Maps a tensor of `L` scores to a tensor of `L` weights.

    Returns:
        The same as a function of JAX arrays, which `judge` takes.
    """
    checked_function("function", function)
    try:
        import_module("torch")
    except ImportError:
        name = getattr(function, "__name__", "it")
        raise reject(name, TORCH_MISSING, IN_PYTORCH._replace(argument="function")) from None
    return Foreign(function, "torch")


def from_numpy(function: Callable[[Any], Any]) -> Foreign:
    """Call a NumPy function from JAX; its gradients are central differences.

    Args:
        function: Maps an array of `L` scores to an array of `L` weights.

    Returns:
        The same as a function of JAX arrays, which `judge` takes.
    """
    return Foreign(checked_function("function", function), "numpy")


def bridged(function: Callable[[Any], Any], name: str) -> Foreign | None:
    """The function, if it takes a NumPy array, or a tensor where torch is installed.

    A function that returns another number of weights is refused.
    """
    libraries = ["numpy"]
    if find_spec("torch") is not None:
        first = "torch" in sys.modules or "torch" in getattr(function, "__globals__", {})
        libraries.insert(0 if first else 1, "torch")
    for library in libraries:
        foreign = Foreign(function, library)
        try:
            shapes = {size: foreign.raw(np.linspace(-1.0, 1.5, size)).shape for size in (1, 3)}
        except Exception:  # it is written for another library
            continue
        for size, shape in shapes.items():
            if shape != (size,):
                raise reject(name, wrong_shape(shape, size))
        return foreign
    return None
