"""Several heads of one attention, each with a key vector of its own and normalised by itself (section 10)."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import refuse, whole
from .base import AbstractAttention, Mask


class Heads(AbstractAttention):
    """The average of the weights that `count` heads give to each token.

    They share a bias, in addition to that of `attention`; it is free where the bias of `attention` is.
    """

    name: ClassVar[str] = "heads"
    family: ClassVar[str] = "heads"
    attention: AbstractAttention
    count: int = eqx.field(static=True)

    def __init__(
        self,
        attention: AbstractAttention,
        count: int,
        *,
        bias: Any = 0.0,
        free_bias: bool | None = None,
    ):
        if not isinstance(attention, AbstractAttention) or attention.keys != 1:
            raise refuse("attention", repr(attention), "an attention of one key vector")
        self.attention, self.count, self.bias = attention, whole("count", count), bias
        self.free_bias = attention.free_bias if free_bias is None else free_bias

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
