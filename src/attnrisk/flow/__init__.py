"""Gradient flow of the population risk, and the landscape that it moves in (section 5 of docs/theory.md)."""

from .flow import Flow, gradient_flow, random_starts, swapped_starts
from .landscape import Basins, Stationary, basins, certify, matched_minimum, mismatched_minimum

__all__ = [
    "Basins",
    "Flow",
    "Stationary",
    "basins",
    "certify",
    "gradient_flow",
    "matched_minimum",
    "mismatched_minimum",
    "random_starts",
    "swapped_starts",
]
