"""The pictures, as SVG, in the colours of the figures."""

import io
import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .._rows import BAYES, FLOOR
from ..studies.figures.style import BAYES_LINE, GREY, INK, Line, context, line, smooth
from .answers import (
    OPTIMUM,
    REACHABLE,
    SWAPPED,
    FlowRow,
    LearnedRow,
    LeastRow,
    TokenRow,
)
from .state import CURVE_LENGTHS, CURVE_NU

_WIDTH = 8.6  # inches of a picture as wide as the page
_HAY = "#c9ccd1"
_HERE: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (2, 2)), "zorder": 0}
_APART = 0.045  # names of risks that are closer than this would overlap
_BEYOND = 1.12  # where infinity is drawn, in units of the largest finite number
_LINES = {
    BAYES: BAYES_LINE,
    FLOOR: Line(FLOOR, GREY, (0, (1, 1)), 1.2),
    OPTIMUM: Line(OPTIMUM, INK, "solid", 1.4),
    REACHABLE: Line(REACHABLE, GREY, (0, (4, 1.5)), 1.4),
}
_OVERLAPS = {"m_kk": "#0072b2", "m_vv": "#d55e00", "m_kv": "#56b4e9", "m_vk": "#e69f00"}
# Margins set by hand: to find good ones takes as long as all the rest of a picture.
_MARGINS = {"left": 0.055, "right": 0.995, "top": 0.93, "bottom": 0.2, "wspace": 0.05}
_ONE_AT_A_TIME = Lock()  # the settings of matplotlib are shared by all visitors

_remembered = lru_cache(
    maxsize=200
)  # a picture is asked for again and again, until there are new rows


def _line(name: str) -> Line:
    return _LINES.get(name) or line(name)


def _as_svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)


@_remembered
def risks(
    by_nu: tuple[LeastRow, ...], by_length: tuple[LeastRow, ...], here: tuple[str, float, str]
) -> str:
    """Least risks against the signal and the length; `here` are the task, the signal and the length chosen."""
    with _ONE_AT_A_TIME, context():
        figure = Figure(figsize=(_WIDTH, 3.5))
        left, right = figure.subplots(1, 2, sharey=True, gridspec_kw=_MARGINS)
        _draw_by_nu(left, by_nu, here)
        _draw_by_length(right, by_length, here)
        left.set(ylim=(-0.02, 1.03), ylabel="least risk")
        names = {row.attention for row in (*by_nu, *by_length)}
        figure.legend(handles=_legend(names), loc="lower center", ncols=8)
        return _as_svg(figure)


def _draw_by_nu(axes: Axes, rows: Sequence[LeastRow], here: tuple[str, float, str]) -> None:
    task, chosen, length = here
    last = CURVE_NU[task][-1]

    def place(nu: float) -> float:
        return nu if math.isfinite(nu) else _BEYOND * last

    for name, curve in _by_name(rows):
        finite = [row for row in curve if math.isfinite(row.nu)]
        _draw_curve(axes, name, [row.nu for row in finite], [row.risk for row in finite])
        _draw_places(axes, name, [(place(row.nu), row) for row in curve if row.nu == chosen])
    axes.axvline(place(chosen), **_HERE)
    axes.set_xlim(-0.01 * last, 1.01 * last)
    axes.set(xlabel="signal ν", title=f"against the signal, at L = {_short(length)}")
    if math.isinf(chosen):
        axes.set_xlim(-0.01 * last, 1.01 * _BEYOND * last)
        ticks = [tick for tick in MaxNLocator(6).tick_values(0, last) if 0 <= tick <= last]
        axes.xaxis.set_major_locator(FixedLocator([*ticks, place(math.inf)]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if x <= last else "∞"))


