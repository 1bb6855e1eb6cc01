"""A sign of life on standard error, for someone who waits at a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

_PATIENCE = 1.0  # seconds before there is anything to see

Report = Callable[[str, int, int], None]


@contextmanager
def working(what: str) -> Iterator[Report]:
    """Show `what` and the time it takes; the function given reports what is next, and how much of it is done."""
    if not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    job = progress.add_task(what, total=None)
    timer = Timer(_PATIENCE, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda label, done, total: progress.update(
            job, description=label, completed=done, total=total
        )
    finally:
        timer.cancel()
        timer.join()  # it may be starting the display just now
        progress.stop()
