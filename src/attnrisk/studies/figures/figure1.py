"""Figure 1: trained models of equal size, in retrieval and in language, with one line for each attention."""

import csv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..._results import Result
from ...attention import CATALOGUE
from ..question import is_converged
from ..training_questions import TrainGrid
from .rows import Ask, Row, grouped, make_row
from .style import GREY, Line, add_legend, columns, draw_curve, line, panels

CAPTION = """\
Test accuracy in recall[[ and in finding a needle (left out of the quick form),|]] and bits per character of a text, \
of small decoders against their number of parameters, with one line for each attention that replaces softmax. Each \
point is the mean over seeds; bands show the range over seeds. The learning rate of each point is the best of several \
on validation data. Kernels and element-wise attentions act on the score q·k with a learned bias per head; only \
softmax has rotary positions. [[Recurrences (dotted) have|The recurrence (dotted) has]] a state of fixed size. [[The \
grey line is the accuracy of the Bayes predictor, which knows the distribution of the marks. |]]figure1.csv has every \
training run: sizes, learning rates, seeds, and which learning rate was chosen. Small models, synthetic recall, one \
text.
"""

RETRIEVAL, LANGUAGE = ("recall", "needle"), "text"
TITLES = {"recall": "recall", "needle": "needle", "text": "language"}
_RECURRENCES = {
    "gated-recurrence": Line("gated recurrence", "#117733", (0, (1, 1.2)), 1.5),
    "linear-recurrence": Line("linear recurrence", "#aa4499", (0, (1, 1.2)), 1.5),
}
ATTENTIONS = (
    *("softmax", "softplus", "elu+1", "relu", "relu2", "taylor-2", "sigmoid", "erf", "linear"),
    *_RECURRENCES,
)
_COLUMNS = (
    *("task", "attention", "width", "layers", "steps", "batch_size", "length", "pairs"),
    *("vocabulary", "precision", "learning_rate", "seed", "parameters", "accuracy", "loss"),
    *("bits_per_character", "best_accuracy", "validation_accuracy", "validation_loss"),
    *("train_loss", "seconds", "result"),
)

_MODEL = "task", "length", "attention", "width"
_OF_A_MODEL = "task length pairs attention width parameters mean low high values result"


FULL, QUICK = False, True  # forms of the models, which are listed where they are trained


def questions(quick: bool) -> list[TrainGrid]:
    from ...trained import figure1_models  # and optax, which only this needs

    return [TrainGrid(**each) for each in figure1_models(quick)]


def compute(quick: bool, ask: Ask) -> list[Row]:
    asked = questions(quick)
    return with_choices(rows_of(asked, ask(asked)))


def rows_of(asked: Sequence[TrainGrid], answers: Iterable[Any]) -> list[Row]:
    """A row for each training of the grids."""
    return [
        Row(**{name: (question.inputs | each).get(name) for name in _COLUMNS})
        for question, found in zip(asked, answers, strict=True)
        for each in found
    ]


def with_choices(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with `chosen`: whether its learning rate is the best of its model on validation data."""
    chosen = {id(row) for model in grouped(rows, *_MODEL) for row in best_of(model)}
    return [Row(**vars(row) | {"chosen": id(row) in chosen}) for row in rows]


def best_of(trained: Iterable[Any]) -> list[Any]:
    """Those of the learning rate with the lowest mean validation loss; one that is no number is infinite."""

    def mean_loss(group: list[Any]) -> float:
        losses = np.array([each.validation_loss for each in group], float)
        return float(np.mean(np.where(np.isfinite(losses), losses, np.inf)))

    return min(grouped(trained, "learning_rate"), key=mean_loss)


def summary(rows: Iterable[Row], measure: str) -> list[Row]:
    """Of each model the mean, the lowest and the highest `measure` over the seeds of the chosen learning rate."""
    found = []
    for seeds in grouped((row for row in rows if row.chosen), *_MODEL):
        (values,) = columns(seeds, measure)
        failed = [row.result for row in seeds if not is_converged(row.result)]
        result = failed[0] if failed else str(Result.FINISHED)
        ends = {"mean": float(np.mean(values)), "low": min(values), "high": max(values)}
        found.append(make_row(_OF_A_MODEL, vars(seeds[0]), ends, values=values, result=result))
    return found


def style_of(name: str) -> Line:
    """The line of an attention or of a recurrence."""
    return line(name) if name in CATALOGUE else _RECURRENCES[name]


def plot(rows: Sequence[Row]) -> Figure:
    """A panel for each task, and one legend."""
    figure, drawn = panels(rows, 3.4, {"task": tuple(TITLES)}, "parameters")
    names = [name for name in ATTENTIONS if name in {row.attention for row in rows}]
    for axes, here, task in drawn:
        is_text = task == LANGUAGE
        curves = summary(here, "bits_per_character" if is_text else "accuracy")
        best = [row.best_accuracy for row in here if row.best_accuracy is not None]
        if best:
            axes.axhline(best[0], color=GREY, linewidth=0.7, zorder=0)
        for name in names[::-1]:
            curve, style = [row for row in curves if row.attention == name], style_of(name)
            curve.sort(key=lambda row: row.width)
            band = columns(curve, "parameters", "low", "high")
            axes.fill_between(*band, color=style.colour, alpha=0.15, linewidth=0)
            draw_curve(axes, style, curve, ("parameters", "mean"), "x", dots=3.0)
        axes.set(title=TITLES[task], xscale="log")
        axes.set_ylabel("bits per character" if is_text else "test accuracy")
        if not is_text:
            axes.set_ylim(-0.03, 1.05)
    add_legend(figure, map(style_of, names), 6, [row for row in rows if row.chosen])
    return figure


def measured() -> list[Row]:
    """The rows that the project keeps: docs/data/figure1.csv."""
    kept = files(__package__).joinpath("figure1.csv").read_text(encoding="utf-8")
    return with_choices(read(kept))


def read(text: str) -> list[Row]:
    """Rows from CSV; lines that begin with # say where they come from."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [
        Row(**{name: _value(word) for name, word in each.items()}) for each in csv.DictReader(lines)
    ]


def _value(word: str) -> Any:
    if word in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[word]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word
