"""What a study can ask at each of its points: small functions from inputs to one flat answer."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from .._check import one_of, real, refuse
from .._results import Estimate
from ..attention import AbstractAttention, get_attention
from ..learning import (
    ERMAsymptotics,
    Ridge,
    erm_asymptotics,
    optimal_asymptotics,
    tuned_erm_asymptotics,
)
from ..learning.scope import learnable, optimisable
from ..population import Minimum, bayes_risk, population_minima, population_minimum
from ..population.lanes import LANES
from ..simulation import fit_amp, fit_erm, sample
from ..simulation.data import LARGEST_DIM, samplable, whole
from ..tasks import TASKS, AbstractTask, MaxSLR, SpikedSLR, parse_lengths

Inputs = Mapping[str, Any]
Answer = dict[str, Any]

CONVERGED = "converged"
_INFIMUM = "infimum, not attained"
_LARGEST_SEED = 2**32 - 1

TASK = ("task", "nu", "length", "noise", "spread")


class Question(NamedTuple):
    """`ask` is given what the `axes` describe, for a task that `scope` lets pass.

    So many points as `together` says, of those that share compiled code, make one task of an engine: few where a point
    takes long, so that little is lost when it is killed. Where `ask_all` is there, it is given what `ask` takes at each
    of them, in one list, and gives the same answers in less time.
    """

    ask: Callable[..., Answer]
    axes: tuple[str, ...]
    scope: Callable[[AbstractTask], AbstractTask]
    together: int
    ask_all: Callable[[list[dict[str, Any]]], list[Answer]] | None = None


def arguments(question: Question, inputs: Inputs) -> dict[str, Any]:
    """What `question.ask` takes, or a refusal of the inputs."""
    given: dict[str, Any] = {"task": question.scope(_task(inputs))}
    if "attention" in question.axes:
        given["attention"] = get_attention(inputs["attention"])
    if "alpha" in question.axes:
        given["alpha"] = real("alpha", inputs["alpha"], above=0.0)
    if "ridge_k" in question.axes:
        given["ridge"] = Ridge(inputs["ridge_k"], inputs["ridge_v"])
    if "dim" in question.axes:
        given["dim"] = whole("dim", inputs["dim"], 2, LARGEST_DIM)
        given["seed"] = whole("seed", inputs["seed"], 0, _LARGEST_SEED)
    return given


def compiled_with(inputs: Inputs) -> tuple[Any, ...]:
    """Points of one question that agree in this share compiled code."""
    shapes = tuple(inputs.get(name) for name in ("attention", "dim"))
    sizes = (inputs["alpha"], inputs["length"]) if "dim" in inputs else ()
    return inputs["task"], parse_lengths(inputs["length"]).lengths.size, *shapes, *sizes


def _task(inputs: Inputs) -> AbstractTask:
    name = one_of("task", inputs["task"], TASKS)
    law = parse_lengths(inputs["length"])
    if name == "spiked":
        return SpikedSLR(inputs["nu"], law, inputs["noise"], inputs["spread"])
    if inputs["spread"] != 1.0:
        raise refuse("spread", f"{inputs['spread']:g}", f"1 where the task is {name}")
    return MaxSLR(inputs["nu"], law, inputs["noise"])


def _bayes(task: AbstractTask) -> Answer:
    return _estimates(risk=bayes_risk(task)) | _told(CONVERGED, True)


def _population(task: AbstractTask, attention: AbstractAttention) -> Answer:
    return _least(population_minimum(task, attention))


def _populations(given: list[dict[str, Any]]) -> list[Answer]:
    """They share their attention, as all that shares compiled code does."""
    minima = population_minima([each["task"] for each in given], given[0]["attention"])
    return [_least(found) for found in minima]


def _least(found: Minimum) -> Answer:
    return (
        _estimates(risk=found.risk)
        | found.overlaps.as_dict()
        | {"bias": float(getattr(found.attention, "bias", 0.0)), "attained": found.attained}
        | _told(CONVERGED if found.attained else _INFIMUM, True)
    )


def _erm(task: AbstractTask, attention: AbstractAttention, alpha: float, ridge: Ridge) -> Answer:
    return _learned(erm_asymptotics(task, attention, alpha, ridge))


def _tuned_erm(task: AbstractTask, attention: AbstractAttention, alpha: float) -> Answer:
    found = tuned_erm_asymptotics(task, attention, alpha)
    ridge = {"best_ridge_k": float(found.ridge.k), "best_ridge_v": float(found.ridge.v)}
    return _learned(found) | ridge


def _learned(found: ERMAsymptotics) -> Answer:
    names = ("test_risk", "train_error", "objective", "m_k", "q_k", "V_k", "m_v", "q_v", "V_v")
    return (
        _estimates(**{name: getattr(found, name) for name in names})
        | {"replicon": found.replicon, "jumps": found.jumps, "warning": found.warning or ""}
        | _told(found.result, found.converged)
    )


def _optimal(task: AbstractTask, alpha: float) -> Answer:
    found = optimal_asymptotics(task, alpha)
    unsure = [each.result for each in (found.reachable, found.informed) if not each.converged]
    return (
        _estimates(
            risk=found.risk, reachable_risk=found.reachable_risk, q_k=found.q_k, q_v=found.q_v
        )
        | {"hard": found.hard}
        | _told(unsure[0] if unsure else CONVERGED, found.converged)
    )


def _simulate(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    ridge: Ridge,
    dim: int,
    seed: int,
) -> Answer:
    for_data, for_start, _ = jax.random.split(jax.random.key(seed), 3)  # as `attnrisk simulate`
    data = sample(task, for_data, max(1, round(alpha * dim)), dim)
    fit = fit_erm(data, attention, ridge, for_start)
    return (
        _estimates(test_risk=fit.test_risk)
        | {"train_error": float(fit.train_error), "objective": float(fit.objective)}
        | fit.overlaps.as_dict()
        | {"iterations": int(fit.iterations)}
        | _told(fit.result, fit.converged)
    )


def _amp(task: AbstractTask, alpha: float, dim: int, seed: int) -> Answer:
    key = jax.random.split(jax.random.key(seed), 3)[0]  # as `attnrisk amp`
    fit = fit_amp(sample(task, key, max(1, round(alpha * dim)), dim))
    return (
        _estimates(risk=fit.risk)
        | {"q_k": fit.q_k, "q_v": fit.q_v, "iterations": int(fit.iterations)}
        | _told(fit.result, fit.converged)
    )


def _estimates(**named: Estimate) -> Answer:
    """Each value, and its error beside it."""
    pairs = {name: float(each.value) for name, each in named.items()}
    return pairs | {f"{name}_error": float(each.error) for name, each in named.items()}


def _told(result: str, converged: bool) -> Answer:
    return {"result": result, "converged": bool(converged)}


def lacking(answer: Answer) -> list[str]:
    """The outputs that are not a number, which no answer that converged may have."""
    numbers = {name: value for name, value in answer.items() if isinstance(value, float)}
    return [name for name, value in numbers.items() if math.isnan(value)]


def _any_task(task: AbstractTask) -> AbstractTask:
    return task


_LEARNING = (*TASK, "attention", "alpha")
QUESTIONS: dict[str, Question] = {
    "bayes": Question(_bayes, TASK, _any_task, 16),
    "population": Question(_population, (*TASK, "attention"), _any_task, LANES, _populations),
    "erm": Question(_erm, (*_LEARNING, "ridge_k", "ridge_v"), learnable, 2),
    "tuned-erm": Question(_tuned_erm, _LEARNING, learnable, 1),
    "optimal": Question(_optimal, (*TASK, "alpha"), optimisable, 2),
    "simulate": Question(
        _simulate, (*_LEARNING, "ridge_k", "ridge_v", "dim", "seed"), samplable, 1
    ),
    "amp": Question(_amp, (*TASK, "alpha", "dim", "seed"), optimisable, 1),
}
