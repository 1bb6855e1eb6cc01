"""The league: the catalogue, by the mean gap to the Bayes risk with infinite data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..._check import of_type, one_of, refuse, shown
from ..._results import Estimate
from ...attention import CATALOGUE, get_attention
from ..execute import Ask, Progress, Session
from ..questions import AbstractQuestion, Bayes, Population
from .tasks import GRID, Row, mean_gap, rows_of
from .traits import Traits, traits


@dataclass(frozen=True)
class Standing:
    """An attention, and its mean gap to Bayes over `rows`, those of `judge`."""

    name: str
    traits: Traits
    gap: Estimate
    rows: tuple[Row, ...]


def questions(names: Iterable[str], places: Sequence[Bayes]) -> list[AbstractQuestion]:
    """What the league asks."""
    minima = [Population(at.task, at.nu, at.length, name) for name in names for at in places]
    return [*minima, *places]


def league(
    names: Iterable[str] = tuple(CATALOGUE),
    progress: Progress | None = None,
    places: Sequence[Bayes] = GRID,
    ask: Ask | None = None,
) -> list[Standing]:
    """The attentions of the catalogue, best first; `ask` computes the risks, by default in threads."""
    try:
        names = list(dict.fromkeys(one_of("names", name, CATALOGUE) for name in names))
    except TypeError:
        raise refuse("names", shown(names), "names of attentions, such as ['softmax']") from None
    for label, given in (("progress", progress), ("ask", ask)):
        if given is not None and not callable(given):
            raise refuse(label, shown(given), "a function")
    for place in of_type("places", places, Sequence, "a sequence of questions"):
        of_type("places", place, Bayes, "a sequence of questions of type Bayes")
    ask = ask or Session(progress=progress)
    ask(questions(names, places))
    table = []
    for name in names:
        rows = rows_of(name, places, ask)
        table.append(Standing(name, traits(get_attention(name)), mean_gap(rows), rows))
    return sorted(table, key=lambda standing: float(standing.gap))
