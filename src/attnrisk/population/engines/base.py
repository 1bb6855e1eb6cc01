"""What an engine computes: the two correlations that a risk is made of, `E[y²] − 2 E[y σ·z] + E[(σ·z)²]`."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx

from ...attention import AbstractAttention
from ...tasks import AbstractTask
from ..overlaps import Overlaps, aligned


class Correlations(NamedTuple):
    """`E[y σ·z]` and `E[(σ·z)²]`; where `k = m_kk k*` and `v = v*` they are `A` and `B`."""

    label: Any
    power: Any


class AbstractEngine(eqx.Module):
    """A method for one kind of task and attention, with its nodes as data: built once by `plan`, then compiled.

    Of random points the correlations have an axis over randomisations.
    """

    @abstractmethod
    def correlations(self, task: Any, attention: Any, overlaps: Overlaps) -> Correlations:
        """At any overlaps; the plan sees to it that task and attention are of the engine's kinds."""

    def profile(self, task: Any, attention: Any, m_kk: Any) -> Correlations:
        """At `k = m_kk k*`, `v = v*`: `A` and `B`."""
        return self.correlations(task, attention, aligned(m_kk))

    def risk(self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps) -> Any:
        """The risk, noise included, to be compiled and differentiated."""
        label, power = self.correlations(task, attention, overlaps)
        return task.label_variance - 2.0 * label + power


class Range(NamedTuple):
    """Scores that a plan serves: their standard deviation, what a teacher field leaves of it, and by how much a score
    changes per unit of its teacher field, each at most so much; the least that a field leaves; and teacher fields at
    which a score passes a kink."""

    scale: float
    noise: float
    slope: float
    least_noise: float = 0.0
    kinks: tuple[float, ...] = (0.0,)
