"""`attnrisk bayes`."""

from typing import Any

from . import options
from .command import ASK, command
from .render import Shown, facts, task_fields, task_words, with_error


@command(ASK, "Bayes risk", options.task(length="10"))
def bayes(task: Any) -> Shown:
    """The lowest risk of any predictor, even one that knows the hidden directions.

    Example: attnrisk bayes --task max --nu inf --length 1-3 --noise 0.1
    """
    from ..population import bayes_risk

    risk = bayes_risk(task)
    fields = {"risk": float(risk), "error": float(risk.error), "task": task_fields(task)}
    rows = {
        "Bayes risk": with_error(risk),
        "predicting zero": f"{float(task.label_variance):.12g}",
    }
    return Shown(fields, [facts(task_words(task), rows)])
