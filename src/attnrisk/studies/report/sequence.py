"""The task in one picture: a sequence, its needle, and where attentions look."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...attention import get_attention
from ...population import population_minimum
from ..figures.asking import Asking
from ..figures.rows import Question
from ..figures.style import GREY, INK, WIDTH, line

ATTENTIONS = ("softmax", "erf", "linear")
_NEEDLE = "#d55e00"
_QUESTION = Question("spiked", 6.0, "16", "all")
_SEED = 4


@dataclass(frozen=True)
class Token:
    """Its field along `k*`, whether it is the needle, and the weight that each attention gives it."""

    field: float
    needle: bool
    softmax: float
    erf: float
    linear: float


def sequence(ask: Asking) -> list[Token]:
    """One sequence, and the weights of attentions at their least risk."""
    return ask(tokens, [_QUESTION], Token)


def tokens(question: Question) -> list[Token]:
    """Fields of a sequence: standard normal, but for the needle, which is shifted by `√ν`."""
    rng = np.random.default_rng(_SEED)
    length = int(question.length)
    needle = int(rng.integers(length))
    fields = rng.standard_normal(length)
    fields[needle] += question.nu**0.5
    weights = {name: _weights(question, name, fields) for name in ATTENTIONS}
    return [
        Token(
            float(fields[at]), at == needle, **{name: float(w[at]) for name, w in weights.items()}
        )
        for at in range(length)
    ]


def _weights(question: Question, name: str, fields: np.ndarray) -> np.ndarray:
    """At the minimum `k` lies along `k*`, so that the scores are `m_kk` times the fields."""
    best = population_minimum(question.problem, get_attention(name))
    weights = best.attention(np.asarray(best.overlaps.m_kk) * fields)
    return np.asarray(weights) * float(best.overlaps.m_vv)


def plot(found: list[Token]) -> Figure:
    """The fields, and below them what each attention makes of them."""
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(1 + len(ATTENTIONS), 1, sharex=True)
    places = np.arange(1, len(found) + 1)
    rows: dict[str, tuple[Any, str]] = {
        "what the keys show: $k^* \\cdot x_\\ell$": ([each.field for each in found], GREY)
    }
    rows |= {
        f"weights of {name}": ([getattr(each, name) for each in found], line(name).colour)
        for name in ATTENTIONS
    }
    for axes, (title, (heights, colour)) in zip(panels, rows.items(), strict=True):
        bars = axes.bar(places, heights, color=colour, width=0.7)
        axes.axhline(0.0, color=INK, linewidth=0.5)
        axes.set_title(title, loc="left")
        for bar, each in zip(bars, found, strict=True):
            if each.needle:
                bar.set_edgecolor(_NEEDLE)
                bar.set_linewidth(2.0)
    panels[0].set_title(
        "the needle: the label is $v^* \\cdot x$ of this token", loc="right", color=_NEEDLE
    )
    panels[-1].set_xticks(places)
    panels[-1].set_xlabel("token")
    return figure
