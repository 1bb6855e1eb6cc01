"""The task in one picture: a sequence, its needle, and the weights of attentions."""

import numpy as np
from matplotlib.figure import Figure

from ..figures.rows import Ask, Row
from ..figures.style import GREY, INK, WIDTH, columns, line
from ..questions import Population

ATTENTIONS = ("softmax", "erf", "linear")
_NEEDLE = "#d55e00"
NU, LENGTH = 6.0, 16
_SEED = 4


def questions() -> list[Population]:
    """The minima of the attentions that are shown."""
    return [Population("spiked", NU, str(LENGTH), name) for name in ATTENTIONS]


def sequence(ask: Ask) -> list[Row]:
    """The tokens of one sequence: the field along `k*`, whether it is the needle, and the weight of each attention.

    Fields are standard normal, but for the needle, which is shifted by `√ν`. At the minimum `k` lies along `k*`, so
    that scores are `m_kk` times the fields.
    """
    rng = np.random.default_rng(_SEED)
    needle = int(rng.integers(LENGTH))
    fields = rng.standard_normal(LENGTH)
    fields[needle] += NU**0.5
    found = [Row(field=float(field), needle=at == needle) for at, field in enumerate(fields)]
    for asked, best in zip(questions(), ask(questions()), strict=True):
        attention = asked.student.with_bias(best["best_bias"])
        weights = np.asarray(attention(best["m_kk"] * fields)) * best["m_vv"]
        for token, weight in zip(found, weights, strict=True):
            setattr(token, asked.attention, float(weight))
    return found


def plot(found: list[Row]) -> Figure:
    """The fields, and below them what each attention makes of them."""
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(1 + len(ATTENTIONS), 1, sharex=True)
    places = np.arange(1, len(found) + 1)
    shown = {"field": ("component along $k^*$: $k^* \\cdot x_\\ell$", GREY)}
    shown |= {name: (f"weights of {name}", line(name).colour) for name in ATTENTIONS}
    for axes, (column, (title, colour)) in zip(panels, shown.items(), strict=True):
        (heights,) = columns(found, column)
        bars = axes.bar(places, heights, color=colour, width=0.7)
        axes.axhline(0.0, color=INK, linewidth=0.5)
        axes.set_title(title, loc="left")
        for bar, each in zip(bars, found, strict=True):
            if each.needle:
                bar.set(edgecolor=_NEEDLE, linewidth=2.0)
    panels[0].set_title(
        "needle: the label is $v^* \\cdot x$ of this token", loc="right", color=_NEEDLE
    )
    panels[-1].set_xticks(places)
    panels[-1].set_xlabel("token")
    return figure
