"""`attnrisk judge`."""

from __future__ import annotations

import math
import operator
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attnrisk as ar

from .._check import Refusal, one_of, refuse
from . import options, render, sheets
from .command import JUDGE, command

if TYPE_CHECKING:
    from ..studies.judge import Row, Standing, Verdict

# What --fail-if may look at.
_FAILURES = {
    "gap": "the mean gap over the grid",
    "gap_with_bias": "the same with a free bias",
    "worst": "the largest gap of the grid",
    "lengths": "the gap with random lengths",
    "haystack": "the gap in the longest sequence",
}
FAILED = 3  # the exit code where the condition of --fail-if holds


class _Condition(NamedTuple):
    name: str
    compare: str
    limit: float

    def failure(self, verdict: Verdict) -> str:
        """Why it holds, and nothing if it does not."""
        worst, longest = max(verdict.rows, key=lambda row: float(row.gap)), verdict.haystacks[-1]
        value: Any
        value, rows = {
            "gap": (verdict.gap, verdict.rows),
            "gap_with_bias": (verdict.gap_with_bias, verdict.biased_rows),
            "worst": (worst.gap, verdict.rows),
            "lengths": (verdict.varied.gap, (verdict.varied,)),
            "haystack": (longest.gap, (longest,)),
        }[self.name]
        if not all(row.result.converged and math.isfinite(float(row.gap)) for row in rows):
            return f"{self.name} is not known: a risk did not converge"
        gap = float(value) if abs(float(value)) > value.error else 0.0
        holds = _COMPARED[self.compare](gap, self.limit)
        return f"{self.name} = {gap:.6g} {self.compare} {self.limit:g}" if holds else ""


_COMPARED = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def _condition(word: str) -> _Condition:
    """Parse `gap>0.01`: a name, a comparison and a number; nothing is evaluated as code."""
    found = re.fullmatch(rf"\s*({'|'.join(_FAILURES)})\s*(>=|<=|>|<)\s*(\S+)\s*", word)
    try:
        limit = float(found[3]) if found else math.nan
    except ValueError:
        limit = math.nan
    if found is None or not math.isfinite(limit):
        names = ", ".join(_FAILURES)
        allowed = (
            f"like gap>0.01, with a name among {names}, then > or < or >= or <=, then a number"
        )
        raise refuse("fail_if", repr(word), allowed)
    return _Condition(found[1], found[2], limit)


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
    options.flag("quick", "The exact tables only, without learning curves and gradient flow."),
    options.choice(
        "format", "How to print it; json is --json.", ("text", "md", "latex", "json"), "text"
    ),
    options.option(
        "fail_if",
        f"Exit with code {FAILED} where this holds or the gap did not converge, such as 'gap>0.01'; of "
        f"{', '.join(f'{name} ({what})' for name, what in _FAILURES.items())}.",
        metavar="CONDITION",
        read=_condition,
    ),
    options.out("Draw a picture, and write it into this folder.", None, folder=True),
)
def judge(args: Any) -> render.Shown:
    """Evaluate your own attention: its gap to the Bayes risk, what it lacks, and how it learns.

    Example: attnrisk judge my_module:my_attention --out build/verdict
    """
    kernel = None if args.kernel is None else f"--kernel {args.kernel}"
    given = [word for word in (args.attention, kernel, "--all" * args.all) if word]
    if not given:
        allowed = "a MODULE:FUNCTION or NAME, unless --kernel MODULE:FUNCTION or --all is given"
        raise refuse("attention", "nothing", allowed)
    if len(given) > 1:
        kept = "give one MODULE:FUNCTION or NAME, or --kernel MODULE:FUNCTION, or --all"
        raise Refusal(f"{' and '.join(given)} cannot be combined: {kept}")
    if args.quick and args.fail_if is not None and args.fail_if.name == "gap_with_bias":
        allowed = (
            "gap, worst, lengths or haystack; this one needs the full verdict: leave out --quick"
        )
        raise refuse("fail_if", repr(args.fail_if.name), allowed)
    for name, word in (("out", args.out), ("fail-if", args.fail_if), ("quick", args.quick or None)):
        if args.all and word is not None:
            raise Refusal(f"--{name} and --all cannot be combined: leave out one of them")
    if args.all:
        return _league(args.progress)
    from ..studies.judge import normalised

    name, word = ("kernel", args.kernel) if args.kernel else ("attention", args.attention)
    out = sys.stdout

    def show(exact: Verdict) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")  # over the progress bar
        with redirect_stdout(out):
            args.print_now(*sheets.as_rich(sheets.exact_parts(exact)))

    with user_code(name, word):
        student = load_function(name, word)
        student = normalised(student) if args.kernel else student
        said = show if args.format == "text" else None
        how = {"show": said, "quick": args.quick}
        verdict = ar.judge(student, word, args.progress, args.limit, **how)
    files = []
    if args.out is not None:
        from ..studies.judge.picture import draw

        files = [str(path) for path in draw(verdict, args.out)]
    fields = _fields(verdict, files)
    shown = render.Shown(fields)
    if args.fail_if is not None and (why := args.fail_if.failure(verdict)):
        shown = shown._replace(code=FAILED, note=f"Failed, --fail-if: {why}")
    if args.format == "text":
        return shown._replace(parts=[*sheets.as_rich(sheets.later_parts(verdict)), *files])
    if args.format == "json":
        return shown._replace(always_json=True)
    write = sheets.as_markdown if args.format == "md" else sheets.as_latex
    words = write([*sheets.exact_parts(verdict), *sheets.later_parts(verdict)])
    return shown._replace(parts=[words])


