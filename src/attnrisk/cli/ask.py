"""Commands for infinite data: `bayes`, `population` and `attentions`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import attnrisk as ar

from .._check import refuse
from . import options, render
from .command import ASK, command

if TYPE_CHECKING:
    from rich.console import RenderableType


_DIGITS = 8  # of a risk in a table, which fits a terminal of 80 columns


@command(ASK, "Bayes risk", options.task(length="10", features=True))
def bayes(args: Any) -> render.Shown:
    """Bayes risk: the lowest risk of any predictor, even one that knows the hidden directions.

    Example: attnrisk bayes --task max --nu inf --length 1-3 --noise 0.1
    """
    task, risk = args.task, ar.bayes_risk(args.task)
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
    task, given, found = args.task, args.overlaps, []
    several = task.features > 1 or any(each.family == "heads" for each in args.attentions)
    if given is not None and several:
        raise refuse("overlaps", "(given)", "left out with several heads or features")
    # The bias of erf and sigmoid, free by default, is then 0.
    if given is not None and any(a.free_bias > type(a)().free_bias for a in args.attentions):
        raise refuse("bias", "free", "a number where overlaps are given")
    with ThreadPoolExecutor(1) as other:
        meanwhile = other.submit(ar.bayes_risk, task)
        for done, attention in enumerate(args.attentions):
            args.progress(attention.head_name, done, len(args.attentions))
            if given is None:
                found.append(ar.population_minimum(task, attention))
            else:
                found.append(
                    ar.Minimum(ar.population_risk(task, attention, given), given, attention)
                )
    bayes = meanwhile.result()
    found.sort(key=lambda each: float(each.risk))
    rows = [
        {
            "attention": each.attention.head_name,
            **_fields(each),
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
    what = "lowest risk" if given is None else "risk at these overlaps"
    show = _panel if len(found) == 1 else _table
    return render.Shown(fields, [show(what, task, found, bayes)])


def _fields(least: ar.Minimum | ar.HeadsMinimum) -> dict[str, Any]:
    if isinstance(least, ar.HeadsMinimum):
        return heads_fields(least)
    picked = render.picked(least, "risk", "attained", "overlaps", "result", risk_error="error")
    return {**picked, "bias": _bias(least.attention)}


def heads_fields(least: ar.HeadsMinimum) -> dict[str, Any]:
    """JSON fields of several heads or features, with overlaps as matrices."""
    names = "head_weights", "biases"
    picked = render.picked(least, "risk", "attained", "result", *names, risk_error="error")
    minima = [
        render.picked(each, "risk", "kind", "result", *names, risk_error="error")
        | {"keys": each.overlaps.M[:-1, :-1].tolist()}
        for each in least.minima
    ]
    picked |= {"heads": least.attention.keys, "minima": minima}
    return picked | {"overlaps": render.matrices(least.overlaps)}


def _bias(attention: ar.AbstractAttention) -> float | None:
    """The bias of one head, if it is free or not 0."""
    import numpy as np

    bias = np.asarray(attention.bias).item()
    return bias if attention.free_bias or bias else None


def _gap(risk: ar.Estimate, bayes: ar.Estimate) -> ar.Estimate:
    """The gap; its error is a standard error if one of the two risks has one."""
    random = ar.ErrorKind.STANDARD in (risk.kind, bayes.kind)
    kind = ar.ErrorKind.STANDARD if random else ar.ErrorKind.BOUND
    return risk.as_kind(kind) - bayes.as_kind(kind)


def _keys(least: Any) -> str:
    """The components of each key along the features."""
    keys = least.overlaps.M[:-1, :-1]
    return "; ".join(", ".join(f"{number:z.4f}" for number in key) for key in keys)


def _bias_diverges(least: ar.Minimum) -> bool:
    return least.result in (ar.Result.BECOMES_SOFTMAX, ar.Result.BECOMES_POWER)


def _panel(
    what: str, task: ar.AbstractTask, found: list[Any], bayes: ar.Estimate
) -> RenderableType:
    (least,) = found
    searched = what == "lowest risk"
    attained = "yes" if least.attained else f"no ({least.result})"
    rows = {
        what: render.with_error(least.risk),
        "attained": attained if searched else None,
        "result": None if least.converged else render.result_words(least.result),
        "Bayes risk": render.with_error(bayes),
        "gap to Bayes": render.with_error(_gap(least.risk, bayes)),
    }
    if isinstance(least, ar.HeadsMinimum):
        minima = [
            f"{render.with_error(each.risk, _DIGITS)} ({each.kind}) at {_keys(each)}"
            for each in least.minima
        ]
        rows |= {
            "keys along the features": _keys(least),
            "m_vv": f"{float(least.overlaps.M[-1, -1]):.8g}",
            "biases": render.listed(least.biases),
            "head weights": render.listed(least.head_weights),
            "minima found": "\n".join(minima),
        }
    else:
        bias = _bias(least.attention)
        shown = render.optional(bias, ".8g")
        if bias is not None and _bias_diverges(least):
            shown = f"{render.limit(bias)}; the search ended at {shown}"
        tuned = "tuned bias" if least.attention.free_bias and searched else "bias"
        overlaps = render.overlap_words(least.overlaps)
        rows |= {"overlaps" if least.attained else "last overlaps": overlaps, tuned: shown}
    title = f"{render.heads_words(least.attention)} on the {render.task_words(task)}"
    return render.facts(title, rows)


def _table(
    what: str, task: ar.AbstractTask, found: list[Any], bayes: ar.Estimate
) -> RenderableType:
    has_matrices = any(isinstance(each, ar.HeadsMinimum) for each in found)
    marks = {
        ar.Result.K_DIVERGES: "→ ∞",
        ar.Result.WEIGHTS_VANISH: "*",
        ar.Result.BECOMES_SOFTMAX: "→ softmax",
        ar.Result.BECOMES_POWER: "→ power",
    }

    def number(least: ar.Minimum, value: float | None, diverges: bool) -> str:
        """The number, or an arrow if it diverges."""
        if value is None:
            return ""
        return render.limit(value) if diverges else f"{value:.6g}{mark(least, '*')}"

    def mark(least: ar.Minimum, *shown: str) -> str:
        mark = marks.get(least.result)
        return f" {mark}" if mark in shown else ""

    def last_cells(least: Any) -> tuple[str, str]:
        if has_matrices:
            return _keys(least), render.short_result(least.result)
        diverges = least.result in (ar.Result.K_DIVERGES, ar.Result.BECOMES_POWER)
        m_kk = number(least, float(least.overlaps.m_kk), diverges)
        return m_kk, number(least, _bias(least.attention), _bias_diverges(least))

    rows = [
        (
            least.attention.head_name
            + mark(least, "→ softmax", "→ power")
            + " !" * (not (has_matrices or least.converged)),
            render.with_error(least.risk, _DIGITS),
            render.significant(_gap(least.risk, bayes), _DIGITS),
            *last_cells(least),
        )
        for least in found
    ]
    results = [least.result for least in found]
    notes = [f"{mark}: {why}" for why, mark in marks.items() if why in results and not has_matrices]
    notes += render.result_notes(results)
    last = ("keys along the features", "result") if has_matrices else ("m_kk", "bias")
    first = ("(Bayes)", render.with_error(bayes, _DIGITS))
    title = f"{what.capitalize()}, {render.task_words(task)}"
    columns = "attention", "risk", "gap to Bayes", *last
    return render.table(title, columns, [first, *rows], notes, head=1)


@command(ASK, "the catalogue")
def attentions(args: Any) -> render.Shown:
    """List the attentions of the catalogue, with formulas and references.

    Example: attnrisk attentions --json
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    fields, rows = [], []
    narrow: list[RenderableType] = []
    for name, entry in ar.CATALOGUE.items():
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
