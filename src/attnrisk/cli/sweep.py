"""`attnrisk sweep`."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from . import options, render
from .command import REPRODUCE, command

if TYPE_CHECKING:
    from ..studies import Status
    from ..studies.engine import Watch
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
    from ..studies.numerics import fingerprint

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
                watch = _watching(report)
                studies.sweep(study, answers, scheduler=scheduler, workers=workers, watch=watch)
            except KeyboardInterrupt:
                stopped = True
        now = studies.status(study, answers)
        kept = answers.numerics()
        place = str(answers.path)
    others = sum(rows for kind, rows in kept.items() if kind != fingerprint())
    fields = {
        "question": study.question,
        **render.picked(now, "points", "done", "failed", "unconverged", "missing"),
        "store": place,
        "numerics": fingerprint(),
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


def _watching(report: Report) -> Watch:
    """Rate and failures so far, for someone at a terminal."""
    begun, first = time.perf_counter(), []

    def watch(now: Status) -> None:
        first.append(now.done)
        rate = (now.done - first[0]) / (time.perf_counter() - begun)
        shown = f"{rate:.3g} points/s" if rate else "starting"
        failures = f"{now.failed} failed, {now.unconverged} not converged"
        report(f"{shown}, {failures}", now.done, now.points)

    return watch
