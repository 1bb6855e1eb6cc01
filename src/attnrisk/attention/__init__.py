"""Attention mechanisms: three families, several heads, and a catalogue of attentions from the literature."""

from .base import AbstractAttention
from .catalogue import CATALOGUE, DEFAULT_BIAS, FREE_BIAS, get_attention, get_heads, named
from .elementwise import AbstractElementwise, Elementwise
from .formulas import (
    ClippedSoftmax,
    Cosine,
    ElementwiseRelu,
    EluPlusOne,
    Entmax15,
    Erf,
    Hardmax,
    Linear,
    Relu,
    ScalableSoftmax,
    Sigmoid,
    SigmoidLogLength,
    Softmax,
    SoftmaxPlusOne,
    Softpick,
    Softplus,
    Sparsemax,
    SquaredRelu,
    Taylor2,
    TopKSoftmax,
)
from .general import AbstractGeneral, General
from .heads import AbstractHeads, BayesSoftmax, Heads
from .kernel import AbstractKernel, Kernel

__all__ = [
    "CATALOGUE",
    "DEFAULT_BIAS",
    "FREE_BIAS",
    "AbstractAttention",
    "AbstractElementwise",
    "AbstractGeneral",
    "AbstractHeads",
    "AbstractKernel",
    "BayesSoftmax",
    "ClippedSoftmax",
    "Cosine",
    "Elementwise",
    "ElementwiseRelu",
    "EluPlusOne",
    "Entmax15",
    "Erf",
    "General",
    "Hardmax",
    "Heads",
    "Kernel",
    "Linear",
    "Relu",
    "ScalableSoftmax",
    "Sigmoid",
    "SigmoidLogLength",
    "Softmax",
    "SoftmaxPlusOne",
    "Softpick",
    "Softplus",
    "Sparsemax",
    "SquaredRelu",
    "Taylor2",
    "TopKSoftmax",
    "get_attention",
    "get_heads",
    "named",
]
