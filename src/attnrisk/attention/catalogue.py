"""The attentions in use, each a small frozen spec."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from .._check import LARGEST, Refusal, one_of, real, refuse, shown, whole
from .base import AbstractAttention, Mask
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
        least = jnp.sort(scores)[-self.k]
        return jax.nn.softmax(jnp.where(scores >= least, scores, -jnp.inf))


class Hardmax(AbstractGeneral):
    """One on the largest score, zero elsewhere."""

    name: ClassVar[str] = "hardmax"

    def __call__(self, scores: _Sequence, mask: Mask = None) -> _Sequence:
        return jax.nn.one_hot(
            jnp.argmax(_present(scores, mask)), scores.shape[0], dtype=scores.dtype
        )


class Entry(NamedTuple):
    """Entry of the catalogue: the class of the attention, its formula, its properties and its reference."""

    attention: type[AbstractAttention]
    formula: str
    normalised: bool
    growth: str
    source: str


_ENTRIES = (
    Entry(Softmax, "e^χ / Σe^χ", True, "exponential", "Vaswani et al. 2017, arXiv 1706.03762"),
    Entry(Linear, "1 + χ", False, "linear", "Duranthon et al. 2025, arXiv 2509.21936"),
    Entry(Erf, "1 + erf(c + χ)", False, "bounded", "Marion et al. 2024, arXiv 2410.01537"),
    Entry(Softplus, "softplus(χ) / Σ", True, "linear", "Duranthon et al. 2025, arXiv 2509.21936"),
    Entry(
        EluPlusOne,
        "(elu(χ) + 1) / Σ",
        True,
        "linear",
        "Katharopoulos et al. 2020, arXiv 2006.16236",
    ),
    Entry(Relu, "max(χ, 0) / Σ", True, "linear", "Choromanski et al. 2020, arXiv 2009.14794"),
    Entry(SquaredRelu, "max(χ, 0)² / Σ", True, "quadratic", "Hua et al. 2022, arXiv 2202.10447"),
    Entry(Taylor2, "(1 + χ + χ²/2) / Σ", True, "quadratic", "Arora et al. 2024, arXiv 2402.18668"),
    Entry(
        SoftmaxPlusOne,
        "e^χ / (1 + Σe^χ)",
        True,
        "exponential",
        "Miller 2023, Attention Is Off By One",
    ),
    Entry(
        Sigmoid, "1 / (1 + e^-(c + χ))", False, "bounded", "Ramapuram et al. 2024, arXiv 2409.04431"
    ),
    Entry(ElementwiseRelu, "max(χ, 0)", False, "linear", "Wortsman et al. 2023, arXiv 2309.08586"),
    Entry(
        Sparsemax,
        "projection on the simplex",
        True,
        "sparse",
        "Martins and Astudillo 2016, arXiv 1602.02068",
    ),
    Entry(Entmax15, "1.5-entmax", True, "sparse", "Peters et al. 2019, arXiv 1905.05702"),
    Entry(
        TopKSoftmax,
        "softmax of the 2 largest",
        True,
        "exponential",
        "Gupta et al. 2021, arXiv 2106.06899",
    ),
    Entry(Hardmax, "1 at the largest", True, "—", "Pérez et al. 2019, arXiv 1901.03429"),
)

CATALOGUE: dict[str, Entry] = {entry.attention.name: entry for entry in _ENTRIES}


DEFAULT_BIAS, FREE_BIAS = "default", "free"


def get_attention(name: str, bias: str | float = DEFAULT_BIAS) -> AbstractAttention:
    """Get an attention of the catalogue by name.

    Args:
        name: A name that `attnrisk attentions` lists, such as `"softmax"`; the dictionary `CATALOGUE` has them all.
        bias: A number; `"free"`, to be optimised with the other parameters; or `"default"`, as in the papers: free for
            erf and sigmoid, 0 for the others.

    Returns:
        The attention.

    Examples:
        >>> relu = ar.get_attention("relu", bias=-1.0)
        >>> relu(jax.numpy.array([0.5, 2.0, 3.0])).round(3).tolist()
        [0.0, 0.333, 0.667]
    """
    attention = CATALOGUE[one_of("attention", name, CATALOGUE)].attention()
    if isinstance(bias, str) and bias in (DEFAULT_BIAS, FREE_BIAS):
        return attention if bias == DEFAULT_BIAS else attention.with_free_bias()
    try:
        number = real("bias", bias)
    except Refusal:
        allowed = f"free, default, or a number between ±{LARGEST:g}"
        raise refuse("bias", shown(bias), allowed) from None
    return attention.with_free_bias(False).with_bias(number)


def named(name: str, bias: str) -> str:
    """Display name of an attention with a given bias, for tables and figures.

    Args:
        name: Name of the attention.
        bias: `"default"`, `"free"` or a number as text.

    Returns:
        The display name.
    """
    if bias == DEFAULT_BIAS:
        return name
    return f"{name}, bias {bias}"
