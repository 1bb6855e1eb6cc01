"""Several heads of one attention, each with a key vector of its own and normalised by itself (section 10)."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import refuse
from .base import AbstractAttention, Mask


class Heads(AbstractAttention):
    """The average of the weights that `count` heads give to each token."""

    name: ClassVar[str] = "heads"
    family: ClassVar[str] = "heads"
    attention: AbstractAttention
    count: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise refuse("count", self.count, "a whole number ≥ 1")
        if not isinstance(self.attention, AbstractAttention) or self.attention.keys != 1:
            raise refuse("attention", repr(self.attention), "an attention of one key vector")

    @property
    def keys(self) -> int:  # type: ignore[override]
        return self.count

    @property
    def takes_mask(self) -> bool:
        return self.attention.takes_mask

    def __call__(self, scores: Float[Array, "keys L"], mask: Mask = None) -> Float[Array, " L"]:
        return jnp.mean(jax.vmap(lambda own: self.attention(own + self.bias, mask))(scores), 0)

    def attend(self, scores: Float[Array, "keys L"], mask: Mask = None) -> Float[Array, " L"]:
        return self(scores, mask)
