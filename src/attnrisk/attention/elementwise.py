"""Element-wise attentions `h(χ_ℓ + bias)`: tokens do not interact, so risks are products of one-token integrals."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from .._check import function, numbers
from .base import (
    AbstractAttention,
    AbstractPerLength,
    AbstractSums,
    Mask,
    count_tokens,
    takes_length,
    values_of,
)


class AbstractElementwise(AbstractSums):
    """An element-wise attention: a function `h` of score plus bias.

    `features` are the arguments at which `h` bends within a few units or is not analytic.
    """

    family: ClassVar[str] = "element-wise"
    compares_tokens: ClassVar[bool] = False
    features: tuple[float, ...] = eqx.field(default=(0.0,), static=True, kw_only=True)

    @abstractmethod
    def weight(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        """`h`, element-wise, of score plus bias."""

    def strengths(self, scores: Float[Array, "..."], log_scale: Any) -> tuple[Array, None]:
        return self.weight(scores + self.bias), None

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        weights = self.weight(self.bias + scores)
        return weights if mask is None else jnp.where(mask, weights, 0.0)


class Elementwise(AbstractElementwise):
    """An element-wise attention `h(χ_ℓ)` of your own.

    Args:
        weight: The function `h`, written with `jax.numpy`; it acts element-wise on an array of scores.
            A function of `(score, length)` is also given the number of tokens.
        bias: Constant added to the scores.
        free_bias: Whether the bias is optimised.
        features: Scores at which `h` bends or has a kink.
        analytic: Whether `h` has no kink. Integrals are then faster.
        length: The number of tokens, if it is fixed; set by `at_length`.

    Examples:
        >>> import jax.numpy as jnp
        >>> exponential = ar.Elementwise(jnp.exp, features=(), analytic=True)
        >>> print(f"{ar.population_minimum(ar.SpikedSLR(nu=5.0, length=10), exponential).risk:.6f}")
        0.559612
    """

    name: ClassVar[str] = "elementwise"
    weight_fn: Callable[..., Any] = eqx.field(static=True)
    analytic: bool = eqx.field(static=True)
    length: Any

    def __init__(
        self,
        weight: Callable[..., Any],
        bias: Any = 0.0,
        free_bias: bool = False,
        features: tuple[float, ...] = (0.0,),
        analytic: bool = False,
        length: Any = None,
    ):
        self.weight_fn = function("weight", weight)
        self.bias = bias
        self.free_bias = free_bias
        self.features = tuple(numbers("features", features).ravel().tolist())
        self.analytic = analytic
        self.length = length

    @property
    def knows_length(self) -> bool:  # type: ignore[override]
        return self.length is None and takes_length(self.weight_fn)

    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]:
        if not self.knows_length:
            return self, 1.0
        fixed = self.bias, self.free_bias, self.features, self.analytic
        return Elementwise(self.weight_fn, *fixed, length=length), 1.0

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        known, _ = self.at_length(count_tokens(scores, mask))
        return AbstractElementwise.__call__(cast(Elementwise, known), scores, mask)

    def weight(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        length = () if self.length is None else (self.length,)
        return values_of("weight", self.weight_fn, argument, *length)


class Linear(AbstractElementwise):
    """`h = 1 + χ`; a bias is equivalent to other norms of `k` and `v`."""

    name: ClassVar[str] = "linear"
    analytic: ClassVar[bool] = True
    bias_is_void: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(), static=True)

    def weight(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return 1.0 + argument


class ElementwiseRelu(AbstractElementwise):
    """`h = max(χ, 0)`."""

    name: ClassVar[str] = "elementwise-relu"

    def weight(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.maximum(argument, 0.0)


class Erf(AbstractElementwise):
    """`h = 1 + erf(bias + χ)`."""

    name: ClassVar[str] = "erf"
    analytic: ClassVar[bool] = True
    free_bias: bool = eqx.field(default=True, static=True, kw_only=True)

    def weight(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return erfc(-argument)  # accurate where it is tiny


class Sigmoid(AbstractElementwise):
    """`h = 1/(1 + e^{-(bias + χ)})`."""

    name: ClassVar[str] = "sigmoid"
    analytic: ClassVar[bool] = True
    free_bias: bool = eqx.field(default=True, static=True, kw_only=True)

    def weight(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return jax.nn.sigmoid(argument)


class SigmoidLogLength(AbstractPerLength):
    """`1/(1 + e^{-(bias - log L + χ)})`: a sigmoid with the bias of Ramapuram et al. (arXiv 2409.04431)."""

    name: ClassVar[str] = "sigmoid-logL"
    family: ClassVar[str] = "element-wise"
    analytic: ClassVar[bool] = True
    compares_tokens: ClassVar[bool] = False

    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]:
        return Sigmoid(bias=self.bias - jnp.log(length), free_bias=self.free_bias), 1.0
