"""Computation in many processes, of this machine or of a Dask cluster."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, current_process, resource_tracker
from threading import Timer, current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeVar

from .._check import refuse

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

_CONNECTING = 10.0  # seconds to find a scheduler
_ARRIVING = 60.0  # seconds until it has a worker; if those of a queue are later, one can ask again
_CLOSING = 1.0  # seconds that busy workers are given to end
_POLLING = 0.1  # seconds between two looks
_GUARD = 'each one imports the script that starts it, which must sweep under `if __name__ == "__main__":`'

_T = TypeVar("_T")
_R = TypeVar("_R")


class EngineError(OSError):
    """The workers cannot be used; results computed before are in the store."""


@contextmanager
def connected(
    scheduler: str | None, workers: int | None = None, most: int = 2**16
) -> Iterator["Client"]:
    """A client of a running scheduler, or of local processes that end with this context."""
    with _local(workers, most) if scheduler is None else _remote(scheduler) as client:
        try:
            client.wait_for_workers(1, timeout=_ARRIVING)
        except TimeoutError:
            why = f"no worker has come within {_ARRIVING:.0f} s: start some first"
            raise EngineError(why) from None
        yield client


def completed(
    client: "Client",
    work: Callable[[list[_T]], _R],
    tasks: Iterable[list[_T]],
    seconds: float | None = None,
) -> Iterator[tuple[list[_T], _R | None]]:
    """Yield each task with the result of `work`, as they complete; `None` if the task killed every worker.

    After `seconds`, if given, the remaining tasks are cancelled.
    """
    from distributed import KilledWorker, as_completed

    def submit(task: list[_T]) -> "Future":
        return client.submit(work, task, pure=False)

    asked = {submit(task): task for task in tasks}
    coming = as_completed(list(asked), loop=client.loop, timeout=seconds)
    for future in _until_timeout(coming):
        task = asked.pop(future)
        error = future.exception() if future.status == "error" else None
        if error is None:
            yield task, _gathered(future)
        elif not isinstance(error, KilledWorker):
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise EngineError(f"the workers cannot answer: {why}")
        elif len(task) == 1:
            yield task, None
        else:  # one of them did it: each alone
            for part in task:
                alone = submit([part])
                asked[alone] = [part]
                coming.add(alone)


def _until_timeout(coming: Iterable["Future"]) -> Iterator["Future"]:
    try:
        yield from coming
    except TimeoutError:
        return


def _gathered(future: "Future") -> Any:
    try:
        return future.result()
    except (OSError, CancelledError) as error:
        raise EngineError(f"the scheduler went away ({type(error).__name__}: {error})") from error


def _remote(scheduler: str) -> "Client":
    """Of a scheduler that answers: a client that failed to connect can hang when it is garbage-collected."""
    from distributed import Client
    from distributed.comm.core import connect

    async def reach() -> None:
        await (await connect(scheduler, timeout=_CONNECTING)).close()

    with ThreadPoolExecutor(1) as thread:  # this one may have an event loop of its own
        try:
            thread.submit(lambda: asyncio.run(reach())).result()
        except (OSError, ValueError) as error:
            allowed = f"the address of a running Dask scheduler ({' '.join(str(error).split())})"
            raise refuse("scheduler", repr(scheduler), allowed) from None
    return Client(scheduler, timeout=_CONNECTING, set_as_default=False)


@contextmanager
def _local(workers: int | None, most: int) -> Iterator["Client"]:
    from dask.system import CPU_COUNT
    from distributed import Client

    if getattr(current_process(), "_inheriting", False):
        raise EngineError(f"a worker that is starting has no workers: {_GUARD}")
    others = set(active_children())

    def kill() -> None:
        for child in set(active_children()) - others:
            child.kill()

    with _terminable():
        cluster = _start(min(most, workers or CPU_COUNT), kill)
        impatient = Timer(_CLOSING, kill)
        try:
            with Client(cluster, set_as_default=False) as client:
                yield client
        finally:
            impatient.start()
            cluster.close()
            impatient.cancel()


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises an exception, so that workers and their semaphores are released."""
    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if current_thread() is not main_thread() or not default:
        yield
        return

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _start(workers: int, kill: Callable[[], None]) -> "LocalCluster":
    """A cluster whose processes ignore Ctrl-C; this process handles it, also while they start."""
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
        except RuntimeError as error:
            raise EngineError(f"no local worker could start ({error}): {_GUARD}") from None
        except KeyboardInterrupt:
            while not starting.done():
                kill()
                wait([starting], timeout=_POLLING)
            if starting.exception() is None:
                starting.result().close()
            raise
