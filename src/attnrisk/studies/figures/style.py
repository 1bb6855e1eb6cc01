"""How the figures look: one line per attention, the same in all of them."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from scipy.interpolate import PchipInterpolator

from ...attention import CATALOGUE

RESOLUTION = 200  # dots per inch of the PNG files
WIDTH = 7.0  # inches: a text block of two columns

INK, GREY = "#1a1a1a", "#8a8a8a"

# Hues say how the weights grow: blue exponential, amber quadratic, purple linear, green bounded, red linear without
# normalisation. Most are from the palettes of Okabe and Ito and of Tol, which colour-blind readers can tell apart.
COLOURS = {
    "softmax": "#0072b2",
    "softmax-1": "#56b4e9",
    "softplus": "#cc79a7",
    "elu+1": "#e3a8cc",
    "relu": "#882255",
    "relu2": "#e69f00",
    "taylor-2": "#b8a000",
    "erf": "#009e73",
    "sigmoid": "#66c2a5",
    "linear": "#cc3311",
    "elementwise-relu": "#ee8866",
    "sparsemax": "#332288",
    "entmax-1.5": "#6a51a3",
    "top-k": "#4a90a4",
    "hardmax": "#555555",
}

# Line styles say which family: does an attention compare tokens, and how?
DASHES: dict[str, Any] = {
    "kernel": "solid",
    "element-wise": (0, (5, 1.5)),
    "general": (0, (1, 1.2)),
}


class Line(NamedTuple):
    """How a curve is drawn."""

    label: str
    colour: str
    dashes: Any
    width: float

    def through(self, x: Any = (), y: Any = ()) -> Line2D:
        """The curve through these points; without any, for a legend."""
        style: dict[str, Any] = {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": self.width,
        }
        return Line2D(x, y, label=self.label, **style)


BAYES_LINE = Line("Bayes", INK, "solid", 0.9)


def line(name: str) -> Line:
    """The line of the attention called `name`; softmax is drawn wide, since the Bayes risk lies on it."""
    dashes = DASHES[CATALOGUE[name].attention.family]
    return Line(name, COLOURS[name], dashes, 3.2 if name == "softmax" else 1.5)


def context() -> AbstractContextManager[None]:
    """Fonts and sizes; in PDF files text stays text, with its fonts embedded."""
    return mpl.rc_context(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "mathtext.fontset": "dejavusans",
            "font.size": 8.0,
            "axes.titlesize": 8.5,
            "axes.labelsize": 8.0,
            "axes.linewidth": 0.6,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.color": INK,
            "xtick.labelsize": 7.0,
            "ytick.labelsize": 7.0,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.minor.width": 0.4,
            "legend.frameon": False,
            "legend.fontsize": 7.5,
            "lines.solid_capstyle": "round",
            "pdf.fonttype": 42,
        }
    )


def marks(
    marker: str, colour: str, rows: Iterable[Any] = (), at: Any = ("alpha", "risk"), **shape: Any
) -> Line2D:
    """Marks without a line, at two columns of the rows; without rows, for a legend."""
    x, y = np.reshape([[getattr(row, name) for name in at] for row in rows], (-1, 2)).T
    return Line2D(x, y, color=colour, marker=marker, linestyle="none", **shape)


def set_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Plain numbers at these places, also on a logarithmic axis."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def smooth(x: Any, y: Any, points: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """A line through the computed points that is smooth and as monotone as they are."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.size < 3:
        return x, y
    fine = np.linspace(x[0], x[-1], points)
    return fine, PchipInterpolator(x, y)(fine)
