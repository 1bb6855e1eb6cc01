"""Flipped: which heads find a token whose shift has a random sign, in sequences of up to a million tokens?"""

from collections.abc import Sequence
from math import log

from matplotlib.figure import Figure

from . import heads
from .heads import LINES
from .rows import Ask, Row
from .style import GREY, add_legend, columns, draw_curve, panels

CAPTION = """\
Lowest risk on flipped needles (shift +√ν or −√ν) against the number of tokens L when the signal grows with the \
logarithm of L: ν = [[c|4]] log L. Two heads detect one sign each. [[At c = 2 all of them level off above 1/2, as \
Bayes does (black); at c = 4 they|They]] find the needle, at different prices. Bayes-softmax (orange) has the Bayes \
risk[[| (black)]]. Averaged softmax heads (blue) need short keys: the head whose sign is absent must spread its weight \
over many tokens to add little noise. Softmax-1 heads (light blue) can be sharp, since a head that detects nothing \
assigns no weight. A single softmax head (dashed) finds needles of one sign only: its risk stays above 1/2 (grey \
line). Lines are straight between the computed points, where the risk of the heads found by a search is exact.
"""


def _places(factors: Sequence[int], lengths: Sequence[int]) -> list[heads.Place]:
    """Starts on the two atoms are enough: heads that are copies are worse."""
    return [("flipped", round(c * log(n), 6), str(n), 0) for c in factors for n in lengths]


FULL = _places((2, 4), (10, 10**2, 10**3, 10**4, 10**5, 10**6))
QUICK = _places((4,), (10, 10**3))
questions = heads.questions


def compute(places: Sequence[heads.Place], ask: Ask) -> list[Row]:
    """The rows of the figure, with the factor `c` of the signal."""
    return [
        Row(signal=round(row.nu / log(float(row.length))), tokens=float(row.length), **vars(row))
        for row in heads.compute(places, ask)
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each signal."""
    by = {"signal": sorted({row.signal for row in rows})}
    figure, drawn = panels(rows, 3.0, by, "tokens $L$", "lowest risk", sharex=True, sharey=True)
    for axes, here, signal in drawn:
        axes.axhline(0.5, color=GREY, linewidth=0.5)
        for name, style in LINES.items():
            curve = [row for row in here if row.curve == name]
            draw_curve(axes, style, curve, ("tokens", "risk"), "x")
        axes.set_title(rf"$\nu = {signal}\,\log L$")
    (tokens,) = columns(rows, "tokens")
    axes.set(xscale="log", xlim=(min(tokens), max(tokens)), ylim=(-0.02, 1.02))
    axes.minorticks_off()
    add_legend(figure, LINES.values(), 5, rows)
    return figure
