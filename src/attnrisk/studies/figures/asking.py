"""How a figure asks: two questions at a time, or as many as a cluster has workers, and none again that a store has the
answer to."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from ..cluster import EngineError, completed, connected
from ..engine import grouped, of_these_numerics, row_of
from ..numerics import statements_behind
from ..questions import CONVERGED
from ..store import Row, Store, default_place
from ..study import Point

if TYPE_CHECKING:
    from distributed import Client

Progress = Callable[[str, int, int], None]

# Threads, since compiled code runs outside the interpreter's lock, and threads share what they compile. An integral
# keeps one core busy, and more of them would compete for memory.
_THREADS = 2
_TASKS = 4  # for each worker of a cluster, so that none waits long for the last


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
    """Where answers are kept, who is told how far it is, and who computes: threads of this process, or a cluster."""

    store: Store | None = None
    progress: Progress | None = None
    client: "Client | None" = None

    def __call__(
        self, work: Work[_Asked, _Row], questions: Iterable[_Asked], row: type[_Row]
    ) -> list[_Row]:
        """The rows that `work` makes of each question, in their order; they are dataclasses of the type `row`."""
        questions = list(questions)
        addresses = {question: _point(work, question).address for question in questions}
        found = {} if self.store is None else self.store.find(addresses.values())
        self._tell("found in the store", len(found), len(questions))
        missing = [question for question in questions if addresses[question] not in found]
        for question, answer in self._computed(work, missing):
            found[addresses[question]] = answer
            if self.store is not None:
                self.store.add([answer])
            self._tell(question.label, len(found), len(questions))
        kept = (found[addresses[question]].outputs["rows"] for question in questions)
        return [row(**each) for rows in kept for each in rows]

    def _computed(
        self, work: Work[_Asked, _Row], questions: list[_Asked]
    ) -> Iterator[tuple[_Asked, Row]]:
        """Each question with its answer, as they come."""
        if self.client is None:
            return _by_threads(work, questions)
        return _by_cluster(self.client, work, questions)

    def _tell(self, label: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(label, done, total)


@contextmanager
def asking(
    store: Path | None, progress: Progress | None = None, scheduler: str | None = None
) -> Iterator[Asking]:
    """With the store at this place, or at the usual one, and the workers of this scheduler, if there is one."""
    with ExitStack() as opened:
        answers = opened.enter_context(Store(store or default_place()))
        client = None if scheduler is None else opened.enter_context(connected(scheduler))
        yield Asking(answers, progress, client)


def _point(work: Work[_Asked, _Row], question: _Asked) -> Point:
    """Its address changes with the code of `work`, and not with that of the picture."""
    name = f"{work.__module__.rpartition('.')[2]}.{work.__name__}"
    return Point(name, asdict(question) | {"statements": statements_behind(work)})


def _answer(work: Work[_Asked, _Row], question: _Asked) -> Row:
    """The rows of a question as one row of a store."""
    begun = time.perf_counter()
    rows: list[Any] = work(question)
    unsure = [each.result for each in rows if getattr(each, "result", CONVERGED) != CONVERGED]
    outputs = {"rows": [asdict(each) for each in rows]}
    result = unsure[0] if unsure else CONVERGED
    seconds = time.perf_counter() - begun
    return row_of(_point(work, question), outputs, result, not unsure, seconds)


def _answers(work: Work[_Asked, _Row], questions: list[_Asked]) -> list[Row]:
    """What a worker of a cluster runs."""
    return [_answer(work, question) for question in questions]


def _by_threads(work: Work[_Asked, _Row], questions: list[_Asked]) -> Iterator[tuple[_Asked, Row]]:
    pool = ThreadPoolExecutor(_THREADS)
    # Neighbours share no compiled code, so that two threads do not compile the same at the same time.
    order = [question for (question,) in grouped(questions, lambda each: each.compiled_with, 1)]
    try:
        jobs = {pool.submit(_answer, work, question): question for question in order}
        for job in as_completed(jobs):
            yield jobs[job], job.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _by_cluster(
    client: "Client", work: Work[_Asked, _Row], questions: list[_Asked]
) -> Iterator[tuple[_Asked, Row]]:
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    together = max(1, len(questions) // (_TASKS * max(1, workers)))
    tasks = grouped(questions, lambda each: each.compiled_with, together)
    for task, answers in completed(client, partial(_answers, work), tasks):
        if answers is None:
            raise EngineError(f"every worker that tried it was ended by {task[0].label}")
        yield from zip(task, of_these_numerics(answers), strict=True)
