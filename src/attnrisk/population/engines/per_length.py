"""Attentions that know the length: an engine for each length, averaged over its law."""

from collections.abc import Iterator
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
        return _mean(
            (chance, engine.correlations(alone, own, overlaps.stretched(jnp.asarray(stretch))))
            for engine, (chance, alone, own, stretch) in zip(
                self.engines, each_length(task, attention), strict=True
            )
        )

    def by_head(
        self, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps
    ) -> Correlations:
        """Of each head and each pair, where the engines have them."""
        return _mean(
            (chance, engine.by_head(alone, own, overlaps.stretched(jnp.asarray(stretch))))
            for engine, (chance, alone, own, stretch) in zip(
                self.engines, each_length(task, attention), strict=True
            )
        )

    def profile(self, task: AbstractTask, attention: AbstractAttention, m_kk: Any) -> Correlations:
        return _mean(
            (chance, engine.profile(alone, own, stretch * m_kk))
            for engine, (chance, alone, own, stretch) in zip(
                self.engines, each_length(task, attention), strict=True
            )
        )


def _mean(parts: Iterator[tuple[Any, Correlations]]) -> Correlations:
    chances, found = zip(*parts, strict=True)
    labels, powers = zip(*found, strict=True)
    return Correlations(
        sum(chance * each for chance, each in zip(chances, labels, strict=True)),
        sum(chance * each for chance, each in zip(chances, powers, strict=True)),
    )
