"""Commands for finite data, `N = αD`: `erm` and `optimal` by theory, `simulate` and `amp` on drawn datasets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import options, render
from .command import LEARN, command
from .interrupts import deferred

if TYPE_CHECKING:
    from ..attention import AbstractAttention
    from ..learning import OptimalAsymptotics
    from ..simulation import AbstractDataset
    from ..tasks import AbstractTask

_DIGITS = 6  # of a number in a table, which fits a terminal of 80 columns
_RIVAL = ("start", "result", "objective", "train_error", "overlaps")


def can_be_learned(attention: AbstractAttention) -> bool:
    """Whether its empirical risk has a minimum."""
    from .._check import Refusal
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
    from .._check import refuse
    from ..learning import Ridge, erm_asymptotics, optimal_asymptotics, tuned_erm_asymptotics
    from ..learning.scope import learnable, learner

    task, alpha, answers = args.task, args.alpha, []
    for name, given in zip(("ridge_k", "ridge_v", "ridge_b"), args.ridge, strict=True):
        if args.tune and given:
            raise refuse(name, f"{given:g}", "left out where the ridges are tuned")
    ridge = Ridge(*(1.0 if given is None else given for given in args.ridge))
    for attention in args.attentions:
        learnable(task, learner(attention))
    # Compilation and compiled code run outside the interpreter's lock.
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(tuned_erm_asymptotics, task, attention, alpha)
            if args.tune
            else threads.submit(erm_asymptotics, task, attention, alpha, ridge)
            for attention in args.attentions
        ]
        has_optimum = not task.has_random_shift
        meanwhile = threads.submit(optimal_asymptotics, task, alpha) if has_optimum else None
        for done, (attention, job) in enumerate(zip(args.attentions, asked, strict=True)):
            args.progress(attention.name, done, len(asked))
            answers.append((attention, job.result()))
    optimum = None if meanwhile is None else meanwhile.result()
    answers.sort(key=lambda answer: float(answer[1].test_risk))
    rows = [
        render.fields_of(found, "overlaps", "ridge", "start", "replicon", "jumps")
        | {
            "attention": attention.head_name,
            **_head_fields(task, attention, found),
            "bias": None if found.bias is None else found.bias.value.tolist(),
            "warning": found.warning or None,
            "rivals": [
                {"start": it.start}
                | {name: float(getattr(it, name)) for name in ("test_risk", "objective")}
                for it in found.rivals
            ],
        }
        for attention, found in answers
    ]
    fields = render.one_or_many("rows", rows) | {
        "alpha": alpha,
        "optimal_risk": optimum and float(optimum.risk),
        "optimal_risk_error": optimum and float(optimum.risk.error),
        "reachable_risk": optimum and float(optimum.reachable_risk),
        "task": render.task_fields(task),
    }
    show = _erm_panel if len(answers) == 1 else _erm_table
    return render.Shown(
        fields, [show(f"{render.task_words(task)}, α = {alpha:g}", answers, optimum)]
    )


def _heads_words(attention: AbstractAttention) -> str:
    return f"{attention.keys} heads of " * (attention.keys > 1) + attention.head_name


def _erm_panel(title: str, answers: list[Any], optimum: OptimalAsymptotics | None) -> Any:
    ((attention, found),) = answers
    overlaps = render.overlap_words(found.overlaps)
    if found.M.value.shape == (2, 2):
        overlaps = "\n".join(
            ", ".join(f"{name} = {render.with_error(getattr(found, name))}" for name in names)
            for names in (("m_k", "q_k", "V_k"), ("m_v", "q_v", "V_v"))
        )
    rivals = [f"test risk {render.with_error(rival.test_risk)}" for rival in found.rivals]
    told = f"(start: {found.start})" if found.converged else f"(residual {found.residual:.1g})"
    rows = {
        "test risk": render.with_error(found.test_risk),
        "train error": render.with_error(found.train_error),
        "objective": render.with_error(found.objective),
        "result": f"{render.result_words(found.result)} {told}",
        "lowest achievable": render.with_error(optimum.risk) if optimum else None,
        "lowest reachable": render.with_error(optimum.reachable_risk) if optimum else None,
        "ridge penalties": f"r_k = {found.ridge.k:.6g}, r_v = {found.ridge.v:.6g}",
        "learned bias": None if found.bias is None else render.with_error(found.bias),
        "overlaps": overlaps,
        "warning": found.warning or None,
        "other fixed points": ", ".join(rivals) or None,
    }
    return render.facts(f"{_heads_words(attention)} on the {title}", rows)


def _erm_table(title: str, answers: list[Any], optimum: OptimalAsymptotics | None) -> Any:
    known = optimum and (("achievable", optimum.risk), ("reachable", optimum.reachable_risk))
    best = [(f"(lowest {what})", render.with_error(risk, _DIGITS)) for what, risk in known or ()]
    rows = [
        (
            _heads_words(attention),
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
    from ..learning import optimal_asymptotics, optimal_thresholds

    task, found = args.task, optimal_asymptotics(args.task, args.alpha)
    risks = [
        render.with_error(risk) + ("" if point.converged else f"  ! {point.result}")
        for risk, point in (
            (found.risk, found.optimum),
            (found.reachable_risk, found.reachable),
        )
    ]
    fields = render.fields_of(found, "hard")
    rows = {
        "lowest achievable risk": risks[0],
        "lowest reachable risk": risks[1],
        "hard": "yes: no fast algorithm that is known reaches the optimum" if found.hard else "no",
        "overlaps": f"q_k = {render.with_error(found.q_k)}, q_v = {render.with_error(found.q_v)}",
        "result": render.result_words(found.result),
    }
    if args.thresholds:
        jumps = optimal_thresholds(task)
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


@command(
    LEARN,
    "drawing the data",
    options.SIZE,
    options.task(features=True),
    options.one_with_heads(),
    options.ridge("1"),
    options.seed("the dataset"),
    options.whole(
        "test_set",
        "Number of new sequences on which to verify the test risk, which is exact without them.",
        0,
        options.LARGEST,
        "0",
    ),
    options.PRECISION,
    options.STREAM,
)
def simulate(args: Any) -> render.Shown:
    """Draw N = αD sequences and minimise the empirical risk with L-BFGS.

    Example: attnrisk simulate --alpha 4 --dim 1000 --ridge-k 1 --ridge-v 1 --seed 0
    """
    import jax
    import numpy as np

    from .. import simulation
    from .._check import refuse
    from .._results import Result
    from ..learning import Ridge
    from ..learning.scope import learns_bias
    from ..simulation.erm import TOLERANCE

    if args.test_set == 1:
        raise refuse("test_set", 1, "0 or at least 2")  # one has no standard error
    for_data, for_start, for_test = jax.random.split(jax.random.key(args.seed), 3)
    begun = time.perf_counter()
    with deferred() as check:
        data = _draw(args, args.task, for_data)
        check()
        watch = _watching(args.progress, check, "gradient", TOLERANCE["float64"])
        fit = simulation.fit_erm(data, args.attention, Ridge(*args.ridge), for_start, watch=watch)
    seconds = time.perf_counter() - begun
    test_set = checked = None
    if args.test_set:
        checked = simulation.measure_risk(data, fit, for_test, args.test_set)
        test_set = f"{render.with_error(checked)} ({args.test_set} sequences)"
    names = "start", "iterations", "evaluations", "gradient_norm", "ridge"
    fields = render.fields_of(fit, *names) | {
        "seconds": seconds,
        **_data_fields(data, args.seed),
        "attention": fit.attention.head_name,
        **_head_fields(fit.task, fit.attention, fit),
        "bias": np.asarray(fit.attention.bias, float).tolist(),
        "rivals": [render.picked(rival, *_RIVAL) for rival in fit.rivals],
        "test_set_risk": checked and float(checked),
        "test_set_risk_error": checked and float(checked.error),
        "test_set": args.test_set,
    }
    told = f"after {fit.iterations} steps, gradient {fit.gradient_norm:.1g} (start: {fit.start})"
    rivals = [f"{rival.start} {rival.objective:.10g} ({rival.result})" for rival in fit.rivals]
    rows = {
        "test risk": f"{render.with_error(fit.test_risk, _DIGITS)} given this fit; other data give another",
        "train error": f"{fit.train_error:.6g}",
        "objective": f"{fit.objective:.10g} per dimension",
        "result": f"{render.result_words(fit.result)} {told}",
        "data": f"N = {data.n}, D = {data.dim}, {data.nbytes / 2**20:.3g} MiB of {data.precision}",
        "ridge penalties": f"r_k = {float(fit.ridge.k):.6g}, r_v = {float(fit.ridge.v):.6g}",
        "learned bias": f"{fit.attention.bias:.6g}" if learns_bias(fit.attention) else None,
        "overlaps": render.overlap_words(fit.overlaps),
        "time": f"{seconds:.3g} s",
        "test set": test_set,
        "other initialisations": ", ".join(rivals) or None,
    }
    title = (
        f"{_heads_words(fit.attention)} on the {render.task_words(fit.task)}, α = {data.alpha:g}"
    )
    shown = render.Shown(fields, [render.facts(title, rows)])
    if fit.result == Result.INTERRUPTED:
        return shown.interrupted("Interrupted: this is the best point so far, not a minimum")
    return shown


@command(
    LEARN,
    "drawing the data",
    options.SIZE,
    options.task(spread=False),
    options.seed("the dataset"),
    options.choice(
        "start",
        "Initialisation: nothing (uninformed), or teacher (near the true vectors, to test stability).",
        ("nothing", "teacher"),
        "nothing",
    ),
    options.number(
        "damping", "Weight of the previous estimate in the new one.", "0", minimum=0.0, below=1.0
    ),
    options.whole("steps", "Largest number of steps.", 1, 10**6, "500"),
    options.PRECISION,
    options.STREAM,
)
def amp(args: Any) -> render.Shown:
    """Draw N = αD sequences and estimate k* and v* by approximate message passing.

    Example: attnrisk amp --alpha 2 --dim 1000 --nu 2 --length 3 --seed 0
    """
    import jax

    from .. import simulation
    from .._results import Result
    from ..learning import optimal_asymptotics
    from ..learning.scope import optimisable
    from ..simulation.amp import TOLERANCE

    task = optimisable(args.task)
    begun = time.perf_counter()
    with deferred() as check:
        data = _draw(args, task, jax.random.split(jax.random.key(args.seed), 3)[0])
        check()
        watch = _watching(args.progress, check, "moving by", TOLERANCE)
        how = {"start": args.start, "damping": args.damping, "most_steps": args.steps}
        fit = simulation.fit_amp(data, task, **how, watch=watch)
    seconds = time.perf_counter() - begun
    both = optimal_asymptotics(task, data.alpha)
    limit = both.reachable if args.start == "nothing" else both.informed
    fields = render.fields_of(fit, "overlaps", "iterations", "residual") | {
        "start": args.start,
        "theory": render.fields_of(limit),
        "seconds": seconds,
        **_data_fields(data, args.seed),
    }
    numbers = (
        ("risk", render.significant(fit.risk, _DIGITS), "", float(fit.risk), limit.risk),
        ("q_k", f"{fit.q_k:.6f}", f"{fit.expected_q_k:.6f}", fit.q_k, limit.q_k),
        ("q_v", f"{fit.q_v:.6f}", f"{fit.expected_q_v:.6f}", fit.q_v, limit.q_v),
    )
    rows = [
        (name, shown, expected, render.with_error(theory, _DIGITS), f"{value - float(theory):+.4f}")
        for name, shown, expected, value, theory in numbers
    ]
    mark = "" if fit.converged else "! "
    told = f"({fit.iterations} steps from {args.start}, {seconds:.3g} s)"
    notes = [f"{mark}{render.result_words(fit.result)} {told}"]
    notes += [] if limit.converged else [f"! at large D: {render.result_words(limit.result)}"]
    words = f"{render.task_words(data.task)}, α = {data.alpha:g}, D = {data.dim}"
    columns = "", "measured", "expected", "at large D", "difference"
    title = f"Message passing on the {words}"
    shown = render.Shown(fields, [render.table(title, columns, rows, notes)])
    if fit.result == Result.INTERRUPTED:
        so_far = f"Interrupted after {fit.iterations} steps: these are the estimates so far"
        return shown.interrupted(so_far)
    return shown


def _head_fields(task: AbstractTask, attention: AbstractAttention, found: Any) -> dict[str, Any]:
    """With several heads or features: overlaps as matrices, of a single head too, and what belongs to each head."""
    import numpy as np

    if attention.family != "heads" and not task.has_random_shift:
        return {}
    weights, learned = attention.head_weights, getattr(found, "bias", None)
    biases = attention.bias if learned is None else learned.value
    return {
        "heads": attention.keys,
        "overlaps": {"M": found.overlaps.M.tolist(), "Q": found.overlaps.Q.tolist()},
        "head_weights": None if weights is None else np.asarray(weights, float).tolist(),
        "biases": np.ravel(biases).tolist(),
    }


def _draw(args: Any, task: Any, key: Any) -> AbstractDataset:
    from .. import simulation

    draw, (n, dim) = simulation.stream if args.stream else simulation.sample, args.size
    return draw(task, key, n, dim, args.precision)


def _data_fields(data: AbstractDataset, seed: int) -> dict[str, Any]:
    named = render.picked(data, "n", "dim", "alpha", "precision")
    return named | {"task": render.task_fields(data.task), "seed": seed}


def _watching(
    report: render.Report, check: Callable[[], None], what: str, tolerance: float
) -> Callable[[int, float], None]:
    """Progress in tenths of a decade, of what has to become small, from its largest value to the tolerance."""
    largest = tolerance

    def watch(step: int, size: float) -> None:
        nonlocal largest
        check()
        largest = max(largest, size)
        total, left = (
            math.ceil(10 * math.log10(max(each, tolerance) / tolerance)) for each in (largest, size)
        )
        report(f"step {step}, {what} {size:.1e}", total - left, total)

    return watch
