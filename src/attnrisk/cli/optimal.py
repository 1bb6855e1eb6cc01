"""`attnrisk optimal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import options
from .command import LEARN, command
from .render import Shown, facts, fields_of, result_words, task_fields, task_words, with_error

if TYPE_CHECKING:
    from .._results import Estimate
    from ..learning import FixedPoint


@command(
    LEARN,
    "Bayes optimum",
    options.ALPHA,
    options.task(spread=False),
    options.flag("thresholds", "Also the α at which the optimum and the reachable jump."),
)
def optimal(alpha: float, task: Any, thresholds: bool) -> Shown:
    """The lowest test risk achievable from N = αD sequences, and the lowest that a fast algorithm reaches.

    Example: attnrisk optimal --alpha 1.1 --nu 2 --length 3 --thresholds
    """
    from ..learning import optimal_asymptotics, optimal_thresholds

    found = optimal_asymptotics(task, alpha)
    fields = fields_of(found, "hard")
    rows = {
        "best possible risk": _marked(found.risk, found.optimum),
        "best reachable risk": _marked(found.reachable_risk, found.reachable),
        "hard": "yes: no fast algorithm that is known reaches the optimum" if found.hard else "no",
        "overlaps": f"q_k = {with_error(found.q_k)}, q_v = {with_error(found.q_v)}",
        "result": result_words(found.result),
    }
    if thresholds:
        jumps = optimal_thresholds(task)
        places = {"information": jumps.information, "algorithmic": jumps.algorithmic}
        fields["thresholds"] = {
            name: None if jump is None else {"alpha": float(jump), "error": float(jump.error)}
            for name, jump in places.items()
        }
        for label, jump in zip(("optimum", "reachable"), places.values(), strict=True):
            words = "no jump" if jump is None else f"at α = {with_error(jump)}"
            rows[f"the {label} jumps"] = words
    fields["task"] = task_fields(task)
    return Shown(fields, [facts(f"Bayes optimum, {task_words(task)}, α = {alpha:g}", rows)])


def _marked(risk: Estimate, point: FixedPoint) -> str:
    """The risk, and why not to trust it, if so."""
    return with_error(risk) + ("" if point.converged else f"  ! {point.result}")
