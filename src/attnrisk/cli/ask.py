"""Commands for infinite data: `bayes`, `population` and `attentions`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import options, render
from .command import ASK, command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate, Result
    from ..attention import AbstractAttention
    from ..population import HeadsMinimum, Minimum

_DIGITS = 8  # of a risk in a table, which fits a terminal of 80 columns


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
        "note": "the norm of a token reveals the location" if task.spread != 1.0 else None,
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
    if given is not None and (task.features > 1 or any(a.keys > 1 for a in args.attentions)):
        raise refuse("overlaps", "(given)", "left out with several heads or features")
    if given is not None:
        _check_bias(args.attentions)
    with ThreadPoolExecutor(1) as other:
        meanwhile = other.submit(bayes_risk, task)
        for done, attention in enumerate(args.attentions):
            args.progress(attention.head_name, done, len(args.attentions))
            if given is None:
                found.append(population_minimum(task, attention))
            else:
                found.append(Minimum(population_risk(task, attention, given), given, attention))
    bayes = meanwhile.result()

    def has_matrices(least: Minimum | HeadsMinimum) -> bool:
        return given is None and (task.has_random_shift or least.attention.family == "heads")

    found.sort(key=lambda each: float(each.risk))
    rows = [
        {
            "attention": each.attention.head_name,
            **(heads_fields(each) if has_matrices(each) else _one_head_fields(each)),
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
    if any(map(has_matrices, found)):
        show = _heads_panel if len(found) == 1 else _heads_table
    return render.Shown(fields, [show(render.task_words(task), found, bayes, given is not None)])


def _check_bias(attentions: Sequence[AbstractAttention]) -> None:
    """Refuse a free bias if overlaps are given; the bias of erf and sigmoid is then 0."""
    from .._check import refuse

    if any(each.free_bias and not type(each)().free_bias for each in attentions):
        raise refuse("bias", "free", "a number where overlaps are given")


def _one_head_fields(least: Minimum) -> dict[str, Any]:
    picked = render.picked(least, "risk", "attained", "overlaps", "result", risk_error="error")
    return {**picked, "bias": _bias(least.attention)}


def heads_fields(least: HeadsMinimum) -> dict[str, Any]:
    """JSON fields of several heads or features, with overlaps as matrices."""
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
    """The components of each key along the features."""
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
    return render.facts(f"{render.heads_words(least.attention)} on the {task}", rows)


def _heads_table(
    task: str, found: list[Minimum | HeadsMinimum], bayes: Estimate, at_overlaps: bool
) -> Any:
    rows = [
        (
            least.attention.head_name,
            render.with_error(least.risk, _DIGITS),
            render.significant(_gap(least.risk, bayes), _DIGITS),
            _key_words(least.overlaps.M[:-1, :-1]),
            render.short_result(least.result),
        )
        for least in found
    ]
    columns = "attention", "risk", "gap to Bayes", "keys along the features", "result"
    first = ("(Bayes)", render.with_error(bayes, _DIGITS))
    notes = render.result_notes([least.result for least in found])
    return render.table(f"Lowest risk, {task}", columns, [first, *rows], notes, head=1)


def _bias(attention: AbstractAttention) -> float | None:
    """The bias of one head, if it is free or not 0."""
    import numpy as np

    bias = np.asarray(attention.bias).item()
    return bias if attention.free_bias or bias else None


def _gap(risk: Estimate, bayes: Estimate) -> Estimate:
    """The gap; its error is a standard error if one of the two risks has one."""
    from .._results import ErrorKind

    random = ErrorKind.STANDARD in (risk.kind, bayes.kind)
    kind = ErrorKind.STANDARD if random else ErrorKind.BOUND
    return risk.as_kind(kind) - bayes.as_kind(kind)


def _risk_panel(task: str, found: list[Minimum], bayes: Estimate, at_overlaps: bool) -> Any:
    from .._results import Result

    (least,) = found
    attained = "yes" if least.attained else f"no ({least.result})"
    bias = _bias(least.attention)
    shown = render.optional(bias, ".8g")
    if bias is not None and least.result in (Result.BECOMES_SOFTMAX, Result.BECOMES_POWER):
        shown = f"{render.limit(bias)}; the search ended at {shown}"
    rows = {
        "risk at these overlaps" if at_overlaps else "lowest risk": render.with_error(least.risk),
        "attained": None if at_overlaps else attained,
        "Bayes risk": render.with_error(bayes),
        "gap to Bayes": render.with_error(_gap(least.risk, bayes)),
        "overlaps" if least.attained else "last overlaps": render.overlap_words(least.overlaps),
        "tuned bias" if least.attention.free_bias and not at_overlaps else "bias": shown,
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
        """The number, or an arrow if it diverges."""
        if number is None:
            return ""
        if least.result in limits:
            return render.limit(number)
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
