"""Normalised kernels `φ(χ_ℓ + b) / (constant + Σ φ(χ + b))`: exact through one Laplace transform (section 4.2)."""

from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import LARGEST, function, numbers, real
from .base import (
    AbstractAttention,
    AbstractPerLength,
    AbstractSums,
    Mask,
    count_tokens,
    refuse_weights,
    takes_length,
    values_of,
)

_FAR = 5e3  # scores from which powers are read off
_SAME_POWER = 1e-4
_MOST_POWERS = 8.0
_CONSTANT = 1e-12  # change of log φ beyond `_FAR`, below which φ is a step there
_SHORTEST, _SIZES = 1e-100, 201  # scores at which a kernel may exceed the constant
_LARGEST_LOG = 1e5  # of `φ` at all scores near zero: beyond it rounding is seen in the weights
_STEEP = 100.0  # factor by which log φ grows from 10 to 20, beyond any kernel in use


class AbstractKernel(AbstractSums):
    """A normalised kernel: a positive function `φ` of score plus bias, given by its logarithm.

    `features` are the arguments at which `φ` changes its behaviour within a few units or is not analytic (a kink, the
    knee of softplus). Quadrature panels meet there. A scale-free kernel such as `e^χ` has none.
    """

    family: ClassVar[str] = "kernel"
    features: tuple[float, ...] = eqx.field(default=(0.0,), static=True, kw_only=True)
    constant: float = eqx.field(default=0.0, static=True, kw_only=True)

    @abstractmethod
    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        """`log φ`, element-wise, of score plus bias; `-inf` where `φ` vanishes."""

    def share(self, argument: Float[Array, "..."]) -> Any:
        """The fraction of `φ` in the numerator; the denominator has all of it."""
        return 1.0

    def log_scale(self, scores: Float[Array, " L"]) -> Any:
        top = jnp.max(self.log_phi(scores + self.bias))
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        return jnp.maximum(top, np.log(self.constant)) if self.constant > 0 else top

    def strengths(self, scores: Float[Array, "..."], log_scale: Any) -> tuple[Array, Array]:
        phi = jnp.exp(self.log_phi(scores + self.bias) - log_scale)
        return self.share(scores + self.bias) * phi, phi

    def total(self, counted: Any, log_scale: Any) -> Any:
        if self.constant > 0:
            counted = counted + self.constant * jnp.exp(-log_scale)
        return jnp.where(counted > 0, counted, 1.0)

    @property
    def vanishes(self) -> bool:
        """Whether `φ` is zero somewhere, as for ReLU."""
        return _vanishes(self.with_bias(0.0))

    @property
    def kink_power(self) -> float:
        """The largest power of the distance from one of its `features` with which `φ` vanishes there; at least 1."""
        return _kink_power(self.with_bias(0.0))

    @property
    def score_scale(self) -> float:
        if self.constant == 0 or self.analytic or self.knows_length:
            return 1.0
        return _score_scale(self.with_bias(0.0 if self.free_bias else float(self.bias)))

    @property
    def at_unit_scale(self) -> "AbstractKernel | None":
        """With another constant, the same attention of scores divided by `score_scale`, if `φ` is a power of the score.

        There its constant matters for scores of order one. `None` if it does so already, or for any other `φ`.
        """
        scale = self.score_scale
        if scale == 1.0 or not (self.free_bias or float(self.bias) == 0.0):
            return None
        if not self._with("constant", 0.0).is_homogeneous:
            return None
        sizes = np.array([-1.0, 1.0])
        largest = float(np.max(np.asarray(jax.jit(self.log_phi)(sizes))))
        return cast(AbstractKernel, self._with("constant", float(np.exp(largest))))

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        argument = scores + self.bias
        log_phi = self.log_phi(argument)
        if mask is not None:
            log_phi = jnp.where(mask, log_phi, -jnp.inf)
        top = jax.lax.stop_gradient(jnp.max(log_phi))
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        if self.constant > 0:
            top = jnp.maximum(top, jnp.log(self.constant))
        phi = jnp.exp(log_phi - top)
        total = jnp.sum(phi)
        if self.constant > 0:
            total += self.constant * jnp.exp(-top)
        weights = jnp.where(total == 0, 0.0, phi / jnp.where(total == 0, 1.0, total))
        return self.share(argument) * weights


@cache
def _vanishes(kernel: AbstractKernel) -> bool:
    with jax.ensure_compile_time_eval():
        probes = np.asarray(jax.jit(kernel.log_phi)(np.array([-1e3, -1.0, 0.0, 1.0, 1e3])))
    least = float(np.min(np.abs(probes[1:-1])))
    if _LARGEST_LOG < least < np.inf:
        raise refuse_weights(
            kernel, f"whose log_phi has the size {least:.2g} near 0: subtract that"
        )
    return bool(np.any(np.isneginf(probes)))


