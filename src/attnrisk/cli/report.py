"""`attnrisk report`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Scheduler, StorePlace
from .output import print_json
from .progress import working

# Much of a first report is compilation, which holds the interpreter's lock: processes, not threads.
_PROCESSES = 2


def report(
    full: Annotated[
        bool, typer.Option("--full", help="At the paper's size: some hours on two cores, once.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The page; its folder is made if missing.")
    ] = Path("build/report/report.html"),
    store: StorePlace = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Write one page that walks from the question to the answer, with every figure and every number computed.

    Example: attnrisk report --out report.html
    """
    begun = time.perf_counter()
    with working("report") as tell:
        from .._check import refuse
        from ..studies.execute import session
        from ..studies.report import write_report

        if out.is_dir():
            raise refuse("out", repr(str(out)), "a file, or a name that is free")
        with session(store, tell, scheduler, workers=_PROCESSES) as ask:
            write_report(out, not full, ask)
    if as_json:
        print_json({"file": str(out), "seconds": time.perf_counter() - begun})
    else:
        typer.echo(str(out))
