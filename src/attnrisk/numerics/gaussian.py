"""Gaussian integrals `E[F(mean + sd·x)]`, `x ~ N(0, 1)`, resolved at the scale of `F` as well as at that of `x`."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .panels import composite

_HALF = np.array([0.8, 1.6, 2.5, 3.4, 4.3, 5.2, 6.2, 7.6, 9.5])
# Beyond 9.5 standard deviations lies a mass of 2e-21, nothing for the largest of 10^6 tokens; beyond 11.5 one of
# 1e-30, nothing for the largest of 10^12.
_MANY, _FARTHEST = 1e6, 11.5

# Panels around a feature grow by this factor, from a unit that is narrow for a knee like that of softplus.
_GROWTH, _UNIT = 2.5, 0.4


def bulk(longest: float = 1.0, cells: int = 1) -> np.ndarray:
    """Panel edges for a standard normal variable of which the largest of `longest` matters, cut into `cells` each."""
    half = np.append(_HALF, _FARTHEST) if longest > _MANY else _HALF
    edges = np.concatenate([-half[::-1], [0.0], half])
    steps = np.arange(cells) / cells
    return np.append((edges[:-1, None] + np.diff(edges)[:, None] * steps).ravel(), edges[-1])


def grades_for(width: float) -> int:
    """How many growing panels on each side of a feature reach this far."""
    return 2 + int(np.ceil(np.log(max(width, 1.0) / _UNIT) / np.log(_GROWTH)))


def feature_edges(features: tuple[float, ...], grades: int, pinch: int = 0) -> np.ndarray:
    """Arguments at which panels meet around each of the features; `pinch` more panels shrink towards it."""
    steps = _UNIT * _GROWTH ** np.arange(-pinch, grades)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])
    return np.concatenate([feature + offsets for feature in features] or [np.zeros(0)])


def standardise(arguments: Any, mean: Any, deviation: Any, reach: Any) -> Array:
    """Arguments as standard deviations from the mean, within reach."""
    narrow = 1e-100  # a field without variance: every argument is out of reach
    return jnp.clip((arguments - mean) / jnp.maximum(deviation, narrow), -reach, reach)


def equal_steps(step: float, longest: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The trapezoid rule for the normal law, as far as its mass goes in double precision."""
    count = int(np.ceil(bulk(longest)[-1] / step))
    x = step * np.arange(-count, count + 1)
    return x, step * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


def normal_rule(
    edges: Float[Array, "*batch e"], order: int
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n"]]:
    """Gauss–Legendre nodes `x` on each panel, and weights that include the normal density."""
    x, weights = composite(edges, order)
    return x, weights * jnp.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


class Integrate(Protocol):
    """`E[x^k F(mean + deviation·x)]` of one or several `F`: row `k = 0 … degree` of each array."""

    def __call__(
        self, degree: int, mean: Array, deviation: Array, *constants: Any
    ) -> tuple[Float[Array, "k ..."], ...]: ...


def moments_by_parts(
    integrate: Integrate, degree: int, mean: Any, deviation: Any, *constants: Any
) -> tuple[Float[Array, "k ..."], ...]:
    """What `integrate` gives, with derivatives from Gaussian integration by parts.

    `d/dmean E[x^k F] = E[(x^{k+1} - k x^{k-1}) F]/deviation` and `d/ddeviation E[x^k F] = E[(x^{k+2} - (k+1) x^k)
    F]/deviation`: two more powers of `x` give every derivative in the same pass, and an `F` with a kink needs no
    derivative of its own. All arrays that `integrate` uses must be among the `constants`.
    """

    @jax.custom_jvp
    def moments(mean: Array, deviation: Array, *constants: Any) -> tuple[Array, ...]:
        return integrate(degree, mean, deviation, *constants)

    @moments.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        higher = moments_by_parts(integrate, degree + 2, *primals)

        def tangent(higher: Array) -> Array:
            k = jnp.arange(degree + 1.0).reshape(-1, *[1] * (higher.ndim - 1))
            value = higher[: degree + 1]
            below = jnp.concatenate([jnp.zeros_like(value[:1]), value[:-1]])
            by_mean = higher[1 : degree + 2] - k * below
            by_deviation = higher[2:] - (k + 1) * value
            return (by_mean * tangents[0] + by_deviation * tangents[1]) / primals[1]

        return tuple(part[: degree + 1] for part in higher), tuple(map(tangent, higher))

    return moments(jnp.asarray(mean, float), jnp.asarray(deviation, float), *constants)
