"""Composite Gauss–Legendre panels, which resolve kinks, knees and transitions at any scale of the scores."""

from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .quadrature import (
    FARTHEST,
    HALF,
    MANY,
    AbstractRule,
    Nodes,
    SupportsLogPhi,
    Tokens,
    normal_density,
)

# Panels around a feature grow by this factor, from a unit that is narrow for a knee like that of softplus.
_GROWTH, _UNIT = 2.5, 0.4
# Below the smallest log φ the integrand dies like exp(-e^|u|), or like e^{-|u|} where φ can vanish (ReLU);
# above the largest, once all L tokens are passed, like e^{-u}. e^{-40} is below double precision.
_BELOW = -np.array([40.0, 26.0, 14.0, 7.5, 4.2, 2.4, 1.1])
_PAST = np.array([2.0, 4.5, 8.0, 13.0, 20.0, 28.0, 38.0])
_BETWEEN = 8  # panels from the smallest to the largest log φ: a step with a floor of 10^-6 is then right to 10^-8
# Past the smallest log φ of a step with a lower floor, as parts of the way; and those of _BELOW for its largest.
_PAST_LOWEST, _BELOW_LARGEST = (np.arange(1, 9) / 8) ** 1.5, 3
_CROSSING = 9  # panels from one token to L: under 2 units each up to L = 10^6
# Around a constant c in the denominator: e^{-tc} passes from 0 to 1 like a Gumbel law.
_PASSAGE = np.array([-4.5, -3, -2, -1, 0, 1, 2, 3.5, 6, 10, 16, 25, 38])
# Around the argument where tφ = 1, in units of the width over which it passes: 1 - e^{-tφ} vanishes like e^y to the
# left, e^{-tφ} faster than e^{-y} to the right.
TRANSITION = np.array([-40.0, -24, -14, -8, -4.5, -2.5, -1, 0, 1, 2, 3, 4.5, 9, 20, 45])
# Panels: the integrand passes its transition within a few units of score, and a bulk panel is about one deviation wide.
# Beyond _MOST_CELLS cells per panel, panels that follow the transition are cheaper.
_PER_CELL, _MOST_CELLS = 2.0, 8
# In deviations: an edge as close to a feature is moved there. Where φ vanishes, log φ at it is dropped; close by it is
# very negative, and the panel from there to the next edge is too wide for its nodes.
_NEAR = 0.1


