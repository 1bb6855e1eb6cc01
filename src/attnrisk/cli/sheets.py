"""The verdict as tables and sentences, for a terminal, as Markdown or as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attnrisk as ar

from . import render

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..studies.judge import Point, Row, Verdict

DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_BELOW = 4.0  # errors by which a sampled risk may lie below the Bayes risk; more would be a wrong number, and is shown
_SURVIVAL = {
    "exponential": "With its best bias it finds the relevant token by an exponential tail.",
    "threshold": "With its best bias it finds the relevant token by a threshold.",
    "neither": "Even with its best bias it does not find the relevant token: it has neither an exponential tail nor a "
    "threshold.",
}
_TABLES = {"fixed": "ten tokens", "lengths": "random length", "haystack": "long sequence"}
_TEX = {letter: f"\\{letter}" for letter in "&%_#${}"}
_TEX |= {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
_TEX |= {"±": r"$\pm$", "→": r"$\to$", "≥": r"$\ge$", "Σ": r"$\sum$"}
_TEX |= {"χ": r"$\chi$", "φ": r"$\varphi$", "ν": r"$\nu$", "α": r"$\alpha$"}


class Sheet(NamedTuple):
    """A table, with notes below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


Part = Sheet | str


def as_rich(parts: Sequence[Part]) -> list[RenderableType]:
    """The parts as text for a terminal."""
    from rich.text import Text

    return [render.table(*part) if isinstance(part, Sheet) else Text(f"{part}\n") for part in parts]


def as_markdown(parts: Sequence[Part]) -> str:
    """The parts as Markdown."""
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
    """The parts as LaTeX: tables are `tabular`, with the rules of the package booktabs."""
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
    return "".join(_TEX.get(letter, letter) for letter in words)


def exact_parts(verdict: Verdict) -> list[Part]:
    """The tables of risks, which are printed first."""
    gap = f"Mean gap to the Bayes risk over these tasks: {render.with_error(verdict.gap, DIGITS)}"
    if verdict.gap_with_bias is not None:
        gap += f"; with a free bias {render.with_error(verdict.gap_with_bias, DIGITS)}"
    parts: list[Part] = [
        f"{verdict.name}: {verdict.traits.words}",
        rows_sheet("Lowest risk with infinite data", verdict.rows, verdict.biased_rows),
        f"{gap}.",
        rows_sheet("Long sequences, ν = 4 log L", verdict.haystacks, verdict.biased_haystacks),
        f"Over these lengths the gap {_changes(verdict.growth)}. {_SURVIVAL.get(verdict.survival, '')}",
        rows_sheet("Fixed length and random length, mean 10", (verdict.fixed, verdict.varied)),
        f"With random lengths, the gap {_changes(verdict.cost_of_lengths)}.",
    ]
    title, causes = "Gap to the Bayes risk after", verdict.causes
    if causes.tried:
        parts.append(_changes_sheet(f"{title} one change", causes.tried))
    for step, tried in enumerate(causes.later, start=1):
        made = " and ".join(each.what for each in causes.lacks[:step])
        if tried:
            parts.append(_changes_sheet(f"{title} {made}, and one more change", tried))
    if verdict.at_worst is not None:
        worst = verdict.worst
        most = float(worst.gap)
        cells = [["none", f"{most:z.4f}", ""]]
        cells += [
            [what, f"{most - by:z.4f}", _recovered(by)] for what, by in verdict.at_worst.tried
        ]
        where = f"{worst.task} task, ν = {worst.nu:.4g}, L = {worst.length}"
        parts.append(Sheet("Largest gap after one change", ["change", where, "recovers"], cells))
    return parts


def _changes_sheet(title: str, tried: Sequence[Any]) -> Sheet:
    rows = [
        ("none", tried[0].before, ""),
        *((it.what, it.after, _recovered(it.recovers)) for it in tried),
    ]
    cells = [[what, *(f"{gap:z.4f}" for gap in gaps), last] for what, gaps, last in rows]
    return Sheet(title, ["change", *_TABLES.values(), "recovers"], cells)


def _recovered(recovers: float) -> str:
    from ..studies.judge.causes import MATTERS

    return f"{recovers:.4f}" if recovers >= MATTERS else "—"


def later_parts(verdict: Verdict) -> list[Part]:
    """Learning curves, gradient flow, notes and the verdict in words."""
    parts: list[Part] = []
    if verdict.curves:
        parts.append(_curves_sheet(verdict.curves))
    if verdict.flow is not None:
        parts.append(_flow_words(verdict.flow))
    return [*parts, *verdict.notes, verdict.paragraph]


