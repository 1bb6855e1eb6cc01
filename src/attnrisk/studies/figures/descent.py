"""Descent: does training find the teacher? The five experiments of Marion et al., thirty runs each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ...marion.erf_risk import erf_risk
from ...marion.settings import SETTINGS, Setting, run_setting
from ...population.overlaps import aligned
from .asking import Asking
from .style import GREY, INK

STEM = "descent"

CAPTION = """\
Projected gradient descent on the sphere for the predictor erf(λXk)·(Xv), in the five settings of Marion et al. \
(arXiv 2410.01537), 30 random starts each. Top: the overlaps of k with k* and of v with v*, up to the common sign that \
the predictor does not see. Bottom: the risk less the noise, on a logarithmic scale, and what it would be at k = k*, \
v = v* with the λ of the same step (grey). Lines are means over the runs, bands reach from the lowest run to the \
highest. From the left: on the manifold where keys and values do not mix, every run finds the teacher. From random \
starts with a small constant λ, many runs end in the mismatched minimum, k = ±v* with v leaning on k*, whose risk is a \
little higher. With a large λ the erf saturates: once a few tenths of k lie along k* nothing pulls the rest, and k \
drifts towards ±v*, to a risk below the teacher's. A λ that is large at first and decays finds the teacher from all of \
these starts, also when the gradient is that of five fresh noisy sequences a step (right, d = 80; the others descend \
on the population risk, d = 400). It is no guarantee: other starts end in the mismatched minimum, which has the lower \
risk there at the last step. descent.csv holds the lines and the bands, λ, and \
the share of runs with both overlaps above 0.9.
"""

TITLES = {
    "manifold": "on the manifold\n$\\lambda = 0.1$",
    "small": "on the sphere\n$\\lambda = 0.1$",
    "large": "on the sphere\n$\\lambda = 0.9$",
    "decaying": "on the sphere\n$\\lambda$ decays from 1",
    "stochastic": "stochastic\n$\\lambda$ decays from 2",
}
FOUND = 0.9  # of both overlaps, to say that a run has found the teacher; at the other minima the lower one is below 0.4

_QUICK_REPEATS, _QUICK_STEPS = 5, 24_000  # enough for constant λ
_KEY, _VALUE = "#0072b2", "#d55e00"


@dataclass(frozen=True)
class Row:
    """One recorded step of a setting: mean, lowest and highest of the runs, and the share that found the teacher.

    `key` is `|k·k*|`, `value` is `|v·v*|`; `teacher_excess` is the excess risk at `k = k*`, `v = v*`.
    """

    setting: str
    step: int
    inverse_temperature: float
    key: float
    key_low: float
    key_high: float
    value: float
    value_low: float
    value_high: float
    excess: float
    excess_low: float
    excess_high: float
    teacher_excess: float
    found: float


def compute(quick: bool, ask: Asking) -> list[Row]:
    """The rows of the figure."""
    return ask(records, [Runs(name, quick) for name in SETTINGS], Row)


@dataclass(frozen=True)
class Runs:
    """The runs of one setting; if `short`, few of them and not for long."""

    name: str
    short: bool

    @property
    def setting(self) -> Setting:
        """The setting itself."""
        setting = SETTINGS[self.name]
        if not self.short:
            return setting
        return replace(setting, repeats=_QUICK_REPEATS, steps=min(setting.steps, _QUICK_STEPS))

    @property
    def label(self) -> str:
        """What someone who waits is told."""
        return self.name

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        """Settings do not share code."""
        return (self.name,)


def records(runs: Runs) -> list[Row]:
    """The rows of one setting."""
    name, setting = runs.name, runs.setting
    path = run_setting(setting)
    key, value = np.abs(path.cosines.m_kk), np.abs(path.cosines.m_vv)
    shown = [f(x) for x in (key, value, path.excess_risk) for f in (_mean, _lowest, _highest)]
    inverse_temperature: Any = path.inverse_temperature
    teacher = aligned(1.0).stretched(inverse_temperature)
    teacher_excess = erf_risk(setting.task, teacher) - setting.noise**2
    found = _mean(np.minimum(key, value) > FOUND)
    columns = inverse_temperature, *shown, teacher_excess, found
    numbers = np.stack([np.asarray(column) for column in columns], -1)
    return [
        Row(name, int(step), *map(float, line))
        for step, line in zip(path.steps, numbers, strict=True)
    ]


def _mean(values: Any) -> Any:
    return np.mean(values, 0)


def _lowest(values: Any) -> Any:
    return np.min(values, 0)


def _highest(values: Any) -> Any:
    return np.max(values, 0)


def plot(rows: Sequence[Row]) -> Figure:
    """A column for each setting: overlaps above, excess risk below, one legend."""
    figure = Figure(figsize=(9.0, 3.9), layout="constrained")
    panels = figure.subplots(2, len(TITLES), sharex="col", sharey="row")
    for (above, below), (name, title) in zip(panels.T, TITLES.items(), strict=True):
        curve = [row for row in rows if row.setting == name]
        _draw_overlaps(above, curve)
        _draw_risk(below, curve)
        above.set_title(title)
        below.set(xlim=(0, curve[-1].step), xlabel="step")
        below.locator_params(axis="x", nbins=3)
        below.xaxis.set_major_formatter(FuncFormatter(_thousands))
    panels[0, 0].set(ylabel="overlap with the teacher", ylim=(0.0, 1.03))
    panels[1, 0].set(ylabel="excess risk", yscale="log")
    figure.align_ylabels()
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4)
    return figure


def _thousands(step: float, position: int) -> str:
    return f"{step / 1000:g}k" if step else "0"


def _draw_overlaps(axes: Axes, rows: Sequence[Row]) -> None:
    _band(axes, rows, "key", _KEY)
    _band(axes, rows, "value", _VALUE)
    text = f"{rows[-1].found:.0%} of runs\nfind the teacher"
    axes.text(0.96, 0.06, text, transform=axes.transAxes, ha="right", fontsize=7, color=INK)


def _draw_risk(axes: Axes, rows: Sequence[Row]) -> None:
    _band(axes, rows, "excess", INK)
    steps, teacher = [row.step for row in rows], [row.teacher_excess for row in rows]
    axes.plot(steps, teacher, color=GREY, linewidth=1.0, linestyle=(0, (3, 2)))


def _band(axes: Axes, rows: Sequence[Row], name: str, colour: str) -> None:
    """The mean, and behind it the range."""
    steps = [row.step for row in rows]
    mean, low, high = ([getattr(row, name + end) for row in rows] for end in ("", "_low", "_high"))
    axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0.0)
    axes.plot(steps, mean, color=colour, linewidth=1.4)


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], color=_KEY, label=r"$|k \cdot k^*|$"),
        Line2D([], [], color=_VALUE, label=r"$|v \cdot v^*|$"),
        Line2D([], [], color=INK, label="excess risk"),
        Line2D([], [], color=GREY, linestyle=(0, (3, 2)), label=r"at $k = k^*$, $v = v^*$"),
    ]
