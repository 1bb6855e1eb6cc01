"""The haystack: which attentions still find one token among a million?"""

from collections.abc import Container, Sequence
from math import log
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._rows import BAYES, FLOOR
from ..questions import AbstractTaskQuestion
from .rows import Ask, Row, least, least_risks, with_bayes
from .style import BAYES_LINE, GREY, Line, draw_curve, line

STEM = "haystack"

CAPTION = """\
Least population risk on the spiked task against the number of tokens L, from 2 to a million, when the signal grows \
with the logarithm of L: ν = c log L. One token is the needle; a risk of 0 means that it is found, a risk of 1 that \
nothing is learned from the sequence. For c < 2 (left) nobody finds it in a long sequence, not even a predictor that \
knows the law of the data (Bayes, black). For c > 2 (right) softmax finds it in any haystack, and does as well as \
Bayes. So does an attention that looks at one token at a time, if it can act as a threshold (erf, sigmoid): \
normalisation is not needed for that, and the distance of the grey line, the best that any element-wise attention can \
do, from the black one is what it adds. Weights that grow like a polynomial of the score are drowned by the many \
tokens that are not the needle, whatever c is, normalised or not. At c = 2 (middle) the risk of those that survive \
tends to 1/2. Solid lines are normalised kernels, dashed ones act on each token alone; curves that coincide are drawn \
inside one another. Some kernels only approach their least risk, as the keys grow without bound (column attained of \
haystack.csv). Lines are interpolated between the computed points.
"""

_TITLE = "Which attention finds one token among a million?"
_SUBTITLE = r"The least risk of each attention, with infinite data, when the signal $\nu$ grows like $\log L$"
_SOFT = "#555555"  # for words beside the data
SIGNALS = {1: "too faint for anyone", 2: "on the edge", 4: "clear, but not for all"}

# By what becomes of them; curves that coincide are neighbours, and get thinner so that all are seen.
_LOST = ("linear", "softplus", "elu+1", "relu", "elementwise-relu", "taylor-2", "relu2")
_THRESHOLDS = ("erf", "sigmoid")
_EXPONENTIAL = ("softmax", "softmax-1")
ATTENTIONS = _LOST + _THRESHOLDS + _EXPONENTIAL
_QUICK_ATTENTIONS = ("linear", "taylor-2", "erf", "softmax")
_WIDTHS = {"softplus": 3.4, "elu+1": 2.2, "relu": 0.9, "erf": 3.0, "sigmoid": 1.7}
_WIDTHS |= {"softmax": 4.6, "softmax-1": 2.6}
_REFERENCES = {
    FLOOR: Line("best element-wise", GREY, (0, (2.5, 1.5)), 0.8),
    BAYES: BAYES_LINE,
}

_LENGTHS = (2, 3, 5, 10, 30, 100, 300, 1000, 3000, 10**4, 10**5, 10**6)
_QUICK_LENGTHS = (2, 5, 10, 30, 100, 300, 1000, 10**4, 10**5, 10**6)
_REFERENCE_LENGTHS = np.unique(np.geomspace(2, 10**6, 30).round().astype(int)).tolist()


def questions(quick: bool) -> list[AbstractTaskQuestion]:
    """What the figure asks."""
    return with_bayes(_curves(quick))


def compute(quick: bool, ask: Ask) -> list[Row]:
    """The rows of the figure."""
    return least_risks(ask, _curves(quick))


def _curves(quick: bool) -> list[AbstractTaskQuestion]:
    return curves(_QUICK_ATTENTIONS, _QUICK_LENGTHS) if quick else curves(ATTENTIONS, _LENGTHS)


