"""The five experiments of Marion et al. (2410.01537)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import jax
from jaxtyping import PRNGKeyArray

from ..tasks import SpikedSLR
from .descent import (
    AbstractTemperature,
    ConstantTemperature,
    DecayingTemperature,
    DescentPath,
    projected_descent,
    stochastic_projected_descent,
)
from .sphere import UnitPair, manifold_starts, sphere_starts, whole


@dataclass(frozen=True, kw_only=True)
class AbstractSetting(ABC):
    """An experiment: ten tokens, `ν = d/2` and `γ² = 1/2`, where to start from, and how to descend."""

    dim: int
    noise: float = 0.0
    starts: Callable[[PRNGKeyArray, int, int], UnitPair]
    schedule: AbstractTemperature
    step_size: float
    steps: int
    record_every: int
    repeats: int = 30

    @property
    def task(self) -> SpikedSLR:
        """The task of the experiment."""
        return SpikedSLR(self.dim / 2, length=10, noise=self.noise, spread=math.sqrt(0.5))

    @abstractmethod
    def descend(self, key: PRNGKeyArray, start: UnitPair) -> DescentPath:
        """The path from this start; a deterministic descent has no use for the key."""


class Setting(AbstractSetting):
    """Descent on the population risk."""

    def descend(self, key: PRNGKeyArray, start: UnitPair) -> DescentPath:
        how = self.step_size, self.steps, self.record_every
        return projected_descent(self.task, start, self.schedule, *how)


@dataclass(frozen=True, kw_only=True)
class StochasticSetting(AbstractSetting):
    """Descent on fresh batches."""

    batch: int

    def descend(self, key: PRNGKeyArray, start: UnitPair) -> DescentPath:
        return stochastic_projected_descent(
            self.task,
            key,
            start,
            self.schedule,
            self.step_size,
            self.steps,
            self.dim,
            self.batch,
            self.record_every,
        )


SETTINGS: dict[str, AbstractSetting] = {
    "manifold": Setting(
        dim=400,
        starts=manifold_starts,
        schedule=ConstantTemperature(0.1),
        step_size=4e-3,
        steps=20_000,
        record_every=200,
    ),
    "small": Setting(
        dim=400,
        starts=sphere_starts,
        schedule=ConstantTemperature(0.1),
        step_size=4e-3,
        steps=20_000,
        record_every=200,
    ),
    "large": Setting(
        dim=400,
        starts=sphere_starts,
        schedule=ConstantTemperature(0.9),
        step_size=1e-3,
        steps=120_000,
        record_every=600,
    ),
    "decaying": Setting(
        dim=400,
        starts=sphere_starts,
        schedule=DecayingTemperature(1.0),
        step_size=4e-3,
        steps=120_000,
        record_every=600,
    ),
    "stochastic": StochasticSetting(
        dim=80,
        noise=0.1,
        starts=sphere_starts,
        schedule=DecayingTemperature(2.0),
        step_size=1e-3,
        steps=200_000,
        record_every=1000,
        batch=5,
    ),
}


def run_setting(setting: AbstractSetting, seed: int = 0) -> DescentPath:
    """All repeats of the setting, from `seed`."""
    starts, path = jax.random.split(jax.random.key(whole("seed", seed, 0)))
    return setting.descend(path, setting.starts(starts, setting.dim, setting.repeats))
