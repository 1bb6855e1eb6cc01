"""Tables for selected tasks, whose location depends on the fields; they depend on the task only.

Perturb each field with Gumbel noise, `X = χ* + Gumbel/sharpness`: the location is the largest `X`, which has the law
`softmax(sharpness · χ*)`. Condition on that largest value `x`; then tokens are independent again, one that equals
`x` and the rest below it (section 4.2, with `u' = sharpness · x`). A table holds, for each node `x`, weights on a
grid of fields:

- `below[x] · F = E[F(χ*); X ≤ x]`, and `above[x] = P(X > x)`, from which a high power of `1 - above` is accurate;
- `at[x] · F = E[F(χ*); X ∈ dx]`, in the measure that `weights` integrates.

They are product-integration weights: `F` need only be smooth on the scale of the grid's cells, while the sharpness of
the selection, from 0 to infinity, is integrated exactly.
"""

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...attention import Softmax
from ...numerics.panels import TRANSITION, bulk, composite, legendre, transform_panels
from ...numerics.quadrature import (
    LARGEST_LOG,
    log_complement,
    normal_density,
    transforms_at,
    trapezoid,
)
from ...tasks import AbstractSelected, LengthLaw

_SOFTMAX = Softmax()
_MODERATE = 16.0  # sharpness up to which equal steps in x take fewer nodes than panels
# A part of a panel over which `sharpness · χ*` changes so little serves all nodes x: e^{-w}, w = e^{sharpness χ* - u}
# is tame up to an imaginary part of π/2, and Gauss–Legendre nodes converge like 12^-2n. Up to so many parts are cheaper
# than panels of each x.
_PART, _MOST_PARTS = 0.5, 8
_NOTHING_BELOW = 6.7  # where `sharpness · χ* − u` is larger, e^{-w} rounds to 0
_APART = 1e-9  # the least distance of a kink from an edge
_PINCHED = 0.47, 1e-8  # edges around zero for kernels that vanish there: the first and the last


class Selection(NamedTuple):
    """Nodes `x` of the largest perturbed field with their weights, and at each the weights on the grid `fields`.

    `mass` are the weights of the grid for a field by itself, selected or not.
    """

    fields: Any
    mass: Any
    weights: Any
    above: Any
    below: Any
    at: Any

    def integrate_at(self, values: Any) -> Any:
        """`E[F; X ∈ dx]` at each node, of values of `F` on the grid (first axis)."""
        return _contract(self.at, values)

    def integrate_below(self, values: Any) -> Any:
        """`E[F; X ≤ x]`, likewise."""
        return _contract(self.below, values)

    def relevant(self, law: LengthLaw) -> Any:
        """Weights on the grid of fields that integrate over the field of the relevant token."""
        return self.weights * law.powers(log_complement(self.above), 1, drop=0) @ self.at


class HardSelection(NamedTuple):
    """The same without perturbation: `x` is the largest field, and its nodes are those of the grid.

    Below `x` lie whole panels, with the weights `mass`, and `part[panel, x]` of its own. A cumulative sum over panels
    makes the cost linear in the number of nodes.
    """

    fields: Any
    mass: Any
    weights: Any
    above: Any
    density: Any
    part: Any

    def integrate_at(self, values: Any) -> Any:
        return (self.density * values.T).T

    def integrate_below(self, values: Any) -> Any:
        panels, order = self.part.shape[:2]
        cut = values.reshape(panels, order, -1)
        whole = (self.mass.reshape(panels, 1, order) @ cut)[:, 0]
        before = whole.cumsum(0) - whole
        return (before[:, None] + self.part @ cut).reshape(values.shape)

    def relevant(self, law: LengthLaw) -> Any:
        chosen = law.powers(log_complement(self.above), 1, drop=0)
        return self.weights * chosen * self.density


def _contract(weights: Any, values: Any) -> Any:
    return (weights @ values.reshape(values.shape[0], -1)).reshape(-1, *values.shape[1:])


