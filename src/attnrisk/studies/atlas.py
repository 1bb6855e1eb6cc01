"""The atlas: least risks over `(ν, L)` as Chebyshev interpolants, with learning curves, thresholds and flows.

The logit of the risk, `log(E/(1 − E))`, is interpolated in `ν` and `log L`: for a long sequence the risk falls from
1 to 0 in a narrow range about `ν = 2 log L`, while its logit goes smoothly from `log L` to a line in `ν`.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from .._check import refuse
from .._results import record
from .._rows import BAYES, FLOOR
from ..attention import CATALOGUE, AbstractAttention, get_attention
from ..flow.flow import gradient_flow, random_starts
from ..numerics.minimise import BATCH
from ..population import population_minima
from ..population.minimisers import linear_minimum, softmax_minimum
from ..population.overlaps import swapped
from ..population.plan import is_exact
from ..tasks import TASKS
from .execute import Ask, Progress
from .fingerprint import fingerprint, versions
from .questions import (
    AbstractAttentionQuestion,
    AbstractQuestion,
    AbstractTaskQuestion,
    Bayes,
    Floor,
    LearningCurve,
    Optimal,
    Population,
    Record,
    Thresholds,
    is_converged,
)

LAYOUT = 1  # of the file; the page refuses another
NONE, FREE = "0", "free"  # the biases of the questions

_SMALLEST = 1e-9  # risk: smaller ones, such as the infimum 0 of softmax at ν = ∞, are kept as this
_SAFETY = 2.0  # another point exceeds the largest error at n held-out points with chance 1/(n + 1)
_ROUNDING = 6  # digits of a logit: 10^-6 of the risk, far below the error of the interpolant
# Scores at which a kernel or an element-wise weight is tabulated for drawing: dense near 0, up to 4000.
_SCORES = np.sinh(np.linspace(-9.0, 9.0, 361))
_TIMES = np.geomspace(0.1, 1e4, 60)


class Grid(NamedTuple):
    """Chebyshev–Lobatto nodes in `signal_place` and in `log L`, lengths rounded to integers, and held-out points."""

    nu: tuple[float, ...]
    length: tuple[int, ...]
    held_out: tuple[tuple[float, int], ...]

    @property
    def points(self) -> list[tuple[float, int]]:
        """All nodes, then the points held out."""
        return [*product(self.nu, self.length), *self.held_out]


def signal_place(task: str, nu: Any) -> Any:
    """The variable in which the logit is smooth: `√ν` on the spiked task, `ν/(2 + ν)` on the max task.

    With 12 × 7 nodes on the max task the second is ten times as accurate as the first.
    """
    return np.sqrt(nu) if task == "spiked" else nu / (2.0 + nu)


def _signal_at(task: str, place: float) -> float:
    return place**2 if task == "spiked" else 2.0 * place / (1.0 - place)


def grid(
    task: str, signals: int, most_signal: float, lengths: int, longest: int, held_out: int
) -> Grid:
    """`signals` nodes up to `most_signal`, or `ν = ∞` alone where that is infinite, times `lengths` nodes."""
    end = 0.0 if math.isinf(most_signal) else signal_place(task, most_signal)

    def signal(share: float) -> float:
        return round(_signal_at(task, share * end), 6) if end else math.inf

    def length(share: float) -> int:
        return round(2.0 * (longest / 2.0) ** share)

    nodes: list[int] = []
    for share in _unit_nodes(lengths):  # rounded, but never the same twice
        nodes.append(max(length(share), nodes[-1] + 1 if nodes else 2))
    draws = qmc.Sobol(2, seed=0).random(2 ** math.ceil(math.log2(held_out)))[:held_out].tolist()
    nu = tuple(map(signal, _unit_nodes(signals))) if end else (math.inf,)
    return Grid(nu, tuple(nodes), tuple((round(signal(x), 4), length(y)) for x, y in draws))


def _unit_nodes(count: int) -> list[float]:
    return [(1.0 - math.cos(math.pi * each / (count - 1))) / 2.0 for each in range(count)]


class Plan(NamedTuple):
    """What an atlas holds: for each task its grids and the attentions, each with its biases; then the settings of
    learning and of flows."""

    grids: dict[str, tuple[Grid, ...]]
    attentions: dict[str, dict[str, tuple[str, ...]]]
    learning: tuple[tuple[str, float, str], ...]
    learners: tuple[str, ...]
    alphas: tuple[float, ...]
    optimal_alphas: tuple[float, ...]
    log2_points: int
    flows: tuple[tuple[str, float, str], ...]
    flowing: tuple[str, ...]


def exact_attentions(task: str) -> tuple[str, ...]:
    """Those of the catalogue that have an exact method and one formula `φ/Σφ`, or `h`, at all lengths."""
    problem = TASKS[task](1.0, 3)
    return tuple(
        name
        for name in CATALOGUE
        if is_exact(problem, get_attention(name))
        and not get_attention(name).knows_length
        and name != "softpick"
    )


@dataclass(frozen=True)
class FormulaMinimum(AbstractAttentionQuestion):
    """The least risk of an attention whose minimiser has a formula: no search, and exact at `ν = ∞`.

    A bias has no effect on them: it is void in `e^χ` over its sum, and absorbed by the scales in `1 + χ`.
    """

    kind: ClassVar[str] = "formula minimum"
    package: ClassVar[str] = "population"
    batch: ClassVar[int] = 16
    formulas: ClassVar[Any] = {"softmax": softmax_minimum, "linear": linear_minimum}

    def answer(self) -> Record:
        found = self.formulas[self.attention](self.problem)
        return record(found) | {"best_bias": found.bias}


@dataclass(frozen=True)
class FlowPaths(AbstractAttentionQuestion):
    """Gradient flow from two small random starts and from one with swapped roles, at times evenly spaced in `log t`."""

    kind: ClassVar[str] = "flow paths"
    package: ClassVar[str] = "flow"

    def answer(self) -> list[Record]:
        random = random_starts(jax.random.key(0), 2)
        starts = jax.tree.map(
            lambda many, one: np.concatenate([many, np.asarray(one)[None]]), random, swapped()
        )
        flow = gradient_flow(self.problem, self.student, starts, _TIMES)
        overlaps = {name: getattr(flow.overlaps, name) for name in _OVERLAPS}
        return [
            {
                "start": name,
                "result": str(flow.result[run]),
                "end_time": float(flow.end_time[run]),
                "risk": np.asarray(flow.risk.value)[run].tolist(),
                **{key: np.asarray(values)[run].tolist() for key, values in overlaps.items()},
            }
            for run, name in enumerate(("random, first", "random, second", "swapped"))
        ]


_OVERLAPS = ("m_kk", "m_kv", "m_vk", "m_vv")


@dataclass(frozen=True)
class Surface:
    """The least risk of an attention, or one of the two reference lines, over a grid."""

    task: str
    attention: str
    bias: str
    grid: Grid

    def questions(self) -> list[AbstractTaskQuestion]:
        """At all nodes, then at the points held out."""
        return [self._question(nu, str(length)) for nu, length in self.grid.points]

    def _question(self, nu: float, length: str) -> AbstractTaskQuestion:
        """The one place where the bias of an attention is chosen."""
        if self.attention in (BAYES, FLOOR):
            return (Bayes if self.attention == BAYES else Floor)(self.task, nu, length)
        if self.attention in FormulaMinimum.formulas:
            return FormulaMinimum(self.task, nu, length, self.attention)
        return Population(self.task, nu, length, self.attention, bias=self.bias)

    def compress(self, found: Sequence[Record]) -> Record:
        """The interpolant of these answers; its error, in the logit, is measured at the points held out."""
        shape = len(self.grid.nu), len(self.grid.length)
        nodes, others = found[: shape[0] * shape[1]], found[shape[0] * shape[1] :]
        piece: Record = {
            "task": self.task,
            "attention": self.attention,
            "bias": self.bias,
            "nu": ["inf" if math.isinf(nu) else nu for nu in self.grid.nu],
            "length": list(self.grid.length),
            "logit": _table([logit(each["risk"]) for each in nodes], shape, _ROUNDING),
        }
        if self.attention not in (BAYES, FLOOR):
            for name in ("m_kk", "m_vv", "best_bias"):
                column = [_significant(each[name]) for each in nodes]
                piece[name] = np.reshape(column, shape).tolist()
            piece["attained"] = "".join(str(int(each["attained"])) for each in nodes)
        misses = [
            abs(logit_at(piece, *at) - logit(each["risk"]))
            for at, each in zip(self.grid.held_out, others, strict=True)
        ]
        computed = max(_logit_error(each) for each in found)
        piece["error"] = _significant(_SAFETY * max(misses) + computed)
        piece["median_error"] = _significant(float(np.median(misses)))
        piece["held_out"] = len(misses)
        return piece


def _logit_error(found: Record) -> float:
    risk = min(max(found["risk"], _SMALLEST), 1.0 - _SMALLEST)
    return float(found["risk_error"] / (risk * (1.0 - risk))) if found["risk"] > _SMALLEST else 0.0


def _table(values: Sequence[float], shape: tuple[int, int], digits: int) -> list[list[float]]:
    return np.round(np.reshape(values, shape), digits).tolist()


def _significant(value: float) -> float:
    return float(f"{value:.5g}")


def logit(risk: float) -> float:
    """`log(E/(1 − E))` of a risk cut to where it is finite."""
    cut = min(max(risk, _SMALLEST), 1.0 - _SMALLEST)
    return math.log(cut) - math.log1p(-cut)


def logit_at(piece: Mapping[str, Any], nu: float, length: float) -> float:
    """The interpolant, by the barycentric formula in `signal_place` and in `log L`."""
    table = np.asarray(piece["logit"])
    if piece["nu"] != ["inf"]:
        task, nodes = piece["task"], np.asarray(piece["nu"], float)
        table = _barycentric(signal_place(task, nodes), signal_place(task, nu)) @ table
    return float(np.squeeze(table @ _barycentric(np.log(piece["length"]), math.log(length))))


def risk_at(piece: Mapping[str, Any], nu: float, length: float) -> tuple[float, float]:
    """The risk that the atlas gives, and its stated error."""
    risk = 1.0 / (1.0 + math.exp(-logit_at(piece, nu, length)))
    return risk, risk * (1.0 - risk) * piece["error"]


def _barycentric(nodes: np.ndarray, place: float) -> np.ndarray:
    """The weights of the values at the nodes; lengths are rounded, so that the nodes are not quite Chebyshev's."""
    apart = place - nodes
    if np.any(np.abs(apart) < 1e-12):
        return (np.abs(apart) < 1e-12).astype(float)
    spread = (nodes[:, None] - nodes) * 4.0 / (nodes.max() - nodes.min())
    np.fill_diagonal(spread, 1.0)
    weights = 1.0 / (np.prod(spread, 1) * apart)
    return weights / weights.sum()


