"""How a figure asks: two questions at a time, and none again that a store has the answer to."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from itertools import chain, zip_longest
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from ..engine import row_of
from ..numerics import statements_behind
from ..questions import CONVERGED
from ..store import Row, Store
from ..study import Point

Progress = Callable[[str, int, int], None]

# Threads, since compiled code runs outside the interpreter's lock, and threads share what they compile. An integral
# keeps one core busy, and more of them would compete for memory.
_THREADS = 2


class Asked(Protocol):
    """A frozen dataclass of plain numbers and words: all that its answer depends on."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def label(self) -> str:
        """What someone who waits is told."""

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        """Questions that agree in this share compiled code."""


_Asked = TypeVar("_Asked", bound=Asked)
_Row = TypeVar("_Row")
Work = Callable[[_Asked], list[_Row]]


class Asking(NamedTuple):
    """Where answers are kept, and who is told how far it is; with neither, they are only computed."""

    store: Store | None = None
    progress: Progress | None = None

    def __call__(
        self, work: Work[_Asked, _Row], questions: Iterable[_Asked], row: type[_Row]
    ) -> list[_Row]:
        """The rows that `work` makes of each question, in their order; they are dataclasses of the type `row`."""
        questions = list(questions)
        found = self._kept(work, questions, row)
        missing = [question for question in questions if question not in found]
        self._tell("found in the store", len(found), len(questions))
        for question, (rows, begun) in _computed(work, missing):
            found[question] = rows
            if self.store is not None:
                self.store.add([_stored(_point(work, question), rows, begun)])
            self._tell(question.label, len(found), len(questions))
        return [each for question in questions for each in found[question]]

    def _kept(
        self, work: Work[_Asked, _Row], questions: list[_Asked], row: type[_Row]
    ) -> dict[_Asked, list[_Row]]:
        if self.store is None:
            return {}
        addresses = {question: _point(work, question).address for question in questions}
        kept = self.store.find(addresses.values())
        return {
            question: [row(**each) for each in kept[address].outputs["rows"]]
            for question, address in addresses.items()
            if address in kept
        }

    def _tell(self, label: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(label, done, total)


def _point(work: Work[_Asked, _Row], question: _Asked) -> Point:
    """Its address changes with the code of `work`, and not with that of the picture."""
    name = f"{work.__module__.rpartition('.')[2]}.{work.__name__}"
    return Point(name, asdict(question) | {"statements": statements_behind(work)})


def _stored(point: Point, rows: list[Any], begun: float) -> Row:
    unsure = [each.result for each in rows if getattr(each, "result", CONVERGED) != CONVERGED]
    outputs = {"rows": [asdict(each) for each in rows]}
    return row_of(point, outputs, unsure[0] if unsure else CONVERGED, not unsure, begun)


def _computed(
    work: Work[_Asked, _Row], questions: list[_Asked]
) -> Iterator[tuple[_Asked, tuple[list[_Row], float]]]:
    """Each question with its rows and when they were begun, as they come."""

    def timed(question: _Asked) -> tuple[list[_Row], float]:
        begun = time.perf_counter()
        return work(question), begun

    pool = ThreadPoolExecutor(_THREADS)
    try:
        jobs = {pool.submit(timed, question): question for question in _interleaved(questions)}
        for job in as_completed(jobs):
            yield jobs[job], job.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _interleaved(questions: Iterable[_Asked]) -> list[_Asked]:
    """Neighbours that share no compiled code, so that two threads do not compile the same at the same time."""
    groups: dict[tuple[Any, ...], list[_Asked]] = {}
    for question in questions:
        groups.setdefault(question.compiled_with, []).append(question)
    rounds = chain.from_iterable(zip_longest(*groups.values()))
    return [question for question in rounds if question is not None]
