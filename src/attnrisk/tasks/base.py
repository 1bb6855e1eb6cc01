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
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._check import refuse
from .lengths import LengthLaw
from .location import AbstractLocation, PlantedLocation, SelectedLocation


class AbstractTask(eqx.Module):
    """A law of the location given the teacher fields `χ*`, a law of the length, and a label noise `Δ`.

    The teacher's vectors are `features` key directions and `v*`.
    """

    name: eqx.AbstractClassVar[str]
    length: eqx.AbstractVar[LengthLaw]
    features: ClassVar[int] = 1  # key directions of the teacher
    noise: eqx.AbstractVar[float]
    spread: eqx.AbstractVar[float]  # standard deviation of the relevant token's fields

    @property
    def relevant_field(self) -> Any:
        """The mean teacher field of the relevant token, where it is moved by the task."""
        return 0.0

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

    @abstractmethod
    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log E_ε[g(ε, χ)]`, the density of the fields over that of Gaussian ones."""

    def posterior(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        """The law of the location given the teacher key-fields."""
        return jax.nn.softmax(self.log_odds(chi))

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        listed = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"{type(self).__name__}({listed})"


class AbstractSamplable(AbstractTask):
    """A task with an exact sampler: from Gaussian tokens and some more numbers for each sequence, called its noise,
    a location is chosen and the token there moved."""

    @property
    def shift_uniforms(self) -> int:
        """How many random numbers decide the shift of the relevant token."""
        return 0

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        """The mean of the relevant token's field along each feature, from uniform numbers."""
        return jnp.zeros(self.features)

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        """The law of the location where the teacher fields are known up to this variance (of spread 1)."""
        allowed = "one whose location has a known law given noisy fields: planted (spiked) or selected (max)"
        raise refuse("task", self.name, allowed)

    @abstractmethod
    def location_noise(
        self, rng: np.random.Generator, uniform: Float[np.ndarray, "s 1"], longest: int
    ) -> Float[np.ndarray, "s _"]:
        """The noise of sequences of up to `longest` tokens: of these uniform numbers, and what else `rng` draws."""

    @abstractmethod
    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L F"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        """The location in each sequence; `chi` are the fields of its Gaussian tokens along the key directions."""

    @abstractmethod
    def move_relevant(
        self,
        tokens: Float[Array, "s L D"],
        keys: Float[Array, "F D"],
        noise: Float[Array, "s _"],
    ) -> Float[Array, "s L D"]:
        """What each Gaussian token would become if it were the relevant one; `keys` are the teacher's directions."""


class AbstractNeedle(AbstractSamplable):
    """Given the location, tokens are independent, and only the relevant one has a law of its own.

    Its teacher key-fields have a mean that is drawn, and all its fields have standard deviation `spread`.
    """

    def location_noise(
        self, rng: np.random.Generator, uniform: Float[np.ndarray, "s 1"], longest: int
    ) -> Float[np.ndarray, "s _"]:
        return np.concatenate([uniform, rng.random((len(uniform), self.shift_uniforms))], 1)

    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L F"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        return jnp.floor(noise[:, 0] * jnp.sum(mask, -1)).astype(int)

    def move_relevant(
        self,
        tokens: Float[Array, "s L D"],
        keys: Float[Array, "F D"],
        noise: Float[Array, "s _"],
    ) -> Float[Array, "s L D"]:
        shifts = jax.vmap(self.draw_shift)(noise[:, 1:]) @ keys / jnp.sqrt(keys.shape[-1])
        spread = jnp.asarray(self.spread, tokens.dtype)
        return spread * tokens + shifts[:, None].astype(tokens.dtype)


class AbstractPlanted(AbstractNeedle):
    """One feature, along which the relevant token is always moved by `shift`."""

    shift: eqx.AbstractVar[Any]

    @property
    def relevant_field(self) -> Any:
        return self.shift

    @property
    def strength(self) -> Any:
        return self.shift

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_odds(chi) - self.shift**2 / 2) - jnp.log(chi.size)

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        return jnp.atleast_1d(jnp.asarray(self.shift))

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return PlantedLocation(self.shift, unknown_variance)


def check_planted(task: Any) -> None:
    """Refuse a task whose relevant token is not moved by a fixed shift."""
    if not isinstance(task, AbstractPlanted):
        raise refuse("task", task, "a planted task, such as SpikedSLR")


class AbstractSelected(AbstractSamplable):
    """Tokens are plain Gaussian, and the location is drawn from `softmax(sharpness · χ*)` (`inf`: the argmax)."""

    sharpness: eqx.AbstractVar[Any]
    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return self.sharpness

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jnp.zeros(())

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return SelectedLocation(self.sharpness, unknown_variance)

    def location_noise(
        self, rng: np.random.Generator, uniform: Float[np.ndarray, "s 1"], longest: int
    ) -> Float[np.ndarray, "s _"]:
        return rng.gumbel(size=(len(uniform), longest))

    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L F"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        hard, scores = jnp.isinf(self.sharpness), chi[..., 0]
        soft = jnp.where(hard, 0.0, self.sharpness) * scores + noise
        return jnp.argmax(jnp.where(mask, jnp.where(hard, scores, soft), -jnp.inf), -1)

    def move_relevant(
        self,
        tokens: Float[Array, "s L D"],
        keys: Float[Array, "F D"],
        noise: Float[Array, "s _"],
    ) -> Float[Array, "s L D"]:
        return tokens


class AbstractWeighted(AbstractTask):
    """Tokens and location follow a weight `g(ε, χ*)` with `E[g] = 1` and no further structure."""

    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return 1.0

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_odds(chi)) - jnp.log(chi.size)

    @abstractmethod
    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log g(ε, χ)`."""