def biases_of(task: str, name: str) -> tuple[str, ...]:
    """The biases for which an attention is computed on a task; none where that takes too long.

    Without a bias a point takes up to 3 s of one core on the spiked task. On the max task it takes 0.1 s for
    element-wise attentions, 2 to 8 s for most kernels, whose bias stays 0 there, and 20 to 80 s for softplus and elu+1,
    whose least risk is a limit as `k` grows: these are left out.
    """
    attention = get_attention(name)
    if name in FormulaMinimum.formulas:
        return (NONE,)
    if task == "max" and attention.family == "kernel":
        return () if name in ("softplus", "elu+1") else (NONE,)
    return NONE, FREE


# ν = 60 is beyond 4 log L for a million tokens.
FULL = Plan(
    grids={
        "spiked": (grid("spiked", 22, 60.0, 12, 10**6, 36),),
        "max": (grid("max", 14, 20.0, 8, 10**4, 20), grid("max", 1, math.inf, 10, 10**4, 14)),
    },
    attentions={
        task: {name: biases_of(task, name) for name in exact_attentions(task)} for task in TASKS
    },
    learning=(("spiked", 5.0, "3"), ("spiked", 2.0, "3"), ("max", math.inf, "3")),
    learners=("softmax", "softplus", "taylor-2", "erf", "linear"),
    alphas=(0.5, 0.8, 1.2, 2.0, 4.0, 8.0, 16.0),
    # The same and more; without label noise the optimum jumps at α = 1.
    optimal_alphas=(
        0.5,
        0.65,
        0.8,
        0.9,
        0.995,
        1.005,
        1.2,
        1.5,
        2.0,
        2.5,
        3.0,
        4.0,
        6.0,
        8.0,
        16.0,
    ),
    log2_points=7,
    flows=(("spiked", 2.0, "10"), ("spiked", 5.0, "3")),
    flowing=("softmax", "softplus", "taylor-2", "erf", "linear"),
)


