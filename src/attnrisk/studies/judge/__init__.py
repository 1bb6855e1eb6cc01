"""A verdict on any attention: a function of scores to weights is enough."""

from .compare import Compared, compare
from .curves import Point
from .family import normalised, recognise
from .league import Standing, league
from .tasks import Row
from .traits import Traits
from .verdict import Verdict, judge

__all__ = [
    "Compared",
    "Point",
    "Row",
    "Standing",
    "Traits",
    "Verdict",
    "compare",
    "judge",
    "league",
    "normalised",
    "recognise",
]
