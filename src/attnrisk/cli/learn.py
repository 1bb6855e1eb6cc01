"""Commands for finite data, `N = αD`, by theory: `erm` and `optimal`."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attnrisk as ar

from .._check import Refusal, refuse
from . import options, render
from .command import LEARN, command

_DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_RIVAL = ("start", "result", "converged", "test_risk", "objective")


def can_be_learned(attention: ar.AbstractAttention) -> bool:
    """Whether the empirical risk of the attention has a minimum."""
    from ..learning.scope import learner

    try:
        learner(attention)
    except Refusal:
        return False
    return True


@command(
    LEARN,
    "empirical risk minimisation",
    options.ALPHA,
    options.task(features=True),
    options.heads(can_be_learned),
    options.ridge(None),
    options.flag("tune", "Use the ridge penalties of lowest test risk."),
)
def erm(args: Any) -> render.Shown:
    """Test risk after training on N = αD sequences (empirical risk minimisation), as D → ∞.

    Example: attnrisk erm --alpha 4 --attention softmax,linear --ridge-k 1 --ridge-v 1
    """
    from ..learning.scope import learnable, learner

    task, alpha, answers = args.task, args.alpha, []
    for name, given in zip(("ridge_k", "ridge_v", "ridge_b"), args.ridge, strict=True):
        if args.tune and given:
            raise refuse(name, f"{given:g}", "left out where the ridges are tuned")
    ridge = ar.Ridge(*(1.0 if given is None else given for given in args.ridge))
    for attention in args.attentions:
        learnable(task, learner(attention))
    # Compilation and compiled code run outside the interpreter's lock.
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(ar.tuned_erm_asymptotics, task, attention, alpha)
            if args.tune
            else threads.submit(ar.erm_asymptotics, task, attention, alpha, ridge)
            for attention in args.attentions
        ]
        has_optimum = not task.has_random_shift
        meanwhile = threads.submit(ar.optimal_asymptotics, task, alpha) if has_optimum else None
        for done, (attention, job) in enumerate(zip(args.attentions, asked, strict=True)):
            args.progress(attention.name, done, len(asked))
            answers.append((attention, job.result()))
    optimum = None if meanwhile is None else meanwhile.result()
    answers.sort(key=lambda answer: float(answer[1].test_risk))
    rows = [
        render.fields_of(found, "overlaps", "ridge", "start", "replicon", "jumps")
        | {
            "attention": attention.head_name,
            **render.head_fields(task, attention, found),
            "bias": None if found.bias is None else found.bias.value.tolist(),
            "bias_error": None if found.bias is None else found.bias.error.tolist(),
            "warning": found.warning or None,
            "rivals": [render.picked(it, *_RIVAL) for it in found.rivals],
        }
        for attention, found in answers
    ]
    fields = render.one_or_many("rows", rows) | {
        "alpha": alpha,
        "optimal_risk": optimum and float(optimum.risk),
        "optimal_risk_error": optimum and float(optimum.risk.error),
        "reachable_risk": optimum and float(optimum.reachable_risk),
        "optimal_converged": optimum and optimum.converged,
        "task": render.task_fields(task),
    }
    show = _erm_panel if len(answers) == 1 else _erm_table
    return render.Shown(
        fields, [show(f"{render.task_words(task)}, α = {alpha:g}", answers, optimum)]
    )


def _erm_panel(title: str, answers: list[Any], optimum: ar.OptimalAsymptotics | None) -> Any:
    ((attention, found),) = answers
    overlaps = render.overlap_words(found.overlaps)
    if found.M.value.shape == (2, 2):
        overlaps = "\n".join(
            ", ".join(f"{name} = {render.with_error(getattr(found, name))}" for name in names)
            for names in (("m_k", "q_k", "V_k"), ("m_v", "q_v", "V_v"))
        )
    rivals = [
        f"test risk {render.with_error(rival.test_risk)}"
        + ("" if rival.converged else f" ({rival.result})")
        for rival in found.rivals
    ]
    lowest = (None, None) if optimum is None else _optimal_words(optimum)
    told = f"(start: {found.start})" if found.converged else f"(residual {found.residual:.1g})"
    rows = {
        "test risk": render.with_error(found.test_risk),
        "train error": render.with_error(found.train_error),
        "objective": render.with_error(found.objective),
        "result": f"{render.result_words(found.result)} {told}",
        "lowest achievable": lowest[0],
        "lowest reachable": lowest[1],
        "ridge penalties": f"r_k = {found.ridge.k:.6g}, r_v = {found.ridge.v:.6g}",
        "learned bias": None if found.bias is None else _bias_words(found),
        "overlaps": overlaps,
        "separation of heads": _separation_words(found),
        "warning": found.warning or None,
        "other fixed points": ", ".join(rivals) or None,
    }
    return render.facts(f"{render.heads_words(attention)} on the {title}", rows)


def _bias_words(found: Any) -> str:
    bias = float(found.bias)
    if found.result.is_infimum:
        return f"{render.limit(bias)}; the search ended at {bias:.6g}"
    if not math.isfinite(float(found.bias.error)):
        return f"any: nothing depends on it; the search ended at {bias:.6g}"
    return render.with_error(found.bias)


def _optimal_words(found: ar.OptimalAsymptotics, digits: int = render.DIGITS) -> list[str]:
    """The lowest achievable and the lowest reachable risk, marked where they did not converge."""
    pairs = (found.risk, found.optimum), (found.reachable_risk, found.reachable)
    return [
        render.with_error(risk, digits) + ("" if point.converged else f"  ! {point.result}")
        for risk, point in pairs
    ]


def _separation_words(found: Any) -> str | None:
    if found.M.value.shape[0] == 2:
        return None
    words = f"{ar.head_separation(found.overlaps):z.4f}"
    if found.separation_growth is None:
        return words
    growth = render.with_error(found.separation_growth)
    return f"{words} (identical heads; a small difference grows by the factor {growth})"


def _erm_table(title: str, answers: list[Any], optimum: ar.OptimalAsymptotics | None) -> Any:
    known = () if optimum is None else _optimal_words(optimum, _DIGITS)
    kinds = "(lowest achievable)", "(lowest reachable)"
    best = list(zip(kinds, known, strict=False))
    rows = [
        (
            render.heads_words(attention),
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


@command(
    LEARN,
    "Bayes optimum",
    options.ALPHA,
    options.task(spread=False),
    options.flag("thresholds", "Also compute the α at which the two risks jump."),
)
def optimal(args: Any) -> render.Shown:
    """Lowest test risk achievable from N = αD sequences, and that of the best known polynomial-time algorithm.

    Example: attnrisk optimal --alpha 1.1 --nu 2 --length 3 --thresholds
    """
    task, found = args.task, ar.optimal_asymptotics(args.task, args.alpha)
    risks = _optimal_words(found)
    fields = render.fields_of(found, "hard")
    rows = {
        "lowest achievable risk": risks[0],
        "lowest reachable risk": risks[1],
        "hard": "yes: no fast algorithm that is known reaches the optimum" if found.hard else "no",
        "overlaps": f"q_k = {render.with_error(found.q_k)}, q_v = {render.with_error(found.q_v)}",
        "result": render.result_words(found.result),
    }
    if args.thresholds:
        jumps = ar.optimal_thresholds(task)
        fields["thresholds"] = {}
        for name, risk in (("information", "achievable"), ("algorithmic", "reachable")):
            at = getattr(jumps, name)
            known = None if at is None else {"alpha": float(at), "error": float(at.error)}
            fields["thresholds"][name] = known
            words = "no jump" if at is None else f"at α = {render.with_error(at)}"
            rows[f"jump, {risk} risk"] = words
    fields["task"] = render.task_fields(task)
    title = f"Bayes optimum, {render.task_words(task)}, α = {args.alpha:g}"
    return render.Shown(fields, [render.facts(title, rows)])