@lru_cache(maxsize=32)
def panel_selection(
    sharpness: float,
    longest: int,
    order: int,
    cells: int,
    pinch_growth: float = 0.0,
    kinks: tuple[float, ...] = (0.0,),
) -> Selection | HardSelection:
    """The table for functions of a field that are smooth between `kinks`, on each of `cells` parts of a bulk panel.

    With a `pinch_growth` its panels shrink by that factor towards each of the kinks, where a kernel vanishes.
    """
    edges = bulk(longest, cells)
    for kink in kinks:
        if kink != 0.0:  # which is an edge anyway
            # The number of edges does not depend on the place, so that all places share compiled code.
            on_edge = np.min(np.abs(edges - kink)) < _APART
            edges = np.append(edges, kink + _APART if on_edge else kink)
        if pinch_growth:
            widest, finest = _PINCHED
            count = np.log(widest / finest) / np.log(pinch_growth)
            pinch = widest * pinch_growth ** -np.arange(count)
            edges = np.concatenate([edges, kink + pinch, kink - pinch])
    edges = np.sort(edges)
    if np.isinf(sharpness):
        return _hard(edges, order)
    if sharpness <= _MODERATE:
        # In x the integrand has the strip of analyticity of the selection, whatever the student is.
        x_rule = _equal_steps(sharpness, longest, min(order / 5.0, 2.0))
        return _soft(sharpness, *x_rule, edges, order)
    # In x the integrand is as smooth as the blunter of the selection and the student.
    knots = bulk(longest, int(min(cells, max(1, np.ceil(sharpness / 2)))))
    return _soft(sharpness, *transform_panels(sharpness * knots, longest, order), edges, order)


@lru_cache(maxsize=32)
def light_selection(
    sharpness: float, longest: int, slope: float, fineness: float = 1.0, widened: float = 1.0
) -> Selection | HardSelection:
    """A smaller table, for analytic functions of a score `slope · χ*`: accurate to about `10^{-8·fineness}`.

    `widened` stretches its windows and steps, as in `trapezoid`.
    """
    reach, order = np.sqrt(38.4 * fineness + 2.0 * np.log(longest)), int(np.ceil(6 * fineness))
    cells = int(np.ceil(1.13 * max(slope, 2.0, np.sqrt(2.0 * np.log(longest)) / 2) * reach))
    reach = widened * reach
    edges = np.linspace(-reach, reach, 1 + cells)
    if np.isinf(sharpness):
        return _hard(edges, order)
    # In x the integrand has the strip of analyticity of the blunter one, selection or student.
    u, weights = _equal_steps(sharpness, longest, fineness, widened, slope)
    if _rounded(sharpness) > slope:
        return _soft(sharpness, u, weights, edges, order)
    # A selection no sharper than the student needs no weights of its own: equal steps in the field serve both.
    grid = trapezoid(slope, (1.0, float(longest)), fineness, widened)
    near = np.abs(grid.x) <= reach
    fields, mass = grid.x[near], grid.mass[near]
    w = np.exp(np.minimum(sharpness * fields - u[:, None], LARGEST_LOG))
    kept = np.exp(-w)
    return Selection(fields, mass, weights, -np.expm1(-w) @ mass, mass * kept, mass * w * kept)


def _equal_steps(
    sharpness: float, longest: int, fineness: float, widened: float = 1.0, slope: float = np.inf
) -> tuple[Any, Any]:
    """Nodes and weights in `sharpness · x`, coarser where scores change by less per field than the sharpness."""
    sharp = _rounded(sharpness)
    kernel, lengths, blunt = Softmax(), (1.0, float(longest)), max(1.0, sharp / max(slope, 1.0))
    rule = trapezoid(sharp, lengths, fineness, widened, kernel, [(0.0, sharp)], coarsened=blunt)
    return rule.for_transform(kernel, [(0.0, sharpness)], longest)


def _rounded(sharpness: float) -> float:
    """Rounded up to 2√2, 4, 4√2 …; it determines the number of nodes, so that more tasks share compiled code."""
    return 2.0 ** (max(3.0, np.ceil(2.0 * np.log2(max(sharpness, 1.0)))) / 2.0)


def _hard(edges: np.ndarray, order: int) -> HardSelection:
    fields, weights = composite(edges, order)
    density = normal_density(fields)
    above, part = np.zeros(fields.size), np.zeros((edges.size - 1, order, order))
    for panel in range(edges.size - 1):
        left, right = edges[panel : panel + 2]
        rows = slice(panel * order, (panel + 1) * order)
        bounds = fields[rows, None]
        lower, upper = (
            np.concatenate([np.full_like(bounds, left), bounds], -1),
            np.concatenate([bounds, np.full_like(bounds, right)], -1),
        )
        part[panel] = np.einsum("xn,xni->xi", *_on_panel(left, right, lower, order)[1:])
        above[rows] = _on_panel(left, right, upper, order)[1].sum(-1)
        above[: rows.start] += _on_panel(left, right, np.array([[left, right]]), order)[1].sum()
    return HardSelection(fields, weights * density, weights, above, density, part)


