"""Learning curves of several attentions, compiled together."""

from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._results import Estimate
from ...attention import (
    AbstractAttention,
    AbstractElementwise,
    AbstractGeneral,
    AbstractKernel,
    Linear,
    Softmax,
)
from ...learning import ERMAsymptotics, Ridge
from ...learning.tuning import tuned_erm_asymptotics
from ...tasks import AbstractTask

ALPHAS = (1.0, 2.0, 4.0, 8.0)
REFERENCES: dict[str, AbstractAttention] = {"softmax": Softmax(), "linear": Linear()}
# Errors of about 0.01, in little time; a point of an attention without structure takes longer.
_LOG2_POINTS, _LOG2_POINTS_OF_GENERAL = 6, 5


@dataclass(frozen=True)
class Point:
    """The test risk at `α`, with the ridges of least test risk; `warning` says why it is approximate, if it is."""

    attention: str
    alpha: float
    risk: Estimate
    result: str
    warning: str | None

    @property
    def converged(self) -> bool:
        """Whether the risk is that of a fixed point."""
        return self.result == "converged"


class _OneKernel(AbstractKernel):
    """One of several kernels, by a number that compiled code does not depend on."""

    name: ClassVar[str] = "one of several"
    members: tuple[AbstractKernel, ...]
    which: Any
    features: tuple[float, ...] = eqx.field(static=True)
    constant: float = eqx.field(static=True)

    @property
    def vanishes(self) -> bool:
        return any(member.vanishes for member in self.members)

    def log_phi(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        return _switch(self.which, [member.log_phi for member in self.members], score)

    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        return _switch(self.which, self.members, scores)


class _OneElementwise(AbstractElementwise):
    """One of several element-wise attentions."""

    name: ClassVar[str] = "one of several"
    members: tuple[AbstractElementwise, ...]
    which: Any
    features: tuple[float, ...] = eqx.field(static=True)
    free_bias: bool = eqx.field(static=True)
    bias: Any

    def weight(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        return _switch(self.which, self.members, score)


class _OneGeneral(AbstractGeneral):
    """One of several attentions of any family."""

    name: ClassVar[str] = "one of several"
    members: tuple[AbstractAttention, ...]
    which: Any

    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        return _switch(self.which, self.members, scores)


def _switch(which: Any, functions: Any, argument: Array) -> Array:
    at = jnp.asarray(which).astype(int)
    return jax.lax.switch(at, [lambda x, each=each: each(x) for each in functions], argument)


def groups(attention: AbstractAttention, name: str) -> tuple[dict[str, AbstractAttention], ...]:
    """The attention and its references, in groups whose members share compiled code.

    Half of a learning curve is compilation, and what is compiled for an element-wise attention is not for others.
    """
    compared: dict[str, AbstractAttention] = {}
    apart: dict[str, AbstractAttention] = {}
    for key, each in {**REFERENCES, name: attention}.items():
        (apart if isinstance(each, AbstractElementwise) else compared)[key] = each
    return _merged(compared), _merged(apart)


def _merged(members: dict[str, AbstractAttention]) -> dict[str, AbstractAttention]:
    if len(members) == 1:
        return members
    every = tuple(members.values())
    return {name: _one_of(every, which) for which, name in enumerate(members)}


def _one_of(members: tuple[Any, ...], which: int) -> AbstractAttention:
    if all(isinstance(member, AbstractElementwise) for member in members):
        shifted = (f - float(member.bias) for member in members for f in member.features)
        features = tuple(sorted(set(shifted)))
        return _OneElementwise(
            members=members, which=which, features=features, free_bias=False, bias=0.0
        )
    kernels = all(isinstance(member, AbstractKernel) for member in members)
    if not kernels or len({member.constant for member in members}) > 1:
        return _OneGeneral(members, which)
    features = tuple(sorted({f for member in members for f in member.features}))
    constant = members[0].constant
    return _OneKernel(members=members, which=which, features=features, constant=constant)


def curve(task: AbstractTask, attention: AbstractAttention, name: str) -> list[Point]:
    """Each fixed point with the ridges of the one before as a start."""
    start: Ridge | None = None
    points = []
    general = isinstance(attention, AbstractGeneral)
    log2_points = _LOG2_POINTS_OF_GENERAL if general else _LOG2_POINTS
    for alpha in ALPHAS:
        found = tuned_erm_asymptotics(task, attention, alpha, log2_points=log2_points, start=start)
        start = found.ridge if found.converged else None
        points.append(_point(found, name))
    return points


def _point(found: ERMAsymptotics, name: str) -> Point:
    return Point(name, found.alpha, found.test_risk, found.result, found.warning or None)
