"""Quadrature rules: where the one-token integrals and the Laplace transform of section 4.2 have their nodes.

A rule is a frozen object with its nodes (or the edges of its panels) as data, so that rules of one shape share compiled
code. It places nodes in `x` for `E[F(mean + deviation·x)]`, and in `u` for the transform `1/S = ∫ e^{-tS} dt`,
`t = e^{-u}`.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .gaussian import bulk, equal_steps, feature_edges, grades_for, normal_rule, standardise
from .panels import composite, merge

# Below the smallest log φ the integrand dies like exp(-e^|u|), or like e^{-|u|} where φ can vanish (ReLU);
# above the largest, once all L tokens are passed, like e^{-u}. e^{-40} is below double precision.
_BELOW = -np.array([40.0, 26.0, 14.0, 7.5, 4.2, 2.4, 1.1])
_PAST = np.array([2.0, 4.5, 8.0, 13.0, 20.0, 28.0, 38.0])
_CROSSING = 9  # panels from one token to L: under 2 units each up to L = 10^6

# Around a constant c in the denominator: e^{-tc} passes from 0 to 1 like a Gumbel law.
PASSAGE = np.array([-4.5, -3, -2, -1, 0, 1, 2, 3.5, 6, 10, 16, 25, 38])

# Around the argument where tφ = 1, in units of the width over which it passes: 1 - e^{-tφ} vanishes like e^y to the
# left, e^{-tφ} faster than e^{-y} to the right.
TRANSITION = np.array([-40.0, -24, -14, -8, -4.5, -2.5, -1, 0, 1, 2, 3, 4.5, 9, 20, 45])

# Equal steps past the last token, where an integrand in u dies like e^{-u}: from _BEYOND on, u = τ + e^{τ - ...} with
# equal steps in τ, and _RUNAWAY further e^{-u} is below 10^-9.
_BEYOND, _RUNAWAY = 3.0, 2.8
_SHARE = 32  # the least difference between two numbers of nodes, so that neighbouring problems share compiled code

# Panels: the integrand passes its transition within a few units of score, and a bulk panel is about one deviation wide.
# Beyond _MOST_CELLS cells per panel, panels that follow the transition are cheaper.
_PER_CELL, _MOST_CELLS = 2.0, 8

Nodes = tuple[Float[Array, "*u n"], Float[Array, "*u n"]]
Tokens = Sequence[tuple[Any, Any]]  # mean and deviation of the argument of each kind of token


class SupportsLogPhi(Protocol):
    """A positive function of an argument, the arguments where it bends, and what is added to its sum."""

    @property
    def features(self) -> tuple[float, ...]: ...

    @property
    def constant(self) -> float: ...

    def log_phi(self, argument: Array) -> Array: ...


class AbstractRule(eqx.Module):
    """Where to evaluate the integrands of section 4.2."""

    @abstractmethod
    def for_token(self, kernel: SupportsLogPhi, mean: Any, deviation: Any, u: Array) -> Nodes:
        """Nodes in `x` for functions of `tφ(mean + deviation·x)`, the same for all `u` or a row for each."""

    @abstractmethod
    def for_function(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Nodes:
        """Nodes in `x` for a function of `mean + deviation·x` that bends at these arguments."""

    @abstractmethod
    def for_transform(self, kernel: SupportsLogPhi, tokens: Tokens, longest: Any) -> Nodes:
        """Nodes and weights in `u` for sums over up to `longest` such tokens."""


class Trapezoid(AbstractRule):
    """Equal steps, for integrands that are analytic around the real line.

    `x` and `mass` are the nodes for one token. In `u` there are `nodes`, from `before` where all tokens can be passed
    until all within `window` deviations are, and `after` it; `rare` is the probability of a token that, if all tokens
    have it, is negligible. At an accuracy of 10^-8 this takes a quarter of the nodes of panels in each direction.
    """

    x: Any
    mass: Any
    window: Any
    before: Any
    after: Any
    rare: Any
    nodes: int = eqx.field(static=True)

    def for_token(self, kernel: SupportsLogPhi, mean: Any, deviation: Any, u: Array) -> Nodes:
        return jnp.asarray(self.x), jnp.asarray(self.mass)

    def for_function(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Nodes:
        return jnp.asarray(self.x), jnp.asarray(self.mass)

    def for_transform(self, kernel: SupportsLogPhi, tokens: Tokens, longest: Any) -> Nodes:
        low, top = transform_range(kernel, tokens, longest, self.window, self.rare)
        return self.between(low - self.before, top)

    def between(self, low: Any, top: Any) -> tuple[Any, Any]:
        """Nodes in `u` from `low` past `top`, after which the integrand dies like `e^{-u}`."""
        knee, end = top + _BEYOND, top + self.after
        step = (end - low) / (self.nodes - 1)
        tau = low + step * np.arange(self.nodes)
        run = tau.__array_namespace__().exp(tau - knee)
        return tau + run, step * (1.0 + run)


def transform_range(
    kernel: SupportsLogPhi, tokens: Tokens, longest: Any, window: Any, rare: Any
) -> tuple[Any, Any]:
    """`log φ` below which no sum over tokens lies, but for a negligible probability, and above which none does.

    All but the first of several tokens are like the last: all of them lie in the lowest part of its law, of
    probability `rare`, as good as never.
    """
    x = np.linspace(-1.0, 1.0, 65) * window
    values = [kernel.log_phi(mean + deviation * x) for mean, deviation in tokens]
    xp = values[-1].__array_namespace__()
    mass = xp.exp(-0.5 * x**2)
    order = xp.argsort(values[-1])
    below = xp.cumsum(mass[order]) / xp.sum(mass)
    low = values[-1][order][xp.clip(xp.searchsorted(below, rare) - 1, 0, x.size - 1)]
    top = xp.max(xp.concatenate(values)) + xp.log(longest)
    if kernel.constant > 0:
        level = xp.log(kernel.constant)
        low, top = xp.minimum(low, level), xp.maximum(top, level)
    return low, top


def trapezoid(
    scale: float,
    width: float,
    lengths: tuple[float, float] = (1.0, 1.0),
    fineness: float = 1.0,
    widened: float = 1.0,
) -> Trapezoid:
    """For arguments of deviation up to `scale`, and transforms from `low` to `top` up to `width` apart: right to
    `10^{-8·fineness}` or so. `lengths` are the shortest and the longest of the law.

    `widened` stretches steps and windows alike, at the same number of nodes: another rule of the same shape, with
    which the first can be compared.
    """
    # The error of equal steps is e^{-2π·strip/step}, and e^{-w} with w = e^χ is tame up to |Im χ| = π/2 (in u, where
    # no Gaussian helps, the factor is that of Γ(2 + 2πi/step)); e^{-x²/2} and e^{-e^u} are cut at as little.
    before = 3.2 + float(np.log(fineness))
    after = _BEYOND + _RUNAWAY + float(np.log(fineness))
    x, mass = equal_steps(0.5 / fineness / max(scale, 1.0), lengths[1])
    if widened != 1.0:
        x = widened * x
        mass = (x[1] - x[0]) * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    return Trapezoid(
        x,
        mass,
        widened * window_for(fineness),
        before + 8.0 * float(np.log(widened)),
        after + float(np.log(widened)),
        rare_for(lengths[0], fineness) / widened,
        _shared((width + before + after) * fineness / 0.42),
    )


def window_for(fineness: float) -> float:
    """Deviations beyond which a single token is negligible at this accuracy."""
    return 6.0 * fineness**0.5


def rare_for(shortest: float, fineness: float) -> float:
    """A probability whose power `shortest − 1` is negligible at this accuracy."""
    return float(np.exp(-(18.4 * fineness + 8.0) / (shortest - 1.0))) if shortest > 1 else 0.0


def _shared(nodes: float) -> int:
    """The next number of nodes of a kind that neighbouring problems share."""
    unit = max(_SHARE, 2 ** (int(nodes).bit_length() - 3))
    return unit * int(np.ceil(nodes / unit))


def rounded_up(value: float) -> float:
    """To one of 2√2, 4, 4√2, ...: where it decides a number of nodes, so that more problems share compiled code."""
    return float(2.0 ** (max(3.0, np.ceil(2.0 * np.log2(max(value, 1.0)))) / 2.0))


class _AbstractPanels(AbstractRule):
    """Gauss–Legendre panels that meet at the features of a function."""

    edges: eqx.AbstractVar[Any]
    transform_edges: eqx.AbstractVar[Any]
    order: eqx.AbstractVar[int]
    grades: eqx.AbstractVar[int]
    pinch: eqx.AbstractVar[int]

    def meeting_edges(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Array:
        """Edges in `x` for the Gaussian itself and for the features, ascending."""
        knees = feature_edges(features, self.grades, self.pinch)
        edges = jnp.asarray(self.edges)
        if len(knees) == 0:
            return edges
        return jnp.sort(jnp.concatenate([edges, standardise(knees, mean, deviation, edges[-1])]))

    def for_function(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Nodes:
        return normal_rule(self.meeting_edges(features, mean, deviation), self.order)

    def for_transform(self, kernel: SupportsLogPhi, tokens: Tokens, longest: Any) -> Nodes:
        reach = self.transform_edges[-1]
        arguments = [mean + deviation * self.transform_edges for mean, deviation in tokens]
        knees = feature_edges(kernel.features, self.grades)
        if len(knees):
            arguments += [jnp.clip(knees, m - reach * d, m + reach * d) for m, d in tokens]
        log_values = kernel.log_phi(jnp.concatenate(arguments))
        if kernel.constant > 0:
            log_values = jnp.append(log_values, jnp.log(kernel.constant) + PASSAGE)
        return transform_panels(log_values, longest, self.order)


class Panels(_AbstractPanels):
    """Panels of the bulk, cut finely enough for any transition within it, and of the features.

    `edges` are in units of a deviation, for one token; `transform_edges` place the nodes in `u`. `order` points per
    panel; `grades` growing panels on each side of a feature, and `pinch` more that shrink towards it.
    """

    edges: Any
    transform_edges: Any
    order: int = eqx.field(static=True)
    grades: int = eqx.field(static=True)
    pinch: int = eqx.field(static=True, default=0)

    def for_token(self, kernel: SupportsLogPhi, mean: Any, deviation: Any, u: Array) -> Nodes:
        return normal_rule(self.meeting_edges(kernel.features, mean, deviation), self.order)


class TransitionPanels(_AbstractPanels):
    """Panels that follow, at each `u`, the argument where `tφ` passes one: for scores of any scale."""

    edges: Any
    transform_edges: Any
    order: int = eqx.field(static=True)
    grades: int = eqx.field(static=True)
    pinch: int = eqx.field(static=True, default=0)

    def for_token(self, kernel: SupportsLogPhi, mean: Any, deviation: Any, u: Array) -> Nodes:
        edges, reach = self.meeting_edges(kernel.features, mean, deviation), self.edges[-1]
        ends = mean - reach * deviation, mean + reach * deviation
        crossing, width = crossing_of(kernel.log_phi, *ends, u)
        transition = crossing[:, None] + width[:, None] * TRANSITION
        transition = standardise(transition, mean, deviation, reach)
        rows = jnp.broadcast_to(edges, (u.size, edges.size))
        return normal_rule(merge(rows, transition), self.order)


def panels(
    scale: float, longest: float, order: int, pinch: int = 0, transform_cells: int = 1
) -> Panels | TransitionPanels:
    """The cheaper kind of panels for arguments of deviation up to `scale`."""
    edges, transform_edges = bulk(longest), bulk(longest, transform_cells)
    grades = grades_for(edges[-1] * scale)
    cells = int(np.ceil(scale / _PER_CELL))
    if cells > _MOST_CELLS:
        return TransitionPanels(edges, transform_edges, order, grades, pinch)
    cut = bulk(longest, 2 ** (max(cells, 1) - 1).bit_length())
    return Panels(cut, transform_edges, order, grades, pinch)


def transform_panels(log_values: Any, longest: Any, order: int) -> tuple[Any, Any]:
    """Nodes and weights in `u`, given `log φ` at a grid of arguments that covers the law of each token.

    Of NumPy's arrays, where nothing depends on a traced number: then there is nothing to compile.
    """
    xp = log_values.__array_namespace__()
    top = xp.max(log_values)
    finite = xp.isfinite(log_values)
    low = xp.min(xp.where(finite, log_values, top))
    crossing = (xp.log(longest) + 3.0) / _CROSSING * np.arange(1, _CROSSING + 1)
    edges = [low + _BELOW, xp.where(finite, log_values, low), top + crossing]
    return composite(xp.sort(xp.concatenate([*edges, top + crossing[-1] + _PAST])), order)


def crossing_of(
    log_phi: Callable[[Array], Array], low: Any, high: Any, u: Float[Array, " u"]
) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Where `log φ` passes `u` between two arguments, and over which width, `1/|d log φ|`.

    Bisection along the trend of `φ`; a kernel that is not monotone gets one of its crossings, and its features
    have to do the rest.
    """
    rising = log_phi(jnp.asarray(high, u.dtype)) >= log_phi(jnp.asarray(low, u.dtype))

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bracket
        middle = (left + right) / 2
        below = (log_phi(middle) < u) == rising
        return jnp.where(below, middle, left), jnp.where(below, right, middle)

    start = jnp.broadcast_to(low, u.shape), jnp.broadcast_to(high, u.shape)
    left, right = jax.lax.fori_loop(0, 50, halve, start)
    middle = (left + right) / 2
    slope = jax.jvp(log_phi, (right,), (jnp.ones_like(right),))[1]
    return middle, 1.0 / jnp.maximum(jnp.abs(slope), 1e-8)
