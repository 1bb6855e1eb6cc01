"""Attentions that know the length: an engine for each length, averaged over its law."""

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
    """For each length its probability, the task, the attention, and the factor that stretches its scores."""
    law = task.length
    for at in range(len(law.lengths)):
        fixed = law.lengths[at : at + 1], law.probabilities[at : at + 1] ** 0
        alone = eqx.tree_at(lambda it: (it.length.lengths, it.length.probabilities), task, fixed)
        yield law.probabilities[at], alone, *attention.at_length(law.lengths[at])


class PerLength(AbstractEngine):
    """Correlations are linear in the law of the length."""

    engines: tuple[Any, ...]

    def correlations(
        self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        return self._mean(
            task,
            attention,
            lambda engine, alone, own, stretch: engine.correlations(
                alone, own, overlaps.stretched(jnp.asarray(stretch))
            ),
        )

    def by_head(
        self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        """Of each head and each pair, where the engines have them."""
        return self._mean(
            task,
            attention,
            lambda engine, alone, own, stretch: engine.by_head(
                alone, own, overlaps.stretched(jnp.asarray(stretch))
            ),
        )

    def profile(self, task: AbstractTask, attention: AbstractAttention, m_kk: Any) -> Correlations:
        return self._mean(
            task,
            attention,
            lambda engine, alone, own, stretch: engine.profile(alone, own, stretch * m_kk),
        )

    def _mean(
        self, task: AbstractTask, attention: AbstractAttention, of: Callable[..., Correlations]
    ) -> Correlations:
        """The mean over the lengths of a function of an engine and its task, attention and stretch."""
        label: Any = 0.0
        power: Any = 0.0
        lengths = each_length(task, attention)
        for engine, (chance, *own) in zip(self.engines, lengths, strict=True):
            found = of(engine, *own)
            label, power = label + chance * found[0], power + chance * found[1]
        return Correlations(label, power)
