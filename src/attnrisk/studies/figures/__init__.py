"""The figures: each computes its rows, draws them, and is written as PDF and PNG with its data and its caption."""

from pathlib import Path
from types import ModuleType

from matplotlib.figure import Figure

from ..._check import one_of
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
from .rows import write_csv
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


def draw(name: str, out: Path, quick: bool = False, ask: Asking = _ALONE) -> list[Path]:
    """Compute the figure called `name`, and write it into the folder `out`; `quick` takes fewer points.

    The files are the figure as PDF and PNG, its data as CSV and its caption as text. What `ask` has a store for is
    computed once.
    """
    module = _MODULES[one_of("figure", name, NAMES)]
    rows = module.compute(quick, ask)
    with context():
        pictures = _write_pictures(module.plot(rows), Path(out), module.STEM)
    data, caption = (Path(out, module.STEM).with_suffix(suffix) for suffix in (".csv", ".txt"))
    write_csv(rows, data)
    caption.write_text(module.CAPTION, encoding="utf-8")
    return [*pictures, data, caption]


def _write_pictures(figure: Figure, out: Path, stem: str) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{stem}.pdf", out / f"{stem}.png"]
    # Without its date, the same figure is the same file.
    figure.savefig(files[0], metadata={"CreationDate": None})
    figure.savefig(files[1], dpi=RESOLUTION)
    return files