@cache
def _score_scale(kernel: AbstractKernel) -> float:
    """The least distance from the bias at which `φ` exceeds the constant, up to one."""
    sizes = np.geomspace(_SHORTEST, 1.0, _SIZES)
    with jax.ensure_compile_time_eval():
        values = jax.jit(kernel.log_phi)(kernel.bias + sizes * np.array([[-1.0], [1.0]]))
    largest, level = np.max(np.asarray(values), 0), np.log(kernel.constant)
    if not largest[0] < level < largest[-1]:
        return 1.0
    at = int(np.argmax(largest > level))
    below = max(largest[at - 1], -LARGEST)
    return float(
        sizes[at] * (sizes[at - 1] / sizes[at]) ** ((largest[at] - level) / (largest[at] - below))
    )


@cache
def _kink_power(kernel: AbstractKernel) -> float:
    distances = np.array([[-1e-5], [-1e-4], [1e-4], [1e-5]])
    with jax.ensure_compile_time_eval():
        values = np.asarray(jax.jit(kernel.log_phi)(distances + np.array(kernel.features)))
    far, near = values[[1, 2]], values[[0, 3]]
    positive = np.isfinite(far) & np.isfinite(near)
    powers = (far[positive] - near[positive]) / np.log(10.0)
    return float(np.clip(np.max(powers, initial=1.0), 1.0, _MOST_POWERS))


class PowerKernel(AbstractKernel):
    """`φ = |χ|^exponent`, with a factor `e^log_ratio` below zero; of exponent 0, a step."""

    name: ClassVar[str] = "power"
    exponent: float = eqx.field(static=True)
    log_ratio: float = eqx.field(static=True)

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        size = jnp.abs(argument)
        at_zero = -jnp.inf if self.exponent > 0 else 0.0
        power = self.exponent * jnp.log(jnp.where(size > 0, size, 1.0))
        return jnp.where(size > 0, power, at_zero) + jnp.where(argument < 0, self.log_ratio, 0.0)


def power_limit(kernel: AbstractKernel) -> PowerKernel | None:
    """What a kernel becomes as its scores are stretched without bound: a power above zero, and below it the same power
    times a factor, or a lower one, which is nothing beside it; a bounded one a step, of power 0. `None` for others."""
    sizes = _FAR * np.array([1.0, 2.0, 4.0, 8.0])
    log_phi = jax.jit(kernel.log_phi)
    above, below = (np.asarray(log_phi(sign * sizes)) for sign in (1.0, -1.0))
    if not np.isfinite(above).all():
        return None
    if np.isfinite(below).all() and max(np.ptp(above), np.ptp(below)) < _CONSTANT:
        return PowerKernel(exponent=0.0, log_ratio=float(below[-1] - above[-1]))
    # The corrections of lower powers fall like the inverse of the size, and are removed.
    powers = np.diff([above, np.maximum(below, -LARGEST)]) / np.log(2.0)
    exponents = 2.0 * powers[:, 1:] - powers[:, :-1]
    power, tolerance = exponents[0, -1], _SAME_POWER * exponents[0, -1]
    if not power > _SAME_POWER or np.ptp(exponents[0]) > tolerance:
        return None
    log_ratio = -np.inf
    if np.ptp(exponents) <= tolerance:
        ratio = below - above
        log_ratio = round(float(2 * ratio[3] - ratio[2]), 5)
    elif not np.all(exponents[1] < power - tolerance):
        return None
    return PowerKernel(exponent=round(float(power), 5), log_ratio=log_ratio)


