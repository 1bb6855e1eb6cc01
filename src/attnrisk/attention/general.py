"""General attentions: any map from `L` scores to `L` weights, integrated over Sobol points."""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import function as check_function
from .._check import refuse, whole
from .base import AbstractAttention, Mask, count_tokens, values_of

# In the place of scores of tokens that there are not: far below any score, and finite, so that derivatives are too.
_ABSENT = -1e30


class AbstractGeneral(AbstractAttention):
    """A general attention: any map from the scores of a sequence to its weights."""

    family: ClassVar[str] = "general"

    @abstractmethod
    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        """Weights of one sequence."""


class General(AbstractGeneral):
    """Any attention of your own, integrated over Sobol points.

    Args:
        function: A function from `L` scores to `L` weights for any `L`, written with `jax.numpy`. A function of
            `(scores, mask)` can also be applied to padded sequences.
        bias: Constant added to the scores.
        free_bias: Whether the bias is optimised.

    Examples:
        >>> import jax.numpy as jnp
        >>> attention = ar.General(lambda scores: jnp.exp(scores - scores.max()))
        >>> attention(jnp.array([0.0, 1.0])).round(4).tolist()
        [0.3679, 1.0]
    """

    name: ClassVar[str] = "general"
    function: Callable[..., Any] = eqx.field(static=True)

    def __init__(self, function: Callable[..., Any], *, bias: Any = 0.0, free_bias: bool = False):
        self.function = check_function("function", function)
        self.bias = bias
        self.free_bias = free_bias

    @property
    def takes_mask(self) -> bool:
        try:
            signature = inspect.signature(self.function)
            signature.bind(None, None)
        except (TypeError, ValueError):  # another signature, or none to be found
            return False
        # An argument that may be left out, such as the axis of `jax.nn.softmax`, is a mask only by its name.
        second = list(signature.parameters.values())[1:2]
        return all(each.name == "mask" or each.default is each.empty for each in second)

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        scores = scores + self.bias
        if mask is None:
            return values_of("function", self.function, scores)
        if not self.takes_mask:
            raise refuse(
                "function", self.function, "a function of (scores, mask) for padded sequences"
            )
        return jnp.where(mask, self.function(scores, mask), 0.0)


def _present(scores: Float[Array, " L"], mask: Mask) -> Float[Array, " L"]:
    return scores if mask is None else jnp.where(mask, scores, _ABSENT)


class ClippedSoftmax(AbstractGeneral):
    """Softmax scaled to `[low, high]` and clipped to `[0, 1]`, so that small weights vanish.

    The default values are those for BERT in Bondarenko et al. (2023, arXiv 2306.12929).
    """

    name: ClassVar[str] = "clipped-softmax"
    low: float = eqx.field(static=True, default=-0.03)
    high: float = eqx.field(static=True, default=1.0)

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        weights = jax.nn.softmax(_present(scores, mask))
        cut = jnp.clip((self.high - self.low) * weights + self.low, 0.0, 1.0)
        return cut if mask is None else jnp.where(mask, cut, 0.0)


class Cosine(AbstractGeneral):
    """Softmax of scores normalised to unit size, times `log2(L² - L)`.

    Queries and keys of unit norm with the initial temperature of Henry et al. (2020, arXiv 2010.04245) give this. In
    this model all tokens have nearly the same norm, so normalising removes the norm of `k`: weights do not depend on
    the scale of the scores.
    """

    name: ClassVar[str] = "cosine"

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        count = count_tokens(scores, mask)
        square = jnp.sum(jnp.where(True if mask is None else mask, scores, 0.0) ** 2) / count
        size = jnp.sqrt(jnp.where(square > 0, square, 1.0))
        return jax.nn.softmax(
            _present(jnp.log2(jnp.maximum(count**2 - count, 1.0)) * scores / size, mask)
        )


class Sparsemax(AbstractGeneral):
    """Euclidean projection of the scores onto the simplex."""

    name: ClassVar[str] = "sparsemax"

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
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

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
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

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
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

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        return jax.nn.one_hot(
            jnp.argmax(_present(scores, mask)), scores.shape[0], dtype=scores.dtype
        )
