"""How an attention turns `L` scores into `L` weights, `f(X) = σ(χ)·z` (section 2 of docs/theory.md)."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float


class AbstractAttention(eqx.Module):
    """A map from scores to weights; `analytic` if it has no kink, as cheaper quadrature may count on."""

    name: eqx.AbstractClassVar[str]
    analytic: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        """The weights `σ(χ)` of one sequence."""
