"""`attnrisk population`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from . import options, render
from .command import ASK, command

if TYPE_CHECKING:
    from .._results import Estimate, Result
    from ..attention import AbstractAttention
    from ..population import Overlaps
    from .progress import Report

_DIGITS = 8  # of a risk in a table, which fits a terminal of 80 columns


@dataclass(frozen=True)
class Risk:
    """The least risk of an attention, or its risk at given overlaps."""

    recorded: ClassVar = ("risk", "attained", "overlaps", "bias", "result", "converged")
    attention: AbstractAttention
    risk: Estimate
    overlaps: Overlaps
    attained: bool
    result: Result

    @property
    def bias(self) -> float | None:
        """The bias, where the attention is free to choose one."""
        return float(self.attention.bias) if self.attention.free_bias else None

    @property
    def converged(self) -> bool:
        """Whether the minimum or infimum was found."""
        return self.result.converged


@command(ASK, "population risk", options.task(length="10"), options.attentions(), options.OVERLAPS)
def population(
    task: Any, attentions: list[AbstractAttention], overlaps: Overlaps | None, report: Report
) -> render.Shown:
    """The least risk of an attention with infinite data, or its risk at given overlaps.

    Example: attnrisk population --task spiked --nu 5 --length 10 --attention softmax,linear
    """
    from .._results import Result
    from ..population import bayes_risk, population_minimum, population_risk

    found: list[Risk] = []
    with ThreadPoolExecutor(1) as other:
        meanwhile = other.submit(bayes_risk, task)
        for done, attention in enumerate(attentions):
            report(attention.name, done, len(attentions))
            if overlaps is None:
                least = population_minimum(task, attention)
                where = least.overlaps, least.attained
                found.append(Risk(least.attention, least.risk, *where, least.result))
            else:
                risk = population_risk(task, attention, overlaps)
                found.append(Risk(attention, risk, overlaps, True, Result.CONVERGED))
    found.sort(key=lambda each: float(each.risk))
    bayes = meanwhile.result()
    gaps = [_gap(each.risk, bayes) for each in found]
    rows = [
        {
            "attention": each.attention.name,
            **render.fields_of(each, risk_error="error"),
            "bayes_risk": float(bayes),
            "gap": float(gap),
        }
        for each, gap in zip(found, gaps, strict=True)
    ]
    fields = render.one_or_many("rows", rows)
    fields |= {"bayes_risk": float(bayes), "bayes_error": float(bayes.error)}
    fields |= {"task": render.task_fields(task)}
    show = _panel if len(found) == 1 else _table
    words = render.task_words(task)
    return render.Shown(fields, [show(words, found, gaps, bayes, overlaps is not None)])


def _gap(risk: Estimate, bayes: Estimate) -> Estimate:
    """The excess over the Bayes risk; where one of the two comes from random points, so does the error."""
    from .._results import ErrorKind

    random = ErrorKind.STANDARD in (risk.kind, bayes.kind)
    kind = ErrorKind.STANDARD if random else ErrorKind.BOUND
    return risk.as_kind(kind) - bayes.as_kind(kind)


def _panel(
    task: str, found: list[Risk], gaps: list[Estimate], bayes: Estimate, at_overlaps: bool
) -> Any:
    ((answer,), (gap,)) = found, gaps
    attained = "yes" if answer.attained else f"no ({answer.result})"
    overlaps = "overlaps" if answer.attained else "at the longest tried"
    rows = {
        "risk at these overlaps" if at_overlaps else "least risk": render.with_error(answer.risk),
        "attained": None if at_overlaps else attained,
        "Bayes risk": render.with_error(bayes),
        "gap to Bayes": render.with_error(gap),
        overlaps: render.overlap_words(answer.overlaps),
        "bias" if at_overlaps else "tuned bias": render.optional(answer.bias, ".8g"),
    }
    return render.facts(f"{answer.attention.name} on the {task}", rows)


def _table(
    task: str, found: list[Risk], gaps: list[Estimate], bayes: Estimate, at_overlaps: bool
) -> Any:
    from .._results import Result

    marks = {Result.K_DIVERGES: "→ ∞", Result.WEIGHTS_VANISH: "*"}

    def key_overlap(answer: Risk) -> str:
        m_kk = float(answer.overlaps.m_kk)
        if answer.result == Result.K_DIVERGES:
            return "→ ∞" if m_kk > 0 else "→ −∞"
        return f"{m_kk:.6g}" + " *" * (not answer.attained)

    rows = [
        (
            answer.attention.name,
            render.with_error(answer.risk, _DIGITS),
            render.significant(gap, _DIGITS),
            key_overlap(answer),
            render.optional(answer.bias, ".6g") or "",
        )
        for answer, gap in zip(found, gaps, strict=True)
    ]
    results = {answer.result for answer in found}
    notes = [f"{mark}: {why}" for why, mark in marks.items() if why in results]
    title = "Risk at these overlaps" if at_overlaps else "Least risk"
    first = ("(Bayes)", render.with_error(bayes, _DIGITS))
    columns = "attention", "risk", "gap to Bayes", "m_kk", "bias"
    return render.table(f"{title}, {task}", columns, [first, *rows], notes, head=1)
