"""Figure 7: learning curves of every attention of the catalogue."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..._rows import BAYES
from ...attention import CATALOGUE, get_attention
from ...attention.catalogue import DEFAULT_BIAS, FREE_BIAS
from ..questions import AbstractTaskQuestion, LearningCurve, Optimal
from .rows import JUMP, Ask, Row, beside, risk_row
from .style import add_legend, draw_curve, has_converged, line, panels, set_ticks, where

CAPTION = """\
Test risk after training on N = αD sequences, in the limit of infinite D, with the best ridge penalties, for [[the \
attentions of the catalogue that are not scale-invariant|softmax, erf and linear attention]], on the spiked task with \
ν = 5, with [[L = 3 and L = 10|L = 3]] tokens. Black is the Bayes optimum, which jumps at α = 1. Solid lines are \
normalised kernels, dashed lines element-wise attentions[[, dotted lines general ones|]]. Points are hollow where the \
risk is an approximation: replica symmetry fails, or the minimum of the samples is at a kink of the attention. A cross \
marks a point that did not converge, and is not connected. Biases are learned wherever they have an effect[[, but for \
element-wise ReLU, whose bias is 0. Top-k softmax is left out, and sparsemax for L = 10: for most samples the minimum \
lies at a jump or a kink of the attention and is not found|]]. figure7.csv has errors, ridge penalties and the reasons \
for approximations.
"""

TASK, NU = "spiked", 5.0
LENGTHS = ("3", "10")

# Without sensitivity to the scale of scores, an empirical risk with a ridge has no minimum. Those that know the length
# are softmax or sigmoid at each of these, and the clipped ones are close to softmax. The weights of top-k jump.
ATTENTIONS = tuple(
    name
    for name in CATALOGUE
    if get_attention(name).is_scale_sensitive
    and not get_attention(name).knows_length
    and name not in ("softpick", "clipped-softmax", "top-k")
)
# On softmax and linear a bias has no effect: it is void in normalised exponentials and absorbed by the scales of 1 + χ.
# With a free bias element-wise ReLU has a fixed point at which all weights vanish, and the others are rarely found.
BIASED = tuple(
    name
    for name in ATTENTIONS
    if get_attention(name).family != "general"
    and name not in ("softmax", "linear", "elementwise-relu")
)


# Most of the samples of sparsemax with L = 10 have their minimum at a kink.
_KINKED = ("10", "sparsemax")
_OPTIMAL_ALPHAS = sorted([*np.geomspace(0.5, 16.0, 12).tolist(), *beside(JUMP)])


def _asked(
    attentions: Sequence[str], sizes: dict[str, tuple[tuple[float, ...], int]]
) -> list[AbstractTaskQuestion]:
    """For each length the learning curves with these samples per dimension and points (of base two), the longer
    sequences first, and the Bayes optimum."""
    curves = [
        LearningCurve(
            *(TASK, NU, length, name, *size), bias=FREE_BIAS if name in BIASED else DEFAULT_BIAS
        )
        for length, size in reversed(sizes.items())
        for name in attentions
        if (length, name) != _KINKED
    ]
    return curves + [Optimal(TASK, NU, length, a) for length in sizes for a in _OPTIMAL_ALPHAS]


# A fixed point with L = 10 takes ten times as long.
_ALPHAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
FULL = _asked(ATTENTIONS, {"3": (_ALPHAS, 8), "10": ((1.0, 4.0, 16.0), 6)})
QUICK = _asked(("softmax", "erf", "linear"), {"3": (_ALPHAS, 7)})


def compute(asked: Sequence[AbstractTaskQuestion], ask: Ask) -> list[Row]:
    """The rows of the figure, each a point of the curve of an attention or of the Bayes optimum, without ridges.

    `warning` says why the risk is an approximation, if it is one.
    """
    columns = "task nu length attention alpha risk error result warning ridge_k ridge_v"
    absent = {"attention": BAYES, "warning": None, "ridge_k": None, "ridge_v": None}
    rows = []
    for question, found in zip(asked, ask(asked), strict=True):
        if isinstance(question, LearningCurve):
            rows += [risk_row(columns, question.inputs, each, named="test_risk") for each in found]
        else:
            rows.append(risk_row(columns, absent, found))
    return rows


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each length, one legend: the attentions by their risk with the most data, at their largest length."""
    by, labels = {"length": LENGTHS}, (r"samples per dimension $\alpha$", "test risk")
    figure, drawn = panels(rows, 4.4, by, *labels, sharex=True, sharey=True)
    for axes, here, length in drawn:
        for name in ATTENTIONS[::-1]:
            curve = [row for row in here if row.attention == name]
            draw_curve(axes, line(name, width=1.3), curve, log="x", dots=3.0)
        best = [row for row in here if row.attention == BAYES]
        draw_curve(axes, line(BAYES), best, log="x", jumps=(JUMP,))
        axes.set_title(where(TASK, NU, length))
    learned = [row for row in rows if row.attention != BAYES]
    alphas = sorted({row.alpha for row in learned})
    axes.set(xscale="log", xlim=(alphas[0] / 1.1, alphas[-1] * 1.1), ylim=(-0.02, 1.1))
    set_ticks(axes.xaxis, alphas)
    learned.sort(key=lambda row: (int(row.length), row.alpha))
    ends = {row.attention: (not has_converged(row), row.risk) for row in learned}
    names = sorted(ends, key=lambda name: ends[name])
    lines = [line(name, width=1.3) for name in names]
    add_legend(figure, [line(BAYES), *lines], 5, rows)
    return figure
