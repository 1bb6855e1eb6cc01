"""The rows of the report's tables that no figure has."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from ..._rows import BAYES, FLOOR
from ...attention import CATALOGUE
from ..figures.asking import Asking
from ..figures.rows import Question, Row, answer
from ..judge.tasks import GRID

_HEADLINE = {"task": "spiked", "nu": 10.0, "length": "100"}
_QUICK_GRID = [each for each in GRID if (each.task, each.nu, each.length) == ("spiked", 5.0, "10")]


def headline(ask: Asking) -> list[Row]:
    """Least risks on one hundred tokens, best first."""
    names = (BAYES, FLOOR, "softmax", "erf", "softplus", "linear")
    rows = ask(answer, [Question(**_HEADLINE, attention=name) for name in names], Row)  # type: ignore[arg-type]
    return sorted(rows, key=lambda row: (row.risk, row.attention != BAYES))


class Standing(NamedTuple):
    """An attention, and what it loses to Bayes on each task; `gap` is the mean."""

    name: str
    gap: float
    rows: Sequence[Row]


def standings(quick: bool, ask: Asking) -> list[Standing]:
    """The catalogue on the tasks of `attnrisk judge`, best first; if `quick`, on one of them."""
    tasks = _QUICK_GRID if quick else GRID
    asked = [
        Question(each.task, each.nu, each.length, name) for name in CATALOGUE for each in tasks
    ]
    found = ask(answer, asked, Row)
    by_name = {name: [row for row in found if row.attention == name] for name in CATALOGUE}
    table = [
        Standing(name, fmean(row.excess for row in rows), rows) for name, rows in by_name.items()
    ]
    return sorted(table, key=lambda standing: standing.gap)
