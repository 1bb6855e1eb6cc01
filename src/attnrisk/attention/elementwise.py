"""Element-wise attentions `h(bias + χ_ℓ)`: no token sees another, so every risk is made of one-token integrals."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeGuard

import equinox as eqx
from jaxtyping import Array, Float

from .._check import real
from .base import AbstractAttention


class AbstractElementwise(AbstractAttention):
    """A function `h` of one score; where `free_bias` is set, the bias is tuned together with the overlaps.

    `features` are the arguments of `h` where it bends within a few units or is not analytic.
    """

    features: eqx.AbstractVar[tuple[float, ...]]
    free_bias: eqx.AbstractVar[bool]
    bias: eqx.AbstractVar[Any]

    @abstractmethod
    def weight(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        """`h`, element-wise."""

    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        return self.weight(self.bias + scores)


class Elementwise(AbstractElementwise):
    """An element-wise attention of the user's: `weight` acts on an array of scores."""

    name: ClassVar[str] = "elementwise"
    weight_fn: Callable[[Any], Any] = eqx.field(static=True)
    bias: Any
    free_bias: bool = eqx.field(static=True)
    features: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        weight: Callable[[Any], Any],
        bias: Any = 0.0,
        free_bias: bool = False,
        features: tuple[float, ...] = (0.0,),
    ):
        self.weight_fn = weight
        self.bias = real("bias", bias)
        self.free_bias = free_bias
        self.features = tuple(real("features", feature) for feature in features)

    def weight(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.weight_fn(score)


def has_free_bias(attention: AbstractAttention) -> TypeGuard[AbstractElementwise]:
    """Whether the attention has a bias to be tuned or learned."""
    return isinstance(attention, AbstractElementwise) and attention.free_bias


def with_bias(attention: AbstractAttention, bias: Any) -> AbstractAttention:
    """The attention with its bias set, if it has a free one."""
    if not has_free_bias(attention):
        return attention
    return eqx.tree_at(lambda attention: attention.bias, attention, bias)
