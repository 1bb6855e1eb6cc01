"""`attnrisk judge`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import options, render
from .command import JUDGE, command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate
    from ..studies.judge import Point, Row, Standing, Verdict

_DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_SURVIVAL = {
    "exponential": "found by an exponential tail",
    "threshold": "found by a threshold",
    "neither": "lost: it has neither an exponential tail nor a threshold",
    "unknown": "not followed to long sequences, where its risk would come from random points",
}


@command(
    JUDGE,
    "the verdict",
    options.argument(
        "attention",
        "A function of L scores to L weights, in a module of the current folder or an installed one; "
        "or a name that `attnrisk attentions` lists.",
        "MODULE:FUNCTION",
        None,
    ),
    options.option(
        "kernel",
        "Instead: a function φ ≥ 0 of one score, for the attention φ(χ)/Σφ.",
        metavar="MODULE:FUNCTION",
    ),
    options.flag("all", "Rank the whole catalogue by gap instead."),
    options.number(
        "limit", "Seconds within which your function must be recognised.", "60", above=0.0
    ),
    options.out("Draw a picture, and write it into this folder.", None, folder=True),
)
def judge(args: Any) -> render.Shown:
    """A verdict on your own attention: its gap to Bayes, what it learns, and what it lacks.

    Example: attnrisk judge my_module:my_attention --out build/verdict
    """
    from .._check import refuse

    given = [args.attention is not None, args.kernel is not None, args.all]
    if sum(given) != 1:
        said = "several" if any(given) else "nothing"
        raise refuse("attention", said, "one MODULE:FUNCTION or NAME, or one --kernel, or --all")
    if args.all and args.out is not None:
        raise refuse("out", repr(str(args.out)), "left out with --all")
    from ..studies import judge as judging

    if args.all:
        standings = judging.league(progress=args.progress)
        fields = {"rows": [_standing_fields(standing) for standing in standings]}
        columns = "attention", "family", "growth", "gap", "gap with a free bias"
        rows = [
            (
                it.name,
                it.traits.family,
                it.traits.growth,
                render.significant(it.gap, _DIGITS),
                render.significant(it.gap_with_bias, _DIGITS),
            )
            for it in standings
        ]
        title = "Mean gap to Bayes with infinite data"
        return render.Shown(fields, [render.table(title, columns, rows)])
    name, word = ("kernel", args.kernel) if args.kernel else ("attention", args.attention)
    out = sys.stdout

    def show(exact: Verdict) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")  # over the progress bar
        with redirect_stdout(out):
            args.print_now(*_parts(exact)[0])

    try:
        with redirect_stdout(sys.stderr):  # what a judged function prints is no part of the answer
            student = load_function(name, word)
            student = judging.normalised(student) if args.kernel else student
            verdict = judging.judge(
                student,
                word,
                args.progress,
                args.limit,
                show=show,
            )
    except SystemExit:
        raise refuse(name, repr(word), "a function that does not end the program") from None
    files = []
    if args.out is not None:
        from ..studies.judge.picture import draw

        files = [str(path) for path in draw(verdict, args.out)]
    return render.Shown(_fields(verdict, files), [*_parts(verdict)[1], *files])


def _signal(word: str) -> float:
    """`4logL` is 4."""
    from .._check import real, refuse

    factor, found, rest = word.partition("logL")
    if not found or rest:
        raise refuse("signal", repr(word), "a factor and logL, such as 4logL")
    return float(real("signal", factor or "1", minimum=0.0))


def _lengths(word: str) -> list[int]:
    from .._check import refuse, whole

    try:
        lengths = [int(each) for each in word.split(",")]
    except ValueError:
        raise refuse("length", repr(word), "numbers of tokens, such as 10,1000") from None
    return [whole("length", each) for each in lengths]


@command(
    JUDGE,
    "the comparison",
    options.argument(
        "attentions",
        "Names that `attnrisk attentions` lists, or MODULE:FUNCTION as for judge.",
        "NAME...",
        read=list,
        kind=list[str],
    ),
    options.choice("task", "As for population.", ("spiked", "max"), "spiked"),
    options.option("length", "Tokens, several lengths.", "10,1000,100000", "L,L,...", _lengths),
    options.option("signal", "ν grows with the length: a factor and logL.", "4logL", read=_signal),
    options.number("nu", "Instead: the same ν ≥ 0 at every length.", None, minimum=0.0),
)
def compare(args: Any) -> render.Shown:
    """Attentions side by side at several lengths, each as it is and with a free bias.

    Example: attnrisk compare softmax softplus relu --length 10,1000,100000 --signal 4logL
    """
    from ..studies import judge as judging

    with redirect_stdout(sys.stderr):
        students = [load_function("attention", word) for word in args.attentions]
        found = judging.compare(
            *students,
            lengths=args.length,
            nu=args.nu,
            signal=args.signal,
            task=args.task,
            progress=args.progress,
        )
    per_attention = len(found) // len(students)
    names = [args.attentions[at // per_attention] for at in range(len(found))]
    fields = [
        {"attention": name, **_rows_fields([each.plain], [each.biased])[0]}
        | {"length": int(each.plain.length)}
        for name, each in zip(names, found, strict=True)
    ]
    rows = sorted(zip(names, found, strict=True), key=lambda pair: int(pair[1].plain.length))
    cells = [
        (
            each.plain.length,
            f"{each.plain.nu:.4g}",
            name,
            render.with_error(each.plain.risk, _DIGITS) + " *" * (not each.plain.attained),
            render.significant(each.plain.gap, _DIGITS),
            render.significant(each.biased.gap, _DIGITS) + " *" * (not each.biased.attained),
        )
        for name, each in rows
    ]
    limits = {row.result for each in found for row in (each.plain, each.biased) if not row.attained}
    columns = "L", "ν", "attention", "risk", "gap to Bayes", "gap, free bias"
    notes = [f"* {limit}" for limit in sorted(limits)]
    title = f"Least risk with infinite data, {args.task} task"
    return render.Shown({"rows": fields}, [render.table(title, columns, cells, notes)])


def load_function(argument: str, word: str) -> Any:
    """The object that `module:name` stands for, modules of the current folder included, or a name of the catalogue."""
    import importlib

    from .._check import one_of, refuse
    from ..attention import CATALOGUE

    module, colon, name = word.partition(":")
    if argument == "attention" and not colon:
        if word not in CATALOGUE and Path(f"{word}.py").is_file():
            raise refuse(
                argument, repr(word), f"{word}:NAME, where NAME is a function in {word}.py"
            )
        return one_of(argument, word, CATALOGUE)
    if not module or not name:
        raise refuse(argument, repr(word), "MODULE:FUNCTION")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except SystemExit:
        raise refuse(argument, repr(word), "a function that does not end the program") from None
    except Exception as error:  # whatever the user's module raises is shown to the user
        said = f"({type(error).__name__}: {error})"
        allowed = (
            "MODULE:FUNCTION of a module in this folder, or an installed one, that can be imported"
        )
        raise refuse(argument, f"{word!r} {said}", allowed) from error
    finally:
        sys.path.remove("")
    return found


def _fields(verdict: Verdict, files: list[str]) -> dict[str, Any]:
    flow: Any = verdict.flow
    counts = flow and render.picked(flow, "matched", "mismatched", "unfinished")
    named = {"risk": "test_risk", "risk_error": "test_risk_error"}
    names = "attention", "alpha", "risk", "converged", "result", "warning"
    learning = [render.picked(point, *names, **named) for point in verdict.curves or ()]
    cost = {"cost_of_lengths": "cost", "cost_of_lengths_error": "cost_error"}
    return {
        **_standing_fields(verdict),
        "haystacks": _rows_fields(verdict.haystacks, verdict.biased_haystacks),
        "survival": verdict.survival,
        "worth": {
            "normalisation": verdict.worth_of_normalisation,
            "bias": float(verdict.worth_of_bias),
        },
        "lengths": {
            "fixed": _row_fields(verdict.fixed),
            "varied": _row_fields(verdict.varied),
            **render.picked(verdict, "cost_of_lengths", **cost),
        },
        "elementwise_floor": float(verdict.floors[0]),
        "learning": [point | {"warning": point["warning"] or None} for point in learning],
        "flow": counts and counts | {"risks": flow.risks.tolist()},
        "notes": list(verdict.notes),
        "verdict": verdict.paragraph,
        "files": files,
    }


def _standing_fields(standing: Standing | Verdict) -> dict[str, Any]:
    return {
        **render.picked(standing, "name", "gap", "gap_with_bias", name="attention"),
        **render.picked(standing.traits, "family", "normalised", "growth"),
        "rows": _rows_fields(standing.rows, standing.biased_rows),
    }


def _rows_fields(rows: Sequence[Row], biased: Sequence[Row]) -> list[dict[str, Any]]:
    """Of each task, the least risk as the attention is, and with a free bias."""
    return [
        _row_fields(row) | {"risk_with_bias": float(fair.risk), "gap_with_bias": float(fair.gap)}
        for row, fair in zip(rows, biased, strict=True)
    ]


def _row_fields(row: Row) -> dict[str, Any]:
    names = "task", "nu", "length", "risk", "attained", "gap"
    return render.picked(row, *names, risk_error="error") | {"bayes_risk": float(row.bayes)}


def _parts(verdict: Verdict) -> tuple[list[RenderableType], list[RenderableType]]:
    """What is printed: the exact tables, and then what takes longer and the words."""
    from rich.text import Text

    exact: list[RenderableType] = [
        Text.assemble((verdict.name, "bold"), f": {verdict.traits.words}\n"),
        _rows_table("Least risk with infinite data", verdict.rows, verdict.biased_rows),
        Text(
            f"Mean gap to Bayes over these tasks: {render.with_error(verdict.gap, _DIGITS)}; "
            f"with a free bias {render.with_error(verdict.gap_with_bias, _DIGITS)}.\n"
            f"Normalisation is worth {verdict.worth_of_normalisation:.4f} (best element-wise attention less Bayes, "
            f"ν = {verdict.fixed.nu:g}, L = {verdict.fixed.length}), the bias "
            f"{render.significant(verdict.worth_of_bias, _DIGITS)} (of the mean gap).\n"
        ),
        _rows_table(
            "Longer and longer haystacks, ν = 4 log L", verdict.haystacks, verdict.biased_haystacks
        ),
        Text(
            f"Over these lengths the gap {_changes(verdict.growth)}. With its best bias the needle is "
            f"{_SURVIVAL[verdict.survival]}.\n"
        ),
        _rows_table("Ten tokens, always or on average", (verdict.fixed, verdict.varied)),
        Text(f"When lengths vary, the gap {_changes(verdict.cost_of_lengths)}.\n"),
    ]
    parts: list[RenderableType] = []
    if verdict.curves:
        parts.append(_curves_table(verdict.curves))
    if verdict.flow is not None:
        parts.append(Text(f"{_flow_words(verdict.flow)}\n"))
    parts += [Text(f"{note}\n") for note in verdict.notes]
    return exact, [*parts, Text(verdict.paragraph, style="bold")]


def _changes(change: Estimate) -> str:
    if render.significant(change) == "0":
        return "does not change"
    return f"{'grows' if float(change) > 0 else 'shrinks'} by {abs(float(change)):.3g}"


def _rows_table(title: str, rows: Sequence[Row], biased: Sequence[Row] = ()) -> RenderableType:
    cells = [
        [
            row.task,
            f"{row.nu:.4g}",
            row.length,
            render.with_error(row.risk, _DIGITS) + " *" * (not row.attained),
            render.significant(row.bayes, _DIGITS),
            render.significant(row.gap, _DIGITS),
        ]
        for row in rows
    ]
    for cell, row in zip(cells, biased, strict=False):
        cell.append(render.significant(row.gap, _DIGITS) + " *" * (not row.attained))
    columns = ["task", "ν", "L", "risk", "Bayes", "gap", *["gap, free bias"] * bool(biased)]
    limits = {row.result for row in (*rows, *biased) if not row.attained}
    return render.table(title, columns, cells, [f"* {limit}" for limit in sorted(limits)])


def _curves_table(points: Sequence[Point]) -> RenderableType:
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
    notes = [f"! {render.UNCONVERGED}"] * any(not point.converged for point in points)
    notes += sorted({f"* {point.warning}" for point in points if point.warning})
    return render.table(title, ["attention", *(f"α = {alpha:g}" for alpha in alphas)], rows, notes)


def _flow_words(flow: Any) -> str:
    runs = len(flow.risks)
    words = f"Gradient flow from small random starts finds the least risk in {flow.matched} of {runs} runs"
    if flow.mismatched:
        words += f"; {flow.mismatched} converged elsewhere, at a risk of {max(flow.risks):.4g}"
    if flow.unfinished:
        words += f"; {flow.unfinished} did not converge, the last at a risk of {flow.risks[-1]:.4g}"
    return f"{words}."
