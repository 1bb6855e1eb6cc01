"""Base classes of attentions, maps from `L` scores to `L` weights, `f(X) = σ(χ)·z` (section 2 of docs/theory.md)."""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._check import Refusal, real, refuse

Mask = Bool[Array, " L"] | None

_STRETCH = 8.0  # of the scores, to see whether weights change
_SHIFTS = 3.0, -3.0  # of the scores, likewise
_HUGE = 1e100  # the square of a weight is still a number


class AbstractAttention(eqx.Module):
    """A map from scores to weights. A `bias` is added to the scores.

    If `free_bias` is set, the bias is optimised together with the overlaps. `analytic` says that the attention has no
    kink, so cheaper quadrature can be used. `exponential` marks kernels whose optimal norm of `k` is near that of the
    posterior, where a search starts. `features` are scores at which the attention is not smooth. `compares_tokens` says
    whether the weight of a token depends on other scores. `keys` is the number of key vectors. `knows_length` says
    whether the formula contains the number of tokens.

    Of attentions with several heads: `head_weights` are those of heads that are normalised one by one, and
    `free_weights` says that they are optimised; `is_joint`, that heads are normalised together; `tied`, that biases
    follow from the norms of the keys.
    """

    name: eqx.AbstractClassVar[str]
    family: eqx.AbstractClassVar[str]
    analytic: ClassVar[bool] = False
    exponential: ClassVar[bool] = False
    compares_tokens: ClassVar[bool] = True
    keys: ClassVar[int] = 1
    knows_length: ClassVar[bool] = False
    features: ClassVar[tuple[float, ...]] = ()
    head_weights: ClassVar[Any] = None
    free_weights: ClassVar[bool] = False
    is_joint: ClassVar[bool] = False
    tied: ClassVar[bool] = False
    bias: Any = eqx.field(default=0.0, kw_only=True, converter=partial(real, "bias"))
    free_bias: bool = eqx.field(default=False, static=True, kw_only=True)

    @abstractmethod
    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        """Weights `σ(χ + bias)` of one sequence; tokens that `mask` excludes have weight 0."""

    def attend(self, scores: Float[Array, "keys L"], mask: Mask = None) -> Float[Array, " L"]:
        """Total weight of each token, from the scores of each key vector."""
        return self(jnp.squeeze(scores, 0), mask)  # an index would be a scatter in its derivative

    @property
    def takes_mask(self) -> bool:
        """Whether it can be applied to padded sequences."""
        return True

    @property
    def has_sums(self) -> bool:
        """Whether scores enter through one sum over tokens, or through none, as in `AbstractSums`."""
        return False

    @property
    def is_scale_sensitive(self) -> bool:
        """Whether the weights change when all scores are multiplied by a constant, or are constant.

        The weights of normalised ReLU do not change. With a ridge penalty on `k` its empirical risk has no minimum: a
        smaller norm of `k` reduces the penalty and does not change the loss.
        """
        plain, stretched = self._weights(1.0), self._weights(_STRETCH)
        return not _same(plain, stretched) or bool(np.ptp(plain) < 1e-9)

    @property
    def is_homogeneous(self) -> bool:
        """Whether multiplying the scores and the bias by a constant multiplies all weights by a constant, as for ReLU.

        Then only the ratio of the bias to the norm of `k` matters.
        """
        unbiased, scale = self.with_bias(0.0 * self.bias), self.score_scale
        plain, stretched = unbiased._weights(scale), unbiased._weights(_STRETCH * scale)
        largest = np.unravel_index(np.argmax(np.abs(plain)), plain.shape)
        return bool(plain[largest] != 0 and stretched[largest] != 0) and _same(
            stretched, plain * stretched[largest] / plain[largest]
        )

    @property
    def ignores_shifts(self) -> bool:
        """Whether the weights do not change when a constant is added to all scores, as for softmax.

        At the present bias: of softplus with a bias of -40 they do not.
        """
        return _same(self._weights(1.0), self._weights(1.0, _SHIFTS[0]))

    @property
    def bias_is_void(self) -> bool:
        """Whether a bias is equivalent to other norms of `k` and `v`, as for softmax and linear attention.

        It may multiply all weights by one factor, as for an exponential that is not normalised.
        """
        unbiased = self.with_bias(0.0 * self.bias)
        plain, *others = (unbiased._weights(1.0, shift) for shift in (0.0, *_SHIFTS))
        largest = np.unravel_index(np.argmax(np.abs(plain)), plain.shape)
        factors = [plain[largest] / each[largest] if each[largest] != 0 else 1.0 for each in others]
        return all(_same(plain, by * each) for by, each in zip(factors, others, strict=True))

    @property
    def score_scale(self) -> float:
        """The scale on which weights change with the scores.

        It is less than one where a kernel such as ReLU has a small constant in the denominator.
        """
        return 1.0

    def _weights(self, scale: float, shift: float = 0.0) -> np.ndarray:
        """Weights of a few random sequences with scaled and shifted scores."""
        scores = np.random.default_rng(0).standard_normal((16, self.keys, 3))
        weights = np.asarray(_attend(self, scale * scores + shift))
        if np.isnan(weights).any():
            raise refuse_weights(self, "whose weights are nan at some scores")
        if (largest := float(np.max(np.abs(weights)))) > _HUGE and scale <= 1.0:
            raise refuse_weights(self, f"whose weights are as large as {largest:.2g}")
        return weights

    def at_length(self, length: Any) -> tuple["AbstractAttention", Any]:
        """The attention for sequences of `length` tokens, and the factor by which scores are multiplied first."""
        return self, 1.0

    def given_norms(self, squares: Float[Array, " keys"]) -> "AbstractAttention":
        """A copy in which biases that depend on the squared norms `Q_hh` of the keys are evaluated."""
        return self

    @property
    def one_head(self) -> "AbstractAttention":
        """The attention of each head."""
        return self

    def as_one_head(self) -> "AbstractAttention":
        """The plain attention equivalent to a single head (`v` absorbs a free weight), or the attention itself."""
        return self

    def as_copies(self) -> "AbstractAttention | None":
        """The single head equivalent to averaged heads with equal keys and biases; `None` for other attentions."""
        return None

    @property
    def head_name(self) -> str:
        """The name of the attention of each head."""
        return self.one_head.name

    def key_biases(self, squares: Float[Array, " keys"]) -> Float[Any, " keys"]:
        """The bias of each key, given the squared norms `Q_hh`."""
        return jnp.reshape(self.bias, (1,))

    def why_inaccurate(self) -> str:
        """The likely reason for a large error of quadrature."""
        return "it is too steep, or has a kink that its features do not name"

    def with_bias(self, bias: Any) -> "AbstractAttention":
        """A copy with another bias."""
        if np.ndim(bias) == 0:
            real("bias", bias)
        return eqx.tree_at(lambda attention: attention.bias, self, bias)

    def with_free_bias(self, free: bool = True) -> "AbstractAttention":
        """A copy whose bias is free (optimised), or fixed."""
        return self._with("free_bias", free)

    def _with(self, name: str, value: Any) -> "AbstractAttention":
        """A copy with another value of a field, which need not be an argument of its class."""
        copy = object.__new__(type(self))
        for each in fields(self):
            object.__setattr__(copy, each.name, getattr(self, each.name))
        object.__setattr__(copy, name, value)
        return copy


