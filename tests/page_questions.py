"""Questions for the desk of the explorer, and what happens to a process that is asked them."""

import os
from dataclasses import dataclass

from attnrisk.explorer.answers import QUICK, AbstractQuestion


@dataclass(frozen=True)
class Echo(AbstractQuestion):
    """Answered with its own name."""

    name: str = ""

    @property
    def lane(self):
        return QUICK

    def answer(self):
        return (self,)


@dataclass(frozen=True)
class Deadly(Echo):
    """Ends the process that is asked."""

    def answer(self):
        os._exit(1)