def surfaces(plan: Plan) -> Iterator[Surface]:
    """All surfaces of a plan."""
    for task, grids in plan.grids.items():
        names = {BAYES: (NONE,), FLOOR: (NONE,)} | plan.attentions[task]
        for each, (name, biases) in product(grids, names.items()):
            for bias in biases:
                yield Surface(task, name, bias, each)


def questions(plan: Plan) -> list[AbstractQuestion]:
    """Everything that an atlas asks; the slow ones first, so that no worker ends long after the others."""
    slow: list[AbstractQuestion] = [
        *(Thresholds(*setting) for setting in plan.learning),
        *_curves(plan),
        *(Optimal(*setting, alpha) for setting in plan.learning for alpha in plan.optimal_alphas),
        *_flows(plan),
    ]
    listed = [each for surface in surfaces(plan) for each in surface.questions()]
    return [*slow, *sorted(listed, key=lambda each: each.task != "max")]


def _curves(plan: Plan) -> list[LearningCurve]:
    return [
        LearningCurve(*setting, name, plan.alphas, plan.log2_points)
        for setting in plan.learning
        for name in plan.learners
    ]


def _flows(plan: Plan) -> list[FlowPaths]:
    return [FlowPaths(*setting, name) for setting in plan.flows for name in plan.flowing]


