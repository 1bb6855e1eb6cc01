"""Attentions without structure: any map from `L` scores to `L` weights, integrated over random points."""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import function, refuse
from .base import AbstractAttention, Mask


class AbstractGeneral(AbstractAttention):
    """An attention without structure: any map from the scores of a sequence to its weights."""

    family: ClassVar[str] = "general"

    @abstractmethod
    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        """Weights of one sequence."""


class General(AbstractGeneral):
    """Any attention of your own, integrated over Sobol points.

    Args:
        function: A function from `L` scores to `L` weights for any `L`, written with `jax.numpy`. A function of
            `(scores, mask)` can also be applied to padded sequences.
        bias: Constant added to the scores.
        free_bias: Whether the bias is optimised.

    Examples:
        >>> import jax.numpy as jnp
        >>> attention = ar.General(lambda scores: jnp.exp(scores - scores.max()))
        >>> attention(jnp.array([0.0, 1.0])).round(4).tolist()
        [0.3679, 1.0]
    """

    name: ClassVar[str] = "general"
    function: Callable[..., Any] = eqx.field(static=True)

    def __check_init__(self) -> None:
        function("function", self.function)

    @property
    def takes_mask(self) -> bool:
        try:
            signature = inspect.signature(self.function)
            signature.bind(None, None)
        except (TypeError, ValueError):  # another signature, or none to be found
            return False
        # An argument that may be left out, such as the axis of `jax.nn.softmax`, is a mask only by its name.
        second = list(signature.parameters.values())[1:2]
        return all(each.name == "mask" or each.default is each.empty for each in second)

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        scores = scores + self.bias
        if mask is None:
            return self.function(scores)
        if not self.takes_mask:
            raise refuse(
                "function", self.function, "a function of (scores, mask) for padded sequences"
            )
        return jnp.where(mask, self.function(scores, mask), 0.0)
