"""`attnrisk figure`."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Scheduler, StorePlace
from .output import print_json
from .progress import working


def figure(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Which figure: 2 to 7, phases, haystack, flow, basins or descent."
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points, for a first look in little time.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the files go; made if missing.")
    ] = Path("build/figures"),
    store: StorePlace = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Compute and draw a figure, and print the files written.

    Example: attnrisk figure haystack --quick --out build/figures
    """
    with working(f"figure {name}") as report:
        from .._check import one_of, refuse
        from ..studies import figures
        from ..studies.execute import session

        one_of("figure", name, figures.NAMES)
        if out.exists() and not out.is_dir():
            raise refuse("out", repr(str(out)), "a folder, or a name that is free")
        with session(store, report, scheduler) as ask:
            files = [str(file) for file in figures.draw(name, out, quick, ask)]
    if as_json:
        print_json({"figure": name, "files": files})
    else:
        typer.echo("\n".join(files))
