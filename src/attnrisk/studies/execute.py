"""Execution of questions in threads of this process, in local processes, or on a Dask cluster.

Only the calling process writes to the store. Questions that share compiled code go to a
worker together, so that it compiles once.
"""

import json
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from .._compile_cache import release_compiled_code
from .._results import Result
from .cluster import EngineError, completed, connected
from .fingerprint import versions
from .question import AbstractQuestion, Answer, Record, is_converged
from .store import FAILED, Row, Store, default_place, not_numbers

if TYPE_CHECKING:
    from distributed import Client

_FACTOR = 8  # larger tasks than those of a sweep: most of the work of a figure is compilation, which workers repeat
# Compiled code runs outside the interpreter's lock, and threads share what they compile. An integral keeps one core
# busy, and more of them would compete for memory.
_THREADS = 2
_NOTHING_COMPILED = 0.1  # seconds of questions that compile nothing

Progress = Callable[[str, int, int], None]
Ask = Callable[[Iterable[AbstractQuestion]], list[Any]]  # a `Session`, or what stands in for one
_L = TypeVar("_L")
_T = TypeVar("_T")
_Question = TypeVar("_Question", bound=AbstractQuestion)


class Backend(Protocol):
    """Computes results in any order."""

    def run(self, questions: Sequence[AbstractQuestion]) -> Iterator[list[Row]]:
        """Yield rows of all questions as they are computed."""


class Threads:
    """Compute in threads of this process."""

    def run(self, questions: Sequence[AbstractQuestion]) -> Iterator[list[Row]]:
        """One question at a time. Neighbours share no compiled code, so no two threads compile the same function."""
        jobs = [(batch, partial(answer, batch)) for batch in batches(questions, 1)]
        for _, rows in in_threads(jobs):
            yield rows


class Workers:
    """Compute in local processes or on the workers of a Dask scheduler; they start when first needed."""

    def __init__(
        self,
        scheduler: str | None = None,
        workers: int | None = None,
        factor: int = 1,
        turns: bool = True,
        seconds: float | None = None,
    ):
        self._where, self._cut = (scheduler, workers), partial(batches, factor=factor, turns=turns)
        self._seconds = seconds
        self._opened = ExitStack()
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def run(self, questions: Sequence[AbstractQuestion]) -> Iterator[list[Row]]:
        """Compute in batches; a question that kills every worker that tries it is recorded as failed.

        After `seconds` it stops.
        """
        tasks = self._cut(questions)
        if self._client is None:
            self._client = self._opened.enter_context(connected(*self._where, len(tasks)))
        for asked, rows in completed(self._client, answer, tasks, self._seconds):
            if rows is None:
                yield [_failure(asked[0], "it ended every worker that tried it", 0.0)]
                continue
            for question, row in zip(asked, rows, strict=True):
                if row.numerics != question.numerics:
                    raise EngineError(
                        f"the worker on {row.host} has other numerics ({row.numerics}) than this process "
                        f"({question.numerics}): install one version of attnrisk on both"
                    )
            yield rows


