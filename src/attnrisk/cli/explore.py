"""The interactive page and its data: `explore` and `atlas`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import redirect_stdout
from typing import Any

import attnrisk as ar

from .._check import refuse
from .._files import replacement
from . import options, render
from .command import EXPLORE, command
from .interrupts import RESUMED, immediate
from .judge import load_function, user_code


@command(
    EXPLORE,
    "the page",
    options.out("HTML file to write; its folder is created if missing.", "build/explore.html"),
    options.flag("no_open", "Write the file without opening a browser."),
    options.option(
        "attention",
        "Your own function from L scores to L weights, added to the page for the spiked task; may take minutes.",
        metavar="MODULE:FUNCTION",
    ),
)
def explore(args: Any) -> render.Shown:
    """Write an interactive page, one HTML file that needs no network, and open it in the browser.

    Example: attnrisk explore --out explore.html --no-open
    """
    from ..page import make_page, read_atlas

    atlas, own = read_atlas(), args.attention
    if own in ar.CATALOGUE:
        raise refuse("attention", repr(own), "MODULE:FUNCTION; the catalogue is in the page")
    if own is not None:
        from ..studies.atlas import with_attention
        from ..studies.judge.family import recognise

        with user_code("attention", own):
            student = recognise(load_function("attention", own), own)
            atlas = with_attention(atlas, student, own, args.progress)
    with replacement(args.out) as part:
        part.write_text(make_page(atlas), encoding="utf-8")
    file = str(args.out)
    if not args.no_open:
        import webbrowser

        with redirect_stdout(sys.stderr):
            webbrowser.open(args.out.absolute().as_uri())
    return render.Shown({"file": file}, [file])


@command(
    EXPLORE,
    "the atlas",
    options.out("JSON file to write; its folder is created if missing.", "build/atlas.json"),
    options.STORE,
    options.WORKERS,
    options.number("minutes", "Stop after this time and write what is complete.", None, above=0.0),
)
def atlas(args: Any) -> render.Shown:
    """Compute the data that `explore` shows: about two CPU hours; it resumes if interrupted.

    Incomplete parts are left out of the file. Example: attnrisk atlas --out atlas.json --store answers.sqlite
    """
    from ..studies import atlas as atlases
    from ..studies.execute import Workers
    from ..studies.store import Store, default_place

    begun = time.perf_counter()
    scheduler, workers = args.workers.values()
    workers = None if scheduler else workers or os.cpu_count()
    seconds = None if args.minutes is None else 60.0 * args.minutes
    backend = Workers(scheduler, workers, atlases.BATCHES, turns=False, seconds=seconds)
    with immediate(RESUMED), Store(args.store or default_place()) as store, backend:
        answers, failures = atlases.collect(atlases.FULL, backend, store, args.progress)
        made = atlases.make(answers)
    atlases.write(args.out, made)
    left_out = len(atlases.FULL.surfaces) - len(made["surfaces"])
    worst = max(made["surfaces"], key=lambda surface: surface["error"], default=None)
    size, surfaces = args.out.stat().st_size, len(made["surfaces"])
    fields = {
        "file": str(args.out),
        "bytes": size,
        "surfaces": surfaces,
        "left_out": left_out,
        "failures": failures,
        "largest_error": worst and worst["error"],
        "seconds": time.perf_counter() - begun,
    }
    rows = {
        "written": f"{args.out}, {size / 1e6:.2f} MB",
        "surfaces": f"{surfaces}; {left_out} are not complete and left out",
        "missing": "\n".join(atlases.missing(made)) or None,
        "learning, flows": f"{len(made['learning'])} settings, {len(made['flows'])} flows",
    }
    if worst:
        named = f"{worst['attention']}, bias {worst['bias']}, {worst['task']}"
        rows["largest error"] = f"{worst['error']:.1e} in the logit: {named}"
    if failures:
        rows["failed"] = f"{len(failures)}, the first: {failures[0]}"
    return render.Shown(fields, [render.facts("atlas", rows)])
