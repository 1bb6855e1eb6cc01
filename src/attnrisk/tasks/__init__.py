"""The retrieval tasks: where the needle lies, and how long the haystack is."""

from .base import (
    AbstractPlanted,
    AbstractSamplable,
    AbstractSelected,
    AbstractTask,
    AbstractWeighted,
)
from .lengths import LengthLaw, fixed, parse_lengths, uniform
from .max import MaxSLR
from .spiked import SpikedSLR
from .weighted import WeightedSLR

# Those that words can ask for.
TASKS: dict[str, type[SpikedSLR | MaxSLR]] = {"spiked": SpikedSLR, "max": MaxSLR}

__all__ = [
    "AbstractPlanted",
    "AbstractSamplable",
    "AbstractSelected",
    "AbstractTask",
    "AbstractWeighted",
    "LengthLaw",
    "MaxSLR",
    "SpikedSLR",
    "WeightedSLR",
    "fixed",
    "parse_lengths",
    "uniform",
]
