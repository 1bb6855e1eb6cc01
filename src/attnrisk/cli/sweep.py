"""`attnrisk sweep`."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from . import options, render
from .command import REPRODUCE, command

if TYPE_CHECKING:
    from .progress import Report


@command(
    REPRODUCE,
    "reading the study",
    options.argument("file", "A study, as TOML.", "FILE", read=Path),
    options.STORE,
    options.flag("status", "Say what is there, and compute nothing."),
    options.choice(
        "export", "Write what is there into a file, and compute nothing.", ("csv", "nc"), None
    ),
    options.out("The file of --export; if not given, named after the study.", None),
    options.SCHEDULER,
    options.whole("workers", "Local processes; if not given, one per core.", 1, 10_000, None),
    options.flag("retry", "Ask those again that failed."),
    interrupt=nullcontext,
)
def sweep(
    file: Path,
    store: Path | None,
    status: bool,
    export: str | None,
    out: Path | None,
    scheduler: str | None,
    workers: int | None,
    retry: bool,
    report: Report,
) -> render.Shown:
    """Ask one question at every point of a study; interrupted at any time, it resumes where it stopped.

    Example: attnrisk sweep examples/attentions.toml --store answers.sqlite
    """
    from .. import studies
    from .._check import refuse

    begun = time.perf_counter()
    if out is not None and export is None:
        raise refuse("out", repr(str(out)), "left out where nothing is exported")
    if retry and (status or export):
        raise refuse("retry", "given", "left out where nothing is computed")
    if scheduler is not None and workers is not None:
        raise refuse("workers", workers, "left out where a scheduler is given: it has its own")
    if not file.is_file():
        raise refuse("file", repr(str(file)), "a file that is there")
    written = out or (export and options.writable_file(f"{file.stem}.{export}"))
    study = studies.read_study(file)
    stopped = False
    with studies.Store(store or studies.default_place()) as answers:
        if export is not None:
            studies.export(study, answers, str(written), export)
        elif not status:
            if retry:
                studies.retry(study, answers)
            try:
                progress = _with_rate(report)
                studies.sweep(
                    study, answers, scheduler=scheduler, workers=workers, progress=progress
                )
            except KeyboardInterrupt:
                stopped = True
        now, numerics = studies.status(study, answers), study.numerics
        kept = answers.numerics(study.question)
        place = str(answers.path)
    others = sum(rows for kind, rows in kept.items() if kind != numerics)
    fields = {
        "question": study.question,
        **render.picked(now, "points", "done", "failed", "unconverged", "missing"),
        "store": place,
        "numerics": numerics,
        "rows_of_other_numerics": others,
        **({"file": str(written)} if written else {}),
        "seconds": time.perf_counter() - begun,
    }
    rows = {
        "answered": f"{now.done} of {now.points} points",
        "failed": str(now.failed),
        "not converged": str(now.unconverged),
        "missing": str(now.missing),
        "store": place,
        "other numerics": f"{others} rows, kept and not used" if others else None,
        "written": str(written) if written else None,
    }
    note = "Interrupted: run the same command again to go on" if stopped else ""
    return render.Shown(fields, [render.facts(f"{study.question}, {file.name}", rows)], note)


def _with_rate(report: Report) -> Report:
    """Also the rate, for someone at a terminal."""
    begun, first = time.perf_counter(), []

    def told(failures: str, done: int, total: int) -> None:
        first.append(done)
        rate = (done - first[0]) / (time.perf_counter() - begun)
        shown = f"{rate:.3g} points/s" if rate else "starting"
        report(f"{shown}, {failures}", done, total)

    return told
