"""`attnrisk bayes`."""

from .options import Json, Length, Noise, Nu, Spread, TaskName, read_task
from .output import facts, print_json, print_rich, task_fields, task_words, with_error
from .progress import working


def bayes(
    task: TaskName = "spiked",
    nu: Nu = "5",
    length: Length = "10",
    noise: Noise = "0",
    spread: Spread = None,
    as_json: Json = False,
) -> None:
    """The risk that no predictor can beat, even one that knows the hidden directions.

    Example: attnrisk bayes --task max --nu inf --length 1-3 --noise 0.1
    """
    with working("Bayes risk"):
        problem = read_task(task, nu, length, noise, spread)
        from ..population import bayes_risk

        risk = bayes_risk(problem)
    if as_json:
        print_json(
            {"risk": float(risk.value), "error": float(risk.error), "task": task_fields(problem)}
        )
        return
    rows = {
        "Bayes risk": with_error(risk),
        "predicting zero": f"{float(problem.label_variance):.12g}",
    }
    print_rich(facts(task_words(problem), rows))
