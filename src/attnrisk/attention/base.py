"""How an attention turns `L` scores into `L` weights, `f(X) = σ(χ)·z` (section 2 of docs/theory.md)."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float


class AbstractAttention(eqx.Module):
    """A map from scores to weights."""

    name: eqx.AbstractClassVar[str]

    @abstractmethod
    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        """The weights `σ(χ)` of one sequence."""