def curves(attentions: Sequence[str], lengths: Sequence[int]) -> list[AbstractTaskQuestion]:
    """Each attention at each length and signal, long sequences first, and the references at many lengths."""
    asked = [(name, lengths) for name in attentions]
    asked += [(name, _REFERENCE_LENGTHS) for name in _REFERENCES]
    return [
        least("spiked", signal * log(length), str(length), name)
        for name, grid in asked
        for signal in SIGNALS
        for length in sorted(grid, reverse=True)
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each signal; the lines are named at the right, where they end."""
    figure = Figure(figsize=(7.6, 4.2))
    figure.text(0.008, 0.98, _TITLE, va="top", fontsize=11, fontweight="bold")
    figure.text(0.008, 0.915, _SUBTITLE, va="top", fontsize=8, color=_SOFT)
    grid = {"left": 0.065, "right": 0.82, "top": 0.76, "bottom": 0.12, "wspace": 0.08}
    panels = figure.subplots(1, len(SIGNALS), sharex=True, sharey=True, gridspec_kw=grid)
    for axes, (signal, verdict) in zip(panels, SIGNALS.items(), strict=True):
        _draw_panel(axes, [row for row in rows if round(_signal(row)) == signal])
        factor = "" if signal == 1 else rf"{signal}\,"
        axes.set_title(rf"$\nu = {factor}\log L$:" + f"\n{verdict}", loc="left")
        axes.set_xlabel("tokens $L$")
    panels[0].set(xscale="log", xlim=(2, 10**6), ylim=(-0.02, 1.04), ylabel="least risk")
    panels[0].minorticks_off()
    _annotate(panels)
    _name_lines(figure, panels[-1], {row.attention for row in rows})
    return figure


def _signal(row: Row) -> float:
    return row.nu / log(float(row.length))


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    axes.axhline(1.0, color=GREY, linewidth=0.5, zorder=0)
    for name in (*ATTENTIONS, *_REFERENCES):
        curve = [
            Row(tokens=float(row.length), **vars(row)) for row in rows if row.attention == name
        ]
        draw_curve(axes, _line(name), curve, ("tokens", "risk"), "x")


def _line(name: str) -> Line:
    """The line of an attention or a reference in this figure."""
    usual = _REFERENCES.get(name) or line(name)
    return usual._replace(width=_WIDTHS.get(name, usual.width))


def _annotate(panels: Sequence[Axes]) -> None:
    """What to see in each panel."""
    small: dict[str, Any] = {"fontsize": 7.0, "color": _SOFT}
    panels[0].text(2.3, 0.985, "needle lost", va="top", **small)
    panels[0].text(2.3, 0.0, "needle found", va="bottom", **small)
    panels[0].text(9e5, 0.79, "even Bayes\nloses it, slowly", va="top", ha="right", **small)
    panels[1].text(1.5e2, 0.40, "softmax and thresholds\nlevel off near 1/2", va="top", **small)
    panels[2].text(9e5, 0.76, "polynomial weights\nlose it", va="top", ha="right", **small)
    panels[2].text(9e5, 0.14, "softmax and thresholds\nfind it", va="bottom", ha="right", **small)


def _name_lines(figure: Figure, axes: Axes, drawn: Container[str]) -> None:
    """Lists beside the last panel: what ends at the top, and what ends at the bottom."""
    groups: tuple[tuple[str, tuple[str, ...], Any, float], ...] = (
        ("polynomial weights", _LOST, "upper left", 0.98),
        ("thresholds", (*_THRESHOLDS, FLOOR), "lower left", 0.23),
        ("exponential weights", (*_EXPONENTIAL, BAYES), "lower left", -0.02),
    )
    for title, names, corner, height in groups:
        lines = [_line(name) for name in names if name in drawn]
        listed = figure.legend(
            handles=[line.through() for line in lines],
            labelcolor=[line.colour for line in lines],
            title=title,
            alignment="left",
            loc=corner,
            bbox_to_anchor=(1.03, height),
            bbox_transform=axes.transAxes,
            borderpad=0.0,
            borderaxespad=0.0,
            handlelength=2.2,
            labelspacing=0.3,
        )
        listed.get_title().set_fontsize(7.5)
