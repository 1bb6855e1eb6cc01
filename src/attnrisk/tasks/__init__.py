"""The retrieval tasks: where the needle lies, and how long the haystack is."""

from .base import (
    AbstractNeedle,
    AbstractPlanted,
    AbstractSamplable,
    AbstractSelected,
    AbstractTask,
    AbstractWeighted,
)
from .features import FeatureSLR, flipped, one_of_features
from .lengths import LengthLaw, fixed, parse_lengths, uniform
from .max import MaxSLR
from .spiked import SpikedSLR
from .weighted import WeightedSLR

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
    "SpikedSLR",
    "WeightedSLR",
    "fixed",
    "flipped",
    "one_of_features",
    "parse_lengths",
    "uniform",
]
