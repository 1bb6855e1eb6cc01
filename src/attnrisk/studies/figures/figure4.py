"""Figure 4: end points of gradient flow from small random vectors, against the signal strength."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import jax
import numpy as np
from matplotlib.figure import Figure

from ...flow.flow import gradient_flow, random_starts
from ...population.overlaps import Overlaps
from ..question import Record
from ..questions import AbstractAttentionQuestion
from .rows import Row, joined
from .style import GREY, INK, WIDTH, Line, add_legend, columns, line, marks, where

CAPTION = """\
End points of gradient flow of the population risk, for softmax and linear attention with L = 10 tokens, against the \
signal strength ν: the overlaps m_kv, m_vk, m_vv of the learned k, v with the hidden k*, v*, and the residuals R_kk, \
R_kv, R_vv, the components of k and v outside the span of k* and v*. Each point is 20 runs, with the same initial \
vectors at every point, whose components have standard deviation η = 0.1. Lines are means over the runs; bands show \
the range of all runs; the grey bar is the range of the initial values. Every run ends in the global minimum, k along \
k* and v along v*: only m_vv (and m_kk, which is in figure4.csv) is nonzero, and the bands have no visible width. \
Signs are not adjusted: the risk is invariant when m_kv, m_vk and R_kv change sign together, and under no other sign \
change. A cross marks a point where a run did not converge; such runs are counted in the column unconverged of \
figure4.csv, and are included in the mean and the band.
"""

ATTENTIONS = ("softmax", "linear")
LENGTH = "10"
SHOWN = {
    "m_kv": "$m_{kv}$",
    "m_vk": "$m_{vk}$",
    "m_vv": "$m_{vv}$",
    "R_kk": "$R_{kk}$",
    "R_kv": "$R_{kv}$",
    "R_vv": "$R_{vv}$",
}
TASKS = ("spiked", "max")
RUNS, SIZE = 20, 0.1
_UNCONVERGED = "runs not converged"
_WIDTHS = {"softmax": 2.4, "linear": 1.2}  # the wider one below
_STARTS = Line("starts, lowest to highest", GREY, "solid", 3.0)  # a bar, left of all signals

_NU = {"spiked": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0), "max": (0.5, 1.0, 1.5, 2.0, 2.5)}
_TIME = 1e6  # runs come to rest before 10^5
# Of a step: the way depends on it, the ends do not. With large steps linear attention, whose steps cost next to
# nothing, hovers around its end for long before it comes to rest.
_ACCURACY = {"softmax": 1e-2, "linear": 1e-4}


@dataclass(frozen=True)
class Ends(AbstractAttentionQuestion):
    """Order parameters at the ends of many runs: mean, lowest and highest, and the range that they started in."""

    kind: ClassVar[str] = "flow ends"
    package: ClassVar[str] = "flow"

    def answer(self) -> list[Record]:
        starts = random_starts(jax.random.key(0), RUNS, SIZE)
        accuracy = _ACCURACY[self.attention]
        flow = gradient_flow(self.problem, self.student, starts, [_TIME], accuracy=accuracy)
        counts = {"runs": RUNS, "unconverged": int(np.sum(~np.asarray(flow.converged)))}
        begin, end = _parameters(starts), _parameters(flow.end)
        return [
            {
                "parameter": name,
                "mean": float(np.mean(end[name])),
                "low": float(np.min(end[name])),
                "high": float(np.max(end[name])),
                "start_low": float(np.min(begin[name])),
                "start_high": float(np.max(begin[name])),
                **counts,
            }
            for name in end
        ]


FULL = [  # softmax on the max task, which is the slowest, first
    Ends(task, nu, LENGTH, name)
    for name, task in product(ATTENTIONS, TASKS[::-1])
    for nu in sorted(_NU[task], reverse=True)
]
QUICK = [each for each in FULL if each.task == "spiked"]
compute = joined


def _parameters(overlaps: Overlaps) -> dict[str, Any]:
    residual = overlaps.residual
    return {
        "m_kk": overlaps.m_kk,
        "m_kv": overlaps.m_kv,
        "m_vk": overlaps.m_vk,
        "m_vv": overlaps.m_vv,
        "R_kk": residual[..., 0, 0],
        "R_kv": residual[..., 1, 0],
        "R_vv": residual[..., 1, 1],
    }


def plot(rows: Sequence[Row]) -> Figure:
    """Order parameters of each task on two lines of panels, one legend."""
    tasks = [task for task in TASKS if task in {row.task for row in rows}]
    figure = Figure(figsize=(WIDTH, 0.6 + 3.0 * len(tasks)), layout="constrained")
    panels = figure.subplots(2 * len(tasks), len(SHOWN) // 2, squeeze=False)
    for axes, (task, name) in zip(panels.flat, product(tasks, SHOWN), strict=True):
        here = [row for row in rows if (row.task, row.parameter) == (task, name)]
        axes.add_line(_STARTS.through([0.0, 0.0], [here[0].start_low, here[0].start_high]))
        for attention in ATTENTIONS:
            curve = sorted((r for r in here if r.attention == attention), key=lambda row: row.nu)
            nu, mean, low, high = columns(curve, "nu", "mean", "low", "high")
            colour = line(attention).colour
            axes.fill_between(nu, low, high, color=colour, alpha=0.25, linewidth=0.0)
            axes.add_line(line(attention, width=_WIDTHS[attention]).through(nu, mean))
            axes.plot(nu, mean, ".", color=colour)
            moving = [row for row in curve if row.unconverged]
            axes.add_line(marks("x", colour, moving, ("nu", "mean"), label=_UNCONVERGED))
            axes.set_xlim(-0.05 * nu[-1], 1.05 * nu[-1])
        axes.locator_params(axis="y", nbins=5)
        axes.set(title=where(task, None, LENGTH), ylabel=SHOWN[name])
    for axes in panels[-1]:
        axes.set_xlabel(r"signal strength $\nu$")
    handles: list[Any] = [line(name, width=width) for name, width in _WIDTHS.items()]
    handles.append(_STARTS)
    if any(row.unconverged for row in rows):
        handles.append(marks("x", INK, label=_UNCONVERGED))
    add_legend(figure, handles, 4)
    return figure
