"""Interpolants of a lowest risk over `(ν, L)`, with an error measured at points that are not nodes.

The logit of the risk, `log(E/(1 − E))`, is interpolated: for a long sequence the risk falls from 1 to 0 in a narrow
range about `ν = 2 log L`, while its logit goes smoothly from `log L` to a line in `ν`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import qmc

from .._rows import BAYES, FLOOR
from .question import Record

_SMALLEST = 1e-9  # risk: smaller ones, such as the infimum 0 of softmax at ν = ∞, are kept as this
# Times the largest error at n held-out points, which another exceeds with chance 1/(n + 1); by two it may be more.
_SAFETY = 3.0
# Between nodes, of a logit: a surface of a larger one says nothing, and is left out.
_LARGEST_ERROR = 1.0
_ROUNDING = 6  # digits of a logit: 10^-6 of the risk, far below the error of the interpolant
FEWEST_HELD_OUT = 3  # points at which an error is measured
# Between nodes; the second where the first oscillates at a kink.
POLYNOMIAL, LINEAR = "polynomial", "linear"
RATIO, ROOT, SHIFTED_ROOT = "ratio", "root", "shifted root"
# Variables of the signal, and their inverses.
_PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[float], float]]] = {
    RATIO: (lambda nu: nu / (2.0 + nu), lambda place: 2.0 * place / (1.0 - place)),
    ROOT: (np.sqrt, lambda place: place**2),
    SHIFTED_ROOT: (lambda nu: np.sqrt(1.0 + nu) - 1.0, lambda place: (1.0 + place) ** 2 - 1.0),
}
MINIMISER = ("m_kk", "m_vv", "best_bias")


class Grid(NamedTuple):
    """Chebyshev–Lobatto nodes in `signal_place` and in `length_place`, lengths rounded to integers, and held-out
    points. `variable` is that of `signal_place`."""

    variable: str
    nu: tuple[float, ...]
    length: tuple[int, ...]
    held_out: tuple[tuple[float, int], ...]

    @property
    def nodes(self) -> list[tuple[float, int]]:
        """The nodes, row by row, one row for each signal."""
        return list(product(self.nu, self.length))

    @property
    def points(self) -> list[tuple[float, int]]:
        """All nodes, then the points held out."""
        return [*self.nodes, *self.held_out]


def signal_place(variable: str, nu: Any) -> Any:
    """The variable in which the logit is smooth: `ν/(2 + ν)` on the max task, `√(1 + ν) − 1` on the others.

    With 12 × 7 nodes on the max task the first is ten times as accurate as `√ν`. On the spiked task the risk of a
    homogeneous attention without a bias is a smooth function of `√ν`.
    """
    return _PLACES[variable][0](nu)


def length_place(length: Any) -> Any:
    """`√log L`. For the Bayes risk, 14 × 8 nodes in this and in `√(1 + ν)` have a third of the error of as many in
    `log L` and `√ν`."""
    return np.sqrt(np.log(length))


def grid(
    variable: str, signals: int, most_signal: float, lengths: int, longest: int, held_out: int
) -> Grid:
    """`signals` nodes up to `most_signal`, or `ν = ∞` alone where that is infinite, times `lengths` nodes."""
    end = 0.0 if math.isinf(most_signal) else float(signal_place(variable, most_signal))
    first, last = length_place(2.0), length_place(longest)

    def signal(share: float) -> float:
        return round(_PLACES[variable][1](share * end), 6) if end else math.inf

    def length(share: float) -> int:
        return round(math.exp((first + share * (last - first)) ** 2))

    nodes: list[int] = []
    for share in _unit_nodes(lengths):  # rounded, but never the same twice
        nodes.append(max(length(share), nodes[-1] + 1 if nodes else 2))
    draws = qmc.Sobol(2, seed=0).random(2 ** math.ceil(math.log2(held_out)))[:held_out].tolist()
    nu = tuple(map(signal, _unit_nodes(signals))) if end else (math.inf,)
    return Grid(
        variable, nu, tuple(nodes), tuple((round(signal(x), 4), length(y)) for x, y in draws)
    )


def _unit_nodes(count: int) -> list[float]:
    return [(1.0 - math.cos(math.pi * each / (count - 1))) / 2.0 for each in range(count)]


def compress(
    labels: Mapping[str, str], grid: Grid, found: Sequence[Record | None], results: list[str]
) -> Record | None:
    """The interpolant of these answers; its error, in the logit, is measured at the held-out points.

    `None` if an answer is missing at a node, if fewer than `FEWEST_HELD_OUT` held-out answers exist, or if the error
    is too large. The results of the searches are stored as indices into `results`, to which new ones are appended. Of
    the two kinds of interpolant the one of smaller error is kept.
    """
    nodes, others = found[: len(grid.nodes)], found[len(grid.nodes) :]
    asked = [(at, each) for at, each in zip(grid.held_out, others, strict=True) if each is not None]
    if None in nodes or len(asked) < FEWEST_HELD_OUT:
        return None
    answers: list[Record] = [each for each in found if each is not None]
    shape = len(grid.nu), len(grid.length)
    piece: Record = {
        **labels,
        "variable": grid.variable,
        "nu": ["inf" if math.isinf(nu) else nu for nu in grid.nu],
        "length": list(grid.length),
        "logit": _table([round(logit(each["risk"]), _ROUNDING) for each in answers], shape),
    }
    if labels["attention"] not in (BAYES, FLOOR):
        for name in MINIMISER:
            piece[name] = _table([significant(each[name]) for each in answers], shape)
        results += sorted({each["result"] for each in answers} - set(results))
        piece["result"] = _table([results.index(each["result"]) for each in answers], shape)
    errors = {}
    for kind in (POLYNOMIAL, LINEAR):
        piece["between"] = kind
        errors[kind] = [abs(logit_at(piece, *at) - logit(each["risk"])) for at, each in asked]
    piece["between"] = min(errors, key=lambda kind: max(errors[kind]))
    misses = errors[piece["between"]]
    piece["error"] = significant(_SAFETY * max(misses) + max(map(_logit_error, answers)))
    piece["median_error"] = significant(float(np.median(misses)))
    piece["held_out"] = len(misses)
    return piece if max(misses) < _LARGEST_ERROR else None


def _logit_error(found: Record) -> float:
    risk = min(max(found["risk"], _SMALLEST), 1.0 - _SMALLEST)
    return float(found["risk_error"] / (risk * (1.0 - risk))) if found["risk"] > _SMALLEST else 0.0


def _table(values: Sequence[Any], shape: tuple[int, int]) -> list[list[Any]]:
    """The values at the nodes, which come first."""
    return np.reshape(values[: shape[0] * shape[1]], shape).tolist()


def significant(value: float) -> float:
    """Five digits."""
    return float(f"{value:.5g}")


def logit(risk: float) -> float:
    """`log(E/(1 − E))` of a risk cut to where it is finite."""
    cut = min(max(risk, _SMALLEST), 1.0 - _SMALLEST)
    return math.log(cut) - math.log1p(-cut)


def logit_at(piece: Mapping[str, Any], nu: float, length: float) -> float:
    """The interpolant, linear or, by the barycentric formula, a polynomial, in `signal_place` and `length_place`."""
    weights = _barycentric if piece["between"] == POLYNOMIAL else _hats
    table = np.asarray(piece["logit"])
    if piece["nu"] != ["inf"]:
        variable, nodes = piece["variable"], np.asarray(piece["nu"], float)
        table = weights(signal_place(variable, nodes), float(signal_place(variable, nu))) @ table
    lengths = length_place(np.asarray(piece["length"], float))
    return float(np.squeeze(table @ weights(lengths, float(length_place(length)))))


def risk_at(piece: Mapping[str, Any], nu: float, length: float) -> tuple[float, float]:
    """The risk from the atlas, and its stated error."""
    risk = 1.0 / (1.0 + math.exp(-logit_at(piece, nu, length)))
    return risk, risk * (1.0 - risk) * piece["error"]


def _barycentric(nodes: np.ndarray, place: float) -> np.ndarray:
    """The weights of the values at the nodes; lengths are rounded, so that the nodes are not quite Chebyshev's."""
    apart = place - nodes
    if np.any(np.abs(apart) < 1e-12):
        return (np.abs(apart) < 1e-12).astype(float)
    spread = (nodes[:, None] - nodes) * 4.0 / (nodes.max() - nodes.min())
    np.fill_diagonal(spread, 1.0)
    weights = 1.0 / (np.prod(spread, 1) * apart)
    return weights / weights.sum()


def _hats(nodes: np.ndarray, place: float) -> np.ndarray:
    """Linear interpolation weights of the two nodes around a point."""
    return np.array([np.interp(place, nodes, one) for one in np.eye(nodes.size)])
