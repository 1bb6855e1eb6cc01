"""Descent: does training find the teacher? The five experiments of Marion et al., thirty runs each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...marion.erf_risk import erf_risk
from ...marion.settings import SETTINGS, run_setting
from ...population.overlaps import aligned
from ..question import AbstractQuestion, Record
from .rows import Row, records
from .style import GREY, INK, WIDTH, Line, add_legend, columns, where

CAPTION = """\
Projected gradient descent on the sphere for the predictor erf(λXk)·(Xv), in the five settings of Marion et al. (arXiv \
2410.01537), with [[30|5]] random initialisations each[[|, for at most 24000 steps]]. Top: overlaps of k with k* and \
of v with v*, up to a common sign to which the predictor is invariant. Bottom: risk minus noise, on a logarithmic \
scale, and its value at k = k*, v = v* with the λ of the same step (grey). Lines are means over the runs; bands show \
the range of all runs. From left to right: on the manifold where keys and values do not mix, every run finds the \
teacher. From random initialisations with a small constant λ, many runs end in the mismatched minimum, k = ±v* with v \
leaning towards k*, whose risk is slightly higher. With a large λ the erf saturates: once k has an overlap of a few \
tenths with k*, the gradient for the remaining directions vanishes, and k drifts towards ±v*, to a risk below that of \
the teacher. A λ that is large at first and decays finds the teacher from all of these initialisations, also when each \
gradient uses five fresh noisy sequences (right, d = 80; the others use the population risk, d = 400). This is not \
guaranteed: other initialisations end in the mismatched minimum, which has the lower risk there at the last step. \
descent.csv has the lines and the bands, λ, and the fraction of runs with both overlaps above 0.9.
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
_KEY = Line(r"$|k \cdot k^*|$", "#0072b2", "solid", 1.4)
_VALUE = Line(r"$|v \cdot v^*|$", "#d55e00", "solid", 1.4)
_EXCESS = Line("excess risk", INK, "solid", 1.4)
_TEACHER = Line(r"at $k = k^*$, $v = v^*$", GREY, (0, (3, 2)), 1.0)


@dataclass(frozen=True)
class Runs(AbstractQuestion):
    """The runs of one setting, at each recorded step; if `short`, few of them and not for long.

    Mean, lowest and highest of the runs: `key` is `|k·k*|`, `value` is `|v·v*|`; `teacher_excess` is the excess risk at
    `k = k*`, `v = v*`, and `found` the share of runs that found the teacher.
    """

    kind: ClassVar[str] = "descent"
    package: ClassVar[str] = "marion"

    name: str
    short: bool

    @property
    def label(self) -> str:
        return self.name

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        return (self.name,)

    def answer(self) -> list[Record]:
        setting = SETTINGS[self.name]
        if self.short:
            steps = min(setting.steps, _QUICK_STEPS)
            setting = replace(setting, repeats=_QUICK_REPEATS, steps=steps)
        path = run_setting(setting)
        key, value = np.abs(path.cosines.m_kk), np.abs(path.cosines.m_vv)
        teacher = aligned(1.0).stretched(path.inverse_temperature)
        columns = {
            "inverse_temperature": path.inverse_temperature,
            **_range("key", key),
            **_range("value", value),
            **_range("excess", path.excess_risk),
            "teacher_excess": erf_risk(setting.task, teacher) - setting.noise**2,
            "found": np.mean(np.minimum(key, value) > FOUND, 0),
        }
        numbers = {name: np.asarray(column) for name, column in columns.items()}
        return [
            {
                "setting": self.name,
                "step": int(step),
                **{name: float(column[at]) for name, column in numbers.items()},
            }
            for at, step in enumerate(path.steps)
        ]


def _range(name: str, runs: Any) -> Record:
    return {name: np.mean(runs, 0), f"{name}_low": np.min(runs, 0), f"{name}_high": np.max(runs, 0)}


FULL, QUICK = ([Runs(name, short) for name in SETTINGS] for short in (False, True))
compute = records


def plot(rows: Sequence[Row]) -> Figure:
    """A column for each setting: overlaps above, excess risk below, one legend."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panels = figure.subplots(2, len(TITLES), sharex="col", sharey="row")
    for (above, below), (name, title) in zip(panels.T, TITLES.items(), strict=True):
        curve = [row for row in rows if row.setting == name]
        _band(above, curve, "key", _KEY)
        _band(above, curve, "value", _VALUE)
        text = f"{curve[-1].found:.0%} of runs\nfind the\nteacher"
        above.text(0.96, 0.06, text, transform=above.transAxes, ha="right", fontsize=7, color=INK)
        _band(below, curve, "excess", _EXCESS)
        below.add_line(_TEACHER.through(*columns(curve, "step", "teacher_excess")))
        above.set_title(f"{title}\n{where('', SETTINGS[name].dim / 2, 10)}", fontsize=7.0)
        below.set(xlim=(0, curve[-1].step), xlabel="step")
        below.locator_params(axis="x", nbins=2)
        below.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step else "0")
    panels[0, 0].set(ylabel="overlap with the teacher", ylim=(0.0, 1.03))
    panels[1, 0].set(ylabel="excess risk", yscale="log")
    figure.align_ylabels()
    add_legend(figure, (_KEY, _VALUE, _EXCESS, _TEACHER), 4)
    return figure


def _band(axes: Axes, rows: Sequence[Row], name: str, mean: Line) -> None:
    """The mean, and behind it the range."""
    band = columns(rows, "step", f"{name}_low", f"{name}_high")
    axes.fill_between(*band, color=mean.colour, alpha=0.18, linewidth=0.0)
    axes.add_line(mean.through(*columns(rows, "step", name)))
