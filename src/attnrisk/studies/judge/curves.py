"""Learning curves of an attention and of its references."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..._results import ErrorKind, Estimate, Result
from ...attention import AbstractAttention, Linear, Softmax
from ...learning import ERMAsymptotics
from ...learning.tuning import tuned_erm_asymptotics
from ...population.plan import is_exact
from ...tasks import AbstractTask

ALPHAS = (2.0, 4.0, 8.0)  # with fewer data most attentions have no replica-symmetric fixed point
REFERENCES: dict[str, AbstractAttention] = {"softmax": Softmax(), "linear": Linear()}
# What `curve` finds for these on the task of the verdict, risk and standard error at each α; all have converged.
_REFERENCE_RISKS = {
    "softmax": ((0.33214, 0.0091), (0.25102, 0.0021), (0.21443, 0.0015)),
    "linear": ((0.56301, 0.0028), (0.44860, 0.0018), (0.38879, 0.00099)),
}
# Errors below 0.01, in little time; a point of an attention without structure takes longer.
_LOG2_POINTS, _LOG2_POINTS_OF_GENERAL = 6, 5


@dataclass(frozen=True)
class Point:
    """The test risk at `α`, with the ridges of least test risk.

    `warning` says why it is approximate, if it is; `learned_bias` whether the bias was learned.
    """

    attention: str
    alpha: float
    risk: Estimate
    result: Result
    warning: str | None
    learned_bias: bool = False

    @property
    def label(self) -> str:
        """The name of the curve."""
        return f"{self.attention}, learned bias" if self.learned_bias else self.attention

    @property
    def converged(self) -> bool:
        """Whether the risk is that of a fixed point."""
        return self.result.converged


def reference_curve(name: str) -> list[Point]:
    """The stored learning curve of one of `REFERENCES`."""
    known = zip(ALPHAS, _REFERENCE_RISKS[name], strict=True)
    return [
        Point(name, alpha, Estimate(*risk, ErrorKind.STANDARD), Result.CONVERGED, None)
        for alpha, risk in known
    ]


def curve(
    task: AbstractTask,
    attention: AbstractAttention,
    name: str,
    alphas: Sequence[float] = ALPHAS,
) -> list[Point]:
    """The learning curve; each search starts from the fixed point of the previous one."""
    start: ERMAsymptotics | None = None
    points = []
    log2_points = _LOG2_POINTS if is_exact(task, attention) else _LOG2_POINTS_OF_GENERAL
    for alpha in alphas:
        found = tuned_erm_asymptotics(task, attention, alpha, log2_points=log2_points, start=start)
        start = found if found.converged else None
        learned = found.bias is not None
        risk, warning = found.test_risk, found.warning or None
        points.append(Point(name, found.alpha, risk, found.result, warning, learned))
    return points
