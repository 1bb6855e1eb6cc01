"""Ranking of the catalogue by the mean gap to the Bayes risk with infinite data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..._check import of_type, one_of, refuse, shown
from ..._results import Estimate
from ...attention import CATALOGUE, get_attention
from ..execute import Ask, Progress, Session
from ..question import AbstractQuestion
from ..questions import Bayes
from . import two_heads
from .tasks import GRID, Row, asked_of, mean_gap, rows_of
from .traits import Traits, traits


@dataclass(frozen=True)
class Standing:
    """An attention and its mean gap to the Bayes risk over `rows`, as in `judge`; `biased_rows` have a free bias."""

    name: str
    traits: Traits
    gap: Estimate
    rows: tuple[Row, ...]
    gap_with_bias: Estimate
    biased_rows: tuple[Row, ...]
    two_heads: Estimate | None = (
        None  # the gap as two heads on flipped needles, where asked and found
    )


def questions(names: Iterable[str], places: Sequence[Bayes]) -> list[AbstractQuestion]:
    """The questions of the ranking."""
    minima = [
        question
        for name in names
        for biased in (False, True)
        for question in asked_of(name, places, biased)
    ]
    return [*dict.fromkeys(minima), *places]


def league(
    names: Iterable[str] = tuple(CATALOGUE),
    progress: Progress | None = None,
    places: Sequence[Bayes] = GRID,
    ask: Ask | None = None,
    heads: bool = False,
) -> list[Standing]:
    """Rank attentions of the catalogue by their mean gap to the Bayes risk.

    Args:
        names: Names of the catalogue.
        progress: Called with what is done, how much, and of how much.
        places: The tasks, as questions of type `Bayes`; by default the spiked task at signals 2, 5 and 10 and the max
            task at signals 1 and 2, each with 3 and with 10 tokens.
        ask: Computes the answers to questions; by default in threads of this process.
        heads: Whether to add the gap as two heads on flipped needles, where that is found.

    Returns:
        A list of `Standing`, the smallest gap with a free bias first, then the smallest without.

    Examples:
        >>> [f"{each.name} {float(each.gap):.4f}" for each in ar.league(["linear", "sigmoid"])]
        ['sigmoid 0.0810', 'linear 0.1545']
    """
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
    pairs = [each for name in names for each in two_heads.questions(name)] if heads else []
    ask([*questions(names, places), *dict.fromkeys(pairs)])
    table = []
    for name in names:
        plain, biased = (rows_of(name, places, ask, biased) for biased in (False, True))
        found = traits(get_attention(name))
        pair = two_heads.gap(name, ask) if heads else None
        table.append(Standing(name, found, mean_gap(plain), plain, mean_gap(biased), biased, pair))
    # Of those that differ by rounding alone, the one that needs no bias first.
    return sorted(table, key=lambda it: (round(float(it.gap_with_bias), 9), float(it.gap)))
