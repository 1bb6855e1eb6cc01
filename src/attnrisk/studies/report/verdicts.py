"""A row of the table of claims, and its verdicts."""

from typing import NamedTuple

HOLDS, PARTLY, FAILS = "holds", "holds, with exceptions", "does not hold here"


class Claim(NamedTuple):
    """A claim, the number that supports or contradicts it, how it was tested, and the verdict."""

    text: str
    finding: str
    check: str
    verdict: str


def counted(good: int, of: int) -> str:
    """The verdict on a claim that is good at so many points of all."""
    return HOLDS if good == of else PARTLY if good else FAILS
