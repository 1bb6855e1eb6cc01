"""Flow: one run of gradient flow that finds the teacher, beside one that is trapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...attention import Softmax
from ...flow.flow import Flow, gradient_flow, random_starts
from ...population import bayes_risk
from ...population.overlaps import Overlaps
from ...tasks import SpikedSLR
from .asking import Asking
from .style import GREY, INK

STEM = "flow"

CAPTION = """\
Two runs of gradient flow for softmax attention with infinite data, on the spiked task with ν = 2 and L = 10 tokens; \
time is on a logarithmic scale. Top: the risk, and the Bayes risk (grey). Bottom: the overlaps of k and v with the \
hidden k* and v*. From small random vectors (left; components of standard deviation 0.1) v finds v* first, then k \
grows along k*, and the risk falls to that of Bayes. From vectors that have swapped their roles (right; k = v*, v = \
k*) the flow comes to rest in the mismatched minimum, at a risk that is hardly better than that of predicting zero, \
which is 1. A dot is where a run came to rest; a cross would be where it had not when its time was over. flow.csv \
holds both paths, with the residuals and the norm of the gradient.
"""

NU, LENGTH = 2.0, 10
STARTS = {"random": "from small random vectors", "swapped": "from $k = v^*$, $v = k^*$"}

_COLOURS = {"m_kk": "#0072b2", "m_vv": "#d55e00", "m_kv": "#56b4e9", "m_vk": "#e69f00"}
_DASHES: dict[str, Any] = {"m_kk": "solid", "m_vv": "solid", "m_kv": (0, (4, 1.5))}
_DASHES["m_vk"] = _DASHES["m_kv"]

_POINTS, _QUICK_POINTS = 200, 30
_FIRST, _LAST = 0.1, 1e5
_BEYOND = 3.0  # times the end of the slower run, to see that nothing moves


@dataclass(frozen=True)
class Row:
    """A run, how and when it ended, and what it was at some time."""

    start: str
    result: str
    end_time: float
    bayes_risk: float
    time: float
    risk: float
    risk_error: float
    m_kk: float
    m_kv: float
    m_vk: float
    m_vv: float
    R_kk: float
    R_kv: float
    R_vv: float
    gradient_norm: float


def compute(quick: bool, ask: Asking) -> list[Row]:
    """The rows of the figure."""
    return ask(records, [Runs(_QUICK_POINTS if quick else _POINTS)], Row)


@dataclass(frozen=True)
class Runs:
    """Both runs, at so many times."""

    points: int

    @property
    def label(self) -> str:
        """What someone who waits is told."""
        return "flow"

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        """Nothing else shares its code."""
        return ()


def records(runs: Runs) -> list[Row]:
    """Both runs at times whose logarithms are evenly spaced."""
    times = np.geomspace(_FIRST, _LAST, runs.points)
    task = SpikedSLR(NU, LENGTH)
    random = jax.tree.map(lambda leaf: leaf[0], random_starts(jax.random.key(0), 1))
    swapped = Overlaps(m_kv=1.0, m_vk=1.0, q_kk=1.0, q_vv=1.0)
    starts = jax.tree.map(lambda *leaves: np.array(leaves, float), random, swapped)
    flow = gradient_flow(task, Softmax(), starts, times)
    numbers, bayes = _numbers(flow), float(bayes_risk(task))
    return [
        Row(
            name,
            str(flow.result[run]),
            float(flow.end_time[run]),
            bayes,
            float(time),
            *map(float, numbers[run, at]),
        )
        for run, name in enumerate(STARTS)
        for at, time in enumerate(times)
    ]


def _numbers(flow: Flow) -> np.ndarray:
    """What each run was at each time, in the order of a row."""
    at, residual = flow.overlaps, flow.overlaps.residual
    overlaps = at.m_kk, at.m_kv, at.m_vk, at.m_vv, *residual[[0, 0, 1], [0, 1, 1]]
    return np.stack([flow.risk.value, flow.risk.error, *overlaps, flow.gradient_norm], -1)


def plot(rows: Sequence[Row]) -> Figure:
    """A column for each start: risk above, overlaps below, one legend."""
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    panels = figure.subplots(2, len(STARTS), sharex=True, sharey="row")
    for (above, below), (name, title) in zip(panels.T, STARTS.items(), strict=True):
        path = [row for row in rows if row.start == name]
        _draw_risk(above, path)
        _draw_overlaps(below, path)
        above.set_title(title)
        below.set_xlabel("time")
    last = min(_BEYOND * max(row.end_time for row in rows), _LAST)
    panels[0, 0].set(xscale="log", xlim=(_FIRST, last), ylabel="risk")
    panels[1, 0].set_ylabel("overlap with the teacher")
    figure.align_ylabels()
    figure.legend(handles=_legend(), loc="outside lower center", ncols=6)
    return figure


def _draw_risk(axes: Axes, path: Sequence[Row]) -> None:
    axes.axhline(path[0].bayes_risk, color=GREY, linewidth=1.0, linestyle=(0, (3, 2)))
    _draw(axes, path, "risk", INK, "solid")


def _draw_overlaps(axes: Axes, path: Sequence[Row]) -> None:
    axes.axhline(0.0, color=GREY, linewidth=0.5)
    for name, colour in _COLOURS.items():
        _draw(axes, path, name, colour, _DASHES[name])


def _draw(axes: Axes, path: Sequence[Row], name: str, colour: str, dashes: Any) -> None:
    """The curve up to where the run stopped, and a mark there that tells whether it came to rest."""
    moving = [row for row in path if row.time < path[0].end_time]
    times, values = [row.time for row in moving], [getattr(row, name) for row in moving]
    end = path[0].end_time, getattr(path[-1], name)
    axes.plot([*times, end[0]], [*values, end[1]], color=colour, linestyle=dashes, linewidth=1.5)
    marker = "o" if path[0].result == "converged" else "x"
    axes.plot(*end, color=colour, marker=marker, markersize=4, clip_on=False)


def _legend() -> list[Line2D]:
    words = {name: f"${name[0]}_{{{name[2:]}}}$" for name in _COLOURS}
    overlaps = [
        Line2D([], [], color=colour, linestyle=_DASHES[name], label=words[name])
        for name, colour in _COLOURS.items()
    ]
    bayes = Line2D([], [], color=GREY, linestyle=(0, (3, 2)), label="Bayes risk")
    return [Line2D([], [], color=INK, label="risk"), bayes, *overlaps]
