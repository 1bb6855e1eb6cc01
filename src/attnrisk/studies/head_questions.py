"""Questions about heads and features with infinite data (section 10)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._check import refuse, whole
from .._results import record
from ..attention import DEFAULT_BIAS, BayesSoftmax, SoftmaxPlusOne, get_heads
from ..population import Overlaps, bayes_risk, heads_minimum, population_risk, prune_heads
from ..tasks import FeatureSLR, parse_features, parse_lengths
from .question import AbstractQuestion, Record
from .questions import estimated

SOFTMAX_PLUS_ONE = SoftmaxPlusOne.name


@dataclass(frozen=True)
class AbstractFeatureQuestion(AbstractQuestion):
    """A question about a needle with features; `features` as in `parse_features`, `length` as in `parse_lengths`."""

    package: ClassVar[str] = "population"

    features: str
    length: str

    @property
    def problem(self) -> FeatureSLR:
        """The task itself."""
        return FeatureSLR(parse_features(self.features), parse_lengths(self.length))

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
class LeastHeads(AbstractFeatureQuestion):
    """The least risk of some heads; `certify` and `random_starts` as in `heads_minimum`.

    `pruned` are the risks with one head less each time, of heads that are normalised one by one.
    """

    kind: ClassVar[str] = "heads"
    batch: ClassVar[int] = 4

    attention: str
    heads: int
    certify: bool = True
    random_starts: int = 12
    prune: bool = False
    bias: str = DEFAULT_BIAS

    @property
    def label(self) -> str:
        return f"{self.heads} × {self.attention}, {self.features}, L = {self.length}"

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        law = self.problem.shift_law
        return self.attention, self.heads, np.shape(law.means), self.certify, self.bias

    def check(self) -> None:
        super().check()
        get_heads(self.attention, whole("heads", self.heads, 1, 100), self.bias)

    def answer(self) -> Record:
        task, student = self.problem, get_heads(self.attention, self.heads, self.bias)
        found = heads_minimum(task, student, certify=self.certify, random_starts=self.random_starts)
        told = record(found) | {"kind": found.lowest.kind}
        if self.prune and student.head_weights is not None:
            left = prune_heads(task, found)
            told["pruned"] = [float(step.risk) for step in left]
            told["pruned_error"] = max(float(step.risk.error) for step in left)
        return told
