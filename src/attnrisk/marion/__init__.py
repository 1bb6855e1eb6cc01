"""The training problem of Marion et al. (arXiv 2410.01537): projected descent on the sphere (section 1)."""

from .descent import (
    ConstantTemperature,
    DecayingTemperature,
    projected_descent,
    stochastic_projected_descent,
)
from .sphere import UnitPair, manifold_starts, sphere_starts

__all__ = [
    "ConstantTemperature",
    "DecayingTemperature",
    "UnitPair",
    "manifold_starts",
    "projected_descent",
    "sphere_starts",
    "stochastic_projected_descent",
]
