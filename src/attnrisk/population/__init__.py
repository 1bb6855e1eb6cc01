"""Infinite data: exact risks from a handful of order parameters (sections 3 and 4 of docs/theory.md)."""

from .bayes import bayes_risk
from .closed_forms import (
    elementwise_floor,
    linear_risk,
    linear_scale,
    mean_of_largest,
    mean_relevant_field,
)
from .descent import (
    ConstantTemperature,
    DecayingTemperature,
    projected_descent,
    stochastic_projected_descent,
)
from .flow import Flow, gradient_flow, random_starts
from .landscape import (
    Basins,
    Stationary,
    basins,
    certify,
    matched_minimum,
    mismatched_minimum,
)
from .minimum import Minimum, population_minima, population_minimum
from .overlaps import Overlaps, aligned
from .risk import population_risk
from .sphere import UnitPair, manifold_starts, sphere_starts

__all__ = [
    "Basins",
    "ConstantTemperature",
    "DecayingTemperature",
    "Flow",
    "Minimum",
    "Overlaps",
    "Stationary",
    "UnitPair",
    "aligned",
    "basins",
    "bayes_risk",
    "certify",
    "elementwise_floor",
    "gradient_flow",
    "linear_risk",
    "linear_scale",
    "manifold_starts",
    "matched_minimum",
    "mean_of_largest",
    "mean_relevant_field",
    "mismatched_minimum",
    "population_minima",
    "population_minimum",
    "population_risk",
    "projected_descent",
    "random_starts",
    "sphere_starts",
    "stochastic_projected_descent",
]
