"""Engines: one integration method for each kind of task and attention. `population.plan` selects one."""

from .base import AbstractEngine, Correlations

__all__ = ["AbstractEngine", "Correlations"]
