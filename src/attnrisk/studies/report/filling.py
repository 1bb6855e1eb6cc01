"""All that the report asks, answered into the store: by two processes, or by the workers of a cluster.

Most of the time of a first report goes into compiling, of which a good part holds the interpreter's lock: threads would
wait for one another. What shares compiled code is asked by one process.
"""

import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from .. import figures
from ..figures.asking import Asking
from ..store import Store
from .claims import DRAW, Measured, measured
from .sequence import sequence
from .tables import headline, standings

if TYPE_CHECKING:
    from distributed import Client

Part = Callable[[bool, Asking], object]


def _figure(name: str) -> Part:
    return lambda quick, ask: figures.compute(name, quick, ask)


PARTS: dict[str, Part] = {f"figure {name}": _figure(name) for name in figures.NAMES} | {
    "headline": lambda quick, ask: headline(ask),
    "league": standings,
    "sequence": lambda quick, ask: sequence(ask),
    "test set": lambda quick, ask: ask(measured, [DRAW], Measured),
}
SHARES = (
    ("figure 3", "figure 7", "figure 6", "test set", "figure phases"),
    ("figure 2", "headline", "figure haystack", "sequence", "figure 5", "figure 4", "league"),
)


def fill(store: Path, quick: bool, ask: Asking) -> None:
    """Answer what the store lacks; stopped at any moment, the next report goes on from there."""
    with ExitStack() as pools:
        jobs = (
            _by_processes(store, quick, pools)
            if ask.client is None
            else _by_cluster(store, quick, ask, pools)
        )
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            if ask.progress is not None:
                ask.progress(jobs[job], done, len(jobs))


def _by_processes(store: Path, quick: bool, pools: ExitStack) -> dict[Future[None], str]:
    jobs: dict[Future[None], str] = {}
    for share in SHARES:
        pool = ProcessPoolExecutor(1, get_context("spawn"), signal.signal, _LEFT_ALONE)
        pools.push(lambda *_, pool=pool: _end(pool))
        jobs |= {pool.submit(_answer, part, store, quick): part for part in share}
    return jobs


def _by_cluster(store: Path, quick: bool, ask: Asking, pools: ExitStack) -> dict[Future[None], str]:
    """All parts at once, each in a thread that waits for the workers."""
    parts = [part for share in SHARES for part in share]
    pool = ThreadPoolExecutor(len(parts))
    pools.callback(pool.shutdown, wait=False, cancel_futures=True)
    return {pool.submit(_answer, part, store, quick, ask.client): part for part in parts}


_LEFT_ALONE = signal.SIGINT, signal.SIG_IGN  # Ctrl-C is for the process that waits


def _end(pool: ProcessPoolExecutor) -> None:
    """At once: what is being computed is asked again next time."""
    for process in list(pool._processes.values()):
        process.kill()
    pool.shutdown(cancel_futures=True)


def _answer(part: str, store: Path, quick: bool, client: "Client | None" = None) -> None:
    with Store(store) as answers:
        PARTS[part](quick, Asking(answers, client=client))
