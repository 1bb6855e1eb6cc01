"""The attentions in use, each a small frozen spec."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from .._check import whole
from .base import AbstractAttention, Mask, count_tokens
from .elementwise import AbstractElementwise
from .general import AbstractGeneral
from .kernel import AbstractKernel

_Scores = Float[Array, "..."]
_Sequence = Float[Array, " L"]


# In the place of scores of tokens that there are not: far below any score, and finite, so that derivatives are too.
_ABSENT = -1e30


def _log_of_positive_part(x: _Scores) -> _Scores:
    """`log max(x, 0)` with a derivative that is 0, not NaN, where it is `-inf`."""
    positive = x > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, x, 1.0)), -jnp.inf)


def _present(scores: _Sequence, mask: Mask) -> _Sequence:
    return scores if mask is None else jnp.where(mask, scores, _ABSENT)


class Softmax(AbstractKernel):
    """`φ = e^χ`."""

    name: ClassVar[str] = "softmax"
    analytic: ClassVar[bool] = True
    exponential: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(), static=True)

    def log_phi(self, argument: _Scores) -> _Scores:
        return argument


class SoftmaxPlusOne(AbstractKernel):
    """`φ = e^χ` with 1 added to the denominator, so all weights can vanish."""

    name: ClassVar[str] = "softmax-1"
    analytic: ClassVar[bool] = True
    exponential: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(), static=True)
    constant: float = eqx.field(default=1.0, static=True)

    def log_phi(self, argument: _Scores) -> _Scores:
        return argument


class Softplus(AbstractKernel):
    """`φ = log(1 + e^χ)`."""

    name: ClassVar[str] = "softplus"
    analytic: ClassVar[bool] = True

    def log_phi(self, argument: _Scores) -> _Scores:
        low = argument < -36.0  # there log(1 + e^χ) = e^χ to double precision
        return jnp.where(low, argument, jnp.log(jax.nn.softplus(jnp.where(low, 0.0, argument))))


class EluPlusOne(AbstractKernel):
    """`φ = e^χ` below 0 and `1 + χ` above."""

    name: ClassVar[str] = "elu+1"

    def log_phi(self, argument: _Scores) -> _Scores:
        return jnp.where(argument < 0, argument, jnp.log1p(jnp.maximum(argument, 0.0)))


class Relu(AbstractKernel):
    """`φ = max(χ, 0)`."""

    name: ClassVar[str] = "relu"

    def log_phi(self, argument: _Scores) -> _Scores:
        return _log_of_positive_part(argument)


class SquaredRelu(AbstractKernel):
    """`φ = max(χ, 0)²`."""

    name: ClassVar[str] = "relu2"

    def log_phi(self, argument: _Scores) -> _Scores:
        return 2.0 * _log_of_positive_part(argument)


class Taylor2(AbstractKernel):
    """`φ = 1 + χ + χ²/2`."""

    name: ClassVar[str] = "taylor-2"
    analytic: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(-1.0,), static=True)

    def log_phi(self, argument: _Scores) -> _Scores:
        return jnp.log((1.0 + (1.0 + argument) ** 2) / 2.0)


class Linear(AbstractElementwise):
    """`h = 1 + χ`; a bias is equivalent to other norms of `k` and `v`."""

    name: ClassVar[str] = "linear"
    analytic: ClassVar[bool] = True
    bias_is_void: ClassVar[bool] = True
    features: tuple[float, ...] = eqx.field(default=(), static=True)

    def weight(self, argument: _Scores) -> _Scores:
        return 1.0 + argument


class ElementwiseRelu(AbstractElementwise):
    """`h = max(χ, 0)`."""

    name: ClassVar[str] = "elementwise-relu"

    def weight(self, argument: _Scores) -> _Scores:
        return jnp.maximum(argument, 0.0)


class Erf(AbstractElementwise):
    """`h = 1 + erf(bias + χ)`."""

    name: ClassVar[str] = "erf"
    analytic: ClassVar[bool] = True
    free_bias: bool = eqx.field(default=True, static=True, kw_only=True)

    def weight(self, argument: _Scores) -> _Scores:
        return erfc(-argument)  # accurate where it is tiny


class Sigmoid(AbstractElementwise):
    """`h = 1/(1 + e^{-(bias + χ)})`."""

    name: ClassVar[str] = "sigmoid"
    analytic: ClassVar[bool] = True
    free_bias: bool = eqx.field(default=True, static=True, kw_only=True)

    def weight(self, argument: _Scores) -> _Scores:
        return jax.nn.sigmoid(argument)


class Softpick(AbstractKernel):
    """`max(e^χ - 1, 0) / Σ|e^χ - 1|`, the rectified softmax of Zuhri et al. (arXiv 2504.20966), without its `ε`.

    Tokens of negative score get no weight and stay in the sum, so that weights may vanish together.
    """

    name: ClassVar[str] = "softpick"

    def log_phi(self, argument: _Scores) -> _Scores:
        large = argument > 36.0  # there e^χ - 1 = e^χ to double precision
        size = jnp.abs(jnp.expm1(jnp.where(large, 1.0, argument)))
        return jnp.where(large, argument, _log_of_positive_part(size))

    def share(self, argument: _Scores) -> _Scores:
        return jnp.where(argument > 0, 1.0, 0.0)


class AbstractPerLength(AbstractAttention):
    """Another attention of the catalogue at each length."""

    knows_length: ClassVar[bool] = True

    @abstractmethod
    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]: ...

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        known, stretch = self.at_length(count_tokens(scores, mask))
        return known(stretch * scores, mask)


class ScalableSoftmax(AbstractPerLength):
    """Softmax of `χ log L`, which stays as sharp among many tokens (SSMax, Nakanishi 2025, arXiv 2501.19399).

    The scalar that they learn is absorbed by the length of `k`. At a fixed length it is softmax with another `k`.
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


