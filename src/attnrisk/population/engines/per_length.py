"""Attentions whose formula contains the length: an engine for each length, averaged over its distribution."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ...attention import AbstractAttention
from ...tasks import AbstractTask
from ..overlaps import Overlaps
from .base import AbstractEngine, Correlations


def each_length(
    task: AbstractTask, attention: AbstractAttention
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """For each length its probability, the task, the attention, and the factor of its scores."""
    law = task.length
    for at in range(len(law.lengths)):
        fixed = law.lengths[at : at + 1], law.probabilities[at : at + 1] ** 0
        alone = eqx.tree_at(lambda it: (it.length.lengths, it.length.probabilities), task, fixed)
        yield law.probabilities[at], alone, *attention.at_length(law.lengths[at])


class PerLength(AbstractEngine):
    """An engine for each length; correlations are linear in the distribution of the length."""

    engines: tuple[Any, ...]

    def correlations(
        self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        def at(engine: Any, alone: Any, own: Any, stretch: Any) -> Correlations:
            return engine.correlations(alone, own, overlaps.stretched(jnp.asarray(stretch)))

        return self._mean(at, task, attention)

    def by_head(
        self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        """Correlations of each head and each pair, for engines that have them."""

        def at(engine: Any, alone: Any, own: Any, stretch: Any) -> Correlations:
            return engine.by_head(alone, own, overlaps.stretched(jnp.asarray(stretch)))

        return self._mean(at, task, attention)

    def profile(self, task: AbstractTask, attention: AbstractAttention, m_kk: Any) -> Correlations:
        def at(engine: Any, alone: Any, own: Any, stretch: Any) -> Correlations:
            return engine.profile(alone, own, stretch * m_kk)

        return self._mean(at, task, attention)

    def _mean(
        self, at: Callable[..., Correlations], task: AbstractTask, attention: AbstractAttention
    ) -> Correlations:
        label: Any = 0.0
        power: Any = 0.0
        for engine, (chance, *known) in zip(
            self.engines, each_length(task, attention), strict=True
        ):
            found = at(engine, *known)
            label, power = label + chance * found.label, power + chance * found.power
        return Correlations(label, power)