class AbstractPerLength(AbstractAttention):
    """An attention whose formula depends on the length: at each length it is an ordinary attention."""

    knows_length: ClassVar[bool] = True

    @abstractmethod
    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]: ...

    def __call__(self, scores: Float[Array, " L"], mask: Mask = None) -> Float[Array, " L"]:
        known, stretch = self.at_length(count_tokens(scores, mask))
        return known(stretch * scores, mask)


class AbstractSums(AbstractAttention):
    """Attentions of one head with one sum over tokens, or none: `σ_ℓ = strength(χ_ℓ)/total(Σ_m counted(χ_m))`.

    Strengths are given over `e^log_scale`, so that they stay finite.
    """

    @property
    def has_sums(self) -> bool:
        """Whether there is one sum for all lengths: the formula does not contain the number of tokens."""
        return not self.knows_length

    def log_scale(self, scores: Float[Array, " L"]) -> Any:
        """The logarithm of a common factor of the strengths, so that they stay finite."""
        return jnp.zeros(())

    @abstractmethod
    def strengths(self, scores: Float[Array, "..."], log_scale: Any) -> tuple[Array, Array | None]:
        """The numerator of each score and its term in the sum; `None` without a sum."""

    def total(self, counted: Any, log_scale: Any) -> Any:
        """The denominator, as a function of the sum."""
        return 1.0


def refuse_weights(attention: AbstractAttention, why: str) -> Refusal:
    """The exception to raise for weights that no integral can use."""
    allowed = "one whose weights are numbers of moderate size: multiply them by a constant if they are not"
    return refuse("attention", f"{attention.name} ({why})", allowed)


def values_of(
    name: str, function: Callable[..., Any], scores: Float[Array, "..."], *length: Any
) -> Any:
    """The value of a function at each score; a number counts as a constant function."""
    values = function(scores, *length)
    if isinstance(values, (bool, int, float, np.number)):
        return jnp.full(jnp.shape(scores), float(values))
    dtype, shape = getattr(values, "dtype", None), getattr(values, "shape", None)
    is_real = dtype is not None and not jnp.issubdtype(dtype, jnp.complexfloating)
    if is_real and shape == np.shape(scores):
        return values
    given = type(values).__name__ if dtype is None else f"{dtype} of shape {shape}"
    allowed = "a function that returns a real number for each score of an array"
    raise refuse(name, f"(which returns {given} for scores of shape {np.shape(scores)})", allowed)


def count_tokens(scores: Float[Array, " L"], mask: Mask) -> Any:
    """The number of unmasked tokens, in the precision of the scores; without a mask it is known while tracing."""
    if mask is not None:
        return jnp.asarray(jnp.sum(mask), scores.dtype)
    with jax.ensure_compile_time_eval():
        return jnp.asarray(scores.shape[0], scores.dtype)


def takes_length(function: Callable[..., Any]) -> bool:
    """Whether a function has a second argument that must be given, or one called `length`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # there is none to be found
        return False
    second = [each for each in parameters[1:2] if each.kind is not each.VAR_POSITIONAL]
    return any(each.default is each.empty or each.name == "length" for each in second)


def _same(weights: np.ndarray, others: np.ndarray) -> bool:
    return np.allclose(weights, others, rtol=1e-6, atol=1e-9)


@eqx.filter_jit
def _attend(attention: AbstractAttention, scores: Any) -> Any:
    return jax.vmap(attention.attend)(jnp.asarray(scores))
