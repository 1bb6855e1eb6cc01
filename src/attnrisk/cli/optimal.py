"""`attnrisk optimal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Alpha, Json, Length, Noise, Nu, TaskName, read_task
from .output import facts, print_json, print_rich, task_fields, task_words, with_error
from .progress import working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate
    from ..learning import FixedPoint, OptimalAsymptotics, Thresholds
    from ..tasks import AbstractTask

_NO_JUMP = "no jump"

WithThresholds = Annotated[
    bool,
    typer.Option("--thresholds", help="Also the α at which the optimum and the reachable jump."),
]


def optimal(
    alpha: Alpha,
    task: TaskName = "spiked",
    nu: Nu = "5",
    length: Length = "3",
    noise: Noise = "0",
    thresholds: WithThresholds = False,
    as_json: Json = False,
) -> None:
    """The test risk that nobody beats who learns from N = αD sequences, and the one that is reached in practice.

    Example: attnrisk optimal --alpha 1.1 --nu 2 --length 3 --thresholds
    """
    with working("Bayes optimum"):
        from .._check import real
        from ..learning import optimal_asymptotics, optimal_thresholds

        samples = real("alpha", alpha, above=0.0)
        problem = read_task(task, nu, length, noise, None)
        found = optimal_asymptotics(problem, samples)
        jumps = optimal_thresholds(problem) if thresholds else None
    if as_json:
        print_json(_fields(found) | _threshold_fields(jumps) | {"task": task_fields(problem)})
    else:
        print_rich(_panel(problem, samples, found, jumps))


def _fields(found: OptimalAsymptotics) -> dict[str, Any]:
    return {
        "risk": float(found.risk),
        "risk_error": float(found.risk.error),
        "reachable_risk": float(found.reachable_risk),
        "reachable_risk_error": float(found.reachable_risk.error),
        "q_k": float(found.q_k),
        "q_k_error": float(found.q_k.error),
        "q_v": float(found.q_v),
        "q_v_error": float(found.q_v.error),
        "hard": found.hard,
        "converged": found.converged,
    }


def _threshold_fields(jumps: Thresholds | None) -> dict[str, Any]:
    if jumps is None:
        return {}
    places = {"information": jumps.information, "algorithmic": jumps.algorithmic}
    return {"thresholds": {name: _threshold(jump) for name, jump in places.items()}}


def _threshold(jump: Estimate | None) -> dict[str, float] | None:
    return None if jump is None else {"alpha": float(jump), "error": float(jump.error)}


def _panel(
    task: AbstractTask, alpha: float, found: OptimalAsymptotics, jumps: Thresholds | None
) -> RenderableType:
    hard = "yes: no fast algorithm that is known reaches the optimum" if found.hard else "no"
    rows = {
        "best possible risk": _marked(found.risk, found.optimum),
        "best reachable risk": _marked(found.reachable_risk, found.reachable),
        "hard": hard,
        "overlaps": f"q_k = {with_error(found.q_k)}, q_v = {with_error(found.q_v)}",
        "result": "converged" if found.converged else "NOT CONVERGED",
    }
    if jumps is not None:
        rows["the optimum jumps"] = _place(jumps.information)
        rows["the reachable jumps"] = _place(jumps.algorithmic)
    return facts(f"Bayes optimum, {task_words(task)}, α = {alpha:g}", rows)


def _marked(risk: Estimate, point: FixedPoint) -> str:
    """The risk, and why not to trust it, if so."""
    return with_error(risk) + ("" if point.converged else f"  ! {point.result}")


def _place(jump: Estimate | None) -> str:
    return _NO_JUMP if jump is None else f"at α = {with_error(jump)}"
