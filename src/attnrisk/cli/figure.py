"""`attnrisk figure`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from . import options
from .command import REPRODUCE, command
from .render import Shown

if TYPE_CHECKING:
    from .progress import Report


def _read_name(name: str) -> str:
    from .._check import one_of
    from ..studies import figures

    return one_of("figure", name, figures.NAMES)


@command(
    REPRODUCE,
    "the figure",
    options.argument(
        "name",
        "Which figure: 2 to 7, phases, haystack, flow, basins or descent.",
        "NAME",
        read=_read_name,
    ),
    options.flag("quick", "Fewer points, for a first look in little time."),
    options.out("Where the files go; made if missing.", "build/figures", folder=True),
    options.STORE,
    options.SCHEDULER,
    interrupt=nullcontext,
)
def figure(
    name: str,
    quick: bool,
    out: Path,
    store: Path | None,
    scheduler: str | None,
    report: Report,
) -> Shown:
    """Compute and draw a figure, and print the files written.

    Example: attnrisk figure haystack --quick --out build/figures
    """
    from ..studies import figures
    from ..studies.execute import session

    with session(store, report, scheduler) as ask:
        files = [str(file) for file in figures.draw(name, out, quick, ask)]
    return Shown({"figure": name, "files": files}, files)
