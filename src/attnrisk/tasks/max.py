"""max-SLR: the relevant token is, softly, the one most aligned with `k*`."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import real
from .base import AbstractSelected
from .lengths import LengthLaw, as_law


class MaxSLR(AbstractSelected):
    """The location is drawn from `softmax(ν χ*)`; at `ν = inf` it is the argmax."""

    name: ClassVar[str] = "max"
    nu: Any
    length: LengthLaw
    noise: Any

    def __init__(self, nu: Any, length: Any, noise: Any = 0.0):
        self.nu = real("nu", nu, minimum=0.0, infinite=True)
        self.length = as_law(length)
        self.noise = real("noise", noise, minimum=0.0)

    @property
    def sharpness(self) -> Any:
        """Inverse temperature of the law of the location."""
        return self.nu

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        hard = jnp.where(chi == jnp.max(chi), 0.0, -jnp.inf)
        soft = jnp.where(jnp.isinf(self.nu), 0.0, self.nu) * chi
        return jnp.where(jnp.isinf(self.nu), hard, soft)
