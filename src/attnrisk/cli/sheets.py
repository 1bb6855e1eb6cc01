"""The verdict as sheets: tables and sentences, printed on a terminal, as Markdown or as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import render

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate
    from ..studies.judge import Point, Row, Verdict

DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_SURVIVAL = {
    "exponential": "With its best bias the needle is found by an exponential tail.",
    "threshold": "With its best bias the needle is found by a threshold.",
    "neither": "With its best bias the needle is lost: it has neither an exponential tail nor a threshold.",
}
_TABLES = {"fixed": "ten tokens", "lengths": "lengths that vary", "haystack": "a long haystack"}
_TEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "→": r"$\to$", "≥": r"$\ge$"}
_GREEK = {"χ": r"$\chi$", "φ": r"$\varphi$", "ν": r"$\nu$", "α": r"$\alpha$", "Σ": r"$\sum$"}


class Sheet(NamedTuple):
    """A table, with notes below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


Part = Sheet | str


def as_rich(parts: Sequence[Part]) -> list[RenderableType]:
    """For a terminal."""
    from rich.text import Text

    return [render.table(*part) if isinstance(part, Sheet) else Text(f"{part}\n") for part in parts]


def as_markdown(parts: Sequence[Part]) -> str:
    """For a page or an issue."""
    blocks = []
    for part in parts:
        if isinstance(part, str):
            blocks.append(part.strip())
            continue
        lines = ["| " + " | ".join(row) + " |" for row in (part.columns, *part.rows)]
        lines.insert(1, "|" + "---|" * len(part.columns))
        notes = ["", *(note.replace("*", r"\*") for note in part.notes)] if part.notes else []
        blocks.append("\n".join([f"**{part.title}**", "", *lines, *notes]).replace(" *", r" \*"))
    return "\n\n".join(blocks)