def _league(progress: render.Report) -> render.Shown:
    fields, rows = [], []
    for it in ar.league(progress=progress, heads=True):
        pair, digits = it.two_heads, sheets.DIGITS
        fields.append(_standing_fields(it) | {"two_heads": pair and float(pair)})
        gaps = [render.significant(gap, digits) for gap in (it.gap, it.gap_with_bias)]
        two_heads = "—" if pair is None else render.significant(pair, 4)
        rows.append((it.name, it.traits.family, it.traits.growth, *gaps, two_heads))
    columns = "attention", "family", "growth", "gap", "free bias", "two heads"
    title = "Mean gap to Bayes with infinite data, with a free bias, and as two heads on flipped needles"
    return render.Shown({"rows": fields}, [render.table(title, columns, rows)])


_NUMPY_WARNINGS = "overflow|underflow|invalid value|divide by zero|All-NaN|Casting complex"


@contextmanager
def user_code(argument: str, word: str, **others: str | None) -> Iterator[None]:
    """For calls of a user's function: its output goes to standard error, its warnings are ignored, and what it raises
    when it is called from compiled code is a refusal of this argument, or of that of the others whose function it was.

    Warnings of this package are shown, such as that of a large error, except NumPy's floating-point warnings.
    """
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", category=RuntimeWarning, module=r"attnrisk\.")
        warnings.filterwarnings("ignore", _NUMPY_WARNINGS, RuntimeWarning)
        try:
            yield
        except (ValueError, RuntimeError) as error:
            _, raised, trace = str(error).partition("error calling callback: ")
            if not raised:
                raise
            for name, other in others.items():
                if other is not None and _raised_by(other, word, trace):
                    argument, word = name, other
            given = f"{word!r} (it raised {trace.strip().splitlines()[-1]})"
            raise refuse(argument, given, "a function of any scores") from None


def _raised_by(word: str, other: str, trace: str) -> bool:
    """Whether the function is in this traceback, or the file of its module, if that of the other is another."""
    module, colon, function = word.rpartition(":")
    file = re.search(rf"[\\/\"]{re.escape(module.rpartition('.')[2])}\.py\", line", trace)
    alone = file is not None and not other.startswith(f"{module}:")
    return bool(colon) and (alone or f", in {function}\n" in trace)


