"""Engines: one method each for a kind of task and a kind of attention. `population.plan` chooses among them."""

from .base import AbstractEngine, Correlations
from .heads import NeedleHeads
from .joint import NeedleBayesSoftmax
from .per_length import PerLength, each_length
from .planted import PlantedElementwise, PlantedKernel
from .selected import SelectedElementwise, SelectedKernel, SharpSelectedKernel
from .sobol import SobolFields, SobolScores

__all__ = [
    "AbstractEngine",
    "Correlations",
    "NeedleBayesSoftmax",
    "NeedleHeads",
    "PerLength",
    "PlantedElementwise",
    "PlantedKernel",
    "SelectedElementwise",
    "SelectedKernel",
    "SharpSelectedKernel",
    "SobolFields",
    "SobolScores",
    "each_length",
]
