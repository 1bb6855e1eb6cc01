"""The number of samples needed in longer sequences: the `α` that halves the risk, against the length."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..._rows import BAYES
from ..question import Record, is_converged
from ..questions import AbstractTaskQuestion, Optimal, RiskCrossing
from .rows import Ask, Row, place
from .style import WIDTH, add_legend, line, marks, set_ticks

CAPTION = """\
Samples per dimension, α = N/D, at which the test risk falls to one half, on the spiked task with ν = 4 log L, against \
the number of tokens L; D to infinity, with the ridges of least test risk, and a learned bias for erf. Black is the \
Bayes optimum, dotted message passing, the best fast algorithm known. Each α lies between two computed ones, on a \
straight line in log α; bars hold the standard error of the risks and a quarter of that interval. Linear \
attention of 100 tokens or more stays above one half with infinite data. Erf of 1000 tokens is left out: few points do \
not find its fixed point.
"""

TASK, SIGNAL, HALF, REACHABLE = "spiked", 4.0, 0.5, "message passing"
ATTENTIONS = ("softmax", "erf", "linear")


class Search(NamedTuple):
    """Where the search for one half begins: the most samples per dimension, the points (of base two), the ridges.

    `ratio` is that of the two `α` between which it ends.
    """

    most: float
    log2_points: int
    start: tuple[float, float] | None = None
    ratio: float = 1.12


class Grid(NamedTuple):
    """The search for each length and attention, and the samples per dimension of the optimum."""

    searches: dict[tuple[str, str], Search]
    optimal_alphas: tuple[float, ...]

    @property
    def lengths(self) -> tuple[str, ...]:
        """In order."""
        return tuple(dict.fromkeys(length for length, _ in self.searches))


# Linear attention of 100 tokens or more stays above one half with infinite data: 0.837 and 0.972.
FULL = Grid(
    {
        ("10", "softmax"): Search(2.0, 8, (0.04, 0.2)),
        ("10", "erf"): Search(5.0, 9, (0.36, 1.15)),
        ("10", "linear"): Search(160.0, 6, (0.42, 1100.0)),
        ("100", "softmax"): Search(2.5, 7, (0.015, 0.3)),
        ("100", "erf"): Search(6.25, 7, (0.17, 1.2)),
        ("1000", "softmax"): Search(2.5, 5, (0.01, 0.2), 1.26),
    },
    tuple(np.geomspace(0.5, 4.0, 13).tolist()),
)
QUICK = Grid(
    {("3", "softmax"): Search(2.0, 5), ("6", "softmax"): Search(2.0, 5)},
    (0.6, 0.8, 0.95, 1.05, 1.5),
)


def _signal(length: str) -> float:
    return round(SIGNAL * float(np.log(int(length))), 6)


def risk_crossings(grid: Grid) -> list[RiskCrossing]:
    """The search for one half, for each length and attention."""
    return [
        RiskCrossing(TASK, _signal(length), length, name, HALF, *search)
        for (length, name), search in grid.searches.items()
    ]


def questions(grid: Grid) -> list[AbstractTaskQuestion]:
    """What the figure asks."""
    optima = [
        Optimal(TASK, _signal(length), length, alpha)
        for length in grid.lengths
        for alpha in grid.optimal_alphas
    ]
    return [*risk_crossings(grid), *optima]


def compute(grid: Grid, ask: Ask) -> list[Row]:
    """A row for each length and attention, with those of the Bayes optimum and of message passing last."""
    asked = questions(grid)
    answers = ask(asked)
    rows = [
        crossing(question.inputs, question.name, found, "test_risk")
        for question, found in zip(asked, answers, strict=True)
        if isinstance(question, RiskCrossing)
    ]
    for length in grid.lengths:
        found = [each for each in answers if isinstance(each, dict) and each["length"] == length]
        for name, risk in ((BAYES, "risk"), (REACHABLE, "reachable_risk")):
            rows.append(crossing(found[0], name, found, risk))
    return rows


def crossing(where: Record, name: str, found: Sequence[Record], risk: str) -> Row:
    """Where the risk falls to one half, between two of the `α` that converged; empty where it does not."""
    known = sorted((each for each in found if is_converged(each["result"])), key=_alpha)
    alpha = error = above = None
    for low, high in pairwise(known):
        if low[risk] > HALF >= high[risk]:
            slope = (low[risk] - high[risk]) / np.log(high["alpha"] / low["alpha"])
            alpha = low["alpha"] * float(np.exp((low[risk] - HALF) / slope))
            noise = max(low[f"{risk}_error"], high[f"{risk}_error"]) / slope
            error = alpha * float(np.hypot(noise, np.log(high["alpha"] / low["alpha"]) / 4))
    if alpha is None and known and known[-1][risk] > HALF:
        above = known[-1]["alpha"]
    place_of = place(where) | {"attention": name}
    return Row(**place_of, alpha=alpha, alpha_error=error, alpha_above=above, points=len(known))


def _alpha(found: Record) -> float:
    return float(found["alpha"])


def plot(rows: Sequence[Row]) -> Figure:
    """One panel."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    styles = {name: line(name)._replace(width=1.4) for name in (*ATTENTIONS, BAYES)}
    styles[REACHABLE] = styles[BAYES]._replace(label="message passing", dashes="dotted")
    there = {row.attention for row in rows}
    styles = {name: style for name, style in styles.items() if name in there}
    for name, style in styles.items():
        curve = sorted(
            (row for row in rows if row.attention == name and row.alpha is not None),
            key=lambda row: int(row.length),
        )
        x, y = [int(row.length) for row in curve], [row.alpha for row in curve]
        axes.errorbar(x, y, [row.alpha_error for row in curve], fmt="none", ecolor=style.colour)
        axes.add_line(style.through(x, y))
        shown = [Row(length=a, alpha=b) for a, b in zip(x, y, strict=True)]
        axes.add_line(marks("o", style.colour, shown, ("length", "alpha"), markersize=3.0))
    axes.set(
        xscale="log", yscale="log", xlabel="tokens $L$", title=rf"{TASK}, $\nu = {SIGNAL:g} \log L$"
    )
    axes.set_ylabel(r"$\alpha$ for a risk of 1/2")
    set_ticks(axes.xaxis, sorted({int(row.length) for row in rows}))
    add_legend(figure, [style.through() for style in styles.values()], 5, rows)
    return figure
