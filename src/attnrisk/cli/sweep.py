"""`attnrisk sweep`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import INTERRUPTED, Json, Scheduler, StorePlace, read_whole
from .output import facts, print_json, print_rich

if TYPE_CHECKING:
    from ..studies import Store, Study
    from ..studies.execute import Progress as Report

_MOST_WORKERS = 10_000

File = Annotated[Path, typer.Argument(metavar="FILE", help="A study, as TOML.")]
ShowStatus = Annotated[
    bool, typer.Option("--status", help="Say what is there, and compute nothing.")
]
Export = Annotated[
    str | None,
    typer.Option(
        metavar="csv|nc",
        help="Write what is there into a file, and compute nothing.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The file of --export; if not given, named after the study.",
        show_default=False,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER", help="Local processes; if not given, one per core.", show_default=False
    ),
]
Retry = Annotated[bool, typer.Option("--retry", help="Ask those again that failed.")]


def sweep(
    file: File,
    store: StorePlace = None,
    show_status: ShowStatus = False,
    export: Export = None,
    out: Out = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    retry: Retry = False,
    as_json: Json = False,
) -> None:
    """Ask one question at every point of a study; stopped at any moment, it goes on where it was.

    Example: attnrisk sweep examples/attentions.toml --store answers.sqlite
    """
    from .. import studies

    begun = time.perf_counter()
    count = None if workers is None else read_whole("workers", workers, 1, _MOST_WORKERS)
    _check_options(export, out, scheduler, workers)
    study = studies.read_study(_existing(file))
    with studies.Store(store or studies.default_place()) as answers:
        stopped, files = False, {}
        if export is not None:
            files["file"] = str(out or f"{file.stem}.{export}")
            studies.export(study, answers, files["file"], export)
        elif not show_status:
            if retry:
                studies.retry(study, answers)
            stopped = _run(study, answers, scheduler, count)
        fields = _fields(study, answers) | files | {"seconds": time.perf_counter() - begun}
    if as_json:
        print_json(fields)
    else:
        print_rich(_panel(file, fields))
    if stopped:
        typer.echo("Interrupted: run the same command again to go on", err=True)
        raise typer.Exit(INTERRUPTED)


def _existing(file: Path) -> Path:
    from .._check import refuse

    if not file.is_file():
        raise refuse("file", repr(str(file)), "a file that is there")
    return file


def _check_options(
    export: str | None, out: Path | None, scheduler: str | None, workers: str | None
) -> None:
    from .._check import one_of, refuse
    from ..studies.results import FORMATS

    if export is not None:
        one_of("export", export, FORMATS)
    elif out is not None:
        raise refuse("out", repr(str(out)), "left out where nothing is exported")
    if scheduler is not None and workers is not None:
        raise refuse("workers", workers, "left out where a scheduler is given: it has its own")


def _run(study: Study, store: Store, scheduler: str | None, workers: int | None) -> bool:
    """Ask what is missing; whether Ctrl-C came before the end."""
    from .. import studies

    try:
        with _progress() as report:
            studies.sweep(study, store, scheduler=scheduler, workers=workers, progress=report)
    except KeyboardInterrupt:
        return True
    return False


def _fields(study: Study, store: Store) -> dict[str, Any]:
    from ..studies import status

    now, numerics = status(study, store), study.points[0].numerics
    kept = store.numerics(study.question)
    others = sum(rows for kind, rows in kept.items() if kind != numerics)
    return {
        "question": study.question,
        "points": now.points,
        "done": now.done,
        "failed": now.failed,
        "unconverged": now.unconverged,
        "missing": now.missing,
        "store": str(store.path),
        "numerics": numerics,
        "rows_of_other_numerics": others,
    }


def _panel(file: Path, fields: dict[str, Any]) -> Any:
    rows = {
        "answered": f"{fields['done']} of {fields['points']} points",
        "failed": str(fields["failed"]),
        "not converged": str(fields["unconverged"]),
        "missing": str(fields["missing"]),
        "store": fields["store"],
    }
    if fields["rows_of_other_numerics"]:
        rows["other numerics"] = f"{fields['rows_of_other_numerics']} rows, kept and not used"
    if "file" in fields:
        rows["written"] = fields["file"]
    return facts(f"{fields['question']}, {file.name}", rows)


@contextmanager
def _progress() -> Iterator[Report]:
    """Points done, rate, time left and failures so far, for someone at a terminal."""
    if not sys.stderr.isatty():
        yield lambda failures, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    progress = Progress(
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failures]}"),
        console=Console(stderr=True),
        transient=True,
    )
    job = progress.add_task("", total=None, rate="", failures="")
    begun, first = time.perf_counter(), []

    def report(failures: str, done: int, total: int) -> None:
        first.append(done)
        rate = (done - first[0]) / (time.perf_counter() - begun)
        shown = f"{rate:.3g} points/s" if rate else "starting"
        progress.update(job, completed=done, total=total, rate=shown, failures=failures)

    with progress:
        yield report