def _soft(sharpness: float, u: Any, weights: Any, edges: np.ndarray, order: int) -> Selection:
    """Gumbel perturbation: the Laplace transform of the kernel `e^{sharpness χ*}`."""
    fields, steps = composite(edges, order)
    below, at = np.zeros((2, u.size, fields.size))
    above = np.zeros(u.size)
    crossing = (u[:, None] + TRANSITION) / max(sharpness, 1e-12)
    for panel in range(edges.size - 1):
        left, right = edges[panel : panel + 2]
        columns = slice(panel * order, (panel + 1) * order)
        parts = max(1, int(np.ceil((right - left) * sharpness / _PART)))
        if parts <= _MOST_PARTS:
            chi, mass, basis = _on_panel(left, right, np.linspace(left, right, parts + 1), order)
            rows = u > sharpness * left - _NOTHING_BELOW
            w = np.exp(np.minimum(sharpness * chi - u[rows, None], LARGEST_LOG))
            kept = mass * np.exp(-w)
            below[rows, columns], at[rows, columns] = kept @ basis, (w * kept) @ basis
            above[rows] += -np.expm1(-w) @ mass
            above[~rows] += mass.sum()
            continue
        inside = ((crossing > left) & (crossing < right)).any(-1)
        for rows, inner in ((inside, crossing), (~inside, crossing[:, :0])):
            if not rows.any():
                continue
            ends = np.full((rows.sum(), 1), left), np.full((rows.sum(), 1), right)
            bounds = np.concatenate([ends[0], np.clip(inner[rows], left, right), ends[1]], -1)
            chi, mass, basis = _on_panel(left, right, bounds, order)
            w = np.exp(np.minimum(sharpness * chi - u[rows, None], 60.0))
            below[rows, columns] = np.einsum("xn,xni->xi", mass * np.exp(-w), basis)
            at[rows, columns] = np.einsum("xn,xni->xi", mass * w * np.exp(-w), basis)
            above[rows] += (mass * -np.expm1(-w)).sum(-1)
    return Selection(fields, steps * normal_density(fields), weights, above, below, at)


def _on_panel(
    left: float, right: float, bounds: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes between `bounds` inside one panel, their Gaussian mass, and the panel's Lagrange basis there."""
    chi, weights = composite(bounds, order + 2)
    place = (2 * chi - left - right) / (right - left)
    basis = np.polynomial.legendre.legvander(place, order - 1) @ _legendre_of_lagrange(order)
    return chi, weights * normal_density(chi), basis


@cache
def _legendre_of_lagrange(order: int) -> np.ndarray:
    """Legendre coefficients (rows) of the Lagrange polynomials at the Gauss–Legendre nodes (columns)."""
    nodes, weights = legendre(order)
    degrees = np.arange(order)[:, None]
    values = np.polynomial.legendre.legvander(nodes, order - 1).T
    return (2 * degrees + 1) / 2 * values * weights


def relevance(task: AbstractSelected, x: np.ndarray, fineness: float) -> np.ndarray:
    """Density of the relevant token's field over that of any token's; for a sharpness of moderate size, or infinite."""
    sharpness, longest = float(task.sharpness), float(task.length.longest)
    if math.isinf(sharpness):
        tail = 0.5 * np.array([math.erfc(abs(each) / math.sqrt(2.0)) for each in x.tolist()])
        log_below = np.where(x > 0, np.log1p(-tail), np.log(tail))
        return np.asarray(task.length.powers(log_below, 1, drop=0))
    tokens = [(0.0, sharpness)]
    rule = trapezoid(sharpness, (1.0, longest), fineness, kernel=_SOFTMAX, tokens=tokens)
    u, du = rule.for_transform(_SOFTMAX, tokens, longest)
    lost, _, _ = transforms_at(_SOFTMAX, sharpness * rule.x, u[:, None])
    _, first, _ = transforms_at(_SOFTMAX, sharpness * x, u[:, None])
    kept = task.length.powers(log_complement(lost @ rule.mass), 1, drop=0)
    return np.asarray((du * np.asarray(kept)) @ first)
