"""Retrieval tasks: distributions of the relevant token, of the sequence length and of the label noise."""

from .features import FeatureSLR
from .parse import parse_features, parse_lengths
from .selected import AbstractSelected, AbstractWeighted, MaxSLR, WeightedSLR
from .shifts import ShiftMixture, flipped, gaussian, one_of
from .slr import (
    AbstractNeedle,
    AbstractPlanted,
    AbstractSamplable,
    AbstractTask,
    LengthLaw,
    SpikedSLR,
    fixed,
    uniform,
)

# Those that words can ask for.
TASKS: dict[str, type[SpikedSLR | MaxSLR]] = {"spiked": SpikedSLR, "max": MaxSLR}

__all__ = [
    "AbstractNeedle",
    "AbstractPlanted",
    "AbstractSamplable",
    "AbstractSelected",
    "AbstractTask",
    "AbstractWeighted",
    "FeatureSLR",
    "LengthLaw",
    "MaxSLR",
    "ShiftMixture",
    "SpikedSLR",
    "WeightedSLR",
    "fixed",
    "flipped",
    "gaussian",
    "one_of",
    "parse_features",
    "parse_lengths",
    "uniform",
]
