"""The five experiments of Marion et al. (2410.01537)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
from jaxtyping import PRNGKeyArray

from .._check import whole
from ..tasks import SpikedSLR
from .descent import (
    AbstractTemperature,
    ConstantTemperature,
    DecayingTemperature,
    DescentPath,
    projected_descent,
    stochastic_projected_descent,
)
from .sphere import UnitPair, manifold_starts, sphere_starts


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An experiment: ten tokens, `ν = d/2` and `γ² = 1/2`, the initialisation and the descent.

    On the population risk, or with a `batch` on as many fresh sequences at each step.
    """

    dim: int = 400
    noise: float = 0.0
    starts: Callable[[PRNGKeyArray, int, int], UnitPair] = sphere_starts
    schedule: AbstractTemperature
    step_size: float = 4e-3
    steps: int
    record_every: int
    repeats: int = 30
    batch: int | None = None

    @property
    def task(self) -> SpikedSLR:
        return SpikedSLR(self.dim / 2, length=10, noise=self.noise, spread=math.sqrt(0.5))


_SMALL = Setting(schedule=ConstantTemperature(0.1), steps=20_000, record_every=200)
_LONG = replace(_SMALL, steps=120_000, record_every=600)
SETTINGS = {
    "manifold": replace(_SMALL, starts=manifold_starts),
    "small": _SMALL,
    "large": replace(_LONG, schedule=ConstantTemperature(0.9), step_size=1e-3),
    "decaying": replace(_LONG, schedule=DecayingTemperature(1.0)),
    "stochastic": Setting(
        dim=80,
        noise=0.1,
        schedule=DecayingTemperature(2.0),
        step_size=1e-3,
        steps=200_000,
        record_every=1000,
        batch=5,
    ),
}


def run_setting(setting: Setting, seed: int = 0) -> DescentPath:
    """All repeats of the setting, from `seed`."""
    starts, path = jax.random.split(jax.random.key(whole("seed", seed, 0)))
    start = setting.starts(starts, setting.dim, setting.repeats)
    how = setting.schedule, setting.step_size, setting.steps
    if setting.batch is None:
        return projected_descent(setting.task, start, *how, setting.record_every)
    return stochastic_projected_descent(
        setting.task, path, start, *how, setting.dim, setting.batch, setting.record_every
    )
