"""`attnrisk report`."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from . import options
from .command import REPRODUCE, command
from .render import Shown

if TYPE_CHECKING:
    from .progress import Report

# Much of a first report is compilation, which holds the interpreter's lock: processes, not threads.
_PROCESSES = 2


@command(
    REPRODUCE,
    "report",
    options.flag("full", "At the paper's size: some hours on two cores, once."),
    options.out("The page; its folder is made if missing.", "build/report/report.html"),
    options.STORE,
    options.SCHEDULER,
    interrupt=nullcontext,
)
def report(
    full: bool, out: Path, store: Path | None, scheduler: str | None, report: Report
) -> Shown:
    """Write one page that walks from the question to the answer, with every figure and every number computed.

    Example: attnrisk report --out report.html
    """
    from ..studies.execute import session
    from ..studies.report import write_report

    begun = time.perf_counter()
    with session(store, report, scheduler, workers=_PROCESSES) as ask:
        write_report(out, not full, ask)
    return Shown({"file": str(out), "seconds": time.perf_counter() - begun}, [str(out)])