class Kernel(AbstractKernel):
    """A normalised kernel `φ(χ_ℓ)/(c₀ + Σ φ)` of your own.

    Args:
        log_phi: The function `log φ`, written with `jax.numpy`; it acts element-wise on an array of scores.
            A function of `(score, length)` is also given the number of tokens.
        constant: The constant `c₀ ≥ 0` in the denominator.
        features: Scores at which `φ` bends or has a kink.
        bias: Constant added to the scores.
        free_bias: Whether the bias is optimised.
        analytic: Whether `φ` has no kink. Integrals are then faster.
        length: The number of tokens, if it is fixed; set by `at_length`.

    Examples:
        >>> import jax.numpy as jnp
        >>> quartic = ar.Kernel(lambda x: 4 * jnp.log(1 + jnp.maximum(x, 0.0)))
        >>> print(f"{ar.population_minimum(ar.SpikedSLR(nu=5.0, length=10), quartic).risk:.6f}")
        0.367917
    """

    name: ClassVar[str] = "kernel"
    log_phi_fn: Callable[..., Any] = eqx.field(static=True)
    analytic: bool = eqx.field(static=True)
    length: Any

    def __init__(
        self,
        log_phi: Callable[..., Any],
        constant: float = 0.0,
        features: tuple[float, ...] = (0.0,),
        bias: Any = 0.0,
        free_bias: bool = False,
        analytic: bool = False,
        length: Any = None,
    ):
        self.log_phi_fn = function("log_phi", log_phi)
        self.analytic = analytic
        self.bias = bias
        self.free_bias = free_bias
        self.constant = real("constant", constant, minimum=0.0)
        self.features = tuple(numbers("features", features).ravel().tolist())
        self.length = length

    @property
    def knows_length(self) -> bool:  # type: ignore[override]
        return self.length is None and takes_length(self.log_phi_fn)

    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]:
        if not self.knows_length:
            return self, 1.0
        fixed = self.constant, self.features, self.bias, self.free_bias, self.analytic
        return Kernel(self.log_phi_fn, *fixed, length=length), 1.0

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        known, _ = self.at_length(count_tokens(scores, mask))
        return AbstractKernel.__call__(cast(Kernel, known), scores, mask)

    def why_inaccurate(self) -> str:
        if not self.knows_length:
            near, far = (float(self.log_phi(jnp.asarray(score))) for score in (10.0, 20.0))
            if far > _STEEP * near > 0:
                return "its log_phi grows like an exponential: is it φ, whose logarithm is wanted?"
        return super().why_inaccurate()

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        length = () if self.length is None else (self.length,)
        return values_of("log_phi", self.log_phi_fn, argument, *length)


def _log_of_positive_part(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`log max(x, 0)` with a derivative that is 0, not NaN, where it is `-inf`."""
    positive = x > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, x, 1.0)), -jnp.inf)


class Softmax(AbstractKernel):
    """`φ = e^χ`."""

    name: ClassVar[str] = "softmax"
    analytic: ClassVar[bool] = True
    exponential: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(), static=True)

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return argument


class SoftmaxPlusOne(AbstractKernel):
    """`φ = e^χ` with 1 added to the denominator, so all weights can vanish."""

    name: ClassVar[str] = "softmax-1"
    analytic: ClassVar[bool] = True
    exponential: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(), static=True)
    constant: float = eqx.field(default=1.0, static=True)

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return argument


class Softplus(AbstractKernel):
    """`φ = log(1 + e^χ)`."""

    name: ClassVar[str] = "softplus"
    analytic: ClassVar[bool] = True

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        low = argument < -36.0  # there log(1 + e^χ) = e^χ to double precision
        return jnp.where(low, argument, jnp.log(jax.nn.softplus(jnp.where(low, 0.0, argument))))


class EluPlusOne(AbstractKernel):
    """`φ = e^χ` below 0 and `1 + χ` above."""

    name: ClassVar[str] = "elu+1"

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(argument < 0, argument, jnp.log1p(jnp.maximum(argument, 0.0)))


class Relu(AbstractKernel):
    """`φ = max(χ, 0)`."""

    name: ClassVar[str] = "relu"

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return _log_of_positive_part(argument)


class SquaredRelu(AbstractKernel):
    """`φ = max(χ, 0)²`."""

    name: ClassVar[str] = "relu2"

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return 2.0 * _log_of_positive_part(argument)


class Taylor2(AbstractKernel):
    """`φ = 1 + χ + χ²/2`."""

    name: ClassVar[str] = "taylor-2"
    analytic: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(-1.0,), static=True)

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log((1.0 + (1.0 + argument) ** 2) / 2.0)


class Softpick(AbstractKernel):
    """`max(e^χ - 1, 0) / Σ|e^χ - 1|`, the rectified softmax of Zuhri et al. (arXiv 2504.20966), without its `ε`.

    Tokens with a negative score have weight 0 but count in the denominator, so all weights can vanish.
    """

    name: ClassVar[str] = "softpick"

    def log_phi(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        large = argument > 36.0  # there e^χ - 1 = e^χ to double precision
        size = jnp.abs(jnp.expm1(jnp.where(large, 1.0, argument)))
        return jnp.where(large, argument, _log_of_positive_part(size))

    def share(self, argument: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(argument > 0, 1.0, 0.0)


class ScalableSoftmax(AbstractPerLength):
    """Softmax of `χ log L`, which stays sharp in long sequences (SSMax, Nakanishi 2025, arXiv 2501.19399).

    Their learned scalar is absorbed by the norm of `k`. At a fixed length it is softmax with another `k`.
    """

    name: ClassVar[str] = "ssmax"
    family: ClassVar[str] = "kernel"
    analytic: ClassVar[bool] = True
    exponential: ClassVar[bool] = True
    bias_is_void: ClassVar[bool] = True

    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]:
        stretch = jnp.log(
            jnp.maximum(length, 2.0)
        )  # one token has all the weight, whatever its score
        return Softmax(bias=stretch * self.bias, free_bias=self.free_bias), stretch
