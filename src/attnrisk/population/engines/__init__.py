"""Engines: one method each for a kind of task and a kind of attention. `population.plan` chooses among them."""

from .base import AbstractEngine, Correlations

__all__ = ["AbstractEngine", "Correlations"]
