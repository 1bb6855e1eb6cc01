"""Flow: one run of gradient flow that reaches the global minimum, and one that ends in a local minimum."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...attention import Softmax
from ...flow.flow import gradient_flow, random_starts
from ...population import bayes_risk
from ...population.overlaps import swapped
from ...tasks import SpikedSLR
from ..question import AbstractQuestion, Record, is_converged
from .rows import Row, records
from .style import GREY, INK, WIDTH, Line, add_legend, columns, where

CAPTION = """\
Two runs of gradient flow for softmax attention with infinite data, on the spiked task with ν = 2 and L = 10 tokens; \
the time axis is logarithmic. Top: the risk, and the Bayes risk (grey). Bottom: the overlaps of k and v with the \
hidden k* and v*. From small random vectors (left; components of standard deviation 0.1) v aligns with v* first, then \
k grows along k*, and the risk decreases to the Bayes risk. From exchanged roles (right; k = v*, v = k*) the flow \
converges to the mismatched minimum, whose risk is only slightly below that of predicting zero, which is 1. A dot \
marks convergence; a cross marks a run that did not converge in time. flow.csv has both paths, with the residuals and \
the norm of the gradient.
"""

NU, LENGTH = 2.0, 10
STARTS = {"random": "from small random vectors", "swapped": "from $k = v^*$, $v = k^*$"}
_BAYES = Line("Bayes risk", GREY, (0, (3, 2)), 1.0)

# Labels are columns.
_RISK = Line("risk", INK, "solid", 1.5)
_OVERLAPS = (
    Line("m_kk", "#0072b2", "solid", 1.5),
    Line("m_vv", "#d55e00", "solid", 1.5),
    Line("m_kv", "#56b4e9", (0, (4, 1.5)), 1.5),
    Line("m_vk", "#e69f00", (0, (4, 1.5)), 1.5),
)

_FIRST, _LAST = 0.1, 1e5
_BEYOND = 3.0  # times the end of the slower run, to see that nothing moves


@dataclass(frozen=True)
class Runs(AbstractQuestion):
    """Both runs, at so many times whose logarithms are evenly spaced: how and when each ended, and its path."""

    kind: ClassVar[str] = "flow"
    package: ClassVar[str] = "flow"

    points: int

    def answer(self) -> list[Record]:
        times = np.geomspace(_FIRST, _LAST, self.points)
        task = SpikedSLR(NU, LENGTH)
        random = jax.tree.map(lambda leaf: leaf[0], random_starts(jax.random.key(0), 1))
        starts = jax.tree.map(lambda *leaves: np.array(leaves, float), random, swapped())
        flow = gradient_flow(task, Softmax(), starts, times)
        at, residual = flow.overlaps, flow.overlaps.residual
        numbers = {
            "risk": flow.risk.value,
            "risk_error": flow.risk.error,
            **{name: getattr(at, name) for name in ("m_kk", "m_kv", "m_vk", "m_vv")},
            "R_kk": residual[..., 0, 0],
            "R_kv": residual[..., 1, 0],
            "R_vv": residual[..., 1, 1],
            "gradient_norm": flow.gradient_norm,
        }
        bayes = float(bayes_risk(task))
        return [
            {
                "start": name,
                "result": str(flow.result[run]),
                "end_time": float(flow.end_time[run]),
                "bayes_risk": bayes,
                "time": float(time),
                **{name: float(values[run, step]) for name, values in numbers.items()},
            }
            for run, name in enumerate(STARTS)
            for step, time in enumerate(times)
        ]


FULL, QUICK = [Runs(200)], [Runs(100)]
compute = records


def plot(rows: Sequence[Row]) -> Figure:
    """A column for each start: risk above, overlaps below, one legend."""
    figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
    panels = figure.subplots(2, len(STARTS), sharex=True, sharey="row")
    for (above, below), (name, title) in zip(panels.T, STARTS.items(), strict=True):
        path = [row for row in rows if row.start == name]
        above.axhline(path[0].bayes_risk, **_BAYES.style)
        _draw(above, path, _RISK)
        below.axhline(0.0, color=GREY, linewidth=0.5)
        for overlap in _OVERLAPS:
            _draw(below, path, overlap)
        above.set_title(f"{title}\n{where('spiked', NU, LENGTH)}")
        below.set(title=where("spiked", NU, LENGTH), xlabel="time")
    last = min(_BEYOND * max(row.end_time for row in rows), _LAST)
    panels[0, 0].set(xscale="log", xlim=(_FIRST, last), ylabel="risk")
    panels[1, 0].set_ylabel("overlap with the teacher")
    figure.align_ylabels()
    symbols = [each._replace(label=f"$m_{{{each.label[2:]}}}$") for each in _OVERLAPS]
    add_legend(figure, [_RISK, _BAYES, *symbols], 6)
    return figure


def _draw(axes: Axes, path: Sequence[Row], curve: Line) -> None:
    """A column up to where the run stopped, and a mark there that tells whether it came to rest."""
    moving = [row for row in path if row.time < path[0].end_time]
    end = path[0].end_time, getattr(path[-1], curve.label)
    times, values = columns(moving, "time", curve.label)
    axes.add_line(curve.through([*times, end[0]], [*values, end[1]]))
    marker = "o" if is_converged(path[0].result) else "x"
    axes.plot(*end, color=curve.colour, marker=marker, markersize=4, clip_on=False)
