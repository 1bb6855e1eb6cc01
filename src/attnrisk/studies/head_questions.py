"""Questions about heads and features, with infinite data and with finite (section 10)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np

from .._check import real, refuse, whole
from .._results import record
from ..attention import (
    DEFAULT_BIAS,
    AbstractAttention,
    BayesSoftmax,
    SoftmaxPlusOne,
    get_heads,
)
from ..learning import Ridge, erm_asymptotics
from ..learning.erm import LOG2_POINTS
from ..learning.scope import learnable, learner
from ..population import Overlaps, bayes_risk, heads_minimum, population_risk, prune_heads
from ..simulation import fit_erm, sample
from ..simulation.data import LARGEST_DIM, sequence_count
from ..tasks import FeatureSLR, parse_features, parse_lengths
from .question import AbstractQuestion, Record, estimated

SOFTMAX_PLUS_ONE = SoftmaxPlusOne.name


@dataclass(frozen=True)
class AbstractFeatureQuestion(AbstractQuestion):
    """A question about a needle with features; `features` as in `parse_features`, `length` as in `parse_lengths`."""

    package: ClassVar[str] = "population"

    features: str
    length: str
    noise: float = field(default=0.0, kw_only=True)

    @property
    def problem(self) -> FeatureSLR:
        """The task itself."""
        return FeatureSLR(parse_features(self.features), parse_lengths(self.length), self.noise)

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.features}"

    def check(self) -> None:
        assert self.problem is not None


@dataclass(frozen=True)
class FeatureBayes(AbstractFeatureQuestion):
    """The Bayes risk."""

    kind: ClassVar[str] = "features bayes"
    batch: ClassVar[int] = 16

    def answer(self) -> Record:
        return estimated(bayes_risk(self.problem))


@dataclass(frozen=True)
class HeadsOnAtoms(AbstractFeatureQuestion):
    """The risk of Bayes-softmax with a head on each atom of the law and `v = v*`."""

    kind: ClassVar[str] = "heads on atoms"
    batch: ClassVar[int] = 8

    def answer(self) -> Record:
        law = self.problem.shift_law
        if law.covariances is not None:
            raise refuse("features", repr(self.features), "a law of atoms, such as flipped:9")
        count, features = np.shape(law.means)
        M = np.zeros((count + 1, features + 1))
        M[:-1, :-1], M[-1, -1] = law.means, 1.0
        joint = BayesSoftmax(count, tied=True, weights=law.weights)
        return estimated(population_risk(self.problem, joint, Overlaps(M, M @ M.T)))


@dataclass(frozen=True)
class AbstractHeadsQuestion(AbstractFeatureQuestion):
    """A question about some heads on features; `attention`, `heads` and `bias` as in `get_heads`."""

    attention: str
    heads: int
    bias: str = field(default=DEFAULT_BIAS, kw_only=True)

    @property
    def student(self) -> AbstractAttention:
        """The heads."""
        return get_heads(self.attention, whole("heads", self.heads, 1, 100), self.bias)

    @property
    def label(self) -> str:
        return f"{self.heads} × {self.attention}, {self.features}, L = {self.length}"

    def check(self) -> None:
        super().check()
        assert self.student is not None


@dataclass(frozen=True)
class LeastHeads(AbstractHeadsQuestion):
    """The least risk of some heads; `certify` and `random_starts` as in `heads_minimum`.

    `pruned` are the risks with one head less each time, of heads that are normalised one by one.
    """

    kind: ClassVar[str] = "heads"
    batch: ClassVar[int] = 4

    certify: bool = True
    random_starts: int = 12
    prune: bool = False

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        law = self.problem.shift_law
        return self.attention, self.heads, np.shape(law.means), self.certify, self.bias

    def answer(self) -> Record:
        task, student = self.problem, self.student
        found = heads_minimum(task, student, certify=self.certify, random_starts=self.random_starts)
        told = record(found) | {"kind": found.lowest.kind}
        if self.prune and student.head_weights is not None:
            left = prune_heads(task, found)
            told["pruned"] = [float(step.risk) for step in left]
            told["pruned_error"] = max(float(step.risk.error) for step in left)
        return told


# Overlaps of one head, of the theory and of a fit.
_ONE_HEAD = frozenset(["m_k", "q_k", "V_k", "m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"])


def _with_matrices(found: Any, attention: AbstractAttention) -> Record:
    """The record of learned heads: overlaps as matrices, in place of the numbers of one head."""
    flat = {
        name: value
        for name, value in record(found).items()
        if name.removesuffix("_error") not in _ONE_HEAD
    }
    weights, learned = attention.head_weights, getattr(found, "bias", None)
    return flat | {
        "M": np.asarray(found.overlaps.M).tolist(),
        "Q": np.asarray(found.overlaps.Q).tolist(),
        "head_weights": None if weights is None else np.asarray(weights, float).tolist(),
        "biases": np.ravel(attention.bias if learned is None else learned.value).tolist(),
    }


@dataclass(frozen=True)
class HeadsERM(AbstractHeadsQuestion):
    """Empirical risk minimisation of heads on features, averaged over `2**log2_points` points."""

    kind: ClassVar[str] = "heads erm"
    package: ClassVar[str] = "learning"

    alpha: float
    ridge_k: float
    ridge_v: float
    log2_points: int = LOG2_POINTS

    def check(self) -> None:
        super().check()
        learnable(self.problem, learner(self.student))
        real("alpha", self.alpha, above=0.0)
        Ridge(self.ridge_k, self.ridge_v)

    def answer(self) -> Record:
        ridge = Ridge(self.ridge_k, self.ridge_v)
        found = erm_asymptotics(self.problem, self.student, self.alpha, ridge, 0, self.log2_points)
        return _with_matrices(found, self.student) | {"warning": found.warning or ""}


@dataclass(frozen=True)
class HeadsSimulate(AbstractHeadsQuestion):
    """The same on a drawn dataset, as `attnrisk simulate --heads` does it."""

    kind: ClassVar[str] = "heads simulate"
    package: ClassVar[str] = "simulation"

    alpha: float
    ridge_k: float
    ridge_v: float
    dim: int
    seed: int

    def check(self) -> None:
        super().check()
        learner(self.student)
        Ridge(self.ridge_k, self.ridge_v)
        dim = whole("dim", self.dim, self.problem.features + 1, LARGEST_DIM)
        sequence_count(self.alpha, dim)
        whole("seed", self.seed, 0, 2**32 - 1)

    def answer(self) -> Record:
        for_data, for_start, _ = jax.random.split(jax.random.key(self.seed), 3)
        data = sample(self.problem, for_data, sequence_count(self.alpha, self.dim), self.dim)
        fit = fit_erm(data, self.student, Ridge(self.ridge_k, self.ridge_v), for_start)
        return _with_matrices(fit, fit.attention)
