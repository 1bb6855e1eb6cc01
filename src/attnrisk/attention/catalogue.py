"""The catalogue: the attentions in use, by name, with their formulas and sources."""

from typing import NamedTuple

from .._check import LARGEST, Refusal, one_of, real, refuse, shown
from .base import AbstractAttention
from .elementwise import ElementwiseRelu, Erf, Linear, Sigmoid, SigmoidLogLength
from .general import ClippedSoftmax, Cosine, Entmax15, Hardmax, Sparsemax, TopKSoftmax
from .heads import BayesSoftmax, Heads
from .kernel import (
    EluPlusOne,
    Relu,
    ScalableSoftmax,
    Softmax,
    SoftmaxPlusOne,
    Softpick,
    Softplus,
    SquaredRelu,
    Taylor2,
)


class Entry(NamedTuple):
    """Entry of the catalogue: the class of the attention, its formula, its properties and its reference.

    `normalised`: whether the weights of a sequence sum to one.
    """

    attention: type[AbstractAttention]
    formula: str
    normalised: bool
    growth: str
    source: str


_ENTRIES = (
    Entry(Softmax, "e^χ / Σe^χ", True, "exponential", "Vaswani et al. 2017, arXiv 1706.03762"),
    Entry(Linear, "1 + χ", False, "linear", "Duranthon et al. 2025, arXiv 2509.21936"),
    Entry(Erf, "1 + erf(b + χ)", False, "bounded", "Marion et al. 2024, arXiv 2410.01537"),
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
        False,
        "exponential",
        "Miller 2023, Attention Is Off By One",
    ),
    Entry(
        Sigmoid, "1 / (1 + e^-(b + χ))", False, "bounded", "Ramapuram et al. 2024, arXiv 2409.04431"
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
    Entry(
        ScalableSoftmax,
        "e^(χ log L) / Σ",
        True,
        "exponential",
        "Nakanishi 2025, arXiv 2501.19399",
    ),
    Entry(
        SigmoidLogLength,
        "1 / (1 + L e^-χ)",
        False,
        "bounded",
        "Ramapuram et al. 2024, arXiv 2409.04431",
    ),
    Entry(
        Softpick,
        "max(e^χ - 1, 0) / Σ|e^χ - 1|",
        False,
        "exponential",
        "Zuhri et al. 2025, arXiv 2504.20966",
    ),
    Entry(
        ClippedSoftmax,
        "clip(1.03 softmax - 0.03)",
        False,
        "sparse",
        "Bondarenko et al. 2023, arXiv 2306.12929",
    ),
    Entry(
        Cosine,
        "softmax(log2(L² - L) χ/|χ|)",
        True,
        "bounded",
        "Henry et al. 2020, arXiv 2010.04245",
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


def get_heads(name: str, count: int, bias: str | float = DEFAULT_BIAS) -> AbstractAttention:
    """Get heads of an attention of the catalogue, or Bayes-softmax, by name.

    Args:
        name: A name of the catalogue, or `"bayes-softmax"`.
        count: Number of heads. One head of the catalogue is the attention itself.
        bias: As for `get_attention`. By default softmax-1 has a free bias, without which its heads assign weight where
            they detect nothing. Those of Bayes-softmax are always free.

    Returns:
        The attention.

    Examples:
        >>> ar.get_heads("softmax-1", 2).free_bias
        True
    """
    if name == BayesSoftmax.name:
        if bias not in (DEFAULT_BIAS, FREE_BIAS):
            raise refuse("bias", shown(bias), f"{FREE_BIAS} where the attention is {name}")
        return BayesSoftmax(count)
    if name == SoftmaxPlusOne.name and bias == DEFAULT_BIAS:
        bias = FREE_BIAS
    one = get_attention(name, bias)
    return one if count == 1 else Heads(one, count)
