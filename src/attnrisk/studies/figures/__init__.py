"""The figures: each computes its rows, draws them, and is written as PDF, SVG and PNG with its data and its caption.

A figure is a module with `CAPTION`, with what its `FULL` and its `QUICK` form ask, `compute(asked, ask)` (its rows) and
`plot(rows)`. In a caption `[[this|that]]` is `this` in the full form and `that` in the quick one. Where `FULL` and
`QUICK` are not themselves lists of questions, `questions(asked)` is what can be asked before anything is known.
The report shows those that its page has a place for.
"""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from ..._check import one_of
from ..._rows import as_csv
from ..execute import Session
from ..question import AbstractQuestion
from .rows import Ask, Row
from .style import RESOLUTION, context

NAMES = (
    *("1", "2", "3", "4", "5", "6", "7", "phases", "samples", "haystack", "flow", "basins"),
    *("descent", "prediction", "heads", "flipped", "pruning", "stages", "specialise"),
)


class Drawn(NamedTuple):
    """A figure with its data and its caption; its files are named `stem`."""

    stem: str
    rows: list[Row]
    picture: Figure
    caption: str


def stem_of(name: str) -> str:
    """The name of the files of a figure, and of its module."""
    return f"figure{name}" if name.isdigit() else name


FIGURES: dict[str, ModuleType] = {
    name: import_module(f".{stem_of(name)}", __name__) for name in NAMES
}


def _asked(module: ModuleType, quick: bool) -> Any:
    return module.QUICK if quick else module.FULL


def questions(name: str, quick: bool) -> list[AbstractQuestion]:
    """What a figure asks before anything is known."""
    module = FIGURES[name]
    listed = vars(module).get("questions", list)
    return list(listed(_asked(module, quick)))


def make(name: str, quick: bool = False, ask: Ask | None = None) -> Drawn:
    """Compute a figure and draw it; `quick` takes fewer points. Without `ask` nothing is stored."""
    module = FIGURES[one_of("figure", name, NAMES)]
    rows = module.compute(_asked(module, quick), ask or Session())
    with context():
        return Drawn(stem_of(name), rows, module.plot(rows), caption_of(module, quick))


def caption_of(module: ModuleType, quick: bool) -> str:
    """The caption of one form of a figure."""
    return re.sub(r"\[\[(.*?)\|(.*?)\]\]", r"\2" if quick else r"\1", module.CAPTION)


def draw(name: str, out: Path, quick: bool = False, ask: Ask | None = None) -> list[Path]:
    """Make a figure and write it to the folder `out`: as PDF, SVG and PNG, its data as CSV and its caption as text."""
    figure = make(name, quick, ask)
    stem = Path(out, figure.stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(suffix) for suffix in (".pdf", ".svg", ".png", ".csv", ".txt")]
    pdf, svg, png, data, caption = files
    with context(), mpl.rc_context({"svg.hashsalt": figure.stem}):
        # Without its date, the same figure is the same file.
        figure.picture.savefig(pdf, metadata={"CreationDate": None})
        figure.picture.set_layout_engine(
            "none"
        )  # the panels have their places, which take long to find
        figure.picture.savefig(svg, metadata={"Date": None})
        figure.picture.savefig(png, dpi=RESOLUTION)
    data.write_text(as_csv(figure.rows), encoding="utf-8", newline="")
    caption.write_text(figure.caption, encoding="utf-8")
    return files
