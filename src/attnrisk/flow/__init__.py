"""Gradient flow of the population risk, its stationary points, and online SGD (sections 5 and 10 of docs/theory.md)."""

from .flow import Flow, feature_times, gradient_flow, random_starts, swapped_starts
from .landscape import Basins, Stationary, basins, certify, mismatched_minimum
from .online import OnlineSGD, largest_step, online_sgd

__all__ = [
    "Basins",
    "Flow",
    "OnlineSGD",
    "Stationary",
    "basins",
    "certify",
    "feature_times",
    "gradient_flow",
    "largest_step",
    "mismatched_minimum",
    "online_sgd",
    "random_starts",
    "swapped_starts",
]