def _changes(change: ar.Estimate) -> str:
    from ..studies.judge.causes import MATTERS

    if abs(float(change)) < MATTERS:
        return f"changes by less than {MATTERS:g}"
    return f"{'grows' if float(change) > 0 else 'shrinks'} by {abs(float(change)):#.2g}"


def rows_sheet(title: str, rows: Sequence[Row], biased: Sequence[Row] = ()) -> Sheet:
    """Lowest risks beside the Bayes risk, with notes on those that are limits or did not converge."""
    cells = [
        [
            row.task,
            f"{row.nu:.4g}",
            row.length,
            render.with_error(row.risk, DIGITS) + mark(row),
            render.significant(row.bayes, DIGITS),
            gap_cell(row),
        ]
        for row in rows
    ]
    for cell, row in zip(cells, biased, strict=False):
        cell.append(gap_cell(row) + mark(row))
    columns = ["task", "ν", "L", "risk", "Bayes", "gap", *["gap, free bias"] * bool(biased)]
    return Sheet(title, columns, cells, row_notes(rows, biased))


def mark(row: Row) -> str:
    """A star for a limit, and an exclamation mark if the search did not converge."""
    return " *" * (not row.attained) + " !" * (not row.result.converged)


def gap_cell(row: Row) -> str:
    """The gap, and 0 where the error of a sampled risk makes it negative."""
    sampled_below = -_BELOW * float(row.gap.error) < float(row.gap) < 0
    return "0" if sampled_below else render.significant(row.gap, DIGITS)


def row_notes(rows: Sequence[Row], biased: Sequence[Row]) -> list[str]:
    """One note on the limits of each column, and one for each reason not to converge."""
    notes = render.result_notes([row.result for row in (*rows, *biased)])
    for column, those in (("risk", rows), ("gap, free bias", biased)):
        reasons = {str(row.result).split(": ")[-1] for row in those if not row.attained}
        if reasons:
            notes.append(f"* {column}: infimum, not attained: {'; or '.join(sorted(reasons))}")
    return notes


def _curves_sheet(points: Sequence[Point]) -> Sheet:
    from ..studies.judge.tasks import WORKBENCH

    def cell(point: Point) -> str:
        """The risk, marked where it did not converge or is approximate; a dash where there is none."""
        if not math.isfinite(float(point.risk)):
            return "! —"
        mark = "" if point.converged else "! "
        return mark + render.with_error(point.risk, 3) + " *" * bool(point.warning)

    alphas = sorted({point.alpha for point in points})
    task = f"{WORKBENCH.task} task, ν = {WORKBENCH.nu:g}, L = {WORKBENCH.length}"
    title = f"Test risk after training on N = αD sequences with the best ridge penalties, {task}"
    found = {(point.label, point.alpha): point for point in points}
    rows = [
        [name, *(cell(found[name, alpha]) for alpha in alphas)]
        for name in dict.fromkeys(point.label for point in points)
    ]
    notes = []
    failed = [point for point in points if not point.converged]
    if failed:
        name, alpha = failed[0].attention, failed[0].alpha
        learner = "attention" + ".with_free_bias()" * failed[0].learned_bias
        advice = f"ar.erm_asymptotics(task, {learner}, {alpha:g}, ar.Ridge(3.0, 3.0))"
        if name in ar.CATALOGUE:
            advice = f"attnrisk erm --attention {name} --alpha {alpha:g} --ridge-k 3 --ridge-v 3"
            advice += " --bias free" * failed[0].learned_bias
        notes.append(
            f"! {render.UNCONVERGED}: not the value of a fixed point. Try larger ridges: {advice}"
        )
    if any(point.warning for point in points):
        reasons = sorted({_without_share(point.warning) for point in points if point.warning})
        notes.append(f"* the values are approximate: {'; or '.join(reasons)}")
    return Sheet(title, ["attention", *(f"α = {alpha:g}" for alpha in alphas)], rows, notes)


def _without_share(warning: str) -> str:
    """The reason without the percentage, so that it is the same for all points."""
    reason = warning.removesuffix(": the values are approximate")
    share, _, rest = reason.partition("% of the samples ")
    return f"samples {rest}" if rest and share.isdigit() else reason


def _flow_words(flow: Any) -> str:
    runs = len(flow.risks)
    words = f"Gradient flow from small random initialisations reaches the lowest risk in {flow.matched} of {runs} runs"
    if flow.mismatched:
        words += f"; {flow.mismatched} converged elsewhere"
    if flow.unfinished:
        words += f"; {flow.unfinished} did not converge"
    return f"{words}."
