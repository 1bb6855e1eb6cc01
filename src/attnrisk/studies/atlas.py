"""The atlas: lowest risks over `(ν, L)` as interpolants, with learning curves, thresholds and flows.

Everything is computed through ordinary questions, so that any backend serves and a store resumes; a surface, a setting
or a flow whose answers are not all there is left out of the file.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._check import refuse
from .._files import replacement
from .._rows import BAYES, FLOOR
from ..attention import CATALOGUE, AbstractAttention, get_attention
from ..numerics.minimise import BATCH
from ..population import population_minima
from ..population.plan import is_exact
from ..tasks import TASKS
from .atlas_questions import FLIPPED, TIMES, FlippedMinimum, FlowPaths, FormulaMinimum
from .execute import Backend, Progress, execute
from .fingerprint import fingerprint, versions
from .interpolant import RATIO, ROOT, SHIFTED_ROOT, Grid, compress, grid, significant
from .judge.tasks import has_tunable_bias
from .question import AbstractQuestion, Record, is_converged
from .questions import Bayes, Floor, LearningCurve, Optimal, Population, Thresholds, least
from .store import Store

LAYOUT = 3  # of the file; the page refuses another
# Batches of questions in one task of a worker: fewer compile less often, more end together.
BATCHES = 3
NONE, FREE = "0", "free"  # the biases of the questions

# Scores at which a kernel or an element-wise weight is tabulated for drawing: dense near 0, up to 4000.
_SCORES = np.sinh(np.linspace(-9.0, 9.0, 361))

Answers = Mapping[str, Any]  # by the address of the question


@dataclass(frozen=True)
class Surface:
    """The lowest risk of an attention, or one of the two reference lines, over a grid."""

    task: str
    attention: str
    bias: str
    grid: Grid

    @property
    def labels(self) -> dict[str, str]:
        """The task, attention and bias that identify the surface."""
        return {"task": self.task, "attention": self.attention, "bias": self.bias}

    def questions(self) -> list[AbstractQuestion]:
        """Questions at all nodes, then at the held-out points."""
        return [self._question(nu, length) for nu, length in self.grid.points]

    def _question(self, nu: float, length: int) -> AbstractQuestion:
        """The question at one point, with the bias of the surface."""
        name, at = self.attention, (self.task, nu, str(length))
        if self.task == FLIPPED:
            return FlippedMinimum(nu, length, name)
        if name in (BAYES, FLOOR):
            return (Bayes if name == BAYES else Floor)(*at)
        if name in FormulaMinimum.formulas:
            return FormulaMinimum(*at, name)
        return Population(*at, name, bias=self.bias)


class Plan(NamedTuple):
    """The contents of an atlas."""

    surfaces: tuple[Surface, ...]
    learning: tuple[tuple[str, float, str], ...]
    learners: tuple[str, ...]
    alphas: tuple[float, ...]
    log2_points: int
    flows: tuple[tuple[str, float, str], ...]
    flowing: tuple[str, ...]

    def curves(self, setting: tuple[str, float, str]) -> list[LearningCurve]:
        """Of all learners at one setting."""
        more = self.alphas, self.log2_points
        return [LearningCurve(*setting, name, *more) for name in self.learners]

    def optima(self, setting: tuple[str, float, str]) -> list[AbstractQuestion]:
        """The thresholds, and the optimum at each `α`."""
        return [Thresholds(*setting), *(Optimal(*setting, alpha) for alpha in self.alphas)]

    def paths(self) -> list[FlowPaths]:
        """All flows."""
        return [FlowPaths(*setting, name) for setting, name in product(self.flows, self.flowing)]

    def questions(self) -> list[AbstractQuestion]:
        """All questions: slow ones first, then surface by surface, so that an interrupted run has complete surfaces."""
        return [
            *(each for setting in self.learning for each in self.curves(setting)),
            *self.paths(),
            *(each for setting in self.learning for each in self.optima(setting)),
            *(each for surface in self.surfaces for each in surface.questions()),
        ]


# ν = 60 is beyond 4 log L for a million tokens. Coarser grids where a point takes a second or more.
_FINE = {
    "spiked": (grid(SHIFTED_ROOT, 20, 60.0, 12, 10**6, 40),),
    "max": (grid(RATIO, 18, 20.0, 10, 10**4, 24), grid(RATIO, 1, math.inf, 12, 10**4, 14)),
}
_COARSE = {
    "spiked": (grid(SHIFTED_ROOT, 15, 60.0, 9, 10**6, 20),),
    "max": (grid(RATIO, 12, 20.0, 7, 10**4, 24), grid(RATIO, 1, math.inf, 8, 10**4, 6)),
}
# Without a bias the norm of k has no effect on a homogeneous attention: there is nothing to search.
_HOMOGENEOUS = {"spiked": (grid(ROOT, 20, 60.0, 12, 10**6, 40),), "max": _FINE["max"]}
# A free bias of these takes ten seconds a point on the max task.
_ROUGH = (grid(RATIO, 9, 20.0, 5, 10**4, 24), grid(RATIO, 1, math.inf, 7, 10**4, 5))
_SLOW = ("relu", "relu2", "taylor-2", "elementwise-relu")
# Formulas give two of these. One point of one head or two takes ten seconds or more. The risk of one head has a kink at
# the signal above which it attends at all, where this grid errs by up to 0.13 in the logit and 12 × 8 nodes by 0.06.
_FLIPPED = {
    BAYES: grid(SHIFTED_ROOT, 14, 30.0, 9, 100, 14),
    "Bayes-softmax": grid(SHIFTED_ROOT, 14, 30.0, 9, 100, 14),
    "softmax": grid(SHIFTED_ROOT, 8, 30.0, 5, 100, 6),
    "two heads": grid(SHIFTED_ROOT, 8, 30.0, 5, 100, 6),
}


def surfaces_of(task: str, name: str) -> list[Surface]:
    """Surfaces of an attention on a task; none without an exact method or a formula for all lengths."""
    attention = get_attention(name)
    exact = is_exact(TASKS[task](1.0, 3), attention)
    if not exact or attention.knows_length:
        return []
    formula = name in FormulaMinimum.formulas
    quick = formula or (attention.analytic and not attention.compares_tokens)
    listed = []
    for bias in (NONE,) if formula else (NONE, FREE):
        rough = task == "max" and bias == FREE and name in _SLOW
        searched = bias == FREE or not attention.is_homogeneous
        grids = _FINE if quick else _COARSE if searched else _HOMOGENEOUS
        listed += [Surface(task, name, bias, each) for each in (_ROUGH if rough else grids[task])]
    return listed


def _all_surfaces() -> Iterator[Surface]:
    for task, grids in _FINE.items():
        for each, name in product(grids, (BAYES, FLOOR)):
            yield Surface(task, name, NONE, each)
        for name in CATALOGUE:
            yield from surfaces_of(task, name)
    for name, each in _FLIPPED.items():
        yield Surface(FLIPPED, name, NONE, each)


FULL = Plan(
    surfaces=tuple(_all_surfaces()),
    learning=(("spiked", 5.0, "3"), ("spiked", 2.0, "3"), ("max", math.inf, "3")),
    learners=("softmax", "softplus", "taylor-2", "erf", "linear"),
    # Without label noise the optimum jumps at α = 1, and message passing a little above.
    alphas=(0.5, 0.7, 0.9, 0.98, 1.02, 1.1, 1.4, 2.0, 3.0, 4.5, 7.0, 11.0, 16.0),
    log2_points=7,
    flows=(("spiked", 2.0, "10"), ("spiked", 5.0, "3")),
    flowing=("softmax", "softplus", "taylor-2", "erf", "linear"),
)


def collect(
    plan: Plan,
    backend: Backend | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """The answers by address, and a line for each failure."""
    answers, failures = {}, []
    for row in execute(plan.questions(), backend, store, progress, retry=True):
        if row.failed:
            failures.append(f"{row.question} {row.inputs}: {row.result}")
        else:
            answers[row.address] = row.answer
    return answers, failures


def make(answers: Answers, plan: Plan = FULL) -> Record:
    """The atlas of these answers: each surface, setting and flow that is complete."""
    results: list[str] = []
    surfaces = [
        compress(
            each.labels, each.grid, [answers.get(q.address) for q in each.questions()], results
        )
        for each in plan.surfaces
    ]
    shown = {each.attention for each in plan.surfaces}
    attentions = {
        name: describe(get_attention(name), entry.formula)
        for name, entry in CATALOGUE.items()
        if name in shown
    }
    if FLIPPED in {each.task for each in plan.surfaces}:
        attentions |= _HEADS
    flows = [
        {name: path.inputs[name] for name in ("task", "nu", "length", "attention")}
        | {"runs": [_rounded(run) for run in answers[path.address]]}
        for path in plan.paths()
        if answers.get(path.address) is not None
    ]
    return {
        "layout": LAYOUT,
        "versions": versions(),
        "numerics": fingerprint(Population),
        "results": results,
        "scores": [*map(significant, _SCORES)],
        "attentions": attentions,
        "surfaces": _known(surfaces),
        "learning": _known(_learning(answers, plan, setting) for setting in plan.learning),
        "times": [*map(significant, TIMES)],
        "flows": flows,
    }


def _known(parts: Iterable[Record | None]) -> list[Record]:
    return [each for each in parts if each is not None]


def missing(atlas: Record, plan: Plan = FULL) -> list[str]:
    """Missing parts of an atlas: a line for each task and bias, and for each setting of learning and flow."""
    held = {(_range(each, each["nu"][0]), each["attention"]) for each in atlas["surfaces"]}
    held |= {
        (_setting("learning", **each), name)
        for each in atlas["learning"]
        for name in each["curves"]
    }
    held |= {(_setting("flow", **each), each["attention"]) for each in atlas["flows"]}
    planned = [(_range(each.labels, each.grid.nu[0]), each.attention) for each in plan.surfaces]
    learning, flows = product(plan.learning, plan.learners), product(plan.flows, plan.flowing)
    planned += [(_setting("learning", *at), name) for at, name in learning]
    planned += [(_setting("flow", *at), name) for at, name in flows]
    lines: dict[str, list[str]] = {}
    for place, name in planned:
        if (place, name) not in held:
            lines.setdefault(place, []).append(name)
    return [f"{place}: {', '.join(names)}" for place, names in lines.items()]


def _range(labels: Mapping[str, Any], signal: Any) -> str:
    bias = "tuned bias" if labels["bias"] == FREE else "bias 0"
    return f"{labels['task']} task, {'ν = ∞' if float(signal) == math.inf else 'finite ν'}, {bias}"


def _setting(kind: str, task: str, nu: Any, length: Any, **others: Any) -> str:
    return f"{kind}, {task} task, ν = {float(nu):g}, L = {length}"


def describe(attention: AbstractAttention, formula: str) -> Record:
    """Data for drawing the weights of an attention: `log φ`, or the weight itself, at the tabulated scores.

    A kernel of which a token does not have the whole `φ` as its weight, such as softpick, has `shares` too.
    """
    known: Any = attention
    scores, share, constant = jnp.asarray(_SCORES), 1.0, 0.0
    if attention.family == "kernel":
        found, share, constant = known.log_phi(scores), known.share(scores), known.constant
    else:
        found = known.weight(scores)
    values, shares = np.asarray(found, float).tolist(), np.asarray(share) * np.ones(len(_SCORES))
    partial = {} if np.all(shares == 1.0) else {"shares": shares.tolist()}
    return partial | {
        "family": attention.family,
        "formula": formula,
        "constant": float(constant),
        "takes_bias": attention.name not in FormulaMinimum.formulas,
        "default_bias": FREE if attention.free_bias else NONE,
        "values": [significant(value) if math.isfinite(value) else None for value in values],
    }


def _drawn_heads(family: str, formula: str, values: Any) -> Record:
    shape = {"constant": 0.0, "takes_bias": False, "default_bias": NONE}
    return {"family": family, "formula": formula} | shape | {"values": [*map(significant, values)]}


# Two heads, each a softmax with the key of the other reversed: their mean, or both in one softmax, which is cosh.
_HEADS = {
    "two heads": _drawn_heads("heads", "(softmax(χ) + softmax(−χ)) / 2", _SCORES),
    "Bayes-softmax": _drawn_heads("kernel", "cosh χ / Σ cosh χ", np.logaddexp(_SCORES, -_SCORES)),
}


def _learning(answers: Answers, plan: Plan, setting: tuple[str, float, str]) -> Record | None:
    """Learning curves at one setting, with the optimum and both thresholds; `None` without the latter."""
    task, nu, length = setting
    found: list[Any] = [answers.get(each.address) for each in plan.optima(setting)]
    if None in found:
        return None
    jumps, *optima = found
    curves = {each.attention: answers.get(each.address) for each in plan.curves(setting)}
    optimal, reachable = (
        [_point(each, name, at) for at, each in zip(plan.alphas, optima, strict=True)]
        for name in ("risk", "reachable_risk")
    )
    return {
        "task": task,
        "nu": "inf" if math.isinf(nu) else nu,
        "length": int(length),
        "curves": {
            name: [_point(each, "test_risk", each["alpha"]) for each in reversed(rows)]
            for name, rows in curves.items()
            if rows is not None
        },
        "optimal": optimal,
        "reachable": reachable,
        "thresholds": {
            name: jumps[name] and significant(jumps[name])
            for name in ("information", "algorithmic")
        },
    }


def _point(found: Record, name: str, alpha: float) -> list[Any]:
    """`[α, risk, error, converged, note]`; the risk is `None` if there is none, and the note gives the reason."""
    risk, error = found[name], found[f"{name}_error"]
    known, converged = math.isfinite(risk), is_converged(found["result"])
    notes = ["" if converged else found["result"], found.get("warning") or ""]
    return [
        alpha,
        significant(risk) if known else None,
        float(f"{error:.2g}") if known and math.isfinite(error) else None,
        converged,
        "; ".join(note for note in notes if note),
    ]


def _rounded(run: Record) -> Record:
    """A run with four digits, enough for a line."""
    return {
        name: [float(f"{each:.4g}") for each in value] if isinstance(value, list) else value
        for name, value in run.items()
    }


def write(path: Path, atlas: Record) -> None:
    """One line for each surface, so that a difference between two atlases can be read."""

    def written(name: str, value: Any) -> str:
        if name not in ("surfaces", "learning", "flows"):
            return json.dumps(value, allow_nan=False)
        lines = [json.dumps(each, allow_nan=False, separators=(",", ":")) for each in value]
        return "[\n" + ",\n".join(lines) + "\n]"

    parts = [f"{json.dumps(name)}: {written(name, value)}" for name, value in atlas.items()]
    with replacement(path) as part:
        part.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


# For an attention of the user's, who waits: about a minute for a smooth kernel.
USER_GRID = grid(SHIFTED_ROOT, 12, 60.0, 7, 10**6, 8)


def with_attention(
    atlas: Record, attention: AbstractAttention, name: str, progress: Progress | None = None
) -> Record:
    """The atlas with one more attention on the spiked task, with its own bias and with a free one.

    It is computed here: the attention has no name, and so no question.
    """
    if attention.knows_length:
        raise refuse("attention", repr(name), "one that does not depend on the number of tokens")
    if not is_exact(TASKS["spiked"](1.0, 3), attention):
        raise refuse("attention", repr(name), "a normalised kernel or an element-wise function")
    label = f"your {name}" if name in atlas["attentions"] else name
    tasks = [TASKS["spiked"](nu, length) for nu, length in USER_GRID.points]
    tunable = has_tunable_bias(attention)
    students = [attention, *[attention.with_free_bias()] * tunable]
    results, surfaces = list(atlas["results"]), list[Record | None]()
    for student in students:
        found: list[Record] = []
        for start in range(0, len(tasks), BATCH):
            minima = population_minima(tasks[start : start + BATCH], student)
            found += [least(each) for each in minima]
            if progress is not None:
                done = len(surfaces) * len(tasks) + len(found)
                progress(label, done, len(students) * len(tasks))
        labels = Surface("spiked", label, FREE if student.free_bias else NONE, USER_GRID).labels
        surfaces.append(compress(labels, USER_GRID, found, results))
    if surfaces[0] is None:
        allowed = "an attention whose risk can be interpolated; the error of this one is too large"
        raise refuse("attention", repr(name), allowed)
    takes_bias = attention.free_bias or tunable
    described = describe(attention, "") | {"takes_bias": takes_bias, "of_user": True}
    return atlas | {
        "results": results,
        "attentions": atlas["attentions"] | {label: described},
        "surfaces": [*atlas["surfaces"], *_known(surfaces)],
    }
