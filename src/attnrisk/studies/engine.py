"""The engine: the points of a study that have no answer yet, asked in many processes, and kept as they come.

Workers compute and never see the store; this process alone writes. Points that share compiled code travel together,
so that a worker compiles once and not once a point; where their question allows it, they are one call.
"""

import platform
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .cluster import EngineError, completed, connected
from .numerics import fingerprint, versions
from .questions import QUESTIONS, Answer, Question, arguments, compiled_with, lacking
from .store import Row, Store
from .study import Point, Study

if TYPE_CHECKING:
    from distributed import Client

FAILED = "failed"
_T = TypeVar("_T")


class Status(NamedTuple):
    """What the store holds of a study: points with an answer, those of them that are none, and those that doubt."""

    points: int
    done: int
    failed: int
    unconverged: int

    @property
    def missing(self) -> int:
        """Points not asked yet."""
        return self.points - self.done


Watch = Callable[[Status], None]


def status(study: Study, store: Store) -> Status:
    """What is there."""
    return _counted(Status(len(study), 0, 0, 0), rows_of(study, store).values())


def rows_of(study: Study, store: Store) -> dict[str, Row]:
    """The rows of the study that are there, by address."""
    return store.find(point.address for point in study.points)


def retry(study: Study, store: Store) -> None:
    """Forget the points that failed, so that a sweep asks them again."""
    store.forget(address for address, row in rows_of(study, store).items() if row.failed)


def sweep(
    study: Study,
    store: Store,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
) -> Status:
    """Ask every point that has no answer yet, on `workers` local processes or on the cluster of a Dask `scheduler`.

    `watch` is told how far it is, after every batch. Stopped at any moment, a sweep goes on where it was.
    """
    store.check_writable()
    found = rows_of(study, store)
    missing = [point for point in study.points if point.address not in found]
    now = _counted(Status(len(study), 0, 0, 0), found.values())
    if watch is not None:
        watch(now)
    if not missing:
        return now
    question = QUESTIONS[study.question]
    tasks = batches(question, missing)
    with connected(scheduler, workers, len(tasks)) as client:
        for rows in _answers(client, question, tasks):
            store.add(rows)
            now = _counted(now, rows)
            if watch is not None:
                watch(now)
    return now


def _counted(before: Status, rows: Iterable[Row]) -> Status:
    rows = list(rows)
    failed = sum(row.failed for row in rows)
    doubtful = sum(not row.converged for row in rows) - failed
    return Status(
        before.points,
        before.done + len(rows),
        before.failed + failed,
        before.unconverged + doubtful,
    )


def batches(question: Question, points: Iterable[Point]) -> list[list[Point]]:
    """The tasks of an engine."""
    return grouped(points, lambda point: compiled_with(point.inputs), question.together)


def grouped(asked: Iterable[_T], key: Callable[[_T], Hashable], together: int) -> list[list[_T]]:
    """What shares compiled code, in tasks of at most so many; those that share none take turns."""
    groups: dict[Hashable, list[_T]] = {}
    for each in asked:
        groups.setdefault(key(each), []).append(each)
    cut: list[Sequence[list[_T]]] = [
        [group[start : start + together] for start in range(0, len(group), together)]
        for group in groups.values()
    ]
    return [batch for batch in chain.from_iterable(zip_longest(*cut)) if batch is not None]


def answer(question: Question, points: list[Point]) -> list[Row]:
    """The rows of these points; a point that raises is a row that says so. This is what a worker runs."""
    if question.ask_all is None or len(points) == 1:
        return [_answer(question, point) for point in points]
    begun = time.perf_counter()
    try:
        answers = question.ask_all([arguments(question, point.inputs) for point in points])
    except Exception as error:  # which of them it is shows when each is asked alone
        rows = [_answer(question, point) for point in points]
        if not any(row.failed for row in rows):
            why = f"{len(points)} points were asked one by one, since together they raised"
            warnings.warn(f"{why} {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
        return rows
    seconds = (time.perf_counter() - begun) / len(points)
    return [_row(*each, seconds) for each in zip(points, answers, strict=True)]


def _answer(question: Question, point: Point) -> Row:
    begun = time.perf_counter()
    try:
        found = question.ask(**arguments(question, point.inputs))
    except Exception as error:  # it becomes the result of this point, and the others go on
        why = f"{type(error).__name__}: {error}"
        return _failure(point, why, time.perf_counter() - begun)
    return _row(point, found, time.perf_counter() - begun)


def _row(point: Point, found: Answer, seconds: float) -> Row:
    absent = lacking(found)
    if absent and found["converged"]:
        return _failure(point, f"{absent[0]} is not a number", seconds)
    outputs = {name: value for name, value in found.items() if name not in ("result", "converged")}
    return row_of(point, outputs, found["result"], found["converged"], seconds)


def _failure(point: Point, why: str, seconds: float) -> Row:
    return row_of(point, {}, " ".join(f"{FAILED}: {why}".split()), False, seconds)


def row_of(
    point: Point, outputs: dict[str, Any], result: str, converged: bool, seconds: float
) -> Row:
    """An answer of this process to a point, which took it so many seconds."""
    return Row(
        point.address,
        point.question,
        fingerprint(),
        point.inputs,
        outputs,
        result,
        converged,
        versions(),
        seconds,
        platform.node(),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _answers(
    client: "Client", question: Question, tasks: Iterable[list[Point]]
) -> Iterator[list[Row]]:
    """What the workers answer, as it comes; a point that ends them is a failure."""
    for points, rows in completed(client, partial(answer, question), tasks):
        if rows is None:
            yield [_failure(points[0], "it ended every worker that tried it", 0.0)]
        else:
            yield of_these_numerics(rows)


def of_these_numerics(rows: list[Row]) -> list[Row]:
    """The rows, unless the worker has another version of the code than this process."""
    for row in rows:
        if row.numerics != fingerprint():
            raise EngineError(
                f"the worker on {row.host} has other numerics ({row.numerics}) than this process "
                f"({fingerprint()}): install one version of attnrisk on both"
            )
    return rows
