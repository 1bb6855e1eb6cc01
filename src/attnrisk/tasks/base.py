"""What is to be found: the retrieval task in which the label depends on one hidden token.

See section 1 of docs/theory.md. A task belongs to one of three kinds, and its kind decides which exact method
applies; everything else about it is data.
"""

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .lengths import LengthLaw
from .location import AbstractLocation, PlantedLocation, SelectedLocation


class AbstractTask(eqx.Module):
    """A law of the location given the teacher fields `χ*`, a law of the length, and a label noise `Δ`.

    The teacher's vectors are `features` key directions and `v*`.
    """

    name: eqx.AbstractClassVar[str]
    length: eqx.AbstractVar[LengthLaw]
    noise: eqx.AbstractVar[float]
    spread: eqx.AbstractVar[float]  # standard deviation of the relevant token's fields

    @property
    def features(self) -> int:
        """How many key directions the teacher has."""
        return 1

    @property
    @abstractmethod
    def strength(self) -> Any:
        """The scale of `k` along `k*` at which softmax is the posterior, or one where none is known."""

    @property
    def label_variance(self) -> Any:
        """`E[y²]`, the risk of predicting zero."""
        return self.spread**2 + self.noise**2

    @abstractmethod
    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        """`log g(ε, χ)` of every location `ε`, up to a term common to all."""

    def posterior(
        self, chi: Float[Array, " L"], mask: Bool[Array, " L"] | None = None
    ) -> Float[Array, " L"]:
        """The law of the location given the teacher fields of the tokens that there are."""
        log_odds = self.log_odds(chi)
        return jax.nn.softmax(log_odds if mask is None else jnp.where(mask, log_odds, -jnp.inf))

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        listed = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"{type(self).__name__}({listed})"


class AbstractSamplable(AbstractTask):
    """A task with an exact sampler: the location is drawn, and the relevant token moved."""

    @property
    def shift_uniforms(self) -> int:
        """How many random numbers decide the shift of the relevant token."""
        return 0

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        """The mean of the relevant token's field along each feature, from uniform numbers."""
        return jnp.zeros(self.features)

    @abstractmethod
    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        """The law of the location where the teacher fields are known up to this variance (of spread 1)."""

    @abstractmethod
    def location_noise(
        self, uniform: Float[Any, "s 1"], gumbel: Float[Any, "s L"]
    ) -> Float[Any, "s _"]:
        """Which of these random numbers decide the location."""

    @abstractmethod
    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        """The location in each sequence, given the fields that its tokens have before the relevant one is moved."""

    @abstractmethod
    def move_relevant(
        self, tokens: Float[Array, "*batch D"], key: Float[Array, " D"]
    ) -> Float[Array, "*batch D"]:
        """Tokens as the relevant one is distributed, from plain Gaussian ones; `key` is `k*`."""


class AbstractPlanted(AbstractSamplable):
    """Given the location, tokens are independent, and only the relevant one has a law of its own.

    Its teacher field `χ*` has mean `shift`, and all its fields have standard deviation `spread`.
    """

    shift: eqx.AbstractVar[Any]

    @property
    def strength(self) -> Any:
        return self.shift

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        return jnp.atleast_1d(jnp.asarray(self.shift))

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return PlantedLocation(self.shift, unknown_variance)

    def location_noise(
        self, uniform: Float[Any, "s 1"], gumbel: Float[Any, "s L"]
    ) -> Float[Any, "s _"]:
        return uniform

    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        return jnp.floor(noise[:, 0] * jnp.sum(mask, -1)).astype(int)

    def move_relevant(
        self, tokens: Float[Array, "*batch D"], key: Float[Array, " D"]
    ) -> Float[Array, "*batch D"]:
        shift = (self.shift * key / jnp.sqrt(key.size)).astype(tokens.dtype)
        return jnp.asarray(self.spread, tokens.dtype) * tokens + shift


class AbstractSelected(AbstractSamplable):
    """Tokens are plain Gaussian, and the location is drawn from `softmax(sharpness · χ*)` (`inf`: the argmax)."""

    sharpness: eqx.AbstractVar[Any]
    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return self.sharpness

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return SelectedLocation(self.sharpness, unknown_variance)

    def location_noise(
        self, uniform: Float[Any, "s 1"], gumbel: Float[Any, "s L"]
    ) -> Float[Any, "s _"]:
        return gumbel

    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        hard = jnp.isinf(self.sharpness)
        scores = jnp.where(hard, chi, jnp.where(hard, 0.0, self.sharpness) * chi + noise)
        return jnp.argmax(jnp.where(mask, scores, -jnp.inf), -1)

    def move_relevant(
        self, tokens: Float[Array, "*batch D"], key: Float[Array, " D"]
    ) -> Float[Array, "*batch D"]:
        return tokens


class AbstractWeighted(AbstractTask):
    """Tokens and location follow a weight `g(ε, χ*)` with `E[g] = 1` and no further structure."""

    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return 1.0

    @abstractmethod
    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log g(ε, χ)`."""
