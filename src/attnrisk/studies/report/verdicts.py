"""A row of the table of claims, and its verdicts."""

from typing import NamedTuple

HOLDS, PARTLY, FAILS = "holds", "holds, with exceptions", "does not hold here"


class Claim(NamedTuple):
    """A sentence, the number that speaks for or against it, how that was checked, and the verdict."""

    text: str
    finding: str
    check: str
    verdict: str