def in_threads(jobs: Iterable[tuple[_L, Callable[[], _T]]]) -> Iterator[tuple[_L, _T]]:
    """Yield the results of the functions, each with its label, as they finish."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        labels = {pool.submit(job): label for label, job in jobs}
        for job in as_completed(labels):
            yield labels[job], job.result()
    finally:
        pool.shutdown(cancel_futures=True)


def execute(
    questions: Iterable[AbstractQuestion],
    backend: Backend | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    retry: bool = False,
) -> Iterator[Row]:
    """Yield the rows of all questions: first those in the store, then the others as they are computed and stored.

    A question that raises an exception gives a failed row; with `retry`, failed rows of the store are computed again,
    and rows that are not the answer of a question always are. `progress` is called with the label of the last result,
    or of the first to come, the number of results and the total. The default backend uses threads. An interrupted
    computation continues from the store.
    """
    asked = {question.address: question for question in questions}
    found = {} if store is None else store.find(asked)
    again = {
        address
        for address, row in found.items()
        if (retry and row.failed) or not (row.sound and row.inputs == _as_stored(asked[address]))
    }
    if store is not None and again:
        store.forget(again)
        found = {address: row for address, row in found.items() if address not in again}
    done = len(found)
    if progress is not None:
        progress("found in the store", done, len(asked))
    missing = [question for address, question in asked.items() if address not in found]
    yield from found.values()
    if not missing:
        return
    if store is not None:
        store.check_writable()
    if progress is not None:
        progress(f"computing {missing[0].label}", done, len(asked))
    for rows in (backend or Threads()).run(missing):
        if store is not None:
            store.add(rows)
        for row in rows:
            done += 1
            if progress is not None:
                progress(asked[row.address].label, done, len(asked))
            yield row


def _as_stored(question: AbstractQuestion) -> dict[str, Any]:
    """The inputs as JSON has them, where tuples are lists."""
    return dict(json.loads(json.dumps(question.inputs)))


class Session:
    """A backend, a store and a progress display, shared by several computations; results are also kept in memory."""

    def __init__(
        self,
        store: Store | None = None,
        progress: Progress | None = None,
        backend: Backend | None = None,
    ):
        self.store, self.progress, self.backend = store, progress, backend
        self._rows: dict[str, Row] = {}

    def __call__(self, questions: Iterable[AbstractQuestion]) -> list[Any]:
        """The answers in the order of the questions: a record, or a list of records, for each.

        Where one failed the others are computed and stored first, then an error says why.
        """
        asked = [(question.address, question) for question in questions]
        new = [question for address, question in asked if address not in self._rows]
        failed = []
        if new:
            for row in execute(new, self.backend, self.store, self.progress, retry=True):
                if row.failed:
                    failed.append(row)
                else:
                    self._rows[row.address] = row
        if failed:
            raise EngineError(f"{failed[0].question} {failed[0].inputs} {failed[0].result}")
        return [self._rows[address].answer for address, _ in asked]


@contextmanager
def session(
    store: Path | None,
    progress: Progress | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
) -> Iterator[Session]:
    """With the store at this place or the default one; in threads unless a scheduler or `workers` are given."""
    with ExitStack() as opened:
        answers = opened.enter_context(Store(store or default_place()))
        if scheduler is None and workers is None:
            yield Session(answers, progress)
        else:
            backend = opened.enter_context(Workers(scheduler, workers, _FACTOR))
            yield Session(answers, progress, backend)


def batches(
    questions: Iterable[_Question], most: int | None = None, factor: int = 1, turns: bool = True
) -> list[list[_Question]]:
    """Tasks of questions that share compiled code, at most `batch` (or `most`) in each; groups take `turns`, or follow
    one another.

    Where several make one task, `factor` times as many do.
    """
    groups: dict[Any, list[_Question]] = {}
    for each in questions:
        groups.setdefault((type(each), each.compiled_with), []).append(each)
    cut = []
    for group in groups.values():
        size = group[0].batch
        size = most or (size * factor if size > 1 else 1)
        cut.append([group[start : start + size] for start in range(0, len(group), size)])
    ordered = zip_longest(*cut) if turns else cut
    return [batch for batch in chain.from_iterable(ordered) if batch is not None]


def answer(questions: Sequence[AbstractQuestion]) -> list[Row]:
    """The rows of questions of one kind; an exception gives a failed row. This is the function that a worker runs."""
    rows = _answers(questions)
    if sum(row.seconds for row in rows) > _NOTHING_COMPILED:
        release_compiled_code()
    return rows


def _answers(questions: Sequence[AbstractQuestion]) -> list[Row]:
    begun, first, alone = time.perf_counter(), questions[0], len(questions) == 1
    try:
        answers = [first.answer()] if alone else type(first).answer_all(questions)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if alone:  # it becomes the result of this question, and the others go on
            return [_failure(first, why, time.perf_counter() - begun)]
        rows = [row for question in questions for row in _answers([question])]
        if not any(row.failed for row in rows):
            said = (
                f"{len(questions)} questions were answered one by one, since together they raised"
            )
            warnings.warn(f"{said} {why}", RuntimeWarning, stacklevel=2)
        return rows
    seconds = (time.perf_counter() - begun) / len(questions)
    return [row_of(*each, seconds) for each in zip(questions, answers, strict=True)]


def row_of(question: AbstractQuestion, found: Answer, seconds: float) -> Row:
    """The row of an answer computed here; an answer that says converged and has no number has failed."""
    records = found if isinstance(found, list) else [found]
    results = [str(each.get("result", Result.CONVERGED)) for each in records]
    result = next((each for each in results if not is_converged(each)), results[0])
    converged = is_converged(result)
    missing = not_numbers(records)
    if missing and converged:
        return _failure(question, f"{missing[0]} is not a number", seconds)
    if isinstance(found, list):
        return _stored(question, {"rows": found}, result, converged, seconds)
    kept = {"result", "converged", *question.inputs}
    outputs = {name: value for name, value in found.items() if name not in kept}
    return _stored(question, outputs, result, converged, seconds)


def _failure(question: AbstractQuestion, why: str, seconds: float) -> Row:
    return _stored(question, {}, " ".join(f"{FAILED}: {why}".split()), False, seconds)


def _stored(
    question: AbstractQuestion, outputs: Record, result: str, converged: bool, seconds: float
) -> Row:
    return Row(
        question.address,
        question.kind,
        question.numerics,
        question.inputs,
        outputs,
        result,
        converged,
        versions(),
        seconds,
        platform.node(),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
