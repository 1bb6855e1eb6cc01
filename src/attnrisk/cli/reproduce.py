"""Commands that store their results: `figure`, `report` and `sweep`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._check import Refusal, one_of, refuse
from .._files import replacement, writable_file
from . import options, render
from .command import REPRODUCE, command
from .interrupts import RESUMED, deferred, immediate

# Much of a first report is compilation, which holds the interpreter's lock: processes, not threads.
_PROCESSES = 2


def _read_name(name: str) -> str:
    from ..studies import figures

    return one_of("figure", name, figures.NAMES)


@command(
    REPRODUCE,
    "the figure",
    options.argument(
        "name",
        "Figure: 1 to 7, phases, samples, haystack, flow, basins, descent, prediction, heads, pruning, stages, flipped "
        "or specialise.",
        "NAME",
        read=_read_name,
    ),
    options.flag("quick", "Fewer points, to save time."),
    options.out("Output folder; created if missing.", "build/figures", folder=True),
    options.STORE,
    options.SCHEDULER,
)
def figure(args: Any) -> render.Shown:
    """Compute and draw a figure; print the names of the files.

    Example: attnrisk figure haystack --quick --out build/figures
    """
    from ..studies import figures
    from ..studies.execute import session

    with immediate(RESUMED), session(args.store, args.progress, args.scheduler) as ask:
        files = [str(file) for file in figures.draw(args.name, args.out, args.quick, ask)]
    return render.Shown({"figure": args.name, "files": files}, files)


@command(
    REPRODUCE,
    "report",
    options.flag("full", "All figures at the size of the paper; takes hours on two cores."),
    options.out(
        "HTML file to write; its folder is created if missing.", "build/report/report.html"
    ),
    options.STORE,
    options.SCHEDULER,
)
def report(args: Any) -> render.Shown:
    """Write one HTML page with the main results, figures and numbers.

    By default it takes about 90 seconds and leaves out learning curves, which --full adds. The interactive page
    explore.html is written to the same folder and embedded.

    Example: attnrisk report --out report.html
    """
    from ..page import make_page
    from ..studies.execute import session
    from ..studies.report import write_report

    begun, page = time.perf_counter(), args.out.with_name("explore.html")
    if args.out.name == page.name:
        raise refuse(
            "out", repr(str(args.out)), f"of another name: {page.name} is written beside it"
        )
    writable_file(str(page))
    where = args.store, args.progress, args.scheduler, _PROCESSES
    with immediate(RESUMED), session(*where) as ask:
        with replacement(page, "out") as part:
            part.write_text(make_page(), encoding="utf-8")
        write_report(args.out, not args.full, ask)
    file = str(args.out)
    return render.Shown({"file": file, "seconds": time.perf_counter() - begun}, [file])


@command(
    REPRODUCE,
    "reading the study",
    options.argument("file", "TOML file that describes the study.", "FILE", read=Path),
    options.STORE,
    options.flag("status", "Count the computed points, and compute nothing."),
    options.choice(
        "export", "Write the results to a file, and compute nothing.", ("csv", "nc"), None
    ),
    options.out("File for --export; by default named after the study.", None),
    options.WORKERS,
    options.flag("retry", "Compute failed points again."),
)
def sweep(args: Any) -> render.Shown:
    """Compute one quantity at every point of a parameter grid; resumes if interrupted.

    Example: attnrisk sweep examples/attentions.toml --store answers.sqlite
    """
    from .. import studies

    begun, file, export = time.perf_counter(), args.file, args.export
    if args.out is not None and export is None:
        raise refuse("out", repr(str(args.out)), "left out where nothing is exported")
    for name, is_idle in (("status", args.status), ("export", export)):
        if args.retry and is_idle:
            raise refuse("retry", "given", f"left out with --{name}, which computes nothing")
    if args.status and export:
        raise refuse("status", "given", "left out with --export")
    if not file.is_file():
        raise refuse("file", repr(str(file)), "a file that is there")
    written = args.out or (export and writable_file(f"{file.stem}.{export}"))
    try:
        study, stopped = studies.read_study(file), False
    except Refusal as error:
        raise Refusal(f"{file}: {error}") from None
    with studies.Store(args.store or studies.default_place()) as answers:
        if export is not None:
            studies.export(study, answers, str(written), export)
        elif not args.status:
            if args.retry:
                studies.retry(study, answers)
            try:
                with deferred(RESUMED) as check:
                    progress = _with_rate(args.progress, check)
                    studies.sweep(study, answers, **args.workers, progress=progress)
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
        "computed": f"{now.done} of {now.points} points",
        "failed": str(now.failed),
        "not converged": str(now.unconverged),
        "missing": str(now.missing),
        "store": place,
        "other code versions": f"{others} rows, kept and not used" if others else None,
        "written": str(written) if written else None,
    }
    shown = render.Shown(fields, [render.facts(f"{study.question}, {file.name}", rows)])
    if stopped:
        return shown.interrupted(RESUMED)
    if now.failed == now.points and not (args.status or export):
        return shown._replace(code=1, note="Error: every point failed; export to csv to read why")
    return shown


def _with_rate(report: render.Report, check: Callable[[], None]) -> render.Report:
    """Progress with the rate, on a terminal."""
    begun, first = time.perf_counter(), []

    def told(failures: str, done: int, total: int) -> None:
        check()
        first.append(done)
        rate = (done - first[0]) / (time.perf_counter() - begun)
        shown = f"{rate:.3g} points/s" if rate else "starting"
        report(f"{shown}, {failures}", done, total)

    return told
