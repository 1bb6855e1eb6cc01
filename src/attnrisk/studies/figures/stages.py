"""Stages: the overlaps of heads with features, and the risk, along online SGD."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from matplotlib.figure import Figure

from ...attention import AbstractAttention, BayesSoftmax, Heads, Softmax, SoftmaxPlusOne
from ...flow import feature_times, online_sgd, random_starts
from ...population import bayes_risk
from ...tasks import FeatureSLR, parse_features
from ..question import AbstractQuestion, Record
from .rows import Ask, Row
from .style import GREY, INK, WIDTH, Line, add_legend, columns

CAPTION = """\
How three heads find three features, ν = 12, 6, 3, one of which the needle carries, among L = 5 tokens: online SGD in \
the limit of many dimensions (step 1, ten fresh sequences at each step, D steps in a unit of time), from small random \
vectors. Top: the risk, and the Bayes risk (grey). Bottom: the overlap of each head (line style) with each feature \
(colour). At first all heads turn to the same mixture of features, led by the strongest: the unspecialised phase. Then \
they part, and the features are found one after the other, the weakest last; the risk falls in steps. [[Left: \
Bayes-softmax with equal biases. Middle: softmax-1 heads with bias −2. Right: averaged softmax heads, which end on \
mixtures|The heads are those of Bayes-softmax with equal biases]]. Expectations are averages over 16 sets of 512 \
random sequences, each with a path of its own: lines are their means, and two standard errors are shaded. stages.csv \
holds the paths.
"""

LAW, LENGTH, HEADS, SIZE, SEED = "one-of:12,6,3", 5, 3, 0.02, 0
STUDENTS: dict[str, tuple[str, AbstractAttention]] = {
    "bayes-softmax": ("Bayes-softmax", BayesSoftmax(HEADS)),
    "softmax-1": ("softmax-1", Heads(SoftmaxPlusOne(), HEADS, bias=-2.0, free_bias=False)),
    "softmax": ("averaged softmax", Heads(Softmax(), HEADS)),
}
_STEP, _BATCH, _FIRST, _LAST = 1.0, 10, 0.3, 300.0
_COLOURS = ("#d55e00", "#0072b2", "#009e73")
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)))
_BAYES = Line("Bayes risk", GREY, (0, (3, 2)), 1.0)
_SURE = 2.0


@dataclass(frozen=True)
class HeadStages(AbstractQuestion):
    """A path of online SGD: for each time, head and feature the overlap, with the risk at that time.

    `found` is when the feature was found, as `feature_times` has it.
    """

    kind: ClassVar[str] = "head stages"
    package: ClassVar[str] = "flow"

    student: str
    points: int
    last: float

    def answer(self) -> list[Record]:
        task = FeatureSLR(parse_features(LAW), LENGTH)
        start = random_starts(jax.random.key(SEED), 1, SIZE, HEADS, task.features)
        start = jax.tree.map(lambda leaf: leaf[0], start)
        times = np.concatenate([[0.0], np.geomspace(_FIRST, self.last, self.points)])
        path = online_sgd(
            task, STUDENTS[self.student][1], start, _STEP, _BATCH, times, log2_points=9
        )
        found, bayes = feature_times(path.times, path.overlaps), float(bayes_risk(task))
        return [
            {
                "time": float(time),
                "risk": float(path.risk.value[at]),
                "risk_error": float(path.risk.error[at]),
                "bayes_risk": bayes,
                "head": head + 1,
                "feature": feature + 1,
                "overlap": float(path.M.value[at][head, feature]),
                "overlap_error": float(path.M.error[at][head, feature]),
                "found": found[feature],
            }
            for at, time in enumerate(path.times)
            for head in range(HEADS)
            for feature in range(task.features)
        ]


FULL = [HeadStages(name, 28, _LAST) for name in STUDENTS]
QUICK = [HeadStages("bayes-softmax", 12, 60.0)]


def compute(paths: Sequence[HeadStages], ask: Ask) -> list[Row]:
    return [
        Row(curve=path.student, **each)
        for path, found in zip(paths, ask(paths), strict=True)
        for each in found
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """A column for each kind of heads: risk above, overlaps below."""
    names = [name for name in STUDENTS if name in {row.curve for row in rows}]
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panels = figure.subplots(2, len(names), sharex=True, sharey="row", squeeze=False)
    for (above, below), name in zip(panels.T, names, strict=True):
        path = [row for row in rows if row.curve == name and row.time > 0]
        once = [row for row in path if (row.head, row.feature) == (1, 1)]
        above.axhline(path[0].bayes_risk, **_BAYES.style)
        _draw(above, Line("risk", INK, "solid", 1.5), once, "risk")
        below.axhline(0.0, color=GREY, linewidth=0.5)
        for feature, colour in enumerate(_COLOURS, start=1):
            for head, dashes in enumerate(_DASHES, start=1):
                own = [row for row in path if (row.head, row.feature) == (head, feature)]
                _draw(below, Line("", colour, dashes, 1.3), own, "overlap")
        above.set_title(f"{STUDENTS[name][0]}\n" rf"$\nu = 12, 6, 3$, $L = {LENGTH}$")
        above.set_xscale("log")
        below.set_xlabel("time, in $D$ steps")
    panels[0, 0].set_ylabel("risk")
    panels[1, 0].set_ylabel("overlap of a key with a feature")
    handles = [
        Line(rf"feature $\nu = {nu}$", colour, "solid", 1.5)
        for nu, colour in zip((12, 6, 3), _COLOURS, strict=True)
    ]
    handles += [Line(f"head {h + 1}", INK, dash, 1.2) for h, dash in enumerate(_DASHES)]
    add_legend(figure, [*handles, _BAYES], 4)
    return figure


def _draw(axes: Any, line: Line, rows: Sequence[Row], column: str) -> None:
    times, values, errors = map(np.array, columns(rows, "time", column, f"{column}_error"))
    band = times, values - _SURE * errors, values + _SURE * errors
    axes.fill_between(*band, color=line.colour, alpha=0.15, linewidth=0)
    axes.add_line(line.through(times, values))
