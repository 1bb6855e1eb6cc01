"""How an attention turns `L` scores into `L` weights, `f(X) = σ(χ)·z` (section 2 of docs/theory.md)."""

from abc import abstractmethod
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._check import real

Mask = Bool[Array, " L"] | None

_STRETCH = 8.0  # of the scores, to see whether weights change
_SHIFT = 3.0  # of the scores, likewise


class AbstractAttention(eqx.Module):
    """A map from scores to weights, of scores to which a `bias` is added.

    Where `free_bias` is set, the bias is tuned together with the overlaps. `analytic` attentions have no kink, as
    cheaper quadrature may count on; `exponential` kernels do best about as sharp as the teacher, where a search looks
    first; `features` are arguments where it is not smooth. `compares_tokens` if the weight of a token depends on the
    scores of others; `keys` is the number of key vectors.
    """

    name: eqx.AbstractClassVar[str]
    family: eqx.AbstractClassVar[str]
    analytic: ClassVar[bool] = False
    exponential: ClassVar[bool] = False
    compares_tokens: ClassVar[bool] = True
    keys: ClassVar[int] = 1
    features: ClassVar[tuple[float, ...]] = ()
    bias: Any = eqx.field(default=0.0, kw_only=True, converter=partial(real, "bias"))
    free_bias: bool = eqx.field(default=False, static=True, kw_only=True)

    @abstractmethod
    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        """The weights `σ(χ + bias)` of one sequence: of the tokens that `mask` says there are, and zero elsewhere."""

    def attend(self, scores: Float[Array, "keys L"], mask: Mask = None) -> Float[Array, " L"]:
        """The total weight of each token from the scores of each key vector."""
        return self(jnp.squeeze(scores, 0), mask)  # an index would be a scatter in its derivative

    @property
    def takes_mask(self) -> bool:
        """Whether it can be applied to padded sequences."""
        return True

    @property
    def is_scale_sensitive(self) -> bool:
        """Whether weights change when all scores are stretched, or never change at all.

        Those of ReLU over its sum do not. With a ridge on `k` its empirical risk has no minimum: the shorter `k`, the
        smaller the penalty, and the loss stays.
        """
        plain, stretched = self._weights(1.0), self._weights(_STRETCH)
        return not _same(plain, stretched) or bool(np.ptp(plain) < 1e-9)

    @property
    def is_homogeneous(self) -> bool:
        """Whether stretching scores, the bias included, multiplies all weights by one number, as for ReLU.

        Only the ratio of bias to the length of `k` matters then.
        """
        unbiased = self.with_bias(0.0 * self.bias)
        plain, stretched = unbiased._weights(1.0), unbiased._weights(_STRETCH)
        largest = np.unravel_index(np.argmax(np.abs(plain)), plain.shape)
        return bool(plain[largest] != 0) and _same(
            stretched, plain * stretched[largest] / plain[largest]
        )

    @property
    def bias_is_void(self) -> bool:
        """Whether a bias changes nothing that the lengths of `k` and `v` could not, as for softmax and linear."""
        return _same(self._weights(1.0), self._weights(1.0, _SHIFT))

    def _weights(self, scale: float, shift: float = 0.0) -> np.ndarray:
        """Of a few random sequences, whose scores are stretched and shifted."""
        scores = np.random.default_rng(0).standard_normal((16, self.keys, 3))
        return np.asarray(_attend(self, scale * scores + shift))

    def given_norms(self, squares: Float[Array, " keys"]) -> "AbstractAttention":
        """The same where biases depend on the squared norms `Q_hh` of the keys, which are these."""
        return self

    def with_bias(self, bias: Any) -> "AbstractAttention":
        """The same with another bias."""
        if np.ndim(bias) == 0:
            real("bias", bias)
        return eqx.tree_at(lambda attention: attention.bias, self, bias)

    def with_free_bias(self, free: bool = True) -> "AbstractAttention":
        """The same with a bias that is tuned, or with one that is not."""
        copy = object.__new__(type(self))
        for each in fields(self):
            object.__setattr__(copy, each.name, getattr(self, each.name))
        object.__setattr__(copy, "free_bias", free)
        return copy


def _same(weights: np.ndarray, others: np.ndarray) -> bool:
    return np.allclose(weights, others, rtol=1e-6, atol=1e-9)


@eqx.filter_jit
def _attend(attention: AbstractAttention, scores: Any) -> Any:
    return jax.vmap(attention.attend)(jnp.asarray(scores))
