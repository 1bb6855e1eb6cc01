"""`attnrisk simulate`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .options import (
    INTERRUPTED,
    Alpha,
    AttentionName,
    Json,
    Length,
    Noise,
    Nu,
    Spread,
    TaskName,
    read_task,
    read_whole,
)
from .output import facts, print_json, print_rich, task_fields, task_words, with_error
from .progress import Report, patience, working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate
    from ..simulation import AbstractDataset, ERMFit
    from ..simulation.lbfgs import Watch

LARGEST_SEED, LARGEST = 2**32 - 1, 10**8

Dim = Annotated[
    str,
    typer.Option(metavar="NUMBER", help="Dimension D of a token, ≥ 2.", show_default=False),
]
RidgeK = Annotated[str, typer.Option(metavar="NUMBER", help="Ridge on k, r_k > 0.")]
RidgeV = Annotated[str, typer.Option(metavar="NUMBER", help="Ridge on v, r_v > 0.")]
Seed = Annotated[str, typer.Option(metavar="NUMBER", help="A whole number, for another dataset.")]
TestSet = Annotated[
    str,
    typer.Option(
        metavar="NUMBER",
        help="Draw so many new sequences to check the test risk, which is exact without them.",
    ),
]
Precision = Annotated[
    str, typer.Option(metavar="float32|float64", help="Of the tokens; all else is float64.")
]
Stream = Annotated[
    bool,
    typer.Option("--stream", help="Draw the tokens anew at every pass: slow, in little memory."),
]


class Answer(NamedTuple):
    """What was learned, and how long it took with the drawing of the data."""

    data: AbstractDataset
    fit: ERMFit
    test_risk: Estimate
    checked: Estimate | None
    seconds: float


def simulate(
    alpha: Alpha,
    dim: Dim,
    task: TaskName = "spiked",
    nu: Nu = "5",
    length: Length = "3",
    noise: Noise = "0",
    spread: Spread = None,
    attention: AttentionName = "softmax",
    ridge_k: RidgeK = "1",
    ridge_v: RidgeV = "1",
    seed: Seed = "0",
    test_set: TestSet = "0",
    precision: Precision = "float64",
    stream: Stream = False,
    as_json: Json = False,
) -> None:
    """Draw N = αD sequences and learn from them, by empirical risk minimisation with L-BFGS.

    Example: attnrisk simulate --alpha 4 --dim 1000 --ridge-k 1 --ridge-v 1 --seed 0
    """
    with working("drawing the data") as report:
        from .. import simulation
        from .._check import one_of, real
        from .._results import Result
        from ..attention import get_attention as named
        from ..learning import Ridge

        problem = read_task(task, nu, length, noise, spread)
        student = named(attention)
        ridge = Ridge(
            real("ridge_k", ridge_k, above=0.0),
            real("ridge_v", ridge_v, above=0.0),
        )
        size = read_whole("dim", dim, 2, LARGEST)
        samples = max(1, round(real("alpha", alpha, above=0.0) * size))
        fresh = _read_test_set(test_set)
        dtype = one_of("precision", precision, simulation.PRECISIONS)
        for_data, for_start, for_test = _keys(read_whole("seed", seed, 0, LARGEST_SEED))
        draw = simulation.stream if stream else simulation.sample
        begun = time.perf_counter()
        with patience() as check:
            data = draw(problem, for_data, samples, size, dtype)
            check()
            watch = _watch(report, check)
            fit = simulation.fit_erm(data, student, ridge, for_start, watch=watch)
        seconds = time.perf_counter() - begun
        checked = simulation.measure_risk(data, fit, for_test, fresh) if fresh else None
        answer = Answer(data, fit, fit.test_risk, checked, seconds)
    if as_json:
        print_json(_fields(answer) | {"test_set": fresh, "seed": int(seed)})
    else:
        print_rich(_panel(answer, fresh))
    if fit.result is Result.INTERRUPTED:
        typer.echo("Interrupted: this is the best point so far, not a minimum", err=True)
        raise typer.Exit(INTERRUPTED)


def _read_test_set(word: str) -> int:
    """How many sequences; one has no standard error."""
    from .._check import refuse

    count = read_whole("test_set", word, 0, LARGEST)
    if count == 1:
        raise refuse("test_set", count, "0 or at least 2")
    return count


def _keys(seed: int) -> Any:
    """For the data, for the random start, and for a test set."""
    import jax

    return jax.random.split(jax.random.key(seed), 3)


def _watch(report: Report, check: Callable[[], None]) -> Watch:
    """Progress in tenths of a decade, of the gradient from where it began to where it is small enough."""
    from ..simulation.erm import TOLERANCE

    first: list[float] = []

    def watch(step: int, gradient: float) -> None:
        check()
        first.append(gradient)
        label = f"step {step}, gradient {gradient:.1e}"
        total, left = (
            max(0, math.ceil(10 * math.log10(max(norm, 1e-300) / TOLERANCE["float64"])))
            for norm in (max(first), gradient)
        )
        report(label, total - left, total)

    return watch


def _fields(answer: Answer) -> dict[str, Any]:
    data, fit = answer.data, answer.fit
    checked = answer.checked
    return {
        "test_risk": float(answer.test_risk),
        "test_risk_error": float(answer.test_risk.error),
        "train_error": fit.train_error,
        "objective": fit.objective,
        "converged": fit.converged,
        "result": fit.result,
        "start": fit.start,
        "iterations": fit.iterations,
        "evaluations": fit.evaluations,
        "gradient_norm": fit.gradient_norm,
        "overlaps": fit.overlaps.as_dict(),
        "seconds": answer.seconds,
        "n": data.n,
        "dim": data.dim,
        "alpha": data.alpha,
        "ridge": {"k": float(fit.ridge.k), "v": float(fit.ridge.v)},
        "precision": data.precision,
        "attention": fit.attention.name,
        "task": task_fields(fit.task),
        "rivals": [_rival_fields(rival) for rival in fit.rivals],
        "test_set_risk": None if checked is None else float(checked),
        "test_set_risk_error": None if checked is None else float(checked.error),
    }


def _rival_fields(rival: ERMFit) -> dict[str, Any]:
    return {
        "start": rival.start,
        "result": rival.result,
        "objective": rival.objective,
        "train_error": rival.train_error,
        "overlaps": rival.overlaps.as_dict(),
    }


def _panel(answer: Answer, fresh: int) -> RenderableType:
    data, fit = answer.data, answer.fit
    numbers = [f"{name} = {number:z.6f}" for name, number in fit.overlaps.as_dict().items()]
    rows = {
        "test risk": with_error(answer.test_risk),
        "train error": f"{fit.train_error:.10g}",
        "objective": f"{fit.objective:.10g} per dimension",
        "result": _result(fit),
        "data": f"N = {data.n}, D = {data.dim}, {data.nbytes / 2**20:.3g} MiB of {data.precision}",
        "ridges": f"r_k = {float(fit.ridge.k):.6g}, r_v = {float(fit.ridge.v):.6g}",
        "overlaps": ", ".join(numbers[:4]),
        "": ", ".join(numbers[4:]),
        "time": f"{answer.seconds:.3g} s",
    }
    if answer.checked is not None:
        rows["test set"] = f"{with_error(answer.checked)} ({fresh} sequences)"
    rivals = [f"{rival.start} {rival.objective:.10g} ({rival.result})" for rival in fit.rivals]
    if rivals:
        rows["other starts"] = ", ".join(rivals)
    title = f"{fit.attention.name} on the {task_words(fit.task)}, α = {data.alpha:g}"
    return facts(title, rows)


def _result(fit: ERMFit) -> str:
    told = f"after {fit.iterations} steps, gradient {fit.gradient_norm:.1g}"
    if fit.converged:
        return f"converged {told} (start: {fit.start})"
    why = fit.result.removeprefix("not converged: ")
    return f"NOT CONVERGED: {why} {told} (start: {fit.start})"
