"""`attnrisk judge`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json
from .output import print_json, print_rich, significant, table, with_error
from .progress import working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate
    from ..studies.judge import Point, Row, Standing, Verdict

_DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_UNCONVERGED = "NOT CONVERGED"


def judge(
    attention: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function of L scores to L weights, in a module of the current folder or an installed one; "
            "or a name that `attnrisk attentions` lists.",
            show_default=False,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="In its place: a function φ ≥ 0 of one score, for the attention φ(χ)/Σφ.",
            show_default=False,
        ),
    ] = None,
    league: Annotated[
        bool, typer.Option("--all", help="In its place: the catalogue, sorted by gap.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Draw a picture, and write it there.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """A verdict on your own attention: what it loses to Bayes, what it learns, and what it lacks.

    Example: attnrisk judge my_module:my_attention --out build/verdict
    """
    from .._check import refuse

    given = [attention is not None, kernel is not None, league]
    if sum(given) != 1:
        said = "nothing" if not any(given) else "several"
        raise refuse("attention", said, "one MODULE:FUNCTION or NAME, or one --kernel, or --all")
    if out is not None and (league or (out.exists() and not out.is_dir())):
        allowed = "left out with --all" if league else "a folder, or a name that is free"
        raise refuse("out", repr(str(out)), allowed)
    if league:
        _print_league(as_json)
    else:
        _print_verdict(attention, kernel, out, as_json)


def _print_league(as_json: bool) -> None:
    with working("the catalogue") as report:
        from ..studies.judge import league

        standings = league(progress=report)
    if as_json:
        print_json({"rows": [_standing_fields(standing) for standing in standings]})
    else:
        print_rich(_league_table(standings))


def _print_verdict(
    attention: str | None, kernel: str | None, out: Path | None, as_json: bool
) -> None:
    with working("the verdict") as report:
        from ..studies.judge import judge as decide
        from ..studies.judge import normalised

        if kernel is not None:
            verdict = decide(normalised(_load("kernel", kernel)), kernel, report)
        else:
            verdict = decide(_read_attention(str(attention)), attention, report)
        files = []
        if out is not None:
            from ..studies.judge.picture import draw

            files = [str(path) for path in draw(verdict, out)]
    if as_json:
        print_json(_fields(verdict, files))
        return
    for part in _parts(verdict):
        print_rich(part)
    for file in files:
        typer.echo(file)


def _read_attention(word: str) -> Any:
    """A function, or the name of one of the catalogue."""
    from .._check import one_of
    from ..attention import CATALOGUE

    return _load("attention", word) if ":" in word else one_of("attention", word, CATALOGUE)


def _load(argument: str, word: str) -> Any:
    """The object that `module:name` stands for; modules of the current folder are found too."""
    import importlib
    import sys

    from .._check import refuse

    module, _, name = word.partition(":")
    if not module or not name:
        raise refuse(argument, repr(word), "MODULE:FUNCTION")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a stranger's module raises is told to whom it belongs
        said = f"({type(error).__name__}: {error})"
        allowed = (
            "MODULE:FUNCTION of a module in this folder, or an installed one, that can be imported"
        )
        raise refuse(argument, f"{word!r} {said}", allowed) from error
    finally:
        sys.path.remove("")
    return found


def _fields(verdict: Verdict, files: list[str]) -> dict[str, Any]:
    return {
        "attention": verdict.name,
        "family": verdict.traits.family,
        "normalised": verdict.traits.normalised,
        "growth": verdict.traits.growth,
        "gap": float(verdict.gap),
        "gap_error": float(verdict.gap.error),
        "rows": [_row_fields(row) for row in verdict.rows],
        "haystacks": [_row_fields(row) for row in verdict.haystacks],
        "lengths": {
            "fixed": _row_fields(verdict.fixed),
            "varied": _row_fields(verdict.varied),
            "cost": float(verdict.cost_of_lengths),
            "cost_error": float(verdict.cost_of_lengths.error),
        },
        "elementwise_floor": verdict.floors[0],
        "learning": [_point_fields(point) for point in verdict.curves or ()],
        "flow": _flow_fields(verdict),
        "notes": list(verdict.notes),
        "verdict": verdict.paragraph,
        "files": files,
    }


def _row_fields(row: Row) -> dict[str, Any]:
    return {
        "task": row.task,
        "nu": row.nu,
        "length": row.length,
        "risk": float(row.risk),
        "error": float(row.risk.error),
        "attained": row.attained,
        "bayes_risk": float(row.bayes),
        "gap": float(row.gap),
        "gap_error": float(row.gap.error),
    }


def _point_fields(point: Point) -> dict[str, Any]:
    return {
        "attention": point.attention,
        "alpha": point.alpha,
        "test_risk": float(point.risk),
        "test_risk_error": float(point.risk.error),
        "converged": point.converged,
        "result": point.result,
        "warning": point.warning,
    }


def _flow_fields(verdict: Verdict) -> dict[str, Any] | None:
    if verdict.flow is None:
        return None
    counts = {name: getattr(verdict.flow, name) for name in ("matched", "mismatched", "unfinished")}
    return counts | {"risks": verdict.flow.risks.tolist()}


def _standing_fields(standing: Standing) -> dict[str, Any]:
    return {
        "attention": standing.name,
        "family": standing.traits.family,
        "normalised": standing.traits.normalised,
        "growth": standing.traits.growth,
        "gap": float(standing.gap),
        "gap_error": float(standing.gap.error),
        "rows": [_row_fields(row) for row in standing.rows],
    }


def _parts(verdict: Verdict) -> list[RenderableType]:
    """What is printed, from the numbers to the words."""
    from rich.text import Text

    parts: list[RenderableType] = [
        Text.assemble((verdict.name, "bold"), f": {verdict.traits.words}\n"),
        _rows_table("Least risk with infinite data", verdict.rows),
        Text(f"Mean gap to Bayes over these tasks: {with_error(verdict.gap, _DIGITS)}\n"),
        _rows_table("Longer and longer haystacks, ν = 4 log L", verdict.haystacks),
        Text(f"Over these lengths the gap {_changes(verdict.growth)}.\n"),
        _rows_table("Ten tokens, always or on average", (verdict.fixed, verdict.varied)),
        Text(f"When lengths vary, the gap {_changes(verdict.cost_of_lengths)}.\n"),
    ]
    if verdict.curves:
        parts.append(_curves_table(verdict.curves))
    if verdict.flow is not None:
        parts.append(Text(f"{_flow_words(verdict)}\n"))
    parts += [Text(f"{note}\n") for note in verdict.notes]
    return [*parts, Text(verdict.paragraph, style="bold")]


def _changes(change: Estimate) -> str:
    if significant(change) == "0":
        return "does not change"
    return f"{'grows' if float(change) > 0 else 'shrinks'} by {abs(float(change)):.3g}"


def _rows_table(title: str, rows: tuple[Row, ...]) -> RenderableType:
    listed = table(title, "task", "ν", "L", "risk", "Bayes", "gap")
    for row in rows:
        listed.add_row(
            row.task,
            f"{row.nu:.4g}",
            row.length,
            with_error(row.risk, _DIGITS) + " *" * (not row.attained),
            significant(row.bayes, _DIGITS),
            significant(row.gap, _DIGITS),
        )
    if not all(row.attained for row in rows):
        listed.caption = "* infimum, not attained: |k| or |v| grows without bound"
        listed.caption_justify = "left"
    return listed


def _curves_table(points: tuple[Point, ...]) -> RenderableType:
    from ..studies.judge.tasks import WORKBENCH

    alphas = sorted({point.alpha for point in points})
    title = (
        f"Test risk after learning from N = αD sequences, ridges tuned, {WORKBENCH.task} task, "
        f"ν = {WORKBENCH.nu:g}, L = {WORKBENCH.length}"
    )
    rows = table(title, "attention", *(f"α = {alpha:g}" for alpha in alphas))
    for name in dict.fromkeys(point.attention for point in points):
        found = {point.alpha: point for point in points if point.attention == name}
        rows.add_row(name, *(_learned(found[alpha]) for alpha in alphas))
    notes = [f"! {_UNCONVERGED}"] * any(not point.converged for point in points)
    notes += sorted({f"* {point.warning}" for point in points if point.warning})
    if notes:
        rows.caption, rows.caption_justify = "\n".join(notes), "left"
    return rows


def _learned(point: Point) -> str:
    """The risk, with a sign where it is not to be trusted; nothing where there is none."""
    if not math.isfinite(float(point.risk)):
        return "! —"
    return "! " * (not point.converged) + with_error(point.risk, 3) + " *" * bool(point.warning)


def _flow_words(verdict: Verdict) -> str:
    flow = verdict.flow
    assert flow is not None
    runs = len(flow.risks)
    words = f"Gradient flow from small random starts finds the least risk in {flow.matched} of {runs} runs"
    if flow.mismatched:
        words += f"; {flow.mismatched} came to rest elsewhere, at a risk of {max(flow.risks):.4g}"
    if flow.unfinished:
        words += (
            f"; {flow.unfinished} had not come to rest, the last at a risk of {flow.risks[-1]:.4g}"
        )
    return f"{words}."


def _league_table(standings: list[Standing]) -> RenderableType:
    rows = table("Mean gap to Bayes with infinite data", "attention", "family", "growth", "gap")
    for standing in standings:
        gap = with_error(standing.gap, _DIGITS)
        rows.add_row(standing.name, standing.traits.family, standing.traits.growth, gap)
    return rows
