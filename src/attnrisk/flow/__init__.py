"""Gradient flow of the population risk, and the landscape that it moves in (sections 5 and 10 of docs/theory.md)."""

from .flow import Flow, gradient_flow, random_starts, swapped_starts
from .landscape import Basins, Stationary, basins, certify, mismatched_minimum

__all__ = [
    "Basins",
    "Flow",
    "Stationary",
    "basins",
    "certify",
    "gradient_flow",
    "mismatched_minimum",
    "random_starts",
    "swapped_starts",
]
