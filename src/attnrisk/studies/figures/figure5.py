"""Figure 5: the minimum with `k` along `k*` and `v` along `v*`, and the local minimum with the two swapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...flow.landscape import mismatched_minimum
from ...population import population_minimum
from ..question import Record
from ..questions import AbstractAttentionQuestion
from .rows import Row, joined
from .style import INK, Line, add_legend, draw_curve, line, marks, panels, where

CAPTION = """\
Risk of [[four attentions|softmax and linear attention]] against the signal strength ν, with L = 10 tokens, at the \
global minimum with k along k* and v along v* (solid), and at the end point of gradient flow from exchanged roles, k = \
v* and v = k* (dashed). A dot is a local minimum, confirmed by the eigenvalues of the Hessian: gradient flow does not \
leave it although a lower minimum exists. Open circles are limits that no finite k attains: there k grows along v* \
while v shrinks along k*, and linear attention becomes the sum over tokens of the product of both teacher fields, \
whose risk is 1 − ν/(L + ν) on the spiked task. A triangle marks a flow that escapes to the global minimum, a diamond \
a saddle, a cross a flow that did not converge; the dashed line is interrupted where there is no point. figure5.csv \
has the points with their errors, overlaps and lowest eigenvalue.
"""

ATTENTIONS = ("softmax", "softplus", "erf", "linear")
TASKS = ("spiked", "max")
LENGTH = "10"
WELL, MIS = "well-matched", "mismatched"
ESCAPED = "escapes"

_NU = {"spiked": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0), "max": (0.5, 1.0, 1.5, 2.0, 2.5)}

_DASHED = (0, (4, 1.5))

# Where a flow from swapped roles may end: marker, whether it is filled, and what the legend says.
_MARKS = {
    "minimum": ("o", True, "minimum"),
    "not attained": ("o", False, "not attained"),
    "saddle": ("D", False, "saddle"),
    "flat": ("s", False, "flat"),
    "not stationary": ("x", False, "not converged"),
    ESCAPED: ("v", True, "escapes to the global minimum"),
}


@dataclass(frozen=True)
class Minima(AbstractAttentionQuestion):
    """The well-matched and the mismatched point: `kind` is that of `Stationary`, or that the flow escapes."""

    kind: ClassVar[str] = "well-matched and mismatched"
    package: ClassVar[str] = "flow"

    def answer(self) -> list[Record]:
        well = population_minimum(self.problem, self.student)
        trap = mismatched_minimum(self.problem, self.student, well)
        lowest = float(trap.eigenvalues[0]) if len(trap.eigenvalues) else None
        return [
            _record(WELL, well, "minimum" if well.attained else "not attained", None),
            _record(MIS, trap, ESCAPED if trap.matched else trap.kind, lowest),
        ]


def _record(point: str, found: Any, kind: str, lowest: float | None) -> Record:
    return {
        "point": point,
        "risk": float(found.risk.value),
        "error": float(found.risk.error),
        "kind": kind,
        "lowest_eigenvalue": lowest,
        "bias": float(found.attention.bias) if found.attention.free_bias else None,
        **found.overlaps.as_dict(),
    }


FULL = [  # the slower task first
    Minima(task, nu, LENGTH, name)
    for task in TASKS[::-1]
    for name in ATTENTIONS
    for nu in sorted(_NU[task], reverse=True)
]
QUICK = [each for each in FULL if each.task == "spiked" and each.attention in ("softmax", "linear")]
compute = joined


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each task, one legend."""
    by = {"task": TASKS}
    figure, drawn = panels(rows, 3.8, by, r"signal strength $\nu$", "risk", sharey=True)
    for axes, here, task in drawn:
        for name in ATTENTIONS:
            curve = sorted((r for r in here if r.attention == name), key=lambda row: row.nu)
            well, swapped = ([row for row in curve if row.point == at] for at in (WELL, MIS))
            draw_curve(axes, line(name, dashes="solid", width=1.5), well, ("nu", "risk"))
            for escaped, stretch in groupby(swapped, key=lambda row: row.kind == ESCAPED):
                if not escaped:
                    draw_curve(axes, line(name, dashes=_DASHED, width=1.5), stretch, ("nu", "risk"))
            for row in swapped:
                axes.add_line(_mark(row.kind, line(name).colour, [row]))
        axes.set_xlim(0.0, 1.03 * max(row.nu for row in here))
        axes.autoscale_view(scalex=False)
        axes.set(title=where(task, None, LENGTH), ylim=(None, 1.02))
    named = {row.attention for row in rows}
    seen = {row.kind for row in rows if row.point == MIS}
    handles: list[Any] = [
        line(name, dashes="solid", width=1.5) for name in ATTENTIONS if name in named
    ]
    handles += [Line(WELL, INK, "solid", 1.5), Line(MIS, INK, _DASHED, 1.5)]
    handles += [_mark(kind, INK) for kind in _MARKS if kind in seen]
    add_legend(figure, handles, 4)
    return figure


def _mark(kind: str, colour: str, rows: Sequence[Row] = ()) -> Line2D:
    marker, filled, label = _MARKS[kind]
    shape: Any = {"markersize": 4, "markerfacecolor": colour if filled else "white"}
    return marks(marker, colour, rows, ("nu", "risk"), label=label, **shape)
