"""Any weight `g(ε, χ*)` that a user writes down."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import real
from .base import AbstractWeighted
from .lengths import LengthLaw, as_law


class WeightedSLR(AbstractWeighted):
    """`log_weight_fn(location, chi)` is `log g(ε, χ)`, with `E[g] = 1` under Gaussian `χ` and uniform `ε`."""

    name: ClassVar[str] = "weighted"
    log_weight_fn: Callable[[Any, Any], Any] = eqx.field(static=True)
    length: LengthLaw
    noise: Any

    def __init__(self, log_weight: Callable[[Any, Any], Any], length: Any, noise: Any = 0.0):
        self.log_weight_fn = log_weight
        self.length = as_law(length)
        self.noise = real("noise", noise, minimum=0.0)

    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return self.log_weight_fn(location, chi)

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        return jax.vmap(self.log_weight, in_axes=(0, None))(jnp.arange(chi.shape[0]), chi)
