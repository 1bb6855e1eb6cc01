"""The number of samples needed in longer sequences: the `α` that halves the risk, against the length."""

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..._rows import BAYES
from ..question import Record, is_converged
from ..questions import AbstractTaskQuestion, Optimal, RiskCrossing
from .rows import Ask, Row, make_row
from .style import WIDTH, add_legend, columns, line, set_ticks

CAPTION = """\
Samples per dimension, α = N/D, at which the test risk falls to one half, on the spiked task with ν = 4 log L, against \
the number of tokens L; D to infinity, with the ridges of least test risk[[, and a learned bias for erf|]]. Black is \
the Bayes optimum, dotted message passing, the best fast algorithm known. Each α lies between two computed ones, on a \
straight line in log α; bars hold the standard error of the risks and a quarter of that interval.[[ Linear attention \
of 100 tokens or more stays above one half with infinite data. Erf of 1000 tokens is left out: few points do not find \
its fixed point.|]]
"""

TASK, SIGNAL, HALF, REACHABLE = "spiked", 4.0, 0.5, "message passing"
ATTENTIONS = ("softmax", "erf", "linear")


def _place(length: str) -> tuple[str, float, str]:
    return TASK, round(SIGNAL * float(np.log(int(length))), 6), length


def _search(length: str, name: str, *search: Any) -> RiskCrossing:
    """`search` are the fields of `RiskCrossing` after the risk."""
    return RiskCrossing(*_place(length), name, HALF, *search)


def _optima(lengths: Sequence[str], alphas: Sequence[float]) -> list[Optimal]:
    return [Optimal(*_place(length), alpha) for length in lengths for alpha in alphas]


# Linear attention of 100 tokens or more stays above one half with infinite data: 0.837 and 0.972.
FULL: list[AbstractTaskQuestion] = [
    _search("10", "softmax", 2.0, 8, (0.04, 0.2)),
    _search("10", "erf", 5.0, 9, (0.36, 1.15)),
    _search("10", "linear", 160.0, 6, (0.42, 1100.0)),
    _search("100", "softmax", 2.5, 7, (0.015, 0.3)),
    _search("100", "erf", 6.25, 7, (0.17, 1.2)),
    _search("1000", "softmax", 2.5, 5, (0.01, 0.2), 1.26),
    *_optima(("10", "100", "1000"), np.geomspace(0.5, 4.0, 13).tolist()),
]
QUICK: list[AbstractTaskQuestion] = [
    *(_search(length, "softmax", 2.0, 5) for length in ("3", "6")),
    *_optima(("3", "6"), (0.6, 0.8, 0.95, 1.05, 1.5)),
]


def compute(asked: list[AbstractTaskQuestion], ask: Ask) -> list[Row]:
    """A row for each length and attention, with those of the Bayes optimum and of message passing last."""
    answers = list(zip(asked, ask(asked), strict=True))
    rows = [
        crossing(question.inputs, question.name, found, "test_risk")
        for question, found in answers
        if isinstance(question, RiskCrossing)
    ]
    optima = [found for question, found in answers if isinstance(question, Optimal)]
    for length in dict.fromkeys(each["length"] for each in optima):
        here = [each for each in optima if each["length"] == length]
        rows.append(crossing(here[0], BAYES, here, "risk"))
        rows.append(crossing(here[0], REACHABLE, here, "reachable_risk"))
    return rows


def crossing(where: Record, name: str, found: Sequence[Record], risk: str) -> Row:
    """Where the risk falls to one half, between two of the `α` that converged; empty where it does not."""
    known = sorted(
        (each for each in found if is_converged(each["result"])), key=itemgetter("alpha")
    )
    alpha = error = above = None
    for low, high in pairwise(known):
        if low[risk] > HALF >= high[risk]:
            slope = (low[risk] - high[risk]) / np.log(high["alpha"] / low["alpha"])
            alpha = low["alpha"] * float(np.exp((low[risk] - HALF) / slope))
            noise = max(low[f"{risk}_error"], high[f"{risk}_error"]) / slope
            error = alpha * float(np.hypot(noise, np.log(high["alpha"] / low["alpha"]) / 4))
    if alpha is None and known and known[-1][risk] > HALF:
        above = known[-1]["alpha"]
    others = {"alpha": alpha, "alpha_error": error, "alpha_above": above, "points": len(known)}
    columns = "task nu length attention alpha alpha_error alpha_above points"
    return make_row(columns, where, others, attention=name)


def plot(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    styles = {name: line(name, width=1.4) for name in (*ATTENTIONS, BAYES)}
    styles[REACHABLE] = line(BAYES, width=1.4, label="message passing", dashes="dotted")
    there = {row.attention for row in rows}
    styles = {name: style for name, style in styles.items() if name in there}
    for name, style in styles.items():
        curve = [row for row in rows if row.attention == name and row.alpha is not None]
        curve.sort(key=lambda row: int(row.length))
        length, alpha, error = columns(curve, "length", "alpha", "alpha_error")
        tokens = list(map(int, length))
        axes.errorbar(tokens, alpha, error, color=style.colour, fmt="o", markersize=3.0)
        axes.add_line(style.through(tokens, alpha))
    axes.set(xscale="log", yscale="log", title=rf"{TASK}, $\nu = {SIGNAL:g} \log L$")
    axes.set(xlabel="tokens $L$", ylabel=r"$\alpha$ for a risk of 1/2")
    set_ticks(axes.xaxis, sorted({int(row.length) for row in rows}))
    add_legend(figure, styles.values(), 5)
    return figure
