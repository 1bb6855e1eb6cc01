"""Pruning: the lowest risk against the number of heads, and the risk after removing heads one by one."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from ..head_questions import (
    SOFTMAX_PLUS_ONE,
    AbstractFeatureQuestion,
    FeatureBayes,
    HeadsOnAtoms,
    LeastHeads,
)
from .heads import LINES
from .rows import Ask, Row
from .style import add_legend, draw_curve, panels, set_ticks

CAPTION = """\
How many heads are needed? The needle carries one of three features, ν = 9, 6, 4, among L = 10 tokens. Left: the \
lowest risk found for H heads that are trained together. [[With more than three heads the risk of averaged softmax and \
of softmax-1 falls little; it|It]] need not fall with every head, since weights are averaged and the search may end in \
a local minimum. Bayes-softmax has the Bayes risk (black) with three. Right: the largest number of heads of each kind, \
of which one after the other is removed, each time the one whose absence costs least, with nothing tuned again but the \
length of v. [[Down to three heads removal costs little, then much. |]]Risks are exact for the heads that a search \
found, and bound the lowest risk from above.
"""

LAW, LENGTH = "one-of:9,6,4", "10"
SEPARATE, _JOINT = ("softmax", SOFTMAX_PLUS_ONE), "bayes-softmax"


def _asked(most: dict[str, int]) -> dict[tuple[str, int], AbstractFeatureQuestion]:
    """By kind and number of heads, up to the largest number of each kind."""
    asked: dict[tuple[str, int], AbstractFeatureQuestion] = {
        (name, heads): LeastHeads(
            LAW, LENGTH, name, heads, certify=False, prune=heads == most[name]
        )
        for name in SEPARATE
        for heads in range(1, most[name] + 1)
    }
    asked[_JOINT, 1] = asked["softmax", 1]  # which one head is
    for heads in range(2, most[_JOINT] + 1):
        asked[_JOINT, heads] = LeastHeads(LAW, LENGTH, _JOINT, heads, certify=False)
    asked[_JOINT, 3] = HeadsOnAtoms(LAW, LENGTH)
    asked["Bayes", 0] = FeatureBayes(LAW, LENGTH)
    return asked


FULL = _asked({"softmax": 6, SOFTMAX_PLUS_ONE: 6, _JOINT: 2})
QUICK = _asked({"softmax": 3, SOFTMAX_PLUS_ONE: 2, _JOINT: 1})


def questions(asked: dict[Any, AbstractFeatureQuestion]) -> list[AbstractFeatureQuestion]:
    """Each once."""
    return list(dict.fromkeys(asked.values()))


def compute(asked: dict[Any, AbstractFeatureQuestion], ask: Ask) -> list[Row]:
    """A row for each number of heads: those trained together, and those left of the largest number."""
    rows = []
    for (name, heads), found in zip(asked, ask(asked.values()), strict=True):
        points = [(False, heads, found["risk"], found["risk_error"])]
        for gone, risk in enumerate(found.get("pruned") or ()):
            points.append((True, heads - gone, risk, found["pruned_error"]))
        kind = {"curve": name, "result": found["result"]}
        columns = "pruned", "heads", "risk", "error"
        rows += [Row(**kind, **dict(zip(columns, each, strict=True))) for each in points]
    return rows


def plot(rows: Sequence[Row]) -> Figure:
    """Trained together on the left, pruned on the right."""
    by = {"pruned": (False, True)}
    figure, drawn = panels(rows, 3.1, by, "", "risk", sharey=True)
    bayes = next(row.risk for row in rows if row.curve == "Bayes")
    for axes, here, pruned in drawn:
        axes.axhline(bayes, **LINES["Bayes"].style)
        for name in (_JOINT, *SEPARATE):
            curve = [row for row in here if row.curve == name]
            draw_curve(axes, LINES[name], curve, ("heads", "risk"), dots=3.5)
        axes.autoscale_view()
        title = "removed one by one" if pruned else "trained together"
        axes.set_title(rf"{title}, $\nu = 9, 6, 4$, $L = {LENGTH}$")
        axes.set_xlabel("heads left" if pruned else "heads")
        set_ticks(axes.xaxis, range(1, 1 + max(row.heads for row in rows)))
    add_legend(figure, [LINES[name] for name in (*SEPARATE, _JOINT, "Bayes")], 4, rows)
    return figure
