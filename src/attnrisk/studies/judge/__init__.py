"""Evaluation of any attention, given as a function from scores to weights."""

from .bridge import from_numpy, from_torch
from .causes import Causes, Counterfactual, Gaps
from .comparison import Compared, compare
from .curves import Point
from .family import normalised, recognise
from .ranking import Standing, league
from .tasks import Row
from .traits import Traits
from .verdict import Verdict, judge

__all__ = [
    "Causes",
    "Compared",
    "Counterfactual",
    "Gaps",
    "Point",
    "Row",
    "Standing",
    "Traits",
    "Verdict",
    "compare",
    "from_numpy",
    "from_torch",
    "judge",
    "league",
    "normalised",
    "recognise",
]