class SigmoidLogLength(AbstractPerLength):
    """`1/(1 + e^{-(bias - log L + χ)})`: the bias that Ramapuram et al. give the sigmoid (arXiv 2409.04431)."""

    name: ClassVar[str] = "sigmoid-logL"
    family: ClassVar[str] = "element-wise"
    analytic: ClassVar[bool] = True
    compares_tokens: ClassVar[bool] = False

    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]:
        return Sigmoid(bias=self.bias - jnp.log(length), free_bias=self.free_bias), 1.0


class ClippedSoftmax(AbstractGeneral):
    """Softmax stretched to `[low, high]` and cut to `[0, 1]`, so that small weights vanish (Bondarenko et al. 2023,
    arXiv 2306.12929, whose values for BERT these are)."""

    name: ClassVar[str] = "clipped-softmax"
    low: float = eqx.field(static=True, default=-0.03)
    high: float = eqx.field(static=True, default=1.0)

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        weights = jax.nn.softmax(_present(scores, mask))
        cut = jnp.clip((self.high - self.low) * weights + self.low, 0.0, 1.0)
        return cut if mask is None else jnp.where(mask, cut, 0.0)


class Cosine(AbstractGeneral):
    """Softmax of scores of unit size, times `log2(L² - L)`, as queries and keys of unit norm have them, with the
    temperature that Henry et al. start from (2020, arXiv 2010.04245).

    All tokens have nearly the same norm here, so that the norm that is lost is that of `k`: weights do not depend on
    the scale of the scores.
    """

    name: ClassVar[str] = "cosine"

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        count = count_tokens(scores, mask)
        square = jnp.sum(jnp.where(True if mask is None else mask, scores, 0.0) ** 2) / count
        size = jnp.sqrt(jnp.where(square > 0, square, 1.0))
        return jax.nn.softmax(
            _present(jnp.log2(jnp.maximum(count**2 - count, 1.0)) * scores / size, mask)
        )


class Sparsemax(AbstractGeneral):
    """Euclidean projection of the scores onto the simplex."""

    name: ClassVar[str] = "sparsemax"

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        scores = _present(scores, mask)
        ordered = jnp.sort(scores)[::-1]
        count = jnp.arange(1, scores.shape[0] + 1)
        partial = jnp.cumsum(ordered)
        support = jnp.sum(1.0 + count * ordered > partial)
        threshold = (partial[support - 1] - 1.0) / support
        return jnp.maximum(scores - threshold, 0.0)


class Entmax15(AbstractGeneral):
    """1.5-entmax, between softmax and sparsemax."""

    name: ClassVar[str] = "entmax-1.5"

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        scores = _present(scores, mask)
        halved = (scores - jnp.max(scores)) / 2.0
        ordered = jnp.sort(halved)[::-1]
        count = jnp.arange(1, scores.shape[0] + 1)
        mean = jnp.cumsum(ordered) / count
        spread = count * (jnp.cumsum(ordered**2) / count - mean**2)
        inside = jnp.maximum((1.0 - spread) / count, 0.0)
        root = jnp.where(inside > 0, jnp.sqrt(jnp.where(inside > 0, inside, 1.0)), 0.0)
        thresholds = mean - root
        support = jnp.sum(thresholds <= ordered)
        return jnp.maximum(halved - thresholds[support - 1], 0.0) ** 2


class TopKSoftmax(AbstractGeneral):
    """Softmax over the `k` largest scores, zero elsewhere."""

    name: ClassVar[str] = "top-k"
    k: int = eqx.field(static=True, default=2)

    def __check_init__(self) -> None:
        whole("k", self.k)

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        scores = _present(scores, mask)
        if self.k >= scores.shape[0]:
            return jax.nn.softmax(scores)
        # By place: where the compiler computes a score twice, the k-th may differ from itself in its last digit.
        _, places = jax.lax.top_k(scores, self.k)
        kept = jnp.zeros(scores.shape, bool).at[places].set(True)
        return jax.nn.softmax(jnp.where(kept, scores, -jnp.inf))


class Hardmax(AbstractGeneral):
    """One on the largest score, zero elsewhere."""

    name: ClassVar[str] = "hardmax"

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        return jax.nn.one_hot(
            jnp.argmax(_present(scores, mask)), scores.shape[0], dtype=scores.dtype
        )
