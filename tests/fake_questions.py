"""Questions that cost nothing, for tests of execution: found by its workers under this name."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from attnrisk.studies.question import AbstractQuestion
from attnrisk.studies.questions import QUESTIONS, AbstractTaskQuestion
from attnrisk.studies.sweeps import rows_of

RAISES, UNCONVERGED, NOT_A_NUMBER = 3.0, 4.0, 5.0


@dataclass(frozen=True)
class Plain(AbstractTaskQuestion):
    kind: ClassVar[str] = "plain"
    package: ClassVar[str] = "tasks"
    batch: ClassVar[int] = 4

    def answer(self):
        return {"risk": self.nu / 3, "risk_error": 1e-9, "result": "converged", "converged": True}


@dataclass(frozen=True)
class Sleepy(Plain):
    kind: ClassVar[str] = "sleepy"
    batch: ClassVar[int] = 2

    def answer(self):
        time.sleep(0.05)
        return super().answer()


@dataclass(frozen=True)
class Slow(Plain):
    kind: ClassVar[str] = "slow"
    batch: ClassVar[int] = 1

    def answer(self):
        time.sleep(60)
        return super().answer()


@dataclass(frozen=True)
class Fragile(Plain):
    kind: ClassVar[str] = "fragile"

    def answer(self):
        found = Plain.answer(self)
        if self.nu == RAISES:
            raise ZeroDivisionError("nothing\nto divide by")
        if self.nu == UNCONVERGED:
            return found | {"result": "still moving", "converged": False}
        if self.nu == NOT_A_NUMBER:
            return found | {"risk": float("nan")}
        return found


@dataclass(frozen=True)
class AtOnce(Fragile):
    """Which says how many were asked together."""

    kind: ClassVar[str] = "at-once"

    @classmethod
    def answer_all(cls, questions):
        return [each.answer() | {"beside": len(questions)} for each in questions]


@dataclass(frozen=True)
class OnlyAlone(Fragile):
    """No two of its points can be asked together."""

    kind: ClassVar[str] = "only-alone"

    @classmethod
    def answer_all(cls, questions):
        raise ArithmeticError(f"{len(questions)} are too many")


@dataclass(frozen=True)
class Deadly(Plain):
    """One point ends every worker, another the first one only."""

    kind: ClassVar[str] = "deadly"

    def answer(self):
        if self.nu == RAISES:
            _die()
        mark = Path(os.environ["FAKE_QUESTIONS"]) / "killed"
        if self.nu == UNCONVERGED and not mark.exists():
            mark.touch()
            _die()
        return Plain.answer(self)


@dataclass(frozen=True)
class Where(AbstractQuestion):
    """Which process answers, in two records; 13 ends every worker, and minus one raises."""

    kind: ClassVar[str] = "where"
    package: ClassVar[str] = "tasks"

    number: int

    def answer(self):
        if self.number == 13:
            _die()
        if self.number < 0:
            raise ValueError("a number\nbelow zero")
        return [{"number": self.number, "process": os.getpid()}, {"number": None, "process": 0}]


def _die():
    time.sleep(0.5)  # a worker that dies before it is known to have started is not replaced
    os.kill(os.getpid(), signal.SIGKILL)


FAKES = {each.kind: each for each in (Plain, Sleepy, Slow, Fragile, AtOnce, OnlyAlone, Deadly)}


def table(study, store):
    """Everything in a store that does not depend on when and where it was computed."""
    rows = rows_of(study, store)
    return {at: (row.inputs, row.outputs, row.result, row.converged) for at, row in rows.items()}


def main():
    """The command line, with these questions too."""
    from attnrisk.cli import main

    QUESTIONS.update(FAKES)
    main()


if __name__ == "__main__":
    import fake_questions

    fake_questions.main()
