"""Gaussian integrals `E[F(mean + sd·x)]`, `x ~ N(0, 1)`, resolved at the scale of `F` as well as at that of `x`."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .panels import composite

# Beyond 9.5 standard deviations lies a mass of 2e-21: nothing, even for the largest of 10^6 tokens.
REACH = 9.5
_HALF = np.array([0.8, 1.6, 2.5, 3.4, 4.3, 5.2, 6.2, 7.6, REACH])
BULK = np.concatenate([-_HALF[::-1], [0.0], _HALF])

# Panels around a feature grow by this factor, from a unit that is narrow for a knee like that of softplus.
_GROWTH, _UNIT = 2.5, 0.4

# The integrand passes its transition within a few units of score, and a bulk panel is about one deviation wide.
_PER_CELL, _MOST_CELLS = 2.0, 8


class Rule(NamedTuple):
    """How finely to integrate one-token integrals.

    `order` points per panel; `grades` growing panels on each side of a feature, and `pinch` more that shrink towards
    it; each panel of the bulk cut into `cells`, or, with `cells = 0`, panels that follow the transition of the
    integrand, which suits scores of any scale.
    """

    order: int = 8
    grades: int = 6
    cells: int = 2
    pinch: int = 0


class Trapezoid(NamedTuple):
    """A rule of equal steps, for integrands that are analytic around the real line.

    `step` in units of a deviation; in `u`, `nodes` from `before` any token within `window` deviations is passed until
    all have been, and `after` it. At an accuracy of 10^-8 it takes a quarter of the nodes of panels in each direction.
    """

    step: float
    nodes: int
    window: float
    before: float
    after: float


AnyRule = Rule | Trapezoid

# Past the last token an integrand in u dies like e^{-u}. From _BEYOND on, u = τ + e^{τ - ...} runs away with equal
# steps in τ, and _RUNAWAY further e^{-u} is below 10^-9.
_BEYOND, _RUNAWAY = 3.0, 2.8
_SHARE = 32  # the least difference between two numbers of nodes


def trapezoid_for(scale: float, shift: float, longest: float, fineness: float = 1.0) -> Trapezoid:
    """For scores of deviation up to `scale` and mean up to `shift`: right to `10^{-8·fineness}` or so."""
    # The error of equal steps is e^{-2π·strip/step}, and e^{-w} with w = e^χ is tame up to |Im χ| = π/2 (in u, where
    # no Gaussian helps, the factor is that of Γ(2 + 2πi/step)); e^{-x²/2} and e^{-e^u} are cut at as little.
    window, before = 6.0 * fineness**0.5, 3.2 + float(np.log(fineness))
    after = _BEYOND + _RUNAWAY + float(np.log(fineness))
    width = 2 * window * scale + shift + before + np.log(longest) + after
    nodes = _shared(width * fineness / 0.42)
    return Trapezoid(0.5 / fineness / max(scale, 1.0), nodes, window, before, after)


def _shared(nodes: float) -> int:
    """The next number of nodes of a kind that neighbouring problems share, and with it compiled code."""
    unit = max(_SHARE, 2 ** (int(nodes).bit_length() - 3))
    return unit * int(np.ceil(nodes / unit))


def rounded_up(value: float) -> float:
    """To one of 2√2, 4, 4√2, ...: where it decides a number of nodes, so that more problems share compiled code."""
    return float(2.0 ** (max(3.0, np.ceil(2.0 * np.log2(max(value, 1.0)))) / 2.0))


def runaway_steps(low: Any, top: Any, rule: Trapezoid) -> tuple[Any, Any]:
    """Nodes and weights in `u`, from `low` past `top`, after which the integrand dies like `e^{-u}`."""
    knee, end = top + _BEYOND, top + rule.after
    step = (end - low) / (rule.nodes - 1)
    tau = low + step * np.arange(rule.nodes)
    run = tau.__array_namespace__().exp(tau - knee)
    return tau + run, step * (1.0 + run)


def rule_for(scale: float, order: int = 8, pinch: int = 0) -> Rule:
    """The cheapest rule for scores of standard deviation up to `scale`."""
    reach = max(REACH * scale, 1.0)
    grades = 2 + int(np.ceil(np.log(reach / _UNIT) / np.log(_GROWTH)))
    cells = int(np.ceil(scale / _PER_CELL))
    return Rule(order, grades, 2 ** (cells - 1).bit_length() if cells <= _MOST_CELLS else 0, pinch)


def feature_edges(features: tuple[float, ...], grades: int, pinch: int = 0) -> np.ndarray:
    """Scores at which panels meet around each of the features."""
    steps = _UNIT * _GROWTH ** np.arange(-pinch, grades)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])
    return np.concatenate([feature + offsets for feature in features] or [np.zeros(0)])


def standardise(scores: Any, mean: Any, deviation: Any) -> Array:
    """Scores as standard deviations from the mean, within reach."""
    narrow = 1e-100  # a field without variance: every score is out of reach
    return jnp.clip((scores - mean) / jnp.maximum(deviation, narrow), -REACH, REACH)


def subdivide(edges: np.ndarray, cells: int) -> np.ndarray:
    """Each panel cut into `cells` equal ones."""
    steps = np.arange(cells) / cells
    return np.append((edges[:-1, None] + np.diff(edges)[:, None] * steps).ravel(), edges[-1])


def bulk_edges(mean: Any, deviation: Any, scores: Any, cells: int = 1) -> Float[Array, " edges"]:
    """Edges in `x` for the Gaussian itself and for a few fixed scores, ascending."""
    bulk = subdivide(BULK, cells)
    if len(scores) == 0:
        return jnp.asarray(bulk)
    return jnp.sort(jnp.concatenate([bulk, standardise(scores, mean, deviation)]))


def equal_steps(step: float) -> tuple[np.ndarray, np.ndarray]:
    """The trapezoid rule for the normal law, as far as its mass goes in double precision."""
    count = int(np.ceil(REACH / step))
    x = step * np.arange(-count, count + 1)
    return x, step * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


class Integrate(Protocol):
    """`E[x^k F(mean + deviation·x)]` of one or several `F`: row `k = 0 … degree` of each array."""

    def __call__(
        self, degree: int, mean: Array, deviation: Array, *constants: Array
    ) -> tuple[Float[Array, "k ..."], ...]: ...


def moments_by_parts(
    integrate: Integrate, degree: int, mean: Any, deviation: Any, *constants: Array
) -> tuple[Float[Array, "k ..."], ...]:
    """What `integrate` gives, with derivatives from Gaussian integration by parts.

    `d/dmean E[x^k F] = E[(x^{k+1} - k x^{k-1}) F]/deviation` and `d/ddeviation E[x^k F] = E[(x^{k+2} - (k+1) x^k)
    F]/deviation`: two more powers of `x` give every derivative in the same pass, and an `F` with a kink needs no
    derivative of its own.
    """

    @jax.custom_jvp
    def moments(mean: Array, deviation: Array, *constants: Array) -> tuple[Array, ...]:
        return integrate(degree, mean, deviation, *constants)

    @moments.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Any, Any]:
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


def normal_rule(
    edges: Float[Array, "*batch e"], order: int
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n"]]:
    """Nodes `x`, and weights that include the normal density."""
    x, weights = composite(edges, order)
    return x, weights * jnp.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
