"""Finite data, `α = N/D`: fixed points of the high-dimensional limit (sections 6 and 7 of docs/theory.md)."""

from .asymptotics import ERMAsymptotics, Ridge
from .erm import erm_asymptotics
from .needs import Needs, needed_data
from .optimal import (
    FixedPoint,
    OptimalAsymptotics,
    Trajectory,
    optimal_asymptotics,
    state_evolution,
)
from .separation import head_separation
from .thresholds import Thresholds, optimal_thresholds
from .tuning import tuned_erm_asymptotics

__all__ = [
    "ERMAsymptotics",
    "FixedPoint",
    "Needs",
    "OptimalAsymptotics",
    "Ridge",
    "Thresholds",
    "Trajectory",
    "erm_asymptotics",
    "head_separation",
    "needed_data",
    "optimal_asymptotics",
    "optimal_thresholds",
    "state_evolution",
    "tuned_erm_asymptotics",
]
