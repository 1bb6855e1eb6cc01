"""Heads: the lowest risk against the signal, for one head, several heads, and Bayes-softmax."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..head_questions import (
    SOFTMAX_PLUS_ONE,
    AbstractFeatureQuestion,
    FeatureBayes,
    HeadsOnAtoms,
    LeastHeads,
)
from .rows import Ask, Row, risk_row
from .style import BAYES_LINE, COLOURS, Line, add_legend, draw_curve, panels

CAPTION = """\
Lowest risk with infinite data against the signal ν, where the needle may carry one of two features. Top: flipped, the \
needle is shifted by +√ν or by −√ν along one direction. Bottom: one of two, it is shifted by √ν along one of two \
directions. [[Left: L = 10 tokens, right: L = 1000|There are L = 10 tokens, and ν = 9]]. One softmax head (blue, \
dashed) can look for one feature only, or for both at once and badly. Two softmax heads that are averaged (blue) look \
for one feature each, but a head whose feature is absent still gives its weight to some token. Softmax-1 (light blue), \
with a bias, lets such a head give no weight at all. Bayes-softmax (orange), normalised over tokens and heads \
together, with a head on each atom, is the posterior: it has the Bayes risk (black). [[Lines are straight between the \
computed points|Each dot is a computed point]]. Risks are exact for the heads that a search found, and bound the \
lowest risk from above; heads.csv holds them with their errors.
"""

LAWS = {"flipped": "flipped, $\\pm\\sqrt{\\nu}$", "one-of": "one of two features"}
_BAYES = "Bayes"
LINES = {
    "one head": Line("one softmax head", COLOURS["softmax"], (0, (4, 1.5)), 1.5),
    "softmax": Line("averaged softmax", COLOURS["softmax"], "solid", 1.5),
    SOFTMAX_PLUS_ONE: Line("softmax-1", COLOURS[SOFTMAX_PLUS_ONE], "solid", 1.5),
    "bayes-softmax": Line("Bayes-softmax", "#e69f00", "solid", 3.2),
    _BAYES: BAYES_LINE,
}

_NU = {
    "10": (2.0, 3.0, 4.0, 5.0, 6.0, 7.5, 9.0, 11.0, 13.0, 16.0),
    "1000": (9.0, 11.0, 12.0, 13.0, 14.5, 16.0, 18.0, 20.0, 23.0, 26.0),
}
Place = tuple[str, float, str, int]  # law, signal, length, random starts beside those on the atoms
FULL: list[Place] = [(law, nu, length, 2) for law in LAWS for length in _NU for nu in _NU[length]]
QUICK: list[Place] = [(law, 9.0, "10", 2) for law in LAWS]
_SEARCHED = {
    "one head": ("softmax", 1),
    "softmax": ("softmax", 2),
    SOFTMAX_PLUS_ONE: (SOFTMAX_PLUS_ONE, 2),
}
_COLUMNS = "law nu length curve risk error bayes_risk excess result"


def questions(places: Sequence[Place]) -> list[AbstractFeatureQuestion]:
    """The question of each curve at each place."""
    return [each for place in places for each in _curves(*place).values()]


def _curves(law: str, nu: float, length: str, starts: int) -> dict[str, AbstractFeatureQuestion]:
    features = f"flipped:{nu:g}" if law == "flipped" else f"one-of:{nu:g},{nu:g}"
    asked: dict[str, AbstractFeatureQuestion] = {
        name: LeastHeads(features, length, *which, certify=False, random_starts=starts)
        for name, which in _SEARCHED.items()
    }
    asked["bayes-softmax"] = HeadsOnAtoms(features, length)
    return asked | {_BAYES: FeatureBayes(features, length)}


def compute(places: Sequence[Place], ask: Ask) -> list[Row]:
    """A row for each curve at each place."""
    found = iter(ask(questions(places)))
    rows = []
    for law, nu, *_ in places:
        answers = {name: next(found) for name in LINES}
        bayes = answers[_BAYES]["risk"]
        where = {"law": law, "nu": nu, "bayes_risk": bayes}
        rows += [
            risk_row(_COLUMNS, where, each, curve=name, excess=each["risk"] - bayes)
            for name, each in answers.items()
        ]
    return rows


def plot(rows: Sequence[Row]) -> Figure:
    """A row of panels for each law, a column for each length."""
    by, share = {"law": tuple(LAWS), "length": tuple(_NU)}, {"sharey": True, "sharex": "col"}
    figure, drawn = panels(rows, 4.8, by, r"signal $\nu$", "lowest risk", **share)
    for axes, here, (law, length) in drawn:
        for name, style in LINES.items():
            draw_curve(axes, style, [r for r in here if r.curve == name], ("nu", "risk"))
        axes.autoscale_view()
        axes.set(title=f"{LAWS[law]}, $L = {length}$", ylim=(0.0, 1.02))
    add_legend(figure, LINES.values(), 5, rows)
    return figure
