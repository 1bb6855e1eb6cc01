"""Flipped: which heads find a token whose shift has a random sign, in sequences of up to a million tokens?"""

from collections.abc import Sequence
from math import log

from matplotlib.figure import Figure

from ..head_questions import AbstractFeatureQuestion
from . import heads
from .heads import LINES, Place
from .rows import Ask, Row
from .style import GREY, WIDTH, add_legend, draw_curve

CAPTION = """\
Lowest risk on flipped needles (shift +√ν or −√ν) against the number of tokens L when the signal grows with the \
logarithm of L: ν = c log L. Two heads detect one sign each. At c = 2 all of them level off above 1/2, as Bayes does \
(black); at c = 4 they find the needle, at different prices. Bayes-softmax (orange) has the Bayes risk. Averaged \
softmax heads (blue) need short keys: the head whose sign is absent must spread its weight over many tokens to add \
little noise. Softmax-1 heads (light blue) can be sharp, since a head that detects nothing assigns no weight. A single \
softmax head (dashed) finds needles of one sign only: its risk stays above 1/2 (grey line). Lines are straight between \
the computed points, where the risk of the heads found by a search is exact.
"""


def _places(factors: Sequence[int], lengths: Sequence[int]) -> list[Place]:
    return [("flipped", round(c * log(size), 6), str(size)) for c in factors for size in lengths]


FULL = _places((2, 4), (10, 10**2, 10**3, 10**4, 10**5, 10**6))
QUICK = _places((4,), (10, 10**3))
_STARTS = 0  # those on the two atoms are enough: heads that are copies are worse


def questions(places: Sequence[Place]) -> list[AbstractFeatureQuestion]:
    """What the figure asks."""
    return heads.questions(places, _STARTS)


def compute(places: Sequence[Place], ask: Ask) -> list[Row]:
    """The rows of the figure, with the factor `c` of the signal."""
    return [
        Row(signal=round(row.nu / log(float(row.length))), tokens=float(row.length), **vars(row))
        for row in heads.compute(places, ask, _STARTS)
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each signal."""
    signals = sorted({row.signal for row in rows})
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(1, len(signals), sharex=True, sharey=True, squeeze=False)[0]
    for axes, signal in zip(panels, signals, strict=True):
        axes.axhline(0.5, color=GREY, linewidth=0.5)
        for name, style in LINES.items():
            here = [row for row in rows if (row.signal, row.curve) == (signal, name)]
            draw_curve(axes, style, here, ("tokens", "risk"), "x")
        axes.set(title=rf"$\nu = {signal}\,\log L$", xlabel="tokens $L$")
    panels[0].set(
        xscale="log",
        xlim=(min(row.tokens for row in rows), max(row.tokens for row in rows)),
        ylim=(-0.02, 1.02),
        ylabel="lowest risk",
    )
    panels[0].minorticks_off()
    add_legend(figure, [line.through() for line in LINES.values()], 5, rows)
    return figure
