"""The figures: each computes its rows, draws them, and is written as PDF, SVG and PNG with its data and its caption.

A figure is a module with `STEM`, `CAPTION`, `questions(quick)` (what can be asked before anything is known),
`compute(quick, ask)` (its rows) and `plot(rows)`, and an entry in the table below. The report shows those that its page
has a place for.
"""

from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from ..._check import one_of
from ..._rows import as_csv
from ..execute import Session
from . import (
    basins,
    descent,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    flipped,
    flow,
    haystack,
    heads,
    phases,
    prediction,
    pruning,
    samples,
    specialise,
    stages,
)
from .rows import Ask, Row
from .style import RESOLUTION, context

FIGURES: dict[str, ModuleType] = {
    "1": figure1,
    "2": figure2,
    "3": figure3,
    "4": figure4,
    "5": figure5,
    "6": figure6,
    "7": figure7,
    "phases": phases,
    "samples": samples,
    "haystack": haystack,
    "flow": flow,
    "basins": basins,
    "descent": descent,
    "prediction": prediction,
    "heads": heads,
    "flipped": flipped,
    "pruning": pruning,
    "stages": stages,
    "specialise": specialise,
}

NAMES: tuple[str, ...] = tuple(FIGURES)


class Drawn(NamedTuple):
    """A figure with its data and its caption; its files are named `stem`."""

    stem: str
    rows: list[Row]
    picture: Figure
    caption: str


def make(name: str, quick: bool = False, ask: Ask | None = None) -> Drawn:
    """Compute a figure and draw it; `quick` takes fewer points. Without `ask` nothing is stored."""
    module = FIGURES[one_of("figure", name, NAMES)]
    rows = module.compute(quick, ask or Session())
    with context():
        return Drawn(module.STEM, rows, module.plot(rows), module.CAPTION)


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
