"""The prediction: accuracy of trained models against the exact gap to Bayes of their attention."""

from collections.abc import Sequence
from itertools import product
from math import log
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import rankdata

from ...attention import CATALOGUE, FREE_BIAS
from ..question import AbstractQuestion
from ..questions import AbstractTaskQuestion, Bayes, Population
from ..training_questions import TrainGrid
from . import figure1
from .rows import Ask, Row, grouped, make_row
from .style import WIDTH, add_legend

CAPTION = """\
Test accuracy of trained models against the exact gap to the Bayes risk of their attention, on the spiked task with as \
many tokens as the sequences have and ν = 4 log L: with an optimised bias of the score (left), as in the trained \
models, and without a bias (right). The smallest width of [[figure 1|the quick figure 1]]; dots are means over seeds, \
lines show the range over seeds. Gaps below 1e-5 are drawn at 1e-5. Above each panel: Spearman's rank correlation and, \
in brackets, its 95 % bootstrap interval over attentions and seeds; it is −1 if the gap alone determines the order. \
Recurrences have no gap in this theory and are left out. prediction.csv has all numbers[[, also for other widths|]].
"""

_SMALLEST = 1e-5  # gap that is drawn; smaller ones are zero within the errors of an infimum
_ENDS = ("", "_low", "_high")
_COLUMNS = """\
task attention width length pairs accuracy lowest highest accuracies gap gap_without_bias bias result attained"""
_DRAWS = 2000  # of the bootstrap: an error of 1 % of the ends of the interval
_BIASES = FREE_BIAS, "0"
_SIDES = {"gap": "with a free bias", "gap_without_bias": "without a bias"}
_MARKERS = dict(zip(figure1.ATTENTIONS, "osD^vXPph", strict=False))  # not of the recurrences
_QUICK_ATTENTIONS = ("softmax", "softplus", "relu", "taylor-2", "linear")


FULL, QUICK = False, True  # forms of figure 1


def questions(quick: bool) -> list[AbstractQuestion]:
    """Models and gaps."""
    models = _models(quick)
    return [*models, *_risks(models).values()]


def _models(quick: bool) -> list[TrainGrid]:
    if quick:
        from ...trained import figure1_model

        smallest = min(each.width for each in figure1.questions(True))
        models = (figure1_model(True, smallest, "recall", name) for name in _QUICK_ATTENTIONS)
        return [TrainGrid(**each) for each in models]
    from ...trained import long_recall_models

    longer = (TrainGrid(**each) for each in long_recall_models())
    return [each for each in (*figure1.questions(False), *longer) if _is_shown(each)]


def _is_shown(model: Any) -> bool:
    """Retrieval, with an attention that the theory has."""
    return model.task in figure1.RETRIEVAL and model.attention in CATALOGUE


def _risks(models: Sequence[Any]) -> dict[tuple[Any, ...], AbstractTaskQuestion]:
    """By length, attention and bias: the least risks with and without a bias; with neither, the Bayes risk."""
    asked: dict[Any, AbstractTaskQuestion] = {}
    for model in models:
        place = "spiked", 4.0 * log(model.length), str(model.length)
        asked[model.length, None, None] = Bayes(*place)
        for bias in _BIASES:
            at = model.length, model.attention, bias
            asked[at] = Population(*place, model.attention, bias=bias)
    return asked


def compute(quick: bool, ask: Ask) -> list[Row]:
    models = _models(quick)
    return predicted(figure1.with_choices(figure1.rows_of(models, ask(models))), ask)


def predicted(rows: Sequence[Row], ask: Ask) -> list[Row]:
    """Rows of figure 1 in retrieval, one for each model, with the gaps of its attention at its length."""
    shown = [row for row in rows if _is_shown(row)]
    asked = _risks(shown)
    least = dict(zip(asked, ask(asked.values()), strict=True))
    points = []
    for model in figure1.summary(shown, "accuracy"):
        bayes = least[model.length, None, None]["risk"]
        free, none = (least[model.length, model.attention, bias] for bias in _BIASES)
        found = {
            "accuracy": model.mean,
            "lowest": model.low,
            "highest": model.high,
            "accuracies": " ".join(map(repr, model.values)),
            "gap": free["risk"] - bayes,
            "gap_without_bias": none["risk"] - bayes,
        }
        points.append(make_row(_COLUMNS, free, vars(model), found, result=free["result"]))
    for here, side in product(grouped(points, "task", "length", "width"), _SIDES):
        known = zip(_ENDS, correlation(here, side), strict=True)
        for row, (end, value) in product(here, known):
            setattr(row, f"correlation_{side}{end}", value)
    return points


