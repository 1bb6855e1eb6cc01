"""Infinite data: population risk, its minimum, and the Bayes risk (sections 3 and 4 of docs/theory.md)."""

from .bayes import bayes_risk
from .closed_forms import (
    elementwise_floor,
    linear_risk,
    linear_scale,
    mean_of_largest,
    mean_relevant_field,
)
from .heads_minimum import HeadsMinimum, LocalMinimum, heads_minimum
from .minimum import Minimum, population_minima, population_minimum
from .overlaps import Overlaps, aligned, swapped
from .pruning import Pruned, prune_heads
from .risk import population_risk

__all__ = [
    "HeadsMinimum",
    "LocalMinimum",
    "Minimum",
    "Overlaps",
    "Pruned",
    "aligned",
    "bayes_risk",
    "elementwise_floor",
    "heads_minimum",
    "linear_risk",
    "linear_scale",
    "mean_of_largest",
    "mean_relevant_field",
    "population_minima",
    "population_minimum",
    "population_risk",
    "prune_heads",
    "swapped",
]