def as_latex(parts: Sequence[Part]) -> str:
    """For a paper: tables are `tabular`, with the rules of the package booktabs."""
    blocks = []
    for part in parts:
        if isinstance(part, str):
            blocks.append(_tex(part.strip()))
            continue
        rows = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in part.rows]
        head = " & ".join(map(_tex, part.columns)) + r" \\"
        notes = [_tex(note) + r"\par" for note in part.notes]
        body = [r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
        begin = rf"\begin{{tabular}}{{{'l' * len(part.columns)}}}"
        blocks.append("\n".join([f"% {part.title}", begin, *body, *notes]))
    return "\n\n".join(blocks)


def _tex(words: str) -> str:
    return "".join({**_TEX, **_GREEK}.get(letter, letter) for letter in words)


def exact_parts(verdict: Verdict) -> list[Part]:
    """What comes from quadrature: the first part of an answer."""
    gap = f"Mean gap to Bayes over these tasks: {render.with_error(verdict.gap, DIGITS)}"
    if verdict.gap_with_bias is not None:
        gap += f"; with a free bias {render.with_error(verdict.gap_with_bias, DIGITS)}"
    parts: list[Part] = [
        f"{verdict.name}: {verdict.traits.words}",
        rows_sheet("Least risk with infinite data", verdict.rows, verdict.biased_rows),
        f"{gap}.",
        rows_sheet(
            "Longer and longer haystacks, ν = 4 log L", verdict.haystacks, verdict.biased_haystacks
        ),
        f"Over these lengths the gap {_changes(verdict.growth)}. {_SURVIVAL.get(verdict.survival, '')}",
        rows_sheet("Ten tokens, always or on average", (verdict.fixed, verdict.varied)),
        f"When lengths vary, the gap {_changes(verdict.cost_of_lengths)}.",
    ]
    if verdict.causes.tried:
        rows = [
            [each.what, *(f"{gap:.4f}" for gap in each.after), _recovered(each)]
            for each in verdict.causes.tried
        ]
        before = ["as it is", *(f"{gap:.4f}" for gap in verdict.gaps), ""]
        columns = ["with other", *_TABLES.values(), "recovers"]
        parts.append(Sheet("Gap to Bayes if one thing were different", columns, [before, *rows]))
    return parts


def _recovered(each: Any) -> str:
    from ..studies.judge.causes import MATTERS

    return f"{each.recovers:.4f}" if each.recovers >= MATTERS else "—"


def later_parts(verdict: Verdict) -> list[Part]:
    """What takes longer, and the words."""
    parts: list[Part] = []
    if verdict.curves:
        parts.append(_curves_sheet(verdict.curves))
    if verdict.flow is not None:
        parts.append(_flow_words(verdict.flow))
    return [*parts, *verdict.notes, verdict.paragraph]


def _changes(change: Estimate) -> str:
    from ..studies.judge.causes import MATTERS

    if abs(float(change)) < MATTERS:
        return f"changes by less than {MATTERS:g}"
    return f"{'grows' if float(change) > 0 else 'shrinks'} by {abs(float(change)):.2g}"


def rows_sheet(title: str, rows: Sequence[Row], biased: Sequence[Row] = ()) -> Sheet:
    """Least risks, with that of Bayes; one note says which of them are limits."""
    cells = [
        [
            row.task,
            f"{row.nu:.4g}",
            row.length,
            render.with_error(row.risk, DIGITS) + " *" * (not row.attained),
            render.significant(row.bayes, DIGITS),
            render.significant(row.gap, DIGITS),
        ]
        for row in rows
    ]
    for cell, row in zip(cells, biased, strict=False):
        cell.append(render.significant(row.gap, DIGITS) + " *" * (not row.attained))
    columns = ["task", "ν", "L", "risk", "Bayes", "gap", *["gap, free bias"] * bool(biased)]
    notes = limit_notes("risk", rows) + limit_notes("gap, free bias", biased)
    return Sheet(title, columns, cells, notes)


def limit_notes(column: str, rows: Sequence[Row]) -> list[str]:
    """One note on the limits of a column, if it has any."""
    reasons = {str(row.result).split(": ")[-1] for row in rows if not row.attained}
    return (
        [f"* {column}: infimum, not attained: {'; or '.join(sorted(reasons))}"] if reasons else []
    )


def _curves_sheet(points: Sequence[Point]) -> Sheet:
    from ..studies.judge.tasks import WORKBENCH

    def cell(point: Point) -> str:
        """The risk, with a sign where it is not to be trusted; nothing where there is none."""
        if not math.isfinite(float(point.risk)):
            return "! —"
        mark = "" if point.converged else "! "
        return mark + render.with_error(point.risk, 3) + " *" * bool(point.warning)

    alphas = sorted({point.alpha for point in points})
    task = f"{WORKBENCH.task} task, ν = {WORKBENCH.nu:g}, L = {WORKBENCH.length}"
    title = f"Test risk after learning from N = αD sequences, ridges tuned, {task}"
    found = {(point.attention, point.alpha): point for point in points}
    rows = [
        [name, *(cell(found[name, alpha]) for alpha in alphas)]
        for name in dict.fromkeys(point.attention for point in points)
    ]
    notes = []
    failed = [point for point in points if not point.converged]
    if failed:
        worst = failed[0]
        notes.append(
            f"! {render.UNCONVERGED}: not the value of a fixed point. Try larger ridges: attnrisk erm --attention "
            f"{worst.attention} --alpha {worst.alpha:g} --ridge-k 3 --ridge-v 3"
        )
    if any(point.warning for point in points):
        reasons = sorted({_without_share(point.warning) for point in points if point.warning})
        notes.append(f"* the values are approximate: {'; or '.join(reasons)}")
    return Sheet(title, ["attention", *(f"α = {alpha:g}" for alpha in alphas)], rows, notes)


def _without_share(warning: str) -> str:
    """The reason alone, the same for all points that have it."""
    reason = warning.removesuffix(": the values are approximate")
    share, _, rest = reason.partition("% of the samples ")
    return f"samples {rest}" if rest and share.isdigit() else reason


def _flow_words(flow: Any) -> str:
    runs = len(flow.risks)
    words = f"Gradient flow from small random starts finds the least risk in {flow.matched} of {runs} runs"
    if flow.mismatched:
        words += f"; {flow.mismatched} converged elsewhere, at a risk of {max(flow.risks):.4g}"
    if flow.unfinished:
        words += f"; {flow.unfinished} did not converge, the last at a risk of {flow.risks[-1]:.4g}"
    return f"{words}."