def correlation(rows: Sequence[Row], side: str) -> tuple[float | None, float | None, float | None]:
    """Spearman's rank correlation of gap and accuracy, and the middle 95 % of a bootstrap over attentions and seeds.

    Draws in which all gaps or all accuracies are the same have no correlation and are left out; `None` where that is
    so of the rows themselves.
    """
    gaps = np.array([_shown_gap(getattr(row, side)) for row in rows])
    seeds = np.array([[float(word) for word in row.accuracies.split()] for row in rows])
    rng = np.random.default_rng(0)
    again = rng.integers(seeds.shape[1], size=(_DRAWS, *seeds.shape))
    means = np.take_along_axis(seeds[None], again, -1).mean(-1)
    # An attention that is drawn twice is one tie, not two points.
    chosen = rng.integers(len(rows), size=(_DRAWS, len(rows)))
    drawn = _spearman(gaps[chosen], np.take_along_axis(means, chosen, 1))
    (value,) = _spearman(gaps[None], seeds.mean(-1)[None])
    if np.isnan(value):
        return None, None, None
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return float(value), float(low), float(high)


def _spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of each line of two tables; not a number where all are the same."""
    ranks = [rankdata(np.round(each, 6), axis=1) for each in (first, second)]
    x, y = (each - each.mean(1, keepdims=True) for each in ranks)
    scale = np.sqrt(np.sum(x * x, 1) * np.sum(y * y, 1))
    return np.where(scale > 0, np.sum(x * y, 1) / np.where(scale > 0, scale, 1.0), np.nan)


def _shown_gap(gap: float) -> float:
    return max(gap, _SMALLEST)


def plot(rows: Sequence[Row]) -> Figure:
    """Tasks and lengths downwards; with a bias at the left, without at the right."""
    smallest = min(row.width for row in rows)
    shown = [row for row in rows if row.width == smallest]
    there = sorted({(row.task, row.length) for row in shown})
    tasks = sorted(there, key=lambda task: figure1.RETRIEVAL.index(task[0]))
    names = {row.attention for row in shown}
    figure = Figure(figsize=(WIDTH, 0.9 + 2.4 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), 2, sharey=True, squeeze=False)
    for line, task in zip(panels, tasks, strict=True):
        here = [row for row in shown if (row.task, row.length) == task]
        for axes, side in zip(line, _SIDES, strict=True):
            for row in here:
                gap, colour = _shown_gap(getattr(row, side)), figure1.style_of(row.attention).colour
                axes.plot([gap, gap], [row.lowest, row.highest], color=colour, linewidth=1.0)
                axes.plot(
                    [gap], [row.accuracy], _MARKERS[row.attention], color=colour, markersize=5
                )
            value, low, high = (getattr(here[0], f"correlation_{side}{end}") for end in _ENDS)
            said = "undefined" if value is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"
            axes.set(title=f"$L = {here[0].length}$, rank correlation {said}", xscale="log")
            axes.set(xlim=(_SMALLEST / 2, 3.0), ylim=(-0.03, 1.08))
        pairs = f" of {here[0].pairs} pairs" if here[0].pairs else ""
        line[0].set_ylabel(f"accuracy, {task[0]}{pairs}")
    for axes, words in zip(panels[-1], _SIDES.values(), strict=True):
        axes.set_xlabel(rf"gap to Bayes {words}, $\nu = 4\log L$")
    styles = {name: figure1.style_of(name) for name in _MARKERS if name in names}
    handles = [
        Line2D([], [], color=style.colour, marker=_MARKERS[name], linewidth=1.0, label=style.label)
        for name, style in styles.items()
    ]
    add_legend(figure, handles, 5, shown)
    return figure
