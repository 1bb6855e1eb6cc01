"""The retrieval tasks: where the needle lies, and how long the haystack is."""

from .features import FeatureSLR, flipped, one_of_features
from .slr import (
    AbstractNeedle,
    AbstractPlanted,
    AbstractSamplable,
    AbstractSelected,
    AbstractTask,
    AbstractWeighted,
    LengthLaw,
    MaxSLR,
    SpikedSLR,
    WeightedSLR,
    fixed,
    parse_lengths,
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
    "SpikedSLR",
    "WeightedSLR",
    "fixed",
    "flipped",
    "one_of_features",
    "parse_lengths",
    "uniform",
]