def load_function(argument: str, word: str) -> Any:
    """Load `module:name`, from the current folder or an installed module, or return a name of the catalogue."""
    import importlib

    module, colon, name = word.partition(":")
    if module.endswith(".py") or "/" in module:
        told = f"{Path(module).stem}:{name or 'NAME'}, run in the folder of the file"
        raise refuse(argument, repr(word), f"MODULE:FUNCTION, such as {told}")
    if argument == "attention" and not colon:
        if word not in ar.CATALOGUE and Path(f"{word}.py").is_file():
            allowed = f"{word}:NAME, where NAME is a function in {word}.py"
            raise refuse(argument, repr(word), allowed)
        if word == ar.BayesSoftmax.name:
            heads = "attnrisk population --task features --features flipped:9 --heads 2"
            use = f"`{heads} --attention {word}`"
            allowed = f"an attention of one head; for this one, of several, use {use}"
            raise refuse(argument, repr(word), allowed)
        return one_of(argument, word, ar.CATALOGUE)
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
        given = f"{word!r} ({type(error).__name__}: {error})"
        where = "in this folder, or an installed one, that can be imported"
        raise refuse(argument, given, f"MODULE:FUNCTION of a module {where}") from error
    finally:
        sys.path.remove("")
    return found


def _fields(verdict: Verdict, files: list[str]) -> dict[str, Any]:
    flow: Any = verdict.flow
    counts = flow and render.picked(flow, "matched", "mismatched", "unfinished")
    named = {"risk": "test_risk", "risk_error": "test_risk_error"}
    names = "attention", "learned_bias", "alpha", "risk", "converged", "result", "warning"
    learning = [render.picked(point, *names, **named) for point in verdict.curves or ()]
    cost = {"cost_of_lengths": "cost", "cost_of_lengths_error": "cost_error"}
    return {
        **_standing_fields(verdict),
        "haystacks": rows_fields(verdict.haystacks, verdict.biased_haystacks),
        "survival": verdict.survival,
        "worth": {
            "normalisation": verdict.worth_of_normalisation,
            "bias": None if verdict.worth_of_bias is None else float(verdict.worth_of_bias),
        },
        "lacks": [_cause_fields(each) for each in verdict.lacks],
        "counterfactuals": [_cause_fields(each) for each in verdict.causes.tried],
        "later_counterfactuals": [
            {"made": [each.what for each in verdict.lacks[:step]]} | _cause_fields(each)
            for step, tried in enumerate(verdict.causes.later, start=1)
            for each in tried
        ],
        "at_worst": _at_worst_fields(verdict),
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


def _at_worst_fields(verdict: Verdict) -> dict[str, Any] | None:
    """JSON fields of the changes on the task with the largest gap, where they were computed."""
    if verdict.at_worst is None:
        return None
    best, *tried = [
        {"what": what, "recovers": recovers}
        for what, recovers in (verdict.at_worst[:2], *verdict.at_worst.tried)
    ]
    row = render.picked(verdict.worst, "task", "nu", "length", "gap")
    return row | best | {"counterfactuals": tried}


def _cause_fields(each: Any) -> dict[str, Any]:
    """JSON fields of a counterfactual: the change, what it recovers and where, and the remaining gaps."""
    return render.picked(each, "what", "recovers", "where") | {"gaps": each.after._asdict()}


def _standing_fields(standing: Standing | Verdict) -> dict[str, Any]:
    return {
        **render.picked(standing, "name", "gap", "gap_with_bias", name="attention"),
        **render.picked(standing.traits, "family", "normalised", "growth"),
        "rows": rows_fields(standing.rows, standing.biased_rows),
    }


def rows_fields(rows: Sequence[Row], biased: Sequence[Row]) -> list[dict[str, Any]]:
    """JSON fields of each task: the lowest risk, also with a free bias if that was computed."""
    fairs: Sequence[Row | None] = biased or [None] * len(rows)
    return [
        _row_fields(row)
        | {"risk_with_bias": fair and float(fair.risk), "gap_with_bias": fair and float(fair.gap)}
        for row, fair in zip(rows, fairs, strict=True)
    ]


def _row_fields(row: Row) -> dict[str, Any]:
    names = "task", "nu", "length", "risk", "attained", "gap"
    fields = render.picked(row, *names, risk_error="error")
    return fields | {"bayes_risk": float(row.bayes), "converged": row.result.converged}
