"""Questions that cost nothing, for tests of the engine: found by its workers under this name."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from attnrisk.studies.engine import rows_of
from attnrisk.studies.questions import QUESTIONS, TASK, Question

FRAGILE, RAISES, UNCONVERGED, NOT_A_NUMBER = "fragile", 3.0, 4.0, 5.0


def _any(task):
    return task


def plain(task):
    return {"risk": task.nu / 3, "risk_error": 1e-9, "result": "converged", "converged": True}


def sleepy(task):
    time.sleep(0.05)
    return plain(task)


def slow(task):
    time.sleep(60)
    return plain(task)


def fragile(task):
    if task.nu == RAISES:
        raise ZeroDivisionError("nothing\nto divide by")
    if task.nu == UNCONVERGED:
        return plain(task) | {"result": "still moving", "converged": False}
    if task.nu == NOT_A_NUMBER:
        return plain(task) | {"risk": float("nan")}
    return plain(task)


def fragile_at_once(given):
    """Which says how many were asked together."""
    return [fragile(**each) | {"beside": len(given)} for each in given]


def only_alone(given):
    """No two of its points can be asked together."""
    raise ArithmeticError(f"{len(given)} are too many")


def deadly(task):
    """One point ends every worker, another the first one only."""
    if task.nu == RAISES:
        _die()
    mark = Path(os.environ["FAKE_QUESTIONS"]) / "killed"
    if task.nu == UNCONVERGED and not mark.exists():
        mark.touch()
        _die()
    return plain(task)


@dataclass(frozen=True)
class Asked:
    """What a figure asks."""

    number: int
    label: str = "a fake"
    compiled_with: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answered:
    number: int
    process: int


def where(question):
    """Who answers; 13 ends every worker, and minus one raises."""
    if question.number == 13:
        _die()
    if question.number < 0:
        raise ValueError("a number\nbelow zero")
    return [Answered(question.number, os.getpid())]


def _die():
    time.sleep(0.5)  # a worker that dies before it is known to have started is not replaced
    os.kill(os.getpid(), signal.SIGKILL)


FAKES = {
    "plain": Question(plain, TASK, _any, 4),
    "sleepy": Question(sleepy, TASK, _any, 2),
    "slow": Question(slow, TASK, _any, 1),
    "fragile": Question(fragile, TASK, _any, 4),
    "at-once": Question(fragile, TASK, _any, 4, fragile_at_once),
    "only-alone": Question(fragile, TASK, _any, 4, only_alone),
    "deadly": Question(deadly, TASK, _any, 4),
}


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
