"""Questions about a task, and about an attention on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from .._check import one_of, real, refuse, whole
from .._results import record
from .._rows import BAYES, FLOOR
from ..attention import DEFAULT_BIAS, AbstractAttention, get_attention, named
from ..learning import (
    Ridge,
    erm_asymptotics,
    optimal_asymptotics,
    optimal_thresholds,
    tuned_erm_asymptotics,
)
from ..learning.erm import LOG2_POINTS
from ..learning.scope import learnable, optimisable
from ..learning.tuning import KnownFixedPoint
from ..numerics.minimise import BATCH
from ..population import (
    Minimum,
    bayes_risk,
    elementwise_floor,
    population_minima,
    population_minimum,
)
from ..simulation import fit_amp, fit_erm, sample
from ..simulation.data import LARGEST_DIM, sequence_count
from ..tasks import TASKS, AbstractTask, MaxSLR, SpikedSLR, parse_lengths
from .head_questions import FeatureBayes, HeadsERM, HeadsSimulate, LeastHeads
from .question import AbstractQuestion, Answer, Record, estimated, is_converged
from .training_questions import Train

_LARGEST_SEED = 2**32 - 1
# Of the search for a risk: the ratio of two α on the way down, and how many at most.
_FACTOR, _MOST_ALPHAS = 1.25, 16


def any_task(task: AbstractTask) -> AbstractTask:
    """No task is refused."""
    return task


@dataclass(frozen=True)
class AbstractTaskQuestion(AbstractQuestion):
    """A question about a task; `length` as in `parse_lengths`. `scope` refuses tasks that it cannot be asked of."""

    scope: ClassVar[Any] = staticmethod(any_task)

    task: str
    nu: float
    length: str
    noise: float = field(default=0.0, kw_only=True)
    spread: float = field(default=1.0, kw_only=True)

    @property
    def problem(self) -> Any:
        """The task itself."""
        one_of("task", self.task, TASKS)
        law = parse_lengths(self.length)
        if self.task == "spiked":
            return self.scope(SpikedSLR(self.nu, law, self.noise, self.spread))
        if self.spread != 1.0:
            raise refuse("spread", f"{self.spread:g}", f"1 where the task is {self.task}")
        return self.scope(MaxSLR(self.nu, law, self.noise))

    @property
    def name(self) -> str:
        """The attention; of a reference line, its kind."""
        return str(self.inputs.get("attention", self.kind))

    @property
    def label(self) -> str:
        return f"{self.name}, {self.task}"

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        inputs = self.inputs
        shapes = tuple(inputs.get(name) for name in ("attention", "bias", "dim", "log2_points"))
        sizes = (inputs["alpha"], self.length) if "dim" in inputs else ()
        return self.task, parse_lengths(self.length).lengths.size, *shapes, *sizes

    def check(self) -> None:
        """Refuse inputs that are not allowed, before anything is computed."""
        assert self.problem is not None
        given = self.inputs
        if isinstance(self, AbstractAttentionQuestion):
            assert self.student is not None
        if "alpha" in given:
            real("alpha", given["alpha"], above=0.0)
        if "ridge_k" in given:
            Ridge(given["ridge_k"], given["ridge_v"])
        if "dim" in given:
            sequence_count(given["alpha"], whole("dim", given["dim"], 2, LARGEST_DIM))
            whole("seed", given["seed"], 0, _LARGEST_SEED)


@dataclass(frozen=True)
class AbstractAttentionQuestion(AbstractTaskQuestion):
    """A question about an attention of the catalogue on a task; `bias` as in `get_attention`."""

    attention: str
    bias: str = field(default=DEFAULT_BIAS, kw_only=True)

    @property
    def student(self) -> AbstractAttention:
        """The attention itself."""
        return get_attention(self.attention, self.bias)

    @property
    def name(self) -> str:
        return named(self.attention, self.bias)


@dataclass(frozen=True)
class Bayes(AbstractTaskQuestion):
    """The Bayes risk."""

    kind: ClassVar[str] = BAYES
    package: ClassVar[str] = "population"
    batch: ClassVar[int] = 16

    def answer(self) -> Record:
        return estimated(bayes_risk(self.problem))


@dataclass(frozen=True)
class Floor(AbstractTaskQuestion):
    """The lowest risk of any element-wise attention."""

    kind: ClassVar[str] = FLOOR
    package: ClassVar[str] = "population"
    batch: ClassVar[int] = 16

    def answer(self) -> Record:
        return estimated(elementwise_floor(self.problem))


@dataclass(frozen=True)
class Population(AbstractAttentionQuestion):
    """The lowest risk of an attention with infinite data."""

    kind: ClassVar[str] = "population"
    package: ClassVar[str] = "population"
    batch: ClassVar[int] = BATCH

    def answer(self) -> Record:
        return least(population_minimum(self.problem, self.student))

    @classmethod
    def answer_all(cls, questions: Sequence[Self]) -> list[Answer]:
        found = population_minima([each.problem for each in questions], questions[0].student)
        return [least(each) for each in found]


def least(found: Minimum) -> Record:
    """`bias` is what was asked, `best_bias` what was found."""
    flat = record(found)
    return flat | {"best_bias": flat.pop("bias")}


def _learned(found: Any) -> Record:
    bias = None if found.bias is None else found.bias.value.tolist()
    return record(found) | {"warning": found.warning or "", "best_bias": bias}


@dataclass(frozen=True)
class ERM(AbstractAttentionQuestion):
    """Empirical risk minimisation with given ridges, averaged over `2**log2_points` points."""

    kind: ClassVar[str] = "erm"
    package: ClassVar[str] = "learning"
    batch: ClassVar[int] = 4
    scope = staticmethod(learnable)

    alpha: float
    ridge_k: float
    ridge_v: float
    log2_points: int = LOG2_POINTS

    def answer(self) -> Record:
        ridge = Ridge(self.ridge_k, self.ridge_v)
        return _learned(
            erm_asymptotics(self.problem, self.student, self.alpha, ridge, 0, self.log2_points)
        )


@dataclass(frozen=True)
class TunedERM(AbstractAttentionQuestion):
    """Empirical risk minimisation with the ridge penalties of lowest test risk."""

    kind: ClassVar[str] = "tuned-erm"
    package: ClassVar[str] = "learning"
    scope = staticmethod(learnable)

    alpha: float

    def answer(self) -> Record:
        found = tuned_erm_asymptotics(self.problem, self.student, self.alpha)
        ridge = {"best_ridge_k": float(found.ridge.k), "best_ridge_v": float(found.ridge.v)}
        return _learned(found) | ridge


@dataclass(frozen=True)
class LearningCurve(AbstractAttentionQuestion):
    """Tuned ridges at several `alphas`, from many data to few, each starting from the fixed point of the one before.

    `start` are those of the first.
    """

    kind: ClassVar[str] = "learning curve"
    package: ClassVar[str] = "learning"
    scope = staticmethod(learnable)

    alphas: tuple[float, ...]
    log2_points: int
    start: tuple[float, float] | None = None

    def answer(self) -> list[Record]:
        records: list[Record] = []
        for alpha in sorted(self.alphas, reverse=True):
            records.append(_tuned(self, alpha, records[-1] if records else None))
        return records


@dataclass(frozen=True)
class RiskCrossing(AbstractAttentionQuestion):
    """Tuned ridges at the `α` of a search for the one at which the test risk falls to `risk`.

    From `most` samples per dimension to fewer, by a constant factor, then by bisection in `log α`, until those on both
    sides have at most the given `ratio`. Each starts from the fixed point of the next larger `α`, the first from
    the ridges `start`.
    """

    kind: ClassVar[str] = "risk crossing"
    package: ClassVar[str] = "learning"
    scope = staticmethod(learnable)

    risk: float
    most: float
    log2_points: int
    start: tuple[float, float] | None = None
    ratio: float = 1.12

    def next_alpha(self, records: Sequence[Record]) -> float | None:
        """Where to go on; `None` once the bracket is narrow, or the risk is not reached with the most data."""
        if not records:
            return self.most
        reached = [each["alpha"] for each in records if self._is_reached(each)]
        if not reached or len(records) >= _MOST_ALPHAS:
            return None
        high = min(reached)
        low = max((each["alpha"] for each in records if each["alpha"] < high), default=None)
        if low is None:
            return high / _FACTOR
        return None if high <= self.ratio * low else math.sqrt(low * high)

    def _is_reached(self, found: Record) -> bool:
        return is_converged(found["result"]) and found["test_risk"] <= self.risk

    def learn(self, alpha: float, records: Sequence[Record]) -> Record:
        """The record at an `α`, given those before."""
        larger = [each for each in records if each["alpha"] > alpha]
        near = min(larger, key=lambda each: float(each["alpha"]), default=None)
        return _tuned(self, alpha, near)

    def answer(self) -> list[Record]:
        records: list[Record] = []
        while (alpha := self.next_alpha(records)) is not None:
            records.append(self.learn(alpha, records))
        return records


def _tuned(question: LearningCurve | RiskCrossing, alpha: float, near: Record | None) -> Record:
    """The record with tuned ridges; the search begins at the fixed point of one nearby, if that converged.

    Where this does not converge, the usual initialisation is tried too.
    """
    start: Any = None
    if near is None and question.start is not None:
        start = Ridge(*question.start)
    elif near is not None and is_converged(near["result"]):
        start = KnownFixedPoint(Ridge(near["ridge_k"], near["ridge_v"]), np.array(near["unknowns"]))
    tune = partial(tuned_erm_asymptotics, question.problem, question.student, alpha, 0)
    found = tune(question.log2_points, start)
    if start is not None and not found.converged:
        others = found, tune(question.log2_points, None)
        found = min(others, key=lambda each: (not each.converged, float(each.test_risk)))
    known = {"ridge_k": float(found.ridge.k), "ridge_v": float(found.ridge.v)}
    known |= {"unknowns": KnownFixedPoint.of(found).x.tolist()}
    return record(found) | {"alpha": float(alpha), **known}


@dataclass(frozen=True)
class Optimal(AbstractTaskQuestion):
    """The lowest test risk that can be learned from `N = αD` sequences."""

    kind: ClassVar[str] = "optimal"
    package: ClassVar[str] = "learning"
    batch: ClassVar[int] = 2
    scope = staticmethod(optimisable)

    alpha: float

    def answer(self) -> Record:
        return record(optimal_asymptotics(self.problem, self.alpha))


@dataclass(frozen=True)
class Thresholds(AbstractTaskQuestion):
    """The samples per dimension at which the optimum and message passing jump; `None` without a jump."""

    kind: ClassVar[str] = "thresholds"
    package: ClassVar[str] = "learning"
    scope = staticmethod(optimisable)

    def answer(self) -> Record:
        found = optimal_thresholds(self.problem)
        jumps = {"information": found.information, "algorithmic": found.algorithmic}
        flat: Record = {}
        for name, jump in jumps.items():
            flat[name] = None if jump is None else float(jump.value)
            flat[f"{name}_error"] = None if jump is None else float(jump.error)
        return flat


@dataclass(frozen=True)
class Simulate(AbstractAttentionQuestion):
    """Empirical risk minimisation on a drawn dataset, as `attnrisk simulate` does it."""

    kind: ClassVar[str] = "simulate"
    package: ClassVar[str] = "simulation"

    alpha: float
    ridge_k: float
    ridge_v: float
    dim: int
    seed: int
    precision: str = "float64"

    def answer(self) -> Record:
        for_data, for_start, _ = jax.random.split(jax.random.key(self.seed), 3)
        count = sequence_count(self.alpha, self.dim)
        data = sample(self.problem, for_data, count, self.dim, jnp.dtype(self.precision))
        ridge = Ridge(self.ridge_k, self.ridge_v)
        fit = fit_erm(data, self.student, ridge, for_start)
        return record(fit) | {"best_bias": float(fit.attention.bias)}


@dataclass(frozen=True)
class AMP(AbstractTaskQuestion):
    """Message passing on a drawn dataset, as `attnrisk amp` does it."""

    kind: ClassVar[str] = "amp"
    package: ClassVar[str] = "simulation"
    scope = staticmethod(optimisable)

    alpha: float
    dim: int
    seed: int

    def answer(self) -> Record:
        key = jax.random.split(jax.random.key(self.seed), 3)[0]
        count = sequence_count(self.alpha, self.dim)
        return record(fit_amp(sample(self.problem, key, count, self.dim)))


# What a study can ask.
QUESTIONS: dict[str, type[AbstractQuestion]] = {
    each.kind: each
    for each in (
        *(Bayes, Population, ERM, TunedERM, Optimal, Simulate, AMP, Train),
        *(FeatureBayes, LeastHeads, HeadsERM, HeadsSimulate),
    )
}
