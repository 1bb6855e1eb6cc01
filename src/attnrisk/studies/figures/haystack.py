"""The haystack: which attentions still find one token among a million, without and with a bias?"""

from collections.abc import Container, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._rows import BAYES, FLOOR
from ...attention import DEFAULT_BIAS, FREE_BIAS
from ..questions import AbstractTaskQuestion
from .rows import Row, least, least_risks, with_bayes
from .style import BAYES_LINE, GREY, Line, draw_curve, line

CAPTION = """\
Lowest population risk on the spiked task against the number of tokens L, from 2 to a million, with a signal strength \
that grows with the logarithm of L: ν = c log L. One token is the needle; risk 0 means that it is found, risk 1 that \
the prediction is no better than zero. Top: attentions as they are usually written; only [[erf and sigmoid have|erf \
has]] a bias. Bottom: each with its best bias, a constant added to all scores; it has no effect on softmax and linear \
attention. For c < 2 (left) no predictor finds the needle in a long sequence, not even the Bayes-optimal one (black). \
For c > 2 (right) it is found by attentions that can make the average weight of an irrelevant token less than 1/L of \
the needle's weight. There are two ways. Exponential: if a kernel falls exponentially at one end, a large bias turns \
it into softmax, which attains the Bayes risk. Threshold: the weight vanishes below some score, and the bias places \
that score above the irrelevant tokens. Without a bias [[softplus, elu+1 and ReLU|ReLU]] can do neither. [[Taylor-2 \
and linear attention, which grow like the same power of the score on both sides, do|Linear attention, which grows like \
the same power of the score on both sides, does]] not find the needle with any bias. At c = 2 (middle) attentions that \
find it for c > 2 level off near risk 1/2. The grey line is the lowest risk of any element-wise attention; its \
distance from the black line is the benefit of normalisation. Solid lines are normalised kernels, dashed lines \
element-wise attentions; curves that coincide are drawn inside one another. Where the column attained of haystack.csv \
is false, the lowest risk is a limit, as the norm of the keys or the bias diverges. Lines are interpolated between the \
computed points.
"""

_TITLE = "Which attention finds one token among a million?"
_SUBTITLE = r"Lowest risk of each attention with infinite data; the signal strength $\nu$ grows like $\log L$"
_SOFT = "#555555"  # for words beside the data
SIGNALS = {1: "below threshold", 2: "at threshold", 4: "above threshold"}


class _Strip(NamedTuple):
    """A row of panels: its heading, the class of each attention, and the annotations of the last panel.

    In the heading and in `found`, `{}` are the thresholds that are drawn. Curves that coincide are neighbours in a
    group, and are drawn thinner so that all are visible.
    """

    heading: str
    neither: tuple[str, ...]
    thresholds: tuple[str, ...]
    exponential: tuple[str, ...]
    widths: dict[str, float]
    lost: str
    found: str

    @property
    def attentions(self) -> tuple[str, ...]:
        """In the order in which they are drawn."""
        return self.neither + self.thresholds + self.exponential


_WITHOUT = _Strip(
    "Without a bias (except {})",
    neither=("linear", "softplus", "elu+1", "relu", "elementwise-relu", "taylor-2", "relu2"),
    thresholds=("erf", "sigmoid"),
    exponential=("softmax", "softmax-1"),
    widths={"softplus": 3.4, "elu+1": 2.2, "relu": 0.9, "erf": 3.0, "sigmoid": 1.7}
    | {"softmax": 4.6, "softmax-1": 2.6},
    lost="all others fail",
    found="softmax, {}\nfind it",
)
_WITH = _Strip(
    "With the best bias",
    neither=("linear", "taylor-2"),
    thresholds=("elementwise-relu", "relu", "relu2", "erf", "sigmoid"),
    exponential=("softmax", "softmax-1", "softplus", "elu+1"),
    widths={"erf": 3.0, "sigmoid": 1.7}
    | {"softmax": 6.0, "softmax-1": 4.4, "softplus": 3.0, "elu+1": 1.8},
    lost="same power on\nboth sides: fail",
    found="exponential tails and\nthresholds find it",
)
_STRIPS = {DEFAULT_BIAS: _WITHOUT, FREE_BIAS: _WITH}
ATTENTIONS = _WITHOUT.attentions
# Whose risk a bias changes and that are usually written without one.
TUNED = ("softplus", "elu+1", "relu", "elementwise-relu", "taylor-2", "relu2", "softmax-1")
_REFERENCES = {
    FLOOR: Line("best element-wise", GREY, (0, (2.5, 1.5)), 0.8),
    BAYES: BAYES_LINE,
}

_LENGTHS = (2, 3, 5, 10, 30, 100, 300, 1000, 3000, 10**4, 10**5, 10**6)
_QUICK_LENGTHS = (2, 5, 10, 30, 100, 300, 1000, 10**4, 10**5, 10**6)
_REFERENCE_LENGTHS = np.unique(np.geomspace(2, 10**6, 30).round().astype(int)).tolist()
_Curve = tuple[str, str, Sequence[int]]  # attention, bias, lengths


