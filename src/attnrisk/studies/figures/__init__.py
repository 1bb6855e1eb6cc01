"""The figures: each computes its rows, draws them, and is written as PDF and PNG with its data and its caption."""

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ..._check import one_of
from ..._rows import as_csv
from . import (
    basins,
    descent,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    flow,
    haystack,
    phases,
)
from .asking import Asking
from .style import RESOLUTION, context

_MODULES: dict[str, ModuleType] = {
    "2": figure2,
    "3": figure3,
    "4": figure4,
    "5": figure5,
    "6": figure6,
    "7": figure7,
    "phases": phases,
    "haystack": haystack,
    "flow": flow,
    "basins": basins,
    "descent": descent,
}

NAMES: tuple[str, ...] = tuple(_MODULES)

_ALONE = Asking()


class Drawn(NamedTuple):
    """A figure with its data and its words; files of it are called `stem`."""

    stem: str
    rows: list[Any]
    picture: Figure
    caption: str


def compute(name: str, quick: bool = False, ask: Asking = _ALONE) -> list[Any]:
    """The rows of the figure called `name`; `quick` takes fewer points, and what `ask` has a store for is kept."""
    return _MODULES[one_of("figure", name, NAMES)].compute(quick, ask)


def make(name: str, quick: bool = False, ask: Asking = _ALONE) -> Drawn:
    """Compute a figure and draw it."""
    rows, module = compute(name, quick, ask), _MODULES[name]
    with context():
        return Drawn(module.STEM, rows, module.plot(rows), module.CAPTION)


def draw(name: str, out: Path, quick: bool = False, ask: Asking = _ALONE) -> list[Path]:
    """Make a figure and write it into the folder `out`: as PDF and PNG, its data as CSV and its caption as text."""
    figure = make(name, quick, ask)
    stem = Path(out, figure.stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(suffix) for suffix in (".pdf", ".png", ".csv", ".txt")]
    pdf, png, data, caption = files
    with context():
        figure.picture.savefig(
            pdf, metadata={"CreationDate": None}
        )  # the same figure, the same file
        figure.picture.savefig(png, dpi=RESOLUTION)
    data.write_text(as_csv(figure.rows), encoding="utf-8", newline="")
    caption.write_text(figure.caption, encoding="utf-8")
    return files
