"""spiked-SLR: the relevant token has a mean along `k*`."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import real
from .base import AbstractPlanted
from .lengths import LengthLaw, as_law


class SpikedSLR(AbstractPlanted):
    """The relevant token is shifted by `√ν k*/√D`; with `spread ≠ 1` it is the task of Marion et al. (2410.01537)."""

    name: ClassVar[str] = "spiked"
    nu: Any
    length: LengthLaw
    noise: Any
    spread: Any

    def __init__(self, nu: Any, length: Any, noise: Any = 0.0, spread: Any = 1.0):
        self.nu = real("nu", nu, minimum=0.0)
        self.length = as_law(length)
        self.noise = real("noise", noise, minimum=0.0)
        self.spread = real("spread", spread, above=0.0)

    @property
    def shift(self) -> Any:
        """Mean of the teacher field of the relevant token."""
        return self.nu**0.5

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        return jnp.sqrt(self.nu) * chi
