"""Several heads, each with a key vector and a bias of its own (section 10)."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import LARGEST, is_traced, numbers, one_of, refuse, shown, whole
from .base import AbstractAttention, Mask
from .kernel import Softmax

MOST_HEADS = 100


class AbstractHeads(AbstractAttention):
    """An attention with `count` key vectors; `bias` has one number per head, added to its scores."""

    family: ClassVar[str] = "heads"
    count: eqx.AbstractVar[int]

    @property
    def keys(self) -> int:  # type: ignore[override]
        return self.count

    def __call__(self, scores: Float[Array, "keys L"], mask: Mask = None) -> Float[Array, " L"]:
        return self.attend(scores, mask)


class Heads(AbstractHeads):
    """Several heads of one attention, each normalised separately: the weight of token `ℓ` is `Σ_h c_h σ(χ_h + b_h)_ℓ`.

    Args:
        attention: An attention with one key vector.
        count: Number of heads `H`.
        weights: `"average"` for `c_h = 1/H`, `"free"` to optimise them, or an array of shape `(H,)`.
        bias: One number, or one per head, added to the bias of `attention`.
        free_bias: Whether the biases are optimised; by default as for `attention`.

    Examples:
        >>> task = ar.FeatureSLR(ar.flipped(4.0), length=10)
        >>> M = [[1.77, 0.0], [-1.77, 0.0], [0.0, 1.21]]
        >>> overlaps = ar.Overlaps(M, jax.numpy.array(M) @ jax.numpy.array(M).T)
        >>> print(f"{ar.population_risk(task, ar.Heads(ar.Softmax(), 2), overlaps):.5f}")
        0.67738
    """

    name: ClassVar[str] = "heads"
    attention: AbstractAttention
    count: int = eqx.field(static=True)
    head_weights: Float[Any, " H"]
    free_weights: bool = eqx.field(static=True)
    bias: Any = eqx.field(kw_only=True)

    def __init__(
        self,
        attention: AbstractAttention,
        count: int,
        weights: Any = "average",
        *,
        bias: Any = 0.0,
        free_bias: bool | None = None,
    ):
        if not isinstance(attention, AbstractAttention) or attention.keys != 1:
            raise refuse("attention", shown(attention), "an attention of one key vector")
        self.attention, self.count = attention, whole("count", count, 1, MOST_HEADS)
        if isinstance(weights, str):
            one_of("weights", weights, ("average", "free"))
            self.free_weights = weights == "free"
            self.head_weights = np.full(self.count, 1.0 / self.count)
        else:
            self.free_weights = False
            self.head_weights = _per_head("weights", weights, self.count)
        self.bias = _per_head("bias", bias, self.count)
        self.free_bias = attention.free_bias if free_bias is None else free_bias

    @property
    def analytic(self) -> bool:  # type: ignore[override]
        return self.attention.analytic

    @property
    def exponential(self) -> bool:  # type: ignore[override]
        return self.attention.exponential

    @property
    def compares_tokens(self) -> bool:  # type: ignore[override]
        return self.attention.compares_tokens

    @property
    def takes_mask(self) -> bool:
        return self.attention.takes_mask

    @property
    def knows_length(self) -> bool:  # type: ignore[override]
        return self.attention.knows_length

    @property
    def one_head(self) -> AbstractAttention:
        return self.attention

    def as_one_head(self) -> AbstractAttention:
        if self.count > 1 or is_traced(self.head_weights) or self.head_weights[0] != 1.0:
            return self
        plain = self.attention.with_bias(self.attention.bias + self.bias[0])
        return plain.with_free_bias(self.free_bias)

    def as_copies(self) -> AbstractAttention | None:
        averaged = np.all(self.head_weights == 1.0 / self.count)
        if self.count == 1 or not averaged or np.any(self.bias != self.bias[0]):
            return None
        plain = self.attention.with_bias(self.attention.bias + self.bias[0])
        return plain.with_free_bias(False)

    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]:
        if not self.knows_length:
            return self, 1.0
        known, stretch = self.attention.at_length(length)
        return eqx.tree_at(
            lambda heads: (heads.attention, heads.bias), self, (known, stretch * self.bias)
        ), stretch

    def key_biases(self, squares: Float[Array, " H"]) -> Float[Any, " H"]:
        return self.attention.bias + jnp.asarray(self.bias)

    def attend(self, scores: Float[Array, "keys L"], mask: Mask = None) -> Float[Array, " L"]:
        own = jax.vmap(lambda score, bias: self.attention(score + bias, mask))
        return jnp.asarray(self.head_weights) @ own(scores, jnp.asarray(self.bias))

    def with_head_weights(self, weights: Any) -> "Heads":
        """A copy with other head weights."""
        return eqx.tree_at(lambda attention: attention.head_weights, self, weights)


class BayesSoftmax(AbstractHeads):
    """Softmax over tokens and heads jointly: token `ℓ` has the weight `Σ_h e^{χ_hℓ + b_h} / Σ_{h,ℓ'} e^{χ_hℓ' + b_h}`.

    With one head on each atom `μ_h` of the shift and `b_h = log w_h − |μ_h|²/2`, it is the posterior of the location.

    Args:
        count: Number of heads `H`.
        bias: One number, or one per head.
        free_bias: Whether the biases are optimised.
        tied: Whether the biases are fixed to `log w_h − Q_hh/2`, where `w` are the `weights`.
        weights: Positive numbers of shape `(H,)`; equal if not given.

    Examples:
        >>> ar.BayesSoftmax(2).keys
        2
    """

    name: ClassVar[str] = "bayes-softmax"
    analytic: ClassVar[bool] = True
    exponential: ClassVar[bool] = True
    is_joint: ClassVar[bool] = True
    count: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True)
    weights: Float[Any, " H"]
    bias: Any = eqx.field(kw_only=True)

    def __init__(
        self,
        count: int,
        *,
        bias: Any = 0.0,
        free_bias: bool = True,
        tied: bool = False,
        weights: Any = None,
    ):
        self.count, self.tied = whole("count", count, 1, MOST_HEADS), bool(tied)
        equal = np.full(self.count, 1.0 / self.count)
        self.weights = equal if weights is None else _per_head("weights", weights, self.count)
        if not is_traced(self.weights) and not np.all(np.asarray(self.weights) > 0):
            raise refuse("weights", shown(weights), "numbers > 0, one for each head")
        self.bias = _per_head("bias", bias, self.count)
        self.free_bias = bool(free_bias) and not self.tied

    def given_norms(self, squares: Float[Array, " H"]) -> "BayesSoftmax":
        if not self.tied:
            return self
        found = jnp.log(jnp.asarray(self.weights)) - squares / 2.0
        return BayesSoftmax(self.count, bias=found, free_bias=False, weights=self.weights)

    def key_biases(self, squares: Float[Array, " H"]) -> Float[Any, " H"]:
        return jnp.asarray(self.given_norms(squares).bias)

    def as_copies(self) -> AbstractAttention | None:
        is_alike = self.count > 1 and not self.tied and np.all(self.bias == self.bias[0])
        return Softmax() if is_alike else None

    def attend(self, scores: Float[Array, "keys L"], mask: Mask = None) -> Float[Array, " L"]:
        if self.tied:
            allowed = "one with biases of its own where the norms of the keys are not known"
            raise refuse("attention", "bayes-softmax with tied biases", allowed)
        joint = jax.nn.logsumexp(scores + jnp.asarray(self.bias)[:, None], 0)
        return jax.nn.softmax(joint if mask is None else jnp.where(mask, joint, -jnp.inf))


def _per_head(name: str, values: Any, count: int) -> Any:
    """One number per head, from an array or from a single number."""
    allowed = f"a number, or one for each of {count} heads"
    if is_traced(values):
        return jnp.broadcast_to(values, (count,))
    read = numbers(name, values, allowed)
    if read.shape not in ((), (count,)) or np.any(np.abs(read) > LARGEST):
        raise refuse(name, shown(values), allowed)
    return np.broadcast_to(read, (count,)).copy()
