"""Figure 2: the lowest risk of four attentions against the signal, on both tasks, for three length distributions."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..._rows import BAYES
from ..questions import AbstractTaskQuestion
from .rows import Row, least, least_risks, with_bayes
from .style import INK, add_legend, draw_curve, line, marks, panels, set_ticks, where

CAPTION = """\
Lowest population risk of attentions against the signal strength ν, on the spiked task (top) and the max task \
(bottom), for sequences of L = 2 tokens, of L = 10 tokens, and of a random length L uniform on {1, 2, 3}. The \
attentions are those of the paper: erf has a bias, which is optimised[[, and softplus has none. (With a bias, softplus \
would approach the Bayes risk; a bias has no effect on softmax and linear attention.)|; a bias has no effect on the \
others.]] Softmax attains the Bayes risk (black) everywhere. On the spiked task its risk decays exponentially in ν, \
and that of linear attention only like 1/ν. On the max task the risk of the others does not tend to zero as ν grows, \
and at small L they are close to each other. With random lengths, the normalised attentions (solid) have a lower risk \
than the element-wise ones (dashed) even without a signal, because they adapt to the length. An open circle marks an \
infimum that no finite k attains. Lines are interpolated between the computed points, which figure2.csv has with their \
errors; its column excess is the gap to the Bayes risk.
"""

ATTENTIONS = ("softmax", "softplus", "erf", "linear")
LENGTHS = ("2", "10", "1-3")
_AT = ("nu", "risk")
_OPEN: dict[str, Any] = {"markersize": 4, "markerfacecolor": "white"}
TASKS = {"spiked": (0.012, 1.05), "max": (0.06, 1.05)}  # and the risks to show

Signals = dict[str, tuple[float, ...]]  # by task

# Dense where the curves bend. On the max task the cost jumps from seconds to a minute where the best keys of softplus
# are longer than 16, at L = 10 from ν = 7 on.
_NU: Signals = {
    "spiked": (0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0),
    "max": (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
}
_BAYES_POINTS = 41  # it is cheap, and the line that the others are held against


def curves(attentions: Sequence[str], signals: Signals) -> list[AbstractTaskQuestion]:
    """Each attention and the Bayes risk in each panel; the strongest signals, which are the slowest, first."""
    panels = list(product(TASKS, LENGTHS))
    minima = [
        least(task, nu, length, attention)
        for attention, (task, length) in product(attentions, panels)
        for nu in sorted(signals[task], reverse=True)
    ]
    bayes = [
        least(task, float(nu), length, BAYES)
        for task, length in panels
        for nu in np.linspace(0.0, max(signals[task]), _BAYES_POINTS)
    ]
    return minima + bayes


FULL = curves(ATTENTIONS, _NU)
QUICK = curves(
    ("softmax", "erf", "linear"), _NU | {"max": tuple(nu for nu in _NU["max"] if nu <= 2.0)}
)
questions, compute = with_bayes, least_risks


def plot(rows: Sequence[Row]) -> Figure:
    """Tasks downwards, lengths to the right, one legend."""
    there = {row.attention for row in rows}
    names = [BAYES, *(name for name in ATTENTIONS if name in there)]
    by, share = {"task": tuple(TASKS), "length": LENGTHS}, {"sharex": "row", "sharey": "row"}
    figure, drawn = panels(rows, 4.6, by, r"signal strength $\nu$", "lowest risk", **share)
    for axes, here, (task, length) in drawn:
        for name in names[::-1]:
            curve = [row for row in here if row.attention == name]
            draw_curve(axes, line(name), curve, _AT, "y")
            limits = [row for row in curve if not row.attained]
            axes.add_line(marks("o", line(name).colour, limits, _AT, **_OPEN))
        axes.set(title=where(task, None, length), xlim=(0.0, max(row.nu for row in here)))
        axes.set(yscale="log", ylim=TASKS[task])
        set_ticks(axes.yaxis, [0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    handles: list[Any] = [line(name) for name in names]
    if not all(row.attained for row in rows):
        handles.append(marks("o", INK, label="not attained", **_OPEN))
    add_legend(figure, handles, 6)
    return figure
