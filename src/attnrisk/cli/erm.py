"""`attnrisk erm`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import options, render
from .command import LEARN, command

if TYPE_CHECKING:
    from ..attention import AbstractAttention
    from ..learning import ERMAsymptotics, OptimalAsymptotics
    from .progress import Report

_DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns


@command(
    LEARN,
    "empirical risk minimisation",
    options.ALPHA,
    options.task(spread=False),
    options.attentions(lambda attention: attention.is_scale_sensitive),
    options.ridge(None),
    options.flag("tune", "Take the ridges of least test risk, in place of given ones."),
)
def erm(
    alpha: float,
    task: Any,
    attentions: list[AbstractAttention],
    ridge: tuple[float | None, float | None],
    tune: bool,
    report: Report,
) -> render.Shown:
    """The test risk after learning from N = αD sequences, by empirical risk minimisation.

    Example: attnrisk erm --alpha 4 --attention softmax,linear --ridge-k 1 --ridge-v 1
    """
    from .._check import refuse
    from ..learning import Ridge, erm_asymptotics, optimal_asymptotics, tuned_erm_asymptotics

    for name, given in zip(("ridge_k", "ridge_v"), ridge, strict=True):
        if tune and given is not None:
            raise refuse(name, f"{given:g}", "left out where the ridges are tuned")
    ridges = Ridge(*(1.0 if given is None else given for given in ridge))
    answers = []
    with ThreadPoolExecutor(1) as other:
        meanwhile = other.submit(optimal_asymptotics, task, alpha)
        for done, attention in enumerate(attentions):
            report(attention.name, done, len(attentions))
            if tune:
                found = tuned_erm_asymptotics(task, attention, alpha)
            else:
                found = erm_asymptotics(task, attention, alpha, ridges)
            answers.append((attention.name, found))
    optimum = meanwhile.result()
    answers.sort(key=lambda answer: float(answer[1].test_risk))
    fields = render.one_or_many("rows", [_fields(*answer) for answer in answers]) | {
        "alpha": alpha,
        "optimal_risk": float(optimum.risk),
        "optimal_risk_error": float(optimum.risk.error),
        "reachable_risk": float(optimum.reachable_risk),
        "task": render.task_fields(task),
    }
    title = f"{render.task_words(task)}, α = {alpha:g}"
    show = _panel if len(answers) == 1 else _table
    return render.Shown(fields, [show(title, answers, optimum)])


def _fields(attention: str, found: ERMAsymptotics) -> dict[str, Any]:
    fields = render.fields_of(found, "overlaps", "ridge", "start", "replicon", "jumps")
    rivals = [
        {
            "test_risk": float(each.test_risk),
            "objective": float(each.objective),
            "start": each.start,
        }
        for each in found.rivals
    ]
    return fields | {"attention": attention, "warning": found.warning or None, "rivals": rivals}


def _panel(title: str, answers: list[Any], optimum: OptimalAsymptotics) -> Any:
    ((attention, found),) = answers
    lines = (
        ", ".join(f"{name} = {render.with_error(getattr(found, name))}" for name in names)
        for names in (("m_k", "q_k", "V_k"), ("m_v", "q_v", "V_v"))
    )
    rivals = [f"test risk {render.with_error(rival.test_risk)}" for rival in found.rivals]
    told = f"(start: {found.start})" if found.converged else f"(residual {found.residual:.1g})"
    rows = {
        **render.estimates(found, "test_risk", "train_error", "objective"),
        "result": f"{render.result_words(found.result)} {told}",
        "best possible": render.with_error(optimum.risk),
        "best reachable": render.with_error(optimum.reachable_risk),
        "ridges": f"r_k = {found.ridge.k:.6g}, r_v = {found.ridge.v:.6g}",
        "overlaps": "\n".join(lines),
        "beware": found.warning or None,
        "of higher objective": ", ".join(rivals) or None,
    }
    return render.facts(f"{attention} on the {title}", rows)


def _table(title: str, answers: list[Any], optimum: OptimalAsymptotics) -> Any:
    best = [
        ("(best possible)", render.with_error(optimum.risk, _DIGITS)),
        ("(best reachable)", render.with_error(optimum.reachable_risk, _DIGITS)),
    ]
    rows = [
        (
            attention,
            render.with_error(found.test_risk, _DIGITS),
            render.significant(found.train_error, _DIGITS),
            f"{found.ridge.k:.4g}",
            f"{found.ridge.v:.4g}",
            render.short_result(found.result) + " *" * bool(found.warning),
        )
        for attention, found in answers
    ]
    notes = render.result_notes([found.result for _, found in answers])
    notes += sorted({f"* {found.warning}" for _, found in answers if found.warning})
    columns = "attention", "test risk", "train error", "r_k", "r_v", "result"
    title = f"Empirical risk minimisation, {title}"
    return render.table(title, columns, [*best, *rows], notes, head=len(best))
