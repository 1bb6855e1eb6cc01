"""`attnrisk population`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from .._check import LARGEST
from .options import (
    Attentions,
    Json,
    Length,
    MKk,
    MKv,
    MVk,
    MVv,
    Noise,
    Nu,
    QKk,
    QKv,
    QVv,
    Spread,
    TaskName,
    read_attentions,
    read_overlaps,
    read_task,
)
from .output import (
    facts,
    print_json,
    print_rich,
    significant,
    table,
    task_fields,
    task_words,
    with_error,
)
from .progress import Report, working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate
    from ..attention import AbstractAttention
    from ..population import Minimum, Overlaps
    from ..tasks import AbstractTask

_DIGITS = 8  # of a risk in a table, which fits a terminal of 80 columns
_INFIMUM = "infimum, not attained: |k| grows without bound"
_VANISHING = "infimum, not attained: weights vanish and |v| grows without bound"
_MARKS = {_INFIMUM: "→ ∞", _VANISHING: "*"}


class Answer(NamedTuple):
    """The risk of one attention, and the one that it cannot beat."""

    found: Minimum
    bayes: Estimate

    @property
    def gap(self) -> Estimate:
        """What the attention loses to the Bayes risk."""
        from .._results import Estimate

        risk = self.found.risk
        return Estimate(risk.value - self.bayes.value, risk.error + self.bayes.error)

    @property
    def bias(self) -> float | None:
        """The bias, of an attention that is free to choose one."""
        attention = self.found.attention
        return float(attention.bias) if attention.free_bias else None


def population(
    task: TaskName = "spiked",
    nu: Nu = "5",
    length: Length = "10",
    noise: Noise = "0",
    spread: Spread = None,
    attention: Attentions = ["softmax"],  # noqa: B006 (typer copies it)
    m_kk: MKk = None,
    m_kv: MKv = None,
    m_vk: MVk = None,
    m_vv: MVv = None,
    q_kk: QKk = None,
    q_kv: QKv = None,
    q_vv: QVv = None,
    as_json: Json = False,
) -> None:
    """The least risk of an attention with infinite data, or its risk at given overlaps.

    Example: attnrisk population --task spiked --nu 5 --length 10 --attention softmax,linear
    """
    given = {
        "m_kk": m_kk,
        "m_kv": m_kv,
        "m_vk": m_vk,
        "m_vv": m_vv,
        "q_kk": q_kk,
        "q_kv": q_kv,
        "q_vv": q_vv,
    }
    with working("population risk") as report:
        problem = read_task(task, nu, length, noise, spread)
        students = read_attentions(attention)
        overlaps = read_overlaps(given)
        answers = _answers(problem, students, overlaps, report)
    if as_json:
        _print_fields(problem, answers)
    elif len(answers) == 1:
        print_rich(_panel(problem, answers[0], overlaps is not None))
    else:
        print_rich(_table(problem, answers, overlaps is not None))


def _answers(
    task: AbstractTask,
    attentions: list[AbstractAttention],
    overlaps: Overlaps | None,
    report: Report,
) -> list[Answer]:
    """The answers, best first; the Bayes risk is found meanwhile, on another core."""
    from ..population import Minimum, bayes_risk, population_minimum, population_risk

    def risk_of(attention: AbstractAttention) -> Minimum:
        if overlaps is None:
            return population_minimum(task, attention)
        return Minimum(population_risk(task, attention, overlaps), overlaps, attention, True)

    found = []
    with ThreadPoolExecutor(1) as other:
        bayes = other.submit(bayes_risk, task)
        for done, attention in enumerate(attentions):
            report(attention.name, done, len(attentions))
            found.append(risk_of(attention))
    found.sort(key=lambda minimum: float(minimum.risk.value))
    return [Answer(minimum, bayes.result()) for minimum in found]


def _print_fields(task: AbstractTask, answers: list[Answer]) -> None:
    bayes = answers[0].bayes
    common = {
        "bayes_risk": float(bayes.value),
        "bayes_error": float(bayes.error),
        "task": task_fields(task),
    }
    rows = [_fields(answer) for answer in answers]
    print_json((rows[0] if len(rows) == 1 else {"rows": rows}) | common)


def _fields(answer: Answer) -> dict[str, Any]:
    return {
        "attention": answer.found.attention.name,
        "risk": float(answer.found.risk.value),
        "error": float(answer.found.risk.error),
        "attained": answer.found.attained,
        "bayes_risk": float(answer.bayes.value),
        "gap": float(answer.gap.value),
        "overlaps": answer.found.overlaps.as_dict(),
        "bias": answer.bias,
    }


def _panel(task: AbstractTask, answer: Answer, at_overlaps: bool) -> RenderableType:
    rows = {
        "risk at these overlaps" if at_overlaps else "least risk": with_error(answer.found.risk)
    }
    if not at_overlaps:
        rows["attained"] = "yes" if answer.found.attained else f"no ({_grows(answer)})"
    rows["Bayes risk"] = with_error(answer.bayes)
    rows["gap to Bayes"] = with_error(answer.gap)
    numbers = answer.found.overlaps.as_dict()
    shown = [f"{name} = {number:.8g}" for name, number in numbers.items()]
    rows["overlaps" if answer.found.attained else "at the longest tried"] = ", ".join(shown[:4])
    rows[""] = ", ".join(shown[4:])
    if answer.bias is not None:
        rows["bias" if at_overlaps else "tuned bias"] = f"{answer.bias:.8g}"
    return facts(f"{answer.found.attention.name} on the {task_words(task)}", rows)


def _table(task: AbstractTask, answers: list[Answer], at_overlaps: bool) -> RenderableType:
    title = "Risk at these overlaps" if at_overlaps else "Least risk"
    rows = table(
        f"{title}, {task_words(task)}", "attention", "risk", "gap to Bayes", "m_kk", "bias"
    )
    rows.add_row("(Bayes)", with_error(answers[0].bayes, _DIGITS), end_section=True)
    for answer in answers:
        rows.add_row(
            answer.found.attention.name,
            with_error(answer.found.risk, _DIGITS),
            significant(answer.gap, _DIGITS),
            _length_of_k(answer),
            "" if answer.bias is None else f"{answer.bias:.6g}",
        )
    limits = {_grows(answer) for answer in answers if not answer.found.attained}
    notes = [f"{mark}: {why}" for why, mark in _MARKS.items() if why in limits]
    rows.caption = "\n".join(notes) or None
    rows.caption_justify = "left"
    return rows


def _length_of_k(answer: Answer) -> str:
    m_kk = float(answer.found.overlaps.m_kk)
    if answer.found.attained:
        return f"{m_kk:.6g}"
    if _grows(answer) == _VANISHING:
        return f"{m_kk:.6g} {_MARKS[_VANISHING]}"
    return "→ ∞" if m_kk > 0 else "→ −∞"


def _grows(answer: Answer) -> str:
    """Why the infimum is not attained."""
    return _VANISHING if answer.found.overlaps.q_vv > LARGEST / 10 else _INFIMUM
