"""The questions behind the pictures, each with the rows that answer it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._rows import BAYES, FLOOR
from ..attention import get_attention
from ..flow import gradient_flow, random_starts
from ..learning import optimal_asymptotics, tuned_erm_asymptotics
from ..population import bayes_risk, elementwise_floor, population_minimum, swapped
from ..population.minimisers import linear_minimum, softmax_minimum
from ..simulation import sample
from ..tasks import TASKS, MaxSLR, SpikedSLR, parse_lengths

# With finite data: the lowest risk possible, and the lowest that a known fast algorithm reaches.
OPTIMUM, REACHABLE = "best possible", "message passing"

# Lines to wait in, so that nobody waits for a slower one.
QUICK, SLOW, SLOWEST = "quick", "slow", "slowest"

_ROUNDING = 1e-14  # of a formula
_TIMES = np.geomspace(0.1, 1e4, 80)
_RUNS = 4  # of gradient flow from random vectors
_SHOWN = 40  # tokens of a sequence that a picture has room for


@dataclass(frozen=True)
class AbstractQuestion(ABC):
    """Something to ask of a task; `length` as in `parse_lengths`."""

    task: str
    nu: float
    length: str

    @property
    def problem(self) -> SpikedSLR | MaxSLR:
        """The task itself."""
        return TASKS[self.task](self.nu, parse_lengths(self.length))

    @property
    @abstractmethod
    def lane(self) -> str:
        """The line to wait in."""

    @abstractmethod
    def answer(self) -> tuple[Any, ...]:
        """The rows."""


@dataclass(frozen=True)
class LeastRow:
    """The least risk with infinite data; where it is not attained it is the limit of ever longer vectors."""

    task: str
    nu: float
    length: str
    attention: str
    risk: float
    error: float
    attained: bool
    m_kk: float | None = None
    m_vv: float | None = None
    bias: float | None = None


@dataclass(frozen=True)
class Least(AbstractQuestion):
    """The least risk of an attention, or one of the two reference lines."""

    attention: str

    @property
    def lane(self) -> str:
        quick = self.attention in (BAYES, *_FORMULAS) or (self.attention, self.task) == (
            FLOOR,
            "spiked",
        )
        return QUICK if quick else SLOW

    def answer(self) -> tuple[LeastRow]:
        known = self.task, self.nu, self.length, self.attention
        if self.attention == BAYES:
            bayes = bayes_risk(self.problem)
            return (LeastRow(*known, float(bayes), float(bayes.error), True),)
        if self.attention == FLOOR:
            floor = elementwise_floor(self.problem)
            return (LeastRow(*known, float(floor), float(floor.error), True),)
        if self.attention in _FORMULAS:
            least = _FORMULAS[self.attention](self.problem)
        else:
            least = population_minimum(self.problem, get_attention(self.attention))
        overlaps = float(least.overlaps.m_kk), float(least.overlaps.m_vv)
        risk = float(least.risk), float(least.risk.error), least.attained
        return (LeastRow(*known, *risk, *overlaps, float(least.attention.bias)),)


_FORMULAS = {"softmax": softmax_minimum, "linear": linear_minimum}


@dataclass(frozen=True)
class TokenRow:
    """A token of one sequence: teacher field and value, score, and `m_vv σ_ℓ`, with which its value is weighed."""

    attention: str
    token: int
    needle: bool
    field: float
    value: float
    score: float
    weight: float
    tokens: int
    label: float
    prediction: float


@dataclass(frozen=True)
class Weights(AbstractQuestion):
    """What an attention with `k = m_kk k*` and `v = m_vv v*` makes of one sequence: all of its tokens, or of a long one
    those of the largest weights and the needle."""

    attention: str
    m_kk: float
    m_vv: float
    bias: float
    seed: int

    @property
    def lane(self) -> str:
        return QUICK

    def answer(self) -> tuple[TokenRow, ...]:
        fields, needle = self._sequence()
        attending = get_attention(self.attention)
        if attending.free_bias:
            attending = attending.with_bias(self.bias)
        scores = self.m_kk * fields[:, 0]
        weights = self.m_vv * np.asarray(attending(jnp.asarray(scores)))
        whole = len(fields), float(fields[needle, 1]), float(weights @ fields[:, 1])
        return tuple(
            TokenRow(
                self.attention,
                token + 1,
                token == needle,
                float(fields[token, 0]),
                float(fields[token, 1]),
                float(scores[token]),
                float(weights[token]),
                *whole,
            )
            for token in _largest(np.abs(weights), needle)
        )

    def _sequence(self) -> tuple[np.ndarray, int]:
        """Its teacher fields, and where the needle is; in two dimensions there is nothing but the fields."""
        data = sample(self.problem, jax.random.key(self.seed), n=1, dim=2)
        for group in data.groups:
            block = data.open(jax.tree.map(lambda leaf: leaf[0], group))
            lengths = np.asarray(block.lengths)
            if lengths.any():
                row = int(np.argmax(lengths > 0))
                fields = np.asarray(block.fields(data.teacher))[row, : lengths[row]]
                return fields, int(block.locations[row])
        raise AssertionError("a dataset of one sequence has none")


def _largest(sizes: np.ndarray, needle: int) -> list[int]:
    """The tokens that are shown, in their order."""
    if sizes.size <= _SHOWN:
        return list(range(sizes.size))
    largest = np.argpartition(-sizes, _SHOWN - 1)[: _SHOWN - 1].tolist()
    return sorted({*largest, needle})


@dataclass(frozen=True)
class FlowRow:
    """A run of gradient flow, how and when it ended, and what it was at some time."""

    start: str
    result: str
    end_time: float
    time: float
    risk: float
    error: float
    m_kk: float
    m_kv: float
    m_vk: float
    m_vv: float
    q_kk: float
    q_vv: float


SWAPPED = "swapped"


@dataclass(frozen=True)
class Followed(AbstractQuestion):
    """Gradient flow from a few small random vectors, and from vectors that have swapped their roles."""

    attention: str
    seed: int

    @property
    def lane(self) -> str:
        return SLOWEST

    def answer(self) -> tuple[FlowRow, ...]:
        random = random_starts(jax.random.key(self.seed), _RUNS)
        starts = jax.tree.map(
            lambda many, one: np.concatenate([many, one[None]]), random, swapped()
        )
        flow = gradient_flow(self.problem, get_attention(self.attention), starts, _TIMES)
        names = [f"random {run + 1}" for run in range(_RUNS)] + [SWAPPED]
        at = flow.overlaps
        overlaps = at.m_kk, at.m_kv, at.m_vk, at.m_vv, at.q_kk, at.q_vv
        numbers = np.stack([flow.risk.value, flow.risk.error, *overlaps], -1)
        return tuple(
            FlowRow(
                name,
                str(flow.result[run]),
                float(flow.end_time[run]),
                float(time),
                *map(float, numbers[run, step]),
            )
            for run, name in enumerate(names)
            for step, time in enumerate(_TIMES)
        )


@dataclass(frozen=True)
class LearnedRow:
    """The test risk after learning from `N = αD` sequences; where it did not converge it is no answer."""

    task: str
    nu: float
    length: str
    alpha: float
    predictor: str
    risk: float
    error: float
    converged: bool
    warning: str | None = None
    ridge_k: float | None = None
    ridge_v: float | None = None


@dataclass(frozen=True)
class Optimum(AbstractQuestion):
    """The best possible test risk, and the one that message passing reaches."""

    alpha: float

    @property
    def lane(self) -> str:
        return SLOW

    def answer(self) -> tuple[LearnedRow, LearnedRow]:
        known = self.task, self.nu, self.length, self.alpha
        found = optimal_asymptotics(self.problem, self.alpha)
        best, reached = found.risk, found.reachable_risk
        return (
            LearnedRow(*known, OPTIMUM, float(best), float(best.error), found.converged),
            LearnedRow(
                *known,
                REACHABLE,
                float(reached),
                float(reached.error),
                found.reachable.converged,
            ),
        )


@dataclass(frozen=True)
class Learned(AbstractQuestion):
    """The test risk of an attention whose empirical risk is minimised, at the best ridges."""

    attention: str
    alpha: float

    @property
    def lane(self) -> str:
        return SLOWEST

    def answer(self) -> tuple[LearnedRow]:
        known = self.task, self.nu, self.length, self.alpha, self.attention
        found = tuned_erm_asymptotics(self.problem, get_attention(self.attention), self.alpha)
        risk = float(found.test_risk), float(found.test_risk.error), found.converged
        ridge = float(found.ridge.k), float(found.ridge.v)
        return (LearnedRow(*known, *risk, found.warning or None, *ridge),)


def numbers(rows: Sequence[Any]) -> Iterator[float]:
    """All numbers in the rows."""
    return (value for row in rows for value in astuple(row) if isinstance(value, float))