@cache
def legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss–Legendre rule on `[-1, 1]`."""
    return np.polynomial.legendre.leggauss(order)


def composite(edges: Any, order: int) -> tuple[Any, Any]:
    """Gauss–Legendre nodes and weights, `order` points on each panel between consecutive ascending edges (last axis).

    Panels that meet and shrink geometrically where an integrand is not smooth make one number of nodes serve scales
    from 10^-3 to 10^3; the number is static and the places are data.
    """
    points, weights = legendre(order)
    half = (edges[..., 1:] - edges[..., :-1])[..., None] / 2
    middle = (edges[..., 1:] + edges[..., :-1])[..., None] / 2
    shape = (*edges.shape[:-1], -1)
    return (middle + half * points).reshape(shape), (half * weights).reshape(shape)


def normal_rule(edges: Float[Array, "*batch e"], order: int) -> Nodes:
    """Gauss–Legendre nodes `x` on each panel, and weights that include the normal density."""
    x, weights = composite(edges, order)
    return x, weights * normal_density(x)


def merge(
    left: Float[Array, "*batch a"], right: Float[Array, "*batch b"]
) -> Float[Array, "*batch c"]:
    """Two ascending sequences as one.

    A bitonic network of minima and maxima: for these short rows `jnp.sort` takes ten times as long on a CPU.
    """
    size = left.shape[-1] + right.shape[-1]
    padded = 1 << (size - 1).bit_length()
    peak = jnp.full((*left.shape[:-1], padded - size), jnp.inf)
    row = jnp.concatenate([left, peak, right[..., ::-1]], -1)
    stride = padded // 2
    while stride:
        pairs = row.reshape(*row.shape[:-1], -1, 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        row = jnp.stack([jnp.minimum(low, high), jnp.maximum(low, high)], -2).reshape(row.shape)
        stride //= 2
    return row[..., :size]


def bulk(longest: float = 1.0, cells: int = 1) -> np.ndarray:
    """Panel edges for the largest of `longest` standard normal variables, each panel divided into `cells`."""
    half = np.append(HALF, FARTHEST) if longest > MANY else HALF
    edges = np.concatenate([-half[::-1], [0.0], half])
    steps = np.arange(cells) / cells
    return np.append((edges[:-1, None] + np.diff(edges)[:, None] * steps).ravel(), edges[-1])


def feature_edges(features: tuple[float, ...], grades: int, pinch: int = 0) -> np.ndarray:
    """Arguments at which panels meet around each of the features; `pinch` more panels shrink towards it."""
    steps = _UNIT * _GROWTH ** np.arange(-pinch, grades)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])
    return np.concatenate([feature + offsets for feature in features] or [np.zeros(0)])


class Panels(AbstractRule):
    """Gauss–Legendre panels of the bulk and of the features of a function.

    `edges` are in units of a deviation, for one token; `transform_edges` place the nodes in `u`. `order` points per
    panel; `grades` growing panels on each side of a feature, and `pinch` more that shrink towards it. The bulk is cut
    finely enough for any transition within it, unless there are panels that follow, at each `u`, the argument where
    `tφ` passes one: these serve scores of any scale.
    """

    edges: Any
    transform_edges: Any
    order: int = eqx.field(static=True)
    grades: int = eqx.field(static=True)
    pinch: int = eqx.field(static=True, default=0)
    follow_transition: bool = eqx.field(static=True, default=False)

    def for_token(self, kernel: SupportsLogPhi, mean: Any, deviation: Any, u: Array) -> Nodes:
        edges = self._edges(kernel.features, mean, deviation)
        if self.follow_transition:
            reach = self.edges[-1]
            ends = mean - reach * deviation, mean + reach * deviation
            crossing, width = crossing_of(kernel.log_phi, *ends, u)
            transition = crossing[:, None] + width[:, None] * TRANSITION
            rows = jnp.broadcast_to(edges, (u.size, edges.size))
            edges = merge(rows, self._standardise(transition, mean, deviation))
        return normal_rule(_without_derivative(edges), self.order)

    def for_function(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Nodes:
        return normal_rule(self._edges(features, mean, deviation), self.order)

    def for_transform(self, kernel: SupportsLogPhi, tokens: Tokens, longest: Any) -> Nodes:
        arguments = []
        for mean, deviation in tokens:
            places = mean + deviation * self.transform_edges
            xp = places.__array_namespace__()
            for feature in kernel.features:
                near = xp.abs(places - feature) < _NEAR * deviation
                places = xp.where(near, feature, places)
            arguments.append(places)
        knees = feature_edges(kernel.features, self.grades)
        if len(knees):
            arguments += [xp.clip(knees, places[0], places[-1]) for places in arguments]
        log_values = _without_derivative(kernel.log_phi(xp.concatenate(arguments)))
        if kernel.constant > 0:
            log_values = xp.concatenate([log_values, xp.log(kernel.constant) + _PASSAGE])
        between = _BETWEEN if len(knees) else 0
        u, du = transform_panels(log_values, longest, self.order, between)
        return u, du * xp.exp(-kernel.constant * xp.exp(-u)) if kernel.constant > 0 else du

    def _edges(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Array:
        """Edges in `x` for the Gaussian itself and for the features, ascending; their places have no derivative."""
        knees = feature_edges(features, self.grades, self.pinch)
        if len(knees) == 0:
            return self.edges
        inner: Any = _without_derivative(self._standardise(knees, mean, deviation))
        xp = inner.__array_namespace__()
        return xp.sort(xp.concatenate([xp.asarray(self.edges), inner]))

    def _standardise(self, arguments: Any, mean: Any, deviation: Any) -> Array:
        """Arguments in standard deviations from the mean, clipped; without variance all are clipped."""
        x = (arguments - mean) / (deviation + 1e-100)
        return x.__array_namespace__().clip(x, -self.edges[-1], self.edges[-1])


def _without_derivative(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else jax.lax.stop_gradient(array)


def panels(
    scale: float, longest: float, order: int, pinch: int = 0, transform_cells: int = 1
) -> Panels:
    """The cheaper kind of panels for arguments of standard deviation up to `scale`."""
    fixed = fixed_panels(scale, longest, order, pinch, transform_cells)
    if scale <= _PER_CELL * _MOST_CELLS:
        return fixed
    return Panels(bulk(longest), fixed.transform_edges, order, fixed.grades, pinch, True)


def fixed_panels(
    scale: float,
    longest: float,
    order: int,
    pinch: int = 0,
    transform_cells: int = 1,
    most_cells: int = _MOST_CELLS,
) -> Panels:
    """Panels that do not follow a transition: beyond a scale of twice `most_cells` only for functions that are smooth
    on the scale of their argument away from their features."""
    cells = min(max(int(np.ceil(scale / _PER_CELL)), 1), most_cells)
    edges = bulk(longest, 2 ** (cells - 1).bit_length())
    width = edges[-1] * max(scale, 1.0)  # all scales up to one share compiled code
    grades = 2 + int(np.ceil(np.log(width / _UNIT) / np.log(_GROWTH)))  # that reach this far
    return Panels(edges, bulk(longest, transform_cells), order, grades, pinch)


def transform_panels(
    log_values: Any, longest: Any, order: int, between: int = 0
) -> tuple[Any, Any]:
    """Nodes and weights in `u`, given `log φ` on a grid of arguments that covers the distribution of each token.

    For a `φ` that jumps, `between` more edges are equally spaced from the smallest to the largest value; others follow
    the smallest, past which the integrand dies like `e^{-u}`, and precede the largest.
    """
    xp = log_values.__array_namespace__()
    top = xp.max(log_values)
    top = xp.where(xp.isfinite(top), top, 0.0)  # where `φ` vanishes at all, any range will do
    finite = xp.isfinite(log_values)
    low = xp.min(xp.where(finite, log_values, top))
    crossing = (xp.log(longest) + 3.0) / _CROSSING * np.arange(1, _CROSSING + 1)
    edges = [low + _BELOW, xp.where(finite, log_values, low), top + crossing]
    if between:
        edges.append(low + (top - low) * np.arange(1, between + 1) / (between + 1))
        beyond = xp.minimum(low + (xp.log(longest) + _PAST[-1]) * _PAST_LOWEST, top)
        edges += [beyond, xp.maximum(top + _BELOW[_BELOW_LARGEST:], low)]
    return composite(xp.sort(xp.concatenate([*edges, top + crossing[-1] + _PAST])), order)


def crossing_of(
    log_phi: Callable[[Array], Array], low: Any, high: Any, u: Float[Array, " u"]
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Where `log φ` passes `u` between two arguments, and over which width, `1/|d log φ|`.

    Bisection; for a kernel that is not monotone it finds one crossing, and panels at its features
    resolve the others.
    """
    rising = log_phi(jnp.asarray(high, u.dtype)) >= log_phi(jnp.asarray(low, u.dtype))

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bracket
        middle = (left + right) / 2
        below = (log_phi(middle) < u) == rising
        return jnp.where(below, middle, left), jnp.where(below, right, middle)

    start = jnp.broadcast_to(low, u.shape), jnp.broadcast_to(high, u.shape)
    left, right = jax.lax.fori_loop(0, 50, halve, start)
    slope = jax.jvp(log_phi, (right,), (jnp.ones_like(right),))[1]
    return (left + right) / 2, 1.0 / jnp.maximum(jnp.abs(slope), 1e-8)
