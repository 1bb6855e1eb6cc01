"""How the figures look: one line per attention, the same in all of them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise, product
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from scipy.interpolate import PchipInterpolator

from ..._results import Result
from ..._rows import BAYES
from ...attention import CATALOGUE
from ..question import is_converged

RESOLUTION = 200  # dots per inch of the PNG files
WIDTH = 7.0  # inches: a text block of two columns

_FEW = 8  # points, below which a spline would show what was not computed
INK, GREY, SHADE = "#1a1a1a", "#8a8a8a", "#ececec"

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
    "ssmax": "#004488",
    "sigmoid-logL": "#117733",
    "softpick": "#44bb99",
    "clipped-softmax": "#99ddff",
    "cosine": "#bbcc33",
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

    @property
    def style(self) -> dict[str, Any]:
        """The words of matplotlib."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": self.width}

    def through(self, x: Any = (), y: Any = ()) -> Line2D:
        """The curve through these points; without any, for a legend."""
        return Line2D(x, y, label=self.label, **self.style)


BAYES_LINE = Line("Bayes", INK, "solid", 0.9)


def line(name: str, **changes: Any) -> Line:
    """The line of Bayes, or of the attention called `name`; softmax is wide, since the Bayes risk lies on it."""
    if name == BAYES:
        return BAYES_LINE._replace(**changes)
    dashes = DASHES[CATALOGUE[name].attention.family]
    width = 3.2 if name == "softmax" else 1.5
    return Line(name, COLOURS[name], dashes, width)._replace(**changes)


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


def panels(
    rows: Sequence[Any],
    height: float,
    by: Mapping[str, Sequence[Any]],
    x: str,
    y: str = "",
    **shared: Any,
) -> tuple[Figure, list[tuple[Axes, list[Any], Any]]]:
    """A figure with a panel for each value of a column, or for each pair of values of two: its axes, rows and values.

    The first of two columns goes downwards. Values that no row has are left out. `x` labels the lowest panels, and `y`
    the leftmost.
    """
    there = [
        [value for value in values if any(getattr(row, name) == value for row in rows)]
        for name, values in by.items()
    ]
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    drawn = figure.subplots(*(1, *map(len, there))[-2:], squeeze=False, **shared)
    for axes in drawn[-1]:
        axes.set_xlabel(x)
    for axes in drawn[:, 0]:
        axes.set_ylabel(y)
    parts = []
    for axes, at in zip(drawn.flat, product(*there), strict=True):
        here = [row for row in rows if tuple(getattr(row, name) for name in by) == at]
        parts.append((axes, here, at if len(at) > 1 else at[0]))
    return figure, parts


def columns(rows: Iterable[Any], *names: str) -> list[Any]:
    """The values of these columns."""
    rows = list(rows)
    return [[getattr(row, name) for row in rows] for name in names]


def marks(
    marker: str, colour: str, rows: Iterable[Any] = (), at: Any = ("alpha", "risk"), **shape: Any
) -> Line2D:
    """Marks without a line, at two columns of the rows; without rows, for a legend."""
    return Line2D(
        *np.array(columns(rows, *at)), color=colour, marker=marker, linestyle="none", **shape
    )


def cross(colour: str = INK, rows: Iterable[Any] = (), at: Any = ("alpha", "risk")) -> Line2D:
    """The mark of points that did not converge."""
    return marks("x", colour, rows, at, markersize=4, zorder=5, label="not converged")


def has_converged(row: Any) -> bool:
    """Whether a row is a number to rely on; rows without a `result` are."""
    return is_converged(vars(row).get("result", Result.CONVERGED))


_DOT = 4.0  # the size of a single point


def draw_curve(
    axes: Axes,
    style: Line,
    rows: Iterable[Any],
    at: tuple[str, str] = ("alpha", "risk"),
    log: str = "",
    jumps: Sequence[float] = (),
    dots: float = 0.0,
) -> None:
    """A line through the rows that converged, interrupted at `jumps`; crosses of its colour are the others.

    `log` names the logarithmic axes. Dots have the size `dots`, and are hollow where a row has a `warning`; a single
    point is a dot.
    """
    rows = sorted(rows, key=attrgetter(at[0]))
    settled = [row for row in rows if has_converged(row)]
    dots = dots or _DOT * (len(settled) == 1)
    for low, high in pairwise((-inf, *jumps, inf)):
        part = [row for row in settled if low < getattr(row, at[0]) <= high]
        x, y = columns(part, *at)
        axes.add_line(style.through(*smooth(x, y, log)))
    for fill, hollow in (("full", False), ("none", True)) if dots else ():
        shown = [row for row in settled if bool(vars(row).get("warning")) == hollow]
        axes.add_line(marks("o", style.colour, shown, at, markersize=dots, fillstyle=fill))
    axes.add_line(cross(style.colour, [row for row in rows if row not in settled], at))


def add_legend(
    figure: Figure, handles: Iterable[Any], columns: int, rows: Iterable[Any] = ()
) -> None:
    """Below the panels, of lines and other handles; with a cross where a row did not converge."""
    listed = [each.through() if isinstance(each, Line) else each for each in handles]
    listed += [] if all(map(has_converged, rows)) else [cross()]
    figure.legend(handles=listed, loc="outside lower center", ncols=columns)


def where(task: str = "", nu: float | None = None, length: Any = None) -> str:
    """The title of a panel: the task, the signal and the number of tokens, as far as its axes do not show them."""
    symbol = r"\infty" if nu == inf else f"{nu:g}" if nu is not None else ""
    signal = rf"$\nu = {symbol}$" if symbol else ""
    tokens = "" if length is None else LENGTHS.get(str(length), f"$L = {length}$")
    return ", ".join(word for word in (task, signal, tokens) if word)


LENGTHS = {"1-3": r"$L \sim \mathrm{Unif}\{1, 2, 3\}$"}


def set_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Plain numbers at these places, also on a logarithmic axis."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def smooth(x: Any, y: Any, log: str = "", points: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """A line through the points that is as monotone as they are: straight between few of them.

    `log` names the axes that are logarithmic.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.size < _FEW:
        return x, y
    u, w = np.log(x) if "x" in log else x, np.log(y) if "y" in log else y
    fine = np.linspace(u[0], u[-1], points)
    curve = PchipInterpolator(u, w)(fine)
    return np.exp(fine) if "x" in log else fine, np.exp(curve) if "y" in log else curve
