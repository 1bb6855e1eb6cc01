"""The engine: the points of a study that have no answer yet, asked in many processes, and kept as they come.

Workers compute and never see the store; this process alone writes. Points that share compiled code travel together,
so that a worker compiles once and not once a point.
"""

import asyncio
import logging
import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, zip_longest
from multiprocessing import active_children, resource_tracker
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

from .._check import refuse
from .numerics import fingerprint, versions
from .questions import QUESTIONS, Question, arguments, compiled_with, lacking
from .store import Row, Store
from .study import Point, Study

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

_CONNECTING = 10.0  # seconds to find a scheduler
_ARRIVING = 60.0  # seconds until it has a worker: those of a queue may be late, but then the sweep can be run again
_CLOSING = 1.0  # seconds that busy workers are given to end
_POLLING = 0.1  # seconds between two looks

FAILED = "failed"


class EngineError(OSError):
    """The workers cannot be used, said in one line; what they had answered before is in the store."""


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
    with _client(scheduler, workers, len(tasks)) as client:
        _await_worker(client)
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
    """Points that share compiled code, cut into tasks; those that share none take turns."""
    groups: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        groups.setdefault(compiled_with(point.inputs), []).append(point)
    cut = [
        [
            group[start : start + question.together]
            for start in range(0, len(group), question.together)
        ]
        for group in groups.values()
    ]
    return [batch for batch in chain.from_iterable(zip_longest(*cut)) if batch is not None]


def answer(question: Question, points: list[Point]) -> list[Row]:
    """The rows of these points; a point that raises is a row that says so. This is what a worker runs."""
    return [_answer(question, point) for point in points]


def _answer(question: Question, point: Point) -> Row:
    begun = time.perf_counter()
    try:
        found = question.ask(**arguments(question, point.inputs))
    except Exception as error:  # it becomes the result of this point, and the others go on
        return _failure(point, f"{type(error).__name__}: {error}", begun)
    absent = lacking(found)
    if absent and found["converged"]:
        return _failure(point, f"{absent[0]} is not a number", begun)
    outputs = {name: value for name, value in found.items() if name not in ("result", "converged")}
    return row_of(point, outputs, found["result"], found["converged"], begun)


def _failure(point: Point, why: str, begun: float) -> Row:
    return row_of(point, {}, " ".join(f"{FAILED}: {why}".split()), False, begun)


def row_of(
    point: Point, outputs: dict[str, Any], result: str, converged: bool, begun: float
) -> Row:
    """An answer of this process to a point, on which it `begun` at a value of `time.perf_counter`."""
    return Row(
        point.address,
        point.question,
        fingerprint(),
        point.inputs,
        outputs,
        result,
        converged,
        versions(),
        time.perf_counter() - begun,
        platform.node(),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _answers(
    client: "Client", question: Question, tasks: Iterable[list[Point]]
) -> Iterator[list[Row]]:
    """What the workers answer, as it comes."""
    from distributed import KilledWorker, as_completed

    def submit(points: list[Point]) -> "Future":
        return client.submit(answer, question, points, pure=False)

    asked = {submit(points): points for points in tasks}
    coming = as_completed(list(asked), loop=client.loop)
    for future in coming:
        points, error = asked.pop(future), _error(future)
        if error is None:
            yield _of_these_numerics(_gathered(future))
        elif not isinstance(error, KilledWorker):
            raise EngineError(f"the workers cannot answer: {type(error).__name__}: {error}")
        elif len(points) == 1:
            yield [_failure(points[0], "it ended every worker that tried it", time.perf_counter())]
        else:  # one of them did it: each alone
            for point in points:
                alone = submit([point])
                asked[alone] = [point]
                coming.add(alone)


def _error(future: "Future") -> BaseException | None:
    """What kept a task from an answer; `None` where it has one, or where nobody is left to tell."""
    return future.exception() if future.status == "error" else None


def _gathered(future: "Future") -> list[Row]:
    try:
        return future.result()
    except (OSError, CancelledError) as error:
        raise EngineError(f"the scheduler went away ({type(error).__name__}: {error})") from error


def _of_these_numerics(rows: list[Row]) -> list[Row]:
    """The rows, unless the worker has another version of the code than this process."""
    for row in rows:
        if row.numerics != fingerprint():
            raise EngineError(
                f"the worker on {row.host} has other numerics ({row.numerics}) than this process "
                f"({fingerprint()}): install one version of attnrisk on both"
            )
    return rows


@contextmanager
def _client(scheduler: str | None, workers: int | None, most: int) -> Iterator["Client"]:
    """Of a running scheduler, or of processes that end with this context."""
    from distributed import Client

    if scheduler is None:
        with _local(workers, most) as client:
            yield client
        return
    _check_reachable(scheduler)
    with Client(scheduler, timeout=_CONNECTING, set_as_default=False) as client:
        yield client


def _await_worker(client: "Client") -> None:
    try:
        client.wait_for_workers(1, timeout=_ARRIVING)
    except TimeoutError:
        raise EngineError(
            f"no worker has come within {_ARRIVING:.0f} s: start some first"
        ) from None


def _check_reachable(scheduler: str) -> None:
    """Refuse an address where nobody answers: a client that failed to connect may hang when it is collected."""
    from distributed.comm.core import connect

    async def reach() -> None:
        await (await connect(scheduler, timeout=_CONNECTING)).close()

    with ThreadPoolExecutor(1) as thread:  # this one may have an event loop of its own
        try:
            thread.submit(lambda: asyncio.run(reach())).result()
        except (OSError, ValueError) as error:
            allowed = f"the address of a running Dask scheduler ({' '.join(str(error).split())})"
            raise refuse("scheduler", repr(scheduler), allowed) from None


@contextmanager
def _local(workers: int | None, most: int) -> Iterator["Client"]:
    from dask.system import CPU_COUNT
    from distributed import Client

    others = set(active_children())

    def kill() -> None:
        for child in set(active_children()) - others:
            child.kill()

    cluster = _start(min(most, workers or CPU_COUNT), kill)
    impatient = Timer(_CLOSING, kill)
    try:
        with Client(cluster, set_as_default=False) as client:
            yield client
    finally:
        impatient.start()
        cluster.close()
        impatient.cancel()


def _start(workers: int, kill: Callable[[], None]) -> "LocalCluster":
    """A cluster whose processes do not see Ctrl-C, which is for this one; here it is seen while they start."""
    from distributed import LocalCluster

    resource_tracker.ensure_running()  # which would lift the mask, were it started by the thread
    mask = signal.SIG_BLOCK, {signal.SIGINT}
    with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=mask) as thread:
        starting = thread.submit(
            LocalCluster,
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        )
        try:
            return starting.result()
        except KeyboardInterrupt:
            while not starting.done():
                kill()
                wait([starting], timeout=_POLLING)
            if starting.exception() is None:
                starting.result().close()
            raise