def make(ask: Ask, plan: Plan = FULL) -> Record:
    """The atlas; everything is asked at once, so that all workers have work."""
    ask(questions(plan))
    pieces = [surface.compress(ask(surface.questions())) for surface in surfaces(plan)]
    shown = {name for names in plan.attentions.values() for name in names}
    return {
        "layout": LAYOUT,
        "versions": versions(),
        "numerics": fingerprint(Population),
        "scores": [_significant(score) for score in _SCORES],
        "attentions": {
            name: describe(get_attention(name), CATALOGUE[name].formula)
            for name in CATALOGUE
            if name in shown
        },
        "surfaces": pieces,
        "learning": [_learning(ask, plan, setting) for setting in plan.learning],
        "times": [_significant(time) for time in _TIMES],
        "flows": [
            {"task": each.task, "nu": each.nu, "length": each.length, "attention": each.attention}
            | {"runs": [_rounded(run) for run in found]}
            for each, found in zip(_flows(plan), ask(_flows(plan)), strict=True)
        ],
    }


def describe(attention: AbstractAttention, formula: str) -> Record:
    """What draws the weights of an attention: `log φ`, or the weight itself, at the tabulated scores."""
    function: Any = attention.log_phi if attention.family == "kernel" else attention.weight  # type: ignore[attr-defined]
    values = np.asarray(function(jnp.asarray(_SCORES)), float).tolist()
    return {
        "family": attention.family,
        "formula": formula,
        "constant": float(getattr(attention, "constant", 0.0)),
        "takes_bias": attention.name not in FormulaMinimum.formulas,
        "values": [_significant(value) if math.isfinite(value) else None for value in values],
    }


