"""What is to be found: the retrieval task in which the label depends on one hidden token.

See section 1 of docs/theory.md. A task belongs to one of three kinds, and its kind decides which exact method
applies; everything else about it is data.
"""

from abc import abstractmethod
from dataclasses import fields
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from .lengths import LengthLaw


class AbstractTask(eqx.Module):
    """A law of the location given the teacher fields `χ*`, a law of the length, and a label noise `Δ`."""

    name: eqx.AbstractClassVar[str]
    length: eqx.AbstractVar[LengthLaw]
    noise: eqx.AbstractVar[float]

    @abstractmethod
    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        """`log g(ε, χ)` of every location `ε`, up to a term common to all: their softmax is the posterior."""

    @property
    def label_variance(self) -> Any:
        """`E[y²]`, the risk of predicting zero."""
        return 1.0 + self.noise**2

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        listed = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"{type(self).__name__}({listed})"


class AbstractPlanted(AbstractTask):
    """Given the location, tokens are independent, and only the relevant one has a law of its own.

    Its teacher field `χ*` has mean `shift`, and all its fields have standard deviation `spread`.
    """

    shift: eqx.AbstractVar[Any]
    spread: eqx.AbstractVar[float]

    @property
    def label_variance(self) -> Any:
        return self.spread**2 + self.noise**2


class AbstractSelected(AbstractTask):
    """Tokens are plain Gaussian, and the location is drawn from `softmax(sharpness · χ*)` (`inf`: the argmax)."""

    sharpness: eqx.AbstractVar[Any]


class AbstractWeighted(AbstractTask):
    """Tokens and location follow a weight `g(ε, χ*)` with `E[g] = 1` and no further structure."""

    @abstractmethod
    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log g(ε, χ)`."""
