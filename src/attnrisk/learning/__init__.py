"""Finite data, `α = N/D`: fixed points of the high-dimensional limit (sections 6 and 7 of docs/theory.md)."""

from .optimal import FixedPoint, OptimalAsymptotics, optimal_asymptotics
from .thresholds import PhaseDiagram, Thresholds, optimal_phase_diagram, optimal_thresholds

__all__ = [
    "FixedPoint",
    "OptimalAsymptotics",
    "PhaseDiagram",
    "Thresholds",
    "optimal_asymptotics",
    "optimal_phase_diagram",
    "optimal_thresholds",
]