def _learning(ask: Ask, plan: Plan, setting: tuple[str, float, str]) -> Record:
    """Learning curves at one setting, with the optimum and both thresholds."""
    task, nu, length = setting
    optima = ask([Optimal(*setting, alpha) for alpha in plan.optimal_alphas])
    (jumps,) = ask([Thresholds(*setting)])
    curves = [each for each in _curves(plan) if (each.task, each.nu, each.length) == setting]
    return {
        "task": task,
        "nu": "inf" if math.isinf(nu) else nu,
        "length": int(length),
        "curves": {
            asked.attention: [
                _point(each["alpha"], each, "test_risk") for each in sorted(found, key=_alpha)
            ]
            for asked, found in zip(curves, ask(curves), strict=True)
        },
        "optimal": [
            _point(alpha, each, "risk")
            for alpha, each in zip(plan.optimal_alphas, optima, strict=True)
        ],
        "reachable": [
            _point(alpha, each, "reachable_risk")
            for alpha, each in zip(plan.optimal_alphas, optima, strict=True)
        ],
        "thresholds": {
            name: jumps[name] and _significant(jumps[name])
            for name in ("information", "algorithmic")
        },
    }


def _alpha(found: Record) -> float:
    return float(found["alpha"])


def _point(alpha: float, found: Record, name: str) -> list[Any]:
    """`[α, risk, error, converged]`; no risk where there is none."""
    risk, error = found[name], found[f"{name}_error"]
    known = math.isfinite(risk)
    return [
        alpha,
        _significant(risk) if known else None,
        float(f"{error:.2g}") if known and math.isfinite(error) else None,
        is_converged(found["result"]),
    ]


def _rounded(run: Record) -> Record:
    """A run with four digits, enough for a line."""
    return {
        name: [float(f"{each:.4g}") for each in value] if isinstance(value, list) else value
        for name, value in run.items()
    }


def write(path: Path, atlas: Record) -> None:
    """One line for each surface, so that a difference between two atlases can be read."""
    parts = {name: json.dumps(value, allow_nan=False) for name, value in atlas.items()}
    for name in ("surfaces", "learning", "flows"):
        lines = [json.dumps(each, allow_nan=False, separators=(",", ":")) for each in atlas[name]]
        parts[name] = "[\n" + ",\n".join(lines) + "\n]"
    text = ",\n".join(f"{json.dumps(name)}: {value}" for name, value in parts.items())
    path.write_text("{" + text + "}\n", encoding="utf-8")


# For an attention of the user's, who waits: about a minute for a smooth kernel.
USER_GRID = grid("spiked", 12, 60.0, 7, 10**6, 8)


def with_attention(
    atlas: Record, attention: AbstractAttention, name: str, progress: Progress | None = None
) -> Record:
    """The atlas with one more attention on the spiked task, computed here: it has no name, and so no question."""
    if not is_exact(TASKS["spiked"](1.0, 3), attention):
        raise refuse("attention", repr(name), "a normalised kernel or an element-wise function")
    label = f"your {name}" if name in atlas["attentions"] else name
    tasks = [TASKS["spiked"](nu, length) for nu, length in USER_GRID.points]
    found: list[Record] = []
    for start in range(0, len(tasks), BATCH):
        minima = population_minima(tasks[start : start + BATCH], attention)
        found += [record(each) | {"best_bias": each.bias} for each in minima]
        if progress is not None:
            progress(label, len(found), len(tasks))
    bias = FREE if attention.free_bias else NONE
    surface = Surface("spiked", label, bias, USER_GRID).compress(found)
    described = describe(attention, "") | {"takes_bias": True, "of_user": True}
    return atlas | {
        "attentions": atlas["attentions"] | {label: described},
        "surfaces": [*atlas["surfaces"], surface],
    }
