"""Questions of the atlas only: minima in closed form and of two heads, and paths of gradient flow."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from .._results import record
from .._rows import BAYES
from ..attention import AbstractAttention, Heads, Softmax
from ..flow.flow import gradient_flow, random_starts
from ..population import bayes_risk, population_minimum
from ..population.minimisers import linear_minimum, softmax_minimum
from ..population.overlaps import swapped
from ..tasks import FeatureSLR, flipped
from .question import AbstractQuestion, Record, estimated
from .questions import AbstractAttentionQuestion, least

FLIPPED = "flipped"  # the task whose needle is shifted by `√ν` along `k*` or against it
TIMES = np.geomspace(0.1, 1e4, 60)  # of flows


@dataclass(frozen=True)
class FormulaMinimum(AbstractAttentionQuestion):
    """The lowest risk of an attention whose minimiser is known in closed form: no search, and exact at `ν = ∞`.

    A bias has no effect on them: it cancels in softmax, and the norms of `k` and `v` absorb it in `1 + χ`.
    """

    kind: ClassVar[str] = "formula minimum"
    package: ClassVar[str] = "population"
    batch: ClassVar[int] = 16
    formulas: ClassVar[Any] = {"softmax": softmax_minimum, "linear": linear_minimum}

    def answer(self) -> Record:
        return least(self.formulas[self.attention](self.problem))


@dataclass(frozen=True)
class FlippedMinimum(AbstractQuestion):
    """The lowest risk for a shift of random sign: one head of softmax, two heads, or Bayes-softmax with two heads."""

    kind: ClassVar[str] = "flipped minimum"
    package: ClassVar[str] = "population"
    students: ClassVar[dict[str, AbstractAttention]] = {
        "softmax": Softmax(),
        "two heads": Heads(Softmax(), 2),
    }

    nu: float
    length: int
    attention: str

    @property
    def label(self) -> str:
        return f"{self.attention}, {FLIPPED}"

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        return (self.attention,)

    def answer(self) -> Record:
        """`m_kk` is that of the first head; the values are summed with `m_vv` times the weights of both heads.

        Bayes-softmax with a key on each atom of the shift is the posterior of the location, so its risk is the Bayes
        risk.
        """
        task = FeatureSLR(flipped(self.nu), self.length)
        if self.attention == BAYES:
            return estimated(bayes_risk(task))
        if self.attention == "Bayes-softmax":
            posterior = {"m_kk": math.sqrt(self.nu), "m_vv": 1.0, "best_bias": 0.0}
            return estimated(bayes_risk(task)) | posterior
        found = population_minimum(task, self.students[self.attention])
        M, given = np.asarray(found.overlaps.M), record(found)
        total = sum(given.get("head_weights") or [1.0])
        return {name: given[name] for name in ("risk", "risk_error", "result")} | {
            "m_kk": float(abs(M[0, 0])),
            "m_vv": float(total * M[-1, -1]),
            "best_bias": 0.0,
        }


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
        flow = gradient_flow(self.problem, self.student, starts, TIMES)
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
