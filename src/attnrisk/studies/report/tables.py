"""The rows of the report's tables that no figure has."""

from collections.abc import Sequence

from ..._rows import BAYES, FLOOR
from ...attention import CATALOGUE
from ..figures.rows import Ask, Row, least, least_risks, with_bayes
from ..judge.league import Standing, league
from ..judge.league import questions as league_questions
from ..judge.tasks import FIXED, GRID
from ..questions import AbstractQuestion, Bayes

_HEADLINE = [
    least("spiked", 10.0, "100", name)
    for name in (BAYES, FLOOR, "softmax", "erf", "softplus", "linear")
]


def questions(quick: bool) -> list[AbstractQuestion]:
    """What the tables ask."""
    return [*with_bayes(_HEADLINE), *league_questions(CATALOGUE, _places(quick))]


def headline(ask: Ask) -> list[Row]:
    """Least risks on one hundred tokens, best first."""
    rows = least_risks(ask, _HEADLINE)
    return sorted(rows, key=lambda row: (row.risk, row.attention != BAYES))


def standings(quick: bool, ask: Ask) -> list[Standing]:
    """The catalogue on the tasks of `attnrisk judge`, best first; if `quick`, on one of them."""
    return league(places=_places(quick), ask=ask)


def _places(quick: bool) -> Sequence[Bayes]:
    return [FIXED] if quick else GRID
