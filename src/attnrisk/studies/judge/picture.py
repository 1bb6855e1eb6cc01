"""The verdict as a picture: the grid, the haystacks and the learning curves."""

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..figures.style import COLOURS, GREY, INK, RESOLUTION, context, set_ticks
from .comparison import Compared
from .curves import ALPHAS, Point
from .tasks import WORKBENCH, Row
from .verdict import Verdict

STEM = "verdict"

_MINE = "#7a3fb0"  # of no attention of the catalogue
_OTHERS = (_MINE, "#d4a017", "#2a9d8f", "#b5179e")  # of a user's attentions side by side
_RISKS = (-0.02, 1.05)
_WIDEST, _NARROWEST = 5.0, 1.8  # points: of curves side by side
_LEGEND_WIDTH, _LEGEND_HANDLE = (
    72,
    9,
)  # letters in a row of their legend, and as many as the line beside a name takes


def draw(verdict: Verdict, out: Path) -> list[Path]:
    """Write the picture as PDF and PNG into the folder `out`, which is made if missing."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{STEM}.pdf", out / f"{STEM}.png"]
    with context():
        figure = plot(verdict)
        # Without its date, the same picture is the same file.
        figure.savefig(files[0], metadata={"CreationDate": None})
        figure.savefig(files[1], dpi=RESOLUTION)
    return files


def plot(verdict: Verdict) -> Figure:
    """A panel for each task, one for the haystacks, one for learning."""
    figure = Figure(figsize=(9.0, 2.9), layout="constrained")
    panels = figure.subplots(1, 4)
    figure.suptitle(f"{verdict.name}: {verdict.traits.words}", fontsize=9.0)
    for axes, task in zip(panels, ("spiked", "max"), strict=False):
        _draw_grid(axes, [row for row in verdict.rows if row.task == task])
        axes.set(title=f"{task} task", xlabel=r"signal $\nu$")
    panels[0].set_ylabel("risk")
    _draw_haystacks(panels[2], verdict.haystacks)
    _draw_curves(panels[3], verdict.curves or (), verdict.name)
    figure.legend(handles=_legend(verdict), loc="outside lower center", ncols=6)
    return figure


def draw_comparison(found: Sequence[tuple[str, Compared]], task: str, out: Path) -> None:
    """Write the picture of `plot_comparison` into a file."""
    with context():
        figure = plot_comparison(found, task)
        metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(out.suffix)
        figure.savefig(out, dpi=RESOLUTION, metadata=metadata)


def plot_comparison(found: Sequence[tuple[str, Compared]], task: str) -> Figure:
    """Risks against the number of tokens, solid as the attentions are and dotted with a free bias."""
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(name for name, _ in found))
    own = iter(_OTHERS)
    # From wide to narrow, and dotted ones above solid ones, so that of curves that coincide all can be seen.
    widths = np.linspace(_WIDEST, _NARROWEST, len(names) + 1)[1:]
    for name, width in zip(names, widths, strict=True):
        rows = [each for known, each in found if known == name]
        colour = COLOURS[name] if name in COLOURS else next(own, _MINE)
        lengths = [int(each.plain.length) for each in rows]
        for kind, style, above in (("plain", "solid", 2.0), ("biased", "dotted", 2.5)):
            points = [getattr(each, kind) for each in rows]
            label = name if kind == "plain" else None
            risks = [float(point.risk) for point in points]
            look = {"color": colour, "linestyle": style, "linewidth": width, "zorder": above}
            axes.plot(lengths, risks, label=label, **look)
            for length, point in zip(lengths, points, strict=True):
                axes.add_line(_point(length, point, colour))
                axes.lines[-1].set_markersize(width + 2.0)
    first = [each.plain for known, each in found if known == names[0]]
    lengths, bayes = [int(row.length) for row in first], [float(row.bayes) for row in first]
    axes.plot(lengths, bayes, color=INK, linewidth=0.6, label="Bayes", zorder=3)
    signals = {row.nu / log(int(row.length)) for row in first if int(row.length) > 1}
    fixed = len({row.nu for row in first}) == 1
    signal = f"{first[0].nu:g}" if fixed else rf"{min(signals):.3g}\,\log L"
    axes.set(xlabel="tokens $L$", ylabel="lowest risk", xscale="log", ylim=_RISKS)
    axes.set_title(rf"{task} task, $\nu = {signal}$; dotted: with a free bias")
    longest = max(map(len, names))
    columns = max(1, min(4, _LEGEND_WIDTH // (longest + _LEGEND_HANDLE)))
    figure.legend(loc="outside lower center", ncols=columns)
    return figure


def _draw_grid(axes: Axes, rows: Sequence[Row]) -> None:
    """The risk and that of Bayes against ν; the more tokens, the higher the curve."""
    for length in dict.fromkeys(row.length for row in rows):
        along = [row for row in rows if row.length == length]
        signals, risks = [row.nu for row in along], [float(row.risk) for row in along]
        axes.plot(signals, risks, color=_MINE, linewidth=2.4)
        axes.plot(signals, [float(row.bayes) for row in along], color=INK, linewidth=0.9)
        for row in along:
            axes.add_line(_point(row.nu, row, _MINE))
        place: dict[str, Any] = {"xytext": (2, 4), "textcoords": "offset points", "fontsize": 6.5}
        axes.annotate(f"$L = {length}$", (signals[0], risks[0]), **place)
    axes.set_ylim(*_RISKS)


def _point(x: float, row: Row, colour: str) -> Line2D:
    """The risk of a row: a cross where the search did not converge, an open dot where the risk is a limit."""
    if not row.result.converged:
        return _cross(x, float(row.risk), colour)
    return _dot(x, float(row.risk), colour, row.attained)


def _dot(x: float, y: float, colour: str, full: bool) -> Line2D:
    """A point that is open where its value is a limit, or approximate."""
    fill: Any = "full" if full else "none"
    return Line2D([x], [y], color=colour, marker="o", markersize=3.5, fillstyle=fill)


def _cross(x: float, y: float, colour: str) -> Line2D:
    """A point that has not converged."""
    return Line2D([x], [y], color=colour, marker="x", markersize=4.0, linestyle="none")


def _draw_haystacks(axes: Axes, rows: Sequence[Row]) -> None:
    lengths, risks = [int(row.length) for row in rows], [float(row.risk) for row in rows]
    axes.plot(lengths, risks, color=_MINE, linewidth=2.4)
    axes.plot(lengths, [float(row.bayes) for row in rows], color=INK, linewidth=0.9)
    for row in rows:
        axes.add_line(_point(int(row.length), row, _MINE))
    axes.set(title=r"haystacks, $\nu = 4\,\log L$", xlabel="tokens $L$", xscale="log")
    axes.set_ylim(*_RISKS)


def _draw_curves(axes: Axes, points: Sequence[Point], name: str) -> None:
    """Learning curves; no line goes through a point that has not converged."""
    for label in dict.fromkeys(point.label for point in points):
        curve = [point for point in points if point.label == label]
        settled = [point for point in curve if point.converged]
        colour, alphas = _colour(curve[0].attention, name), [point.alpha for point in settled]
        style = "dotted" if curve[0].learned_bias else "solid"
        risks = [float(point.risk) for point in settled]
        axes.plot(alphas, risks, color=colour, linewidth=1.5, linestyle=style)
        for point in curve:
            place = point.alpha, float(point.risk), colour
            full = point.warning is None
            axes.add_line(_dot(*place, full) if point.converged else _cross(*place))
    words = rf"learning, $\nu = {WORKBENCH.nu:g}$, $L = {WORKBENCH.length}$"
    axes.set(title=words, xlabel=r"samples per dimension $\alpha$", xscale="log", ylim=_RISKS)
    axes.set_xlim(ALPHAS[0] / 1.2, ALPHAS[-1] * 1.2)
    set_ticks(axes.xaxis, ALPHAS)
    if not points:
        words = "not learned by descent"
        axes.text(0.5, 0.5, words, ha="center", color=GREY, transform=axes.transAxes)


def _colour(attention: str, name: str) -> str:
    return _MINE if attention == name else COLOURS[attention]


def _legend(verdict: Verdict) -> list[Line2D]:
    points, rows = verdict.curves or (), (*verdict.rows, *verdict.haystacks)
    lines = [
        Line2D([], [], color=_MINE, linewidth=2.4, label=verdict.name),
        Line2D([], [], color=INK, linewidth=0.9, label="Bayes"),
    ]
    others = dict.fromkeys(point.attention for point in points if point.attention != verdict.name)
    lines += [Line2D([], [], color=COLOURS[other], label=other) for other in others]
    if any(point.learned_bias for point in points):
        lines.append(Line2D([], [], color=_MINE, linestyle="dotted", label="learned bias"))
    if not all(row.attained for row in rows) or any(point.warning for point in points):
        lines.append(_named(_dot(0, 0, GREY, False), "a limit, or approximate"))
    results = [*(point.result for point in points), *(row.result for row in rows)]
    if not all(result.converged for result in results):
        lines.append(_named(_cross(0, 0, GREY), "not converged"))
    return lines


def _named(mark: Line2D, label: str) -> Line2D:
    """A mark alone, for a legend."""
    mark.set(label=label, linestyle="none")
    return mark