def curves(asked: Sequence[_Curve]) -> list[AbstractTaskQuestion]:
    """Each attention at each length and signal, long sequences first, and the references at many lengths."""
    references = [(name, DEFAULT_BIAS, _REFERENCE_LENGTHS) for name in _REFERENCES]
    return [
        least("spiked", signal * log(length), str(length), name, bias)
        for name, bias, grid in (*asked, *references)
        for signal in SIGNALS
        for length in sorted(grid, reverse=True)
    ]


_QUICK = ("linear", "taylor-2", "erf", "softmax", "relu")
# Searches over a bias take longer, most of all that of Taylor-2.
_FEW_LENGTHS = (2, 5, 10, 30, 100, 10**3, 10**4, 10**6)
FULL = curves(
    [
        *((name, DEFAULT_BIAS, _LENGTHS) for name in ATTENTIONS),
        *((name, FREE_BIAS, _LENGTHS) for name in TUNED),
    ]
)
QUICK = curves(
    [
        *((name, DEFAULT_BIAS, _QUICK_LENGTHS) for name in _QUICK),
        *((name, FREE_BIAS, _FEW_LENGTHS) for name in ("relu", "softplus")),
    ]
)
questions, compute = with_bayes, least_risks


def plot(rows: Sequence[Row]) -> Figure:
    """A column for each signal, without a bias above and with it below; lines are named where they end."""
    figure = Figure(figsize=(7.6, 7.4))
    figure.text(0.008, 0.99, _TITLE, va="top", fontsize=11, fontweight="bold")
    figure.text(0.008, 0.955, _SUBTITLE, va="top", fontsize=8, color=_SOFT)
    grid = {"left": 0.065, "right": 0.82, "top": 0.855, "bottom": 0.065}
    grid |= {"wspace": 0.08, "hspace": 0.19}
    panels = figure.subplots(2, len(SIGNALS), sharex=True, sharey=True, gridspec_kw=grid)
    for strip_axes, (bias, strip) in zip(panels, _STRIPS.items(), strict=True):
        # Attentions on which a bias has no effect are in both rows of panels.
        shown = [row for row in rows if row.bias == bias or row.attention not in TUNED]
        for axes, signal in zip(strip_axes, SIGNALS, strict=True):
            axes.axhline(1.0, color=GREY, linewidth=0.5, zorder=0)
            for name in (*strip.attentions, *_REFERENCES):
                curve = [
                    Row(tokens=float(row.length), **vars(row))
                    for row in shown
                    if row.attention == name and round(signal_of(row)) == signal
                ]
                draw_curve(axes, _line(name, strip), curve, ("tokens", "risk"), "x")
        drawn = {row.attention for row in shown}
        _annotate(strip_axes, strip, [name for name in strip.thresholds if name in drawn])
        _name_lines(figure, strip_axes[-1], strip, drawn)
    for axes, (signal, verdict) in zip(panels[0], SIGNALS.items(), strict=True):
        factor = "" if signal == 1 else rf"{signal}\,"
        axes.set_title(rf"$\nu = {factor}\log L$:" + f"\n{verdict}", loc="left", pad=18)
    for axes in panels[-1]:
        axes.set_xlabel("tokens $L$")
    for axes in panels[:, 0]:
        axes.set_ylabel("lowest risk")
    panels[0, 0].set(xscale="log", xlim=(2, 10**6), ylim=(-0.02, 1.04))
    panels[0, 0].minorticks_off()
    return figure


def signal_of(row: Any) -> float:
    """The factor `c` of the signal."""
    return float(row.nu / log(float(row.length)))


def _line(name: str, strip: _Strip) -> Line:
    """The line of an attention or a reference in this row of panels."""
    usual = _REFERENCES.get(name) or line(name)
    return usual._replace(width=strip.widths.get(name, usual.width))


def _annotate(panels: Sequence[Axes], strip: _Strip, thresholds: Sequence[str]) -> None:
    small: dict[str, Any] = {"fontsize": 7.0, "color": _SOFT}
    heading = strip.heading.format(" and ".join(thresholds))
    panels[0].text(0.0, 1.03, heading, transform=panels[0].transAxes, fontweight="bold")
    panels[0].text(2.3, 0.985, "not found", va="top", **small)
    panels[0].text(2.3, 0.0, "found", va="bottom", **small)
    panels[0].text(9e5, 0.79, "even Bayes\nfails, slowly", va="top", ha="right", **small)
    panels[1].text(1.5e2, 0.40, "Bayes: near 1/2", va="top", **small)
    panels[2].text(9e5, 0.76, strip.lost, va="top", ha="right", **small)
    found = strip.found.format(", ".join(thresholds))
    panels[2].text(9e5, 0.20, found, va="bottom", ha="right", **small)


def _name_lines(figure: Figure, axes: Axes, strip: _Strip, drawn: Container[str]) -> None:
    """Legends beside the last panel: curves that end at the top, and curves that end at the bottom."""
    thresholds = [name for name in (*strip.thresholds, FLOOR) if name in drawn]
    exponential = [name for name in (*strip.exponential, BAYES) if name in drawn]
    neither = [name for name in strip.neither if name in drawn]
    groups: tuple[tuple[str, list[str], Any, float], ...] = (
        ("neither", neither, "upper left", 0.98),
        ("thresholds", thresholds, "lower left", 0.06 * len(exponential) + 0.06),
        ("exponential", exponential, "lower left", -0.02),
    )
    for title, names, corner, height in groups:
        lines = [_line(name, strip) for name in names]
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