def _draw_by_length(axes: Axes, rows: Sequence[LeastRow], here: tuple[str, float, str]) -> None:
    task, signal, chosen = here
    longest = max(CURVE_LENGTHS[task][-1], *(int(row.length) for row in rows), 1)
    axes.set(xlim=(0.9, 1.15 * longest), xlabel="tokens in the sequence, L")
    axes.set_xscale("log")
    for name, curve in _by_name(rows, key=lambda row: float(row.length)):
        lengths = [float(row.length) for row in curve]
        _draw_curve(axes, name, lengths, [row.risk for row in curve], logarithmic=True)
        _draw_places(
            axes, name, [(float(row.length), row) for row in curve if row.length == chosen]
        )
    if chosen.isdigit():
        axes.axvline(float(chosen), **_HERE)
    nu = "∞" if math.isinf(signal) else f"{signal:g}"
    axes.set(title=f"against the length, at ν = {nu}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _short(length: str) -> str:
    return length if len(length) < 24 else f"{length[:22]}…"


def _by_name(rows: Iterable[Any], key: Any = lambda row: row.nu) -> list[tuple[str, list[Any]]]:
    """The curves, softmax before Bayes, which lies on it."""
    curves: dict[str, list[Any]] = {}
    for row in sorted(rows, key=key):
        curves.setdefault(row.attention, []).append(row)
    return sorted(curves.items(), key=lambda item: item[0] in _LINES)


def _draw_curve(
    axes: Axes, name: str, x: Sequence[float], y: Sequence[float], logarithmic: bool = False
) -> None:
    """A line through the computed points."""
    places = np.log(x) if logarithmic else np.asarray(x)
    fine, risk = smooth(places, y)
    axes.add_line(_line(name).through(np.exp(fine) if logarithmic else fine, risk))


def _draw_places(axes: Axes, name: str, places: Iterable[tuple[float, LeastRow]]) -> None:
    """Dots where the sliders are, open where the risk is a limit that is not attained."""
    if name == FLOOR:
        return
    for x, row in places:
        look = _line(name)
        face = look.colour if row.attained else "white"
        size = 4 if name == BAYES else 6.5
        axes.plot(x, row.risk, "o", color=look.colour, markerfacecolor=face, markersize=size)


def _legend(names: Iterable[str]) -> list[Line2D]:
    ordered = sorted(names, key=lambda name: (name == FLOOR, name != BAYES, name))
    return [_line(name).through() for name in ordered]


@_remembered
def weights(rows: tuple[TokenRow, ...]) -> str:
    """Bars for one sequence, a panel for each attention, the needle in colour."""
    panels = _by_name(rows, key=lambda row: row.token)
    with _ONE_AT_A_TIME, context():
        columns = 1 if len(panels) == 1 else 2
        height = math.ceil(len(panels) / columns)
        figure = Figure(figsize=(_WIDTH, 0.35 + 1.65 * height), layout="constrained")
        grid = figure.subplots(height, columns, squeeze=False, sharey=True)
        for axes, (name, tokens) in zip(grid.flat, panels, strict=False):
            _draw_tokens(axes, name, tokens)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes in grid[:, 0]:
            axes.set_ylabel("weight")
        return _as_svg(figure)


def _draw_tokens(axes: Axes, name: str, tokens: Sequence[TokenRow]) -> None:
    colours = [_line(name).colour if row.needle else _HAY for row in tokens]
    places = np.arange(len(tokens))
    axes.bar(places, [row.weight for row in tokens], color=colours, width=0.82)
    axes.axhline(0.0, color=INK, linewidth=0.5)
    at, needle = next((at, row) for at, row in enumerate(tokens) if row.needle)
    axes.annotate(
        "needle",
        (at, max(needle.weight, 0.0)),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        color=_line(name).colour,
        fontsize=7.5,
    )
    axes.margins(y=0.22)
    step = max(1, len(tokens) // 10)
    labels = [f"{row.token}" for row in tokens[::step]]
    axes.set_xticks(places[::step], labels, fontsize=7 if tokens[-1].token < 10**4 else 5)
    axes.set_xlim(-0.8, len(tokens) - 0.2)
    axes.set_title(
        f"{name}: predicts {needle.prediction:+.2f} where the label is {needle.label:+.2f}",
        loc="left",
        color=_line(name).colour,
    )
    axes.set_xlabel("token" if len(tokens) == needle.tokens else f"token of {needle.tokens}")


@_remembered
def flow(rows: tuple[FlowRow, ...], bayes: LeastRow | None) -> str:
    """Risks, overlaps of the first run and of the swapped one, and where all of them go."""
    runs = {start: [row for row in rows if row.start == start] for start in _starts(rows)}
    first, swapped = next(iter(runs.values())), runs[SWAPPED]
    with _ONE_AT_A_TIME, context():
        figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _draw_risks(left, runs, bayes)
        for name, colour in _OVERLAPS.items():
            for run, dashes in ((first, "solid"), (swapped, (0, (3, 1.5)))):
                _draw_run(middle, run, name, colour, dashes)
        _draw_plane(right, runs)
        last = 3.0 * max(run[0].end_time for run in runs.values())
        for axes in (left, middle):
            axes.set(xscale="log", xlim=(rows[0].time, min(last, rows[-1].time)), xlabel="time")
        left.set(title="the risk", ylim=(-0.02, None))
        middle.set(title="overlaps with the teacher")
        handles = [
            Line2D([], [], color=colour, label=f"${name[0]}_{{{name[2:]}}}$")
            for name, colour in _OVERLAPS.items()
        ]
        middle.legend(handles=handles, ncols=2, loc="best")
        return _as_svg(figure)


def _starts(rows: Sequence[FlowRow]) -> list[str]:
    return list(dict.fromkeys(row.start for row in rows))


def _run_colour(run: Sequence[FlowRow]) -> str:
    return "#d55e00" if run[0].start == SWAPPED else "#0072b2"


def _draw_risks(axes: Axes, runs: dict[str, list[FlowRow]], bayes: LeastRow | None) -> None:
    if bayes is not None:
        axes.axhline(bayes.risk, color=GREY, linewidth=1.0, linestyle=(0, (3, 2)), label="Bayes")
    for run in runs.values():
        _draw_run(axes, run, "risk", _run_colour(run), "solid")
    kinds = {"random starts": "#0072b2", "swapped roles": "#d55e00"}
    handles = [Line2D([], [], color=colour, label=label) for label, colour in kinds.items()]
    grey = Line2D([], [], color=GREY, linestyle=(0, (3, 2)), label="Bayes risk")
    axes.legend(handles=[*handles, grey], loc="lower left")


def _draw_run(axes: Axes, run: Sequence[FlowRow], name: str, colour: str, dashes: Any) -> None:
    """The curve up to where the run stopped, and a mark there that tells whether it came to rest."""
    moving = [row for row in run if row.time < run[0].end_time]
    end = run[0].end_time, getattr(run[-1], name)
    x, y = [row.time for row in moving], [getattr(row, name) for row in moving]
    axes.plot([*x, end[0]], [*y, end[1]], color=colour, linestyle=dashes, linewidth=1.3)
    axes.plot(*end, marker=_mark(run), color=colour, markersize=4, clip_on=False)


def _mark(run: Sequence[FlowRow]) -> str:
    return "o" if run[0].result == "converged" else "x"


def _draw_plane(axes: Axes, runs: dict[str, list[FlowRow]]) -> None:
    """Cosines of `k` with `k*` and of `v` with `v*`."""
    for run in runs.values():
        x, y = np.array([_cosines(row) for row in run]).T
        colour = _run_colour(run)
        axes.plot(x, y, color=colour, linewidth=1.2)
        axes.plot(x[0], y[0], ".", color=GREY, markersize=4)
        axes.plot(x[-1], y[-1], _mark(run), color=colour, markersize=5, clip_on=False)
    for value in (-1.0, 0.0, 1.0):
        axes.axhline(value, color=_HAY, linewidth=0.5, zorder=0)
        axes.axvline(value, color=_HAY, linewidth=0.5, zorder=0)
    axes.set(
        xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal", anchor="N", title="where it goes"
    )
    axes.set(xlabel=r"$\cos(k, k^*)$", ylabel=r"$\cos(v, v^*)$")


def _cosines(row: FlowRow) -> tuple[float, float]:
    lengths = math.sqrt(row.q_kk) or 1.0, math.sqrt(row.q_vv) or 1.0
    return row.m_kk / lengths[0], row.m_vv / lengths[1]


@_remembered
def learning(rows: tuple[LearnedRow, ...], limits: tuple[LeastRow, ...], alpha: float) -> str:
    """Test risks against `α`, and on the right what they tend to."""
    with _ONE_AT_A_TIME, context():
        figure = Figure(figsize=(_WIDTH, 3.7), layout="constrained")
        axes = figure.subplots()
        names = list(dict.fromkeys(row.predictor for row in rows))
        for name in sorted(names, key=[REACHABLE, OPTIMUM, *names].index):
            _draw_learning(axes, name, [row for row in rows if row.predictor == name], alpha)
        _draw_limits(axes, limits)
        axes.axvline(alpha, **_HERE)
        axes.set(xlim=(0.0, 8.3), ylim=(-0.02, None), ylabel="test risk")
        axes.set_xlabel(r"sequences to learn from, $\alpha = N/D$")
        handles = [_line(name).through() for name in names]
        if not all(row.converged for row in rows):
            cross = Line2D([], [], color=INK, marker="x", linestyle="none", label="not converged")
            handles.append(cross)
        axes.legend(handles=handles, loc="upper right", ncols=2)
        return _as_svg(figure)


def _draw_limits(axes: Axes, limits: Sequence[LeastRow]) -> None:
    """Ticks on the right, and their names, one above the other where they are close."""
    across = (
        axes.get_yaxis_transform()
    )  # places in the width of the picture, heights in units of the risk
    height = -math.inf
    for limit in sorted(limits, key=lambda limit: limit.risk):
        colour = _line(limit.attention).colour
        height = max(limit.risk, height + _APART)
        axes.plot([0.985, 1.0], [limit.risk] * 2, color=colour, transform=across)
        axes.text(
            1.01, height, limit.attention, color=colour, fontsize=7, va="center", transform=across
        )


def _draw_learning(axes: Axes, name: str, rows: Sequence[LearnedRow], alpha: float) -> None:
    """A line through what converged, crosses elsewhere."""
    rows = sorted(rows, key=lambda row: row.alpha)
    good = [row for row in rows if row.converged]
    look = _line(name)
    axes.add_line(look.through([row.alpha for row in good], [row.risk for row in good]))
    for row in good:
        size = 6.5 if row.alpha == alpha else 3.0
        axes.errorbar(
            row.alpha,
            row.risk,
            row.error,
            fmt="o",
            color=look.colour,
            markersize=size,
            elinewidth=1,
        )
    bad = [(row.alpha, row.risk) for row in rows if not row.converged]
    if bad:
        axes.plot(*zip(*bad, strict=True), "x", color=look.colour)
