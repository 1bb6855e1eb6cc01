"""Attentions without structure: any map from `L` scores to `L` weights, integrated over random points."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from .base import AbstractAttention


class AbstractGeneral(AbstractAttention):
    """A map of whole sequences of scores."""


class General(AbstractGeneral):
    """An attention of the user's: `function` maps an array of `L` scores to `L` weights, for any `L`."""

    name: ClassVar[str] = "general"
    function: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        return self.function(scores)
