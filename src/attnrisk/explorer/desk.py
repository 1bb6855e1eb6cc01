"""Where questions are answered: processes of their own, so that the page never waits for a compiler.

There is a process for each line of questions. It takes the most urgent of those that somebody waits for now: what was
asked before a slider moved on is not begun.
"""

import atexit
import math
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

from .._check import Refusal
from .answers import QUICK, SLOW, SLOWEST, AbstractQuestion, numbers

_PRESENT = 120.0  # seconds since they asked last: who waits asks again every second, in a hidden tab every minute
_REMEMBERED, _VISITORS = 10_000, 100  # answers, and those whose questions are known
_COMPILED = 300  # answers after which a process lets its compiled code go, to save memory

_ENDING = threading.Event()  # the page, and with it all processes
atexit.register(_ENDING.set)


@dataclass(frozen=True)
class Answer:
    """Rows, or a sentence that says why there are none."""

    rows: tuple[Any, ...]
    sentence: str = ""


class Desk:
    """Takes questions, and has the answers that are there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._found: dict[AbstractQuestion, Answer] = {}
        self._wanted: dict[str, tuple[float, Sequence[AbstractQuestion]]] = {}
        for lane in (QUICK, SLOW, SLOWEST):
            threading.Thread(target=self._work, args=(lane,), daemon=True).start()

    def ask(self, visitor: str, questions: Sequence[AbstractQuestion]) -> None:
        """What this visitor waits for from now on, the most urgent first."""
        with self._changed:
            self._wanted.pop(visitor, None)
            self._wanted[visitor] = monotonic(), questions
            if len(self._wanted) > _VISITORS:
                del self._wanted[next(iter(self._wanted))]
            self._changed.notify_all()

    def find(self, question: AbstractQuestion) -> Answer | None:
        """The answer, if it is there."""
        return self._found.get(question)

    def wait(self, questions: Sequence[AbstractQuestion], seconds: float) -> None:
        """Until all of these are answered, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: all(q in self._found for q in questions), seconds)

    def _waiting(self, lane: str) -> Iterator[AbstractQuestion]:
        """What is asked and not answered, beginning with the most urgent question of whoever asked last."""
        for when, asked in reversed(list(self._wanted.values())):
            if monotonic() - when < _PRESENT:
                yield from (q for q in asked if q.lane == lane and q not in self._found)

    def _work(self, lane: str) -> None:
        worker = Worker()
        while True:
            with self._changed:
                while (question := next(self._waiting(lane), None)) is None:
                    self._changed.wait()
            answer = worker.ask(question)
            with self._changed:
                if len(self._found) >= _REMEMBERED:
                    del self._found[next(iter(self._found))]
                self._found[question] = answer
                self._changed.notify_all()


class Worker:
    """A process that answers one question after the other; it is started by the first, and again where it dies."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None

    def ask(self, question: AbstractQuestion) -> Answer:
        """The answer; a question over which two processes die has none."""
        for _ in range(2):
            if self._process is None:
                self._start()
            try:
                self._questions.send(question)
                return self._questions.recv()
            except (EOFError, OSError):  # it was killed, perhaps for the memory it took
                self._report_death(question)
        return Answer((), "The process that computed this has died.")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._questions, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def _report_death(self, question: AbstractQuestion) -> None:
        assert self._process is not None
        self._process.join()
        if _ENDING.is_set():
            sys.exit()  # this thread
        code, self._process = self._process.exitcode, None
        print(f"{question}: the process ended with code {code}", file=sys.stderr, flush=True)


def _serve(questions: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answered = 0
    while True:
        try:
            question = questions.recv()
        except EOFError:
            return
        questions.send(answer(question))
        answered += 1
        if answered % _COMPILED == 0:
            import jax

            jax.clear_caches()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def answer(question: AbstractQuestion) -> Answer:
    """The rows, or a sentence for the visitor; what nobody foresaw is also told to who runs the page."""
    try:
        rows = question.answer()
    except Refusal as refusal:
        return Answer((), f"{refusal}.")
    except Exception as error:
        print(f"{question}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return Answer((), f"This could not be computed ({type(error).__name__}).")
    if any(map(math.isnan, numbers(rows))):
        return Answer((), "No number came out of this computation.")
    return Answer(rows)
