"""Commands for infinite data: `bayes`, `population`, `flow` and `attentions`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from . import options, render
from .command import ASK, command
from .head_flow import head_flow

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate, Result
    from ..attention import AbstractAttention
    from ..flow import Flow
    from ..population import HeadsMinimum, Minimum, Overlaps

_DIGITS = 8  # of a risk in a table, which fits a terminal of 80 columns
_FIRST = 1e-2  # time of the first record after the start of a flow: the risk hardly changes before
_PER_DECADE = 3
_TEACHER, _RESIDUAL = ("m_kk", "m_kv", "m_vk", "m_vv"), ("R_kk", "R_kv", "R_vv")


@command(ASK, "Bayes risk", options.task(length="10", features=True))
def bayes(args: Any) -> render.Shown:
    """Bayes risk: the lowest risk of any predictor, even one that knows the hidden directions.

    Example: attnrisk bayes --task max --nu inf --length 1-3 --noise 0.1
    """
    from ..population import bayes_risk

    task, risk = args.task, bayes_risk(args.task)
    fields = {"risk": float(risk), "error": float(risk.error), "task": render.task_fields(task)}
    rows = {
        "Bayes risk": render.with_error(risk),
        "risk of predicting zero": f"{float(task.label_variance):.12g}",
    }
    return render.Shown(fields, [render.facts(render.task_words(task), rows)])


@command(
    ASK,
    "population risk",
    options.task(length="10", features=True),
    options.heads(),
    options.overlaps("compute the risk there"),
)
def population(args: Any) -> render.Shown:
    """Lowest risk of an attention with infinite data, or its risk at given overlaps.

    Example: attnrisk population --task spiked --nu 5 --length 10 --attention softmax,linear
    """
    from .._check import refuse
    from ..population import Minimum, bayes_risk, population_minimum, population_risk

    task, given, found = args.task, args.overlaps, []
    if given is not None:
        _check_bias(args.attentions)
    if given is not None and (task.features > 1 or any(a.keys > 1 for a in args.attentions)):
        raise refuse("overlaps", "(given)", "left out with several heads or features")
    with ThreadPoolExecutor(1) as other:
        meanwhile = other.submit(bayes_risk, task)
        for done, attention in enumerate(args.attentions):
            args.progress(_name(attention), done, len(args.attentions))
            if given is None:
                found.append(population_minimum(task, attention))
            else:
                found.append(Minimum(population_risk(task, attention, given), given, attention))
    bayes = meanwhile.result()
    found.sort(key=lambda each: float(each.risk))
    rows = [
        {
            "attention": _name(each.attention),
            **(_heads_fields(each) if _has_heads(each) else _one_head_fields(each)),
            "converged": each.converged,
            "bayes_risk": float(bayes),
            "gap": float(each.risk) - float(bayes),
        }
        for each in found
    ]
    fields = render.one_or_many("rows", rows) | {
        "bayes_risk": float(bayes),
        "bayes_error": float(bayes.error),
        "task": render.task_fields(task),
    }
    show: Any = _risk_panel if len(found) == 1 else _risk_table
    if any(map(_has_heads, found)):
        show = _heads_panel if len(found) == 1 else _heads_table
    return render.Shown(fields, [show(render.task_words(task), found, bayes, given is not None)])


def _check_bias(attentions: Sequence[AbstractAttention]) -> None:
    """Refuse to tune a bias where overlaps are given; that of erf and sigmoid is 0 there."""
    from .._check import refuse

    if any(each.free_bias and not type(each)().free_bias for each in attentions):
        raise refuse("bias", "free", "a number where overlaps are given")


def _name(attention: AbstractAttention) -> str:
    """Of heads that of their attention."""
    from ..attention import Heads

    return attention.attention.name if isinstance(attention, Heads) else attention.name


def _has_heads(least: Minimum | HeadsMinimum) -> bool:
    from ..population import HeadsMinimum

    return isinstance(least, HeadsMinimum)


def _one_head_fields(least: Minimum) -> dict[str, Any]:
    picked = render.picked(least, "risk", "attained", "overlaps", "result", risk_error="error")
    return {**picked, "bias": _bias(least.attention)}


def _heads_fields(least: HeadsMinimum) -> dict[str, Any]:
    """Overlaps are matrices, of a single head too."""
    names = "head_weights", "biases"
    picked = render.picked(least, "risk", "attained", "result", *names, risk_error="error")
    overlaps = {"M": least.overlaps.M.tolist(), "Q": least.overlaps.Q.tolist()}
    minima = [
        render.picked(each, "risk", "kind", "result", *names, risk_error="error")
        | {"keys": each.overlaps.M[:-1, :-1].tolist()}
        for each in least.minima
    ]
    return {**picked, "heads": least.attention.keys, "overlaps": overlaps, "minima": minima}


def _key_words(keys: Any) -> str:
    """Each key along the features."""
    return "; ".join(", ".join(f"{number:z.4f}" for number in key) for key in keys)


def _listed(numbers: list[float] | None) -> str | None:
    return None if numbers is None else ", ".join(f"{each:.6g}" for each in numbers)


def _heads_panel(task: str, found: list[HeadsMinimum], bayes: Estimate, at_overlaps: bool) -> Any:
    (least,) = found
    lines = [
        f"{render.with_error(each.risk, _DIGITS)} ({each.kind}) at {_key_words(each.overlaps.M[:-1, :-1])}"
        for each in least.minima
    ]
    rows = {
        "lowest risk": render.with_error(least.risk),
        "attained": "yes" if least.attained else f"no ({least.result})",
        "result": render.result_words(least.result),
        "Bayes risk": render.with_error(bayes),
        "gap to Bayes": render.with_error(_gap(least.risk, bayes)),
        "keys along the features": _key_words(least.overlaps.M[:-1, :-1]),
        "m_vv": f"{float(least.overlaps.M[-1, -1]):.8g}",
        "biases": _listed(least.biases),
        "head weights": _listed(least.head_weights),
        "minima found": "\n".join(lines),
    }
    heads = f"{least.attention.keys} heads of " if least.attention.keys > 1 else ""
    return render.facts(f"{heads}{_name(least.attention)} on the {task}", rows)


def _heads_table(
    task: str, found: list[Minimum | HeadsMinimum], bayes: Estimate, at_overlaps: bool
) -> Any:
    rows = [
        (
            _name(least.attention),
            render.with_error(least.risk, _DIGITS),
            render.significant(_gap(least.risk, bayes), _DIGITS),
            _key_words(least.overlaps.M[:-1, :-1]),
            render.short_result(least.result) if least.converged else "!",
        )
        for least in found
    ]
    columns = "attention", "risk", "gap to Bayes", "keys along the features", "result"
    first = ("(Bayes)", render.with_error(bayes, _DIGITS))
    notes = render.result_notes([least.result for least in found])
    if any(least.result.converged and not least.converged for least in found):
        notes.append("! a saddle point: no minimum was found")
    return render.table(f"Lowest risk, {task}", columns, [first, *rows], notes, head=1)


def _bias(attention: AbstractAttention) -> float | None:
    """The bias of one head that was tuned or given."""
    import numpy as np

    bias = np.asarray(attention.bias).item()
    return bias if attention.free_bias or bias else None


def _gap(risk: Estimate, bayes: Estimate) -> Estimate:
    """Where one of the two risks comes from random points, so does the error."""
    from .._results import ErrorKind

    random = ErrorKind.STANDARD in (risk.kind, bayes.kind)
    kind = ErrorKind.STANDARD if random else ErrorKind.BOUND
    return risk.as_kind(kind) - bayes.as_kind(kind)


def _risk_panel(task: str, found: list[Minimum], bayes: Estimate, at_overlaps: bool) -> Any:
    (least,) = found
    attained = "yes" if least.attained else f"no ({least.result})"
    rows = {
        "risk at these overlaps" if at_overlaps else "lowest risk": render.with_error(least.risk),
        "attained": None if at_overlaps else attained,
        "Bayes risk": render.with_error(bayes),
        "gap to Bayes": render.with_error(_gap(least.risk, bayes)),
        "overlaps" if least.attained else "last overlaps": render.overlap_words(least.overlaps),
        "tuned bias" if least.attention.free_bias and not at_overlaps else "bias": render.optional(
            _bias(least.attention), ".8g"
        ),
    }
    return render.facts(f"{least.attention.name} on the {task}", rows)


def _risk_table(task: str, found: list[Minimum], bayes: Estimate, at_overlaps: bool) -> Any:
    from .._results import Result

    marks = {
        Result.K_DIVERGES: "→ ∞",
        Result.WEIGHTS_VANISH: "*",
        Result.BECOMES_SOFTMAX: "→ softmax",
        Result.BECOMES_POWER: "→ power",
    }

    def shown(least: Minimum, number: float | None, *limits: Result) -> str:
        """The number, or an arrow where it grows without bound."""
        if number is None:
            return ""
        if least.result in limits:
            return "→ ∞" if number > 0 else "→ −∞"
        return f"{number:.6g}" + " *" * (least.result == Result.WEIGHTS_VANISH)

    rows = [
        (
            f"{least.attention.name} {marks[least.result]}"
            if least.result in (Result.BECOMES_SOFTMAX, Result.BECOMES_POWER)
            else least.attention.name,
            render.with_error(least.risk, _DIGITS),
            render.significant(_gap(least.risk, bayes), _DIGITS),
            shown(least, float(least.overlaps.m_kk), Result.K_DIVERGES, Result.BECOMES_POWER),
            shown(least, _bias(least.attention), Result.BECOMES_SOFTMAX, Result.BECOMES_POWER),
        )
        for least in found
    ]
    results = {least.result for least in found}
    notes = [f"{mark}: {why}" for why, mark in marks.items() if why in results]
    title = "Risk at these overlaps" if at_overlaps else "Lowest risk"
    first = ("(Bayes)", render.with_error(bayes, _DIGITS))
    columns = "attention", "risk", "gap to Bayes", "m_kk", "bias"
    return render.table(f"{title}, {task}", columns, [first, *rows], notes, head=1)


class Moment(NamedTuple):
    """A point of a path."""

    time: float
    risk: Estimate
    overlaps: Overlaps
    bias: float | None
    gradient_norm: float


@command(
    ASK,
    "gradient flow",
    options.task(nu="2", length="10", features=True),
    options.one_with_heads(),
    options.whole("runs", "Number of initialisations; for several, one line each.", 1, 10_000, "1"),
    options.choice(
        "start",
        "Initialisation: random (default), k and v near 0; mismatched, k near v*, v near k*.",
        ("random", "mismatched"),
        None,
    ),
    options.number(
        "size",
        "Standard deviation of each component of an initial vector.",
        "0.1",
        above=0.0,
        maximum=1e5,
    ),
    options.seed("the random initialisations"),
    options.number(
        "time",
        "Final time, > 0; default 1e5, 200 for several heads or features, 50 with --step.",
        None,
        above=0.0,
    ),
    options.number(
        "step",
        "Step size of online SGD, which replaces the flow; the unit of time is then D steps.",
        None,
        above=0.0,
    ),
    options.whole("batch", "Mini-batch size of online SGD.", 1, 10**9, "1"),
    options.overlaps("start from them"),
)
def flow(args: Any) -> render.Shown:
    """Gradient flow of the population risk on k and v, or online SGD (training with infinite data).

    Example: attnrisk flow --nu 2 --attention softmax --start mismatched --runs 5
    """
    from ..flow import gradient_flow

    task, attention, starts = args.task, args.attention, _starts(args)
    several = attention.keys > 1 or task.name == "features"
    usual = 50.0 if args.step else 200.0 if several else 1e5
    times = times_to(args.time or usual)
    if several or args.step:
        return head_flow(args, starts, times)
    paths = gradient_flow(task, attention, starts, times)
    found = _runs(paths, attention.free_bias)
    rows = []
    for result, moments in found:
        path = [render.picked(moment, *Moment._fields) for moment in moments]
        told = {"result": str(result), "converged": result.converged}
        rows.append({**told, **path[-1], "path": path})
    fields = render.one_or_many("runs", rows)
    fields |= {"attention": attention.name, "task": render.task_fields(task)}
    title = f"{attention.name} on the {render.task_words(task)}"
    columns = ["time", "risk", *_TEACHER, *_RESIDUAL]
    if len(found) > 1:
        cells = [[*_cells(path[-1]), render.short_result(result)] for result, path in found]
        notes = render.result_notes([result for result, _ in found])
        title = f"End points of gradient flow, {title}"
        return render.Shown(
            fields, [render.table(title, [*columns, "result"], cells, notes, optional=_RESIDUAL)]
        )
    ((result, moments),) = found
    cells = [[*_cells(moment), f"{moment.gradient_norm:.1g}"] for moment in moments]
    head, columns = f"Gradient flow, {title}", [*columns, "gradient"]
    end = {
        "result": render.result_words(result),
        "time": f"{moments[-1].time:.6g}",
        "risk": render.with_error(moments[-1].risk),
        "gradient": f"{moments[-1].gradient_norm:.1g}",
        "overlaps": render.overlap_words(moments[-1].overlaps),
        "bias": render.optional(moments[-1].bias, ".8g"),
    }
    parts = [
        render.table(head, columns, cells, optional=_RESIDUAL),
        render.facts(f"End point, {title}", end),
    ]
    return render.Shown(fields, parts)


def times_to(end: float) -> list[float]:
    """The start, then as many times a decade up to the end."""
    first = min(_FIRST, end / 10)
    steps = math.ceil(_PER_DECADE * math.log10(end / first))
    return [0.0, *(end * 10 ** (-step / _PER_DECADE) for step in range(steps, -1, -1))]


def _starts(args: Any) -> Overlaps:
    """One start for each run."""
    import jax
    import numpy as np

    from .._check import refuse
    from ..flow import random_starts, swapped_starts

    counts = args.attention.keys, args.task.features
    if counts != (1, 1):
        if args.start == "mismatched":
            raise refuse("start", "mismatched", "random with several heads or features")
        if args.overlaps is not None:
            raise refuse("overlaps", "(given)", "left out with several heads or features")
    if args.overlaps is None:
        key = jax.random.key(args.seed)
        if args.start == "mismatched":
            return swapped_starts(key, args.runs, args.size)
        return random_starts(key, args.runs, args.size, *counts)
    if args.start is not None:
        raise refuse("start", repr(args.start), "left out where overlaps are given")
    if args.runs != 1:
        raise refuse("runs", args.runs, "1 where overlaps are given")
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], args.overlaps)


def _runs(flow: Flow, biased: bool) -> list[tuple[Result, list[Moment]]]:
    """Of each run why it stopped, and its path up to there."""
    import jax

    from .._results import Result

    def moment(run: int, column: int, time: float) -> Moment:
        here = run, column
        risk, overlaps = jax.tree.map(lambda leaf: leaf[here], (flow.risk, flow.overlaps))
        bias = float(flow.bias[here]) if biased else None
        return Moment(time, risk, overlaps, bias, float(flow.gradient_norm[here]))

    runs = []
    for run, result in enumerate(flow.result):
        end = float(flow.end_time[run])
        before = [(column, float(time)) for column, time in enumerate(flow.times) if time < end]
        path = [moment(run, column, time) for column, time in (*before, (-1, end))]
        runs.append((Result(str(result)), path))
    return runs


def _cells(moment: Moment) -> list[str]:
    """Time, risk, the overlaps with the teacher and the residuals."""
    (r_kk, _), (r_kv, r_vv) = moment.overlaps.residual
    teacher = (getattr(moment.overlaps, name) for name in _TEACHER)
    time = f"{float(f'{moment.time:.3g}'):g}"  # 1250, where three digits alone would be 1.25e+03
    numbers = (f"{float(number):z.3f}" for number in (*teacher, r_kk, r_kv, r_vv))
    return [time, render.significant(moment.risk, _DIGITS), *numbers]


@command(ASK, "the catalogue")
def attentions(args: Any) -> render.Shown:
    """List the attentions of the catalogue, with formulas and references.

    Example: attnrisk attentions --json
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from ..attention import CATALOGUE

    fields, rows = [], []
    narrow: list[RenderableType] = []
    for name, entry in CATALOGUE.items():
        field = {
            "name": name,
            "formula": entry.formula,
            "family": entry.attention.family,
            "normalised": entry.normalised,
            "growth": entry.growth,
            "source": entry.source,
        }
        normalised = "yes" if entry.normalised else "no"
        fields.append(field)
        rows.append([str(each) for each in (field | {"normalised": normalised}).values()])
        kind = f"{field['family']}, normalised: {normalised}, growth: {entry.growth}"
        narrow.append(Text.assemble((f"{name:18}", "bold"), entry.formula))
        narrow.append(Padding(Text(f"{kind}\n{entry.source}", style="dim"), (0, 0, 0, 18)))
    wide = render.table("Attentions", tuple(fields[0]), rows)
    return render.Shown({"attentions": fields}, [(wide, Group(*narrow))])
