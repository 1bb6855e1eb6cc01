"""Tasks whose location is drawn given the fields of Gaussian tokens: by a softmax of them, or by a density ratio."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._check import function, real
from .location import AbstractLocation, SelectedLocation
from .slr import AbstractSamplable, AbstractTask, LengthLaw


class AbstractSelected(AbstractSamplable):
    """Tasks with Gaussian tokens, whose location is drawn from `softmax(sharpness · χ*)` (`inf`: argmax)."""

    no_optimum: ClassVar[str] = ""
    sharpness: eqx.AbstractVar[Any]
    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return self.sharpness

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jnp.zeros(())

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return SelectedLocation(self.sharpness, unknown_variance)

    def key_information(self, alpha: Any) -> Any:
        """Of order `α²`: at `ν = inf` only sequences whose two largest fields are within `√(1−q_k)` are informative."""
        return (1.0 + 10.0 * alpha) ** 2 - 1.0

    def teacher_uniforms(self, length: int) -> int:
        return 2 * length

    def draw_teacher(
        self, uniforms: Float[np.ndarray, "s u"], lengths: Int[np.ndarray, " s"]
    ) -> Float[np.ndarray, "s L"]:
        from scipy.special import ndtri  # a tenth of a second of import that only samples pay

        fields, noise = np.split(uniforms, 2, 1)
        chi, noise = ndtri(fields), -np.log(-np.log(noise))
        mask, rows = np.arange(chi.shape[1]) < lengths[:, None], np.arange(len(chi))
        there = np.asarray(self.choose_locations(*map(jnp.asarray, (noise, chi[..., None], mask))))
        chi[rows, there], chi[:, 0] = chi[:, 0], chi[rows, there]
        return chi

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
    """Tasks given by a density ratio `g(ε, χ*)` with `E[g] = 1` and no further structure."""

    no_optimum: ClassVar[str] = (
        "of a weight g the mean given noisy fields, on which the equations are built, has no formula"
    )
    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return 1.0

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_odds(chi)) - jnp.log(chi.size)

    @abstractmethod
    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log g(ε, χ)`."""

    def teacher_uniforms(self, length: int) -> int:
        return length

    def draw_teacher(
        self, uniforms: Float[np.ndarray, "s u"], lengths: Int[np.ndarray, " s"]
    ) -> Float[np.ndarray, "s L"]:
        from scipy.special import ndtri

        return ndtri(uniforms)

    def visited(self, length: int) -> int:
        return length

    def visit(
        self,
        correlation: Float[Array, "H F"],
        normals: Float[Array, "H L"],
        shift: Float[Array, " F"],
        teacher: Float[Array, " T"],
    ) -> tuple[Float[Array, " e"], Float[Array, "e F L"]]:
        weigh = jax.vmap(jax.value_and_grad(self.log_weight, 1), (0, None))
        log, slope = weigh(jnp.arange(teacher.size), teacher)
        return jnp.exp(log) / teacher.size, slope[:, None]


class MaxSLR(AbstractSelected):
    """Max single-location regression: the relevant token has the largest component along `k*`, or nearly.

    The location is drawn from `softmax(ν χ*)`; at `ν = inf` it is the argmax. No token is shifted.

    Args:
        nu: Sharpness `ν ≥ 0` of the selection; `inf` is allowed.
        length: Number of tokens: an integer or a `LengthLaw`.
        noise: Standard deviation `Δ ≥ 0` of the label noise.

    Examples:
        >>> print(f"{ar.bayes_risk(ar.MaxSLR(nu=2.0, length=10)):.6f}")
        0.609880
    """

    name: ClassVar[str] = "max"
    nu: Any
    length: LengthLaw
    noise: Any

    def __init__(self, nu: Any, length: Any, noise: Any = 0.0):
        self.nu = real("nu", nu, minimum=0.0, infinite=True)
        self.length = LengthLaw(length)
        self.noise = real("noise", noise, minimum=0.0)

    @property
    def sharpness(self) -> Any:
        """Inverse temperature of the softmax from which the location is drawn."""
        return self.nu

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        hard = jnp.where(chi == jnp.max(chi), 0.0, -jnp.inf)
        soft = jnp.where(jnp.isinf(self.nu), 0.0, self.nu) * chi
        return jnp.where(jnp.isinf(self.nu), hard, soft)


class WeightedSLR(AbstractWeighted):
    """Single-location regression with a user-defined density ratio.

    Args:
        log_weight: A function `log_weight(location, chi)` that returns `log g(ε, χ)`, written with `jax.numpy`; `chi`
            has shape `(L,)`. `E[g] = 1` for standard normal `chi` and a uniform location.
        length: Number of tokens: an integer or a `LengthLaw`.
        noise: Standard deviation `Δ ≥ 0` of the label noise.

    Examples:
        >>> import jax.numpy as jnp
        >>> def squares(location, chi):
        ...     return jnp.log(chi.size * chi[location] ** 2 / jnp.sum(chi**2))
        >>> print(f"{ar.bayes_risk(ar.WeightedSLR(squares, length=4)):.3f}")
        0.500
    """

    name: ClassVar[str] = "weighted"
    log_weight_fn: Callable[[Any, Any], Any] = eqx.field(static=True)
    length: LengthLaw
    noise: Any

    def __init__(self, log_weight: Callable[[Any, Any], Any], length: Any, noise: Any = 0.0):
        self.log_weight_fn = function("log_weight", log_weight)
        self.length = LengthLaw(length)
        self.noise = real("noise", noise, minimum=0.0)

    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return self.log_weight_fn(location, chi)

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        return jax.vmap(self.log_weight, in_axes=(0, None))(jnp.arange(chi.shape[0]), chi)
