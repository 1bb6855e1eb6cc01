"""Fixed points of several heads that are copies of one head, beside those of heads that are not (section 10.1)."""

from dataclasses import replace

import numpy as np

from .._results import ErrorKind, Estimate, Result
from ..attention import AbstractAttention
from .asymptotics import ERMAsymptotics, Ridge
from .equations import Averages
from .newton import FixedPointSolution, Start, run_newton
from .separation import Separation, separation

_START = "identical heads"
_PARTS = 4  # of the randomisations, whose spread is the error of what concerns differences
# Standard errors, and a distance, within which a fixed point is one of copies.
_SAME_WITHIN_ERRORS, _SAME_WITHIN = 3.0, 1e-9


def as_copies(
    averages: Averages,
    found: FixedPointSolution,
    one: ERMAsymptotics,
    heads: AbstractAttention,
    ridge: Ridge,
) -> ERMAsymptotics:
    """The report of one head as that of its copies; a saddle point if these separate."""
    alpha, count = found.alpha, heads.keys

    def separation_at(averages: Averages, at: FixedPointSolution) -> Separation:
        return separation(averages, heads, at.x, at.displacements, alpha, float(ridge.k))

    here, parts = separation_at(averages, found), []
    for some in np.split(np.arange(len(averages.points)), _PARTS):
        part = averages._replace(points=[averages.points[at] for at in some])
        near = Start(found.start, found.x, True)
        parts.append(separation_at(part, run_newton(part, alpha, found.ridge, near, found.step)))

    def error(name: str) -> float:
        return float(np.std([getattr(each, name) for each in parts], ddof=1) / np.sqrt(_PARTS))

    rows = [0] * count + [1]  # all keys are the first vector
    V = one.V[rows][:, rows]
    differences = np.zeros((count + 1, count + 1))
    differences[:-1, :-1] = np.eye(count) - 1.0 / count
    return replace(
        one,
        M=one.M[rows],
        Q=one.Q[rows][:, rows],
        V=Estimate(
            V.value + here.V * differences, V.error + error("V") * np.abs(differences), V.kind
        ),
        ridge=ridge,
        start=_START,
        slope=one.slope * [count, 1],
        replicon=max(one.replicon, here.spread),
        separation_growth=Estimate(here.growth, error("growth"), ErrorKind.STANDARD),
        result=one.result if here.is_stable or not one.converged else Result.SADDLE,
    )


def merge_fixed_points(found: ERMAsymptotics, copies: list[ERMAsymptotics]) -> ERMAsymptotics:
    """The fixed point of lowest objective, with the others as rivals: converged ones first, saddle points last.

    Where copies are stable, one that is theirs within its errors is left out (it is blurred by few points), and so is
    one that did not converge.
    """
    stable = [each for each in copies if each.converged]

    def is_one_of_copies(it: ERMAsymptotics) -> bool:
        return any(_is_close(it.M, other.M) and _is_close(it.Q, other.Q) for other in stable)

    kept = [
        each
        for each in (replace(found, rivals=()), *found.rivals)
        if not stable or (each.converged and not is_one_of_copies(each))
    ]
    best, *rivals = sorted(
        [*kept, *copies],
        key=lambda it: (it.result is Result.SADDLE, not it.converged, float(it.objective)),
    )
    return replace(best, rivals=tuple(rivals))


def _is_close(one: Estimate, other: Estimate) -> bool:
    within = _SAME_WITHIN_ERRORS * np.hypot(one.error, other.error) + _SAME_WITHIN
    return bool(np.all(np.abs(one.value - other.value) <= within))
