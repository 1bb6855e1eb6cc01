"""Results of empirical risk minimisation at `N = αD` samples, with errors (section 6)."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .._check import real
from .._results import AbstractResult, Estimate
from ..population.overlaps import Overlaps

_RARE = 1e-3  # a share of samples that does not matter
# Of the slope of the map, from samples that jump, above which the values are called approximate: with few points
# it is known to some 0.05.
_MANY_JUMPS = 0.1
# The largest differences from experiments in docs/data/replica_symmetry.csv, rounded up, as shares of the test risk:
# from these values of the replicon on, and where only samples jump. Read off its seven settings, tested on no others.
_SEEN_UNSTABLE, _SEEN_WITH_JUMPS = ((2.5, 1.0), (1.0, 0.33)), 0.1


class Ridge(eqx.Module):
    """Ridge penalties `r_k > 0` on the keys and `r_v > 0` on the value vector, and `½ r_b D b²` on learned biases.

    Examples:
        >>> ar.Ridge(k=1.0, v=0.5).v
        0.5
    """

    recorded: ClassVar[tuple[str, ...]] = ("k", "v")
    k: Any = eqx.field(converter=partial(real, "ridge_k", above=0.0))
    v: Any = eqx.field(converter=partial(real, "ridge_v", above=0.0))
    b: Any = eqx.field(converter=partial(real, "ridge_b", minimum=0.0), default=0.0)


class ERMAsymptotics(AbstractResult):
    """Result of empirical risk minimisation in the high-dimensional limit.

    Errors are standard errors that include sampling and the residual of the fixed point. `M`, `Q` and `V` are the
    matrices of section 10, one row per student vector, the value vector last. `start` names the initialisation that led
    to this fixed point; `rivals` are other fixed points, of higher objective. `slope` is the derivative of the test
    risk with respect to the two ridge penalties. `identities` holds `r M − αE[g h*ᵀ]` and `r Q − αE[g hᵀ]` of both
    blocks and `r_b b − αE[Σ_ℓ g_ℓ]` of learned biases (`bias`), which vanish at a fixed point. If `replicon` is above
    1, replica symmetry is unstable. `jumps` is the contribution to the derivative of the equations from samples that
    switch between two minima; if it is large, replica symmetry is not exact. `unresolved` is the fraction of samples
    without a stationary minimum. In all three cases the values are approximate, and `warning` says so; `seen_deviation`
    indicates how far the test risk may be from what training finds. `separation_growth`, of several heads that are
    copies of one, is the factor by which small differences between them grow in a step of the equations: above 1 they
    separate. The error of a `bias` on which nothing depends is infinite.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        *("test_risk", "train_error", "objective", "m_k", "q_k", "V_k", "m_v", "q_v", "V_v"),
        *("replicon", "jumps", "seen_deviation", "warning", "result", "converged"),
    )
    test_risk: Estimate
    train_error: Estimate
    objective: Estimate
    M: Estimate
    Q: Estimate
    V: Estimate
    alpha: float
    ridge: Ridge
    start: str = eqx.field(static=True)
    residual: float
    steps: int
    identities: Float[np.ndarray, " n"]
    replicon: float
    unresolved: float
    jumps: float
    slope: Float[np.ndarray, "2"]
    rivals: tuple["ERMAsymptotics", ...] = ()
    bias: Estimate | None = None
    separation_growth: Estimate | None = None

    @property
    def warning(self) -> str:
        """Why the values are approximate; empty if they are not."""
        if self.unresolved > _RARE:
            return (
                f"{self.unresolved:.0%} of the samples have their minimum at a kink of the attention, or it was not "
                "found: the values are approximate"
            )
        if self.replicon >= 1.0:
            return "replica symmetry is unstable here, as at low regularisation: the values are approximate"
        if self.jumps > _MANY_JUMPS:
            return (
                "many samples have two minima about as low, between which they jump, so that replica symmetry is not "
                "exact: the values are approximate"
            )
        return ""

    @property
    def seen_deviation(self) -> float | None:
        """Largest deviation of the test risk from experiments, seen in a table of seven settings (docs/learning.md).

        An indication, not an error bar: the shares of the test risk were read off that table, by ranges of `replicon`
        and `jumps`, and not tested on other settings. The experiments contain the error of their optimisation. Zero
        without a `warning`; `None` where that is about unresolved samples, which the table does not cover.
        """
        if self.unresolved > _RARE:
            return None
        return seen_share(self.replicon, self.jumps) * float(self.test_risk)

    @property
    def overlaps(self) -> Overlaps:
        """Overlaps of the learned vectors; those between keys and `v` vanish by symmetry."""
        return Overlaps(self.M.value, self.Q.value)

    @property
    def m_k(self) -> Estimate:
        """Overlap of `k` with `k*`, for one head."""
        return self.M[0, 0]

    @property
    def q_k(self) -> Estimate:
        """Squared norm of `k` divided by `D`, for one head."""
        return self.Q[0, 0]

    @property
    def V_k(self) -> Estimate:
        """Linear response of `k`, for one head."""
        return self.V[0, 0]

    @property
    def m_v(self) -> Estimate:
        """Overlap of `v` with `v*`."""
        return self.M[-1, -1]

    @property
    def q_v(self) -> Estimate:
        """Squared norm of `v` divided by `D`."""
        return self.Q[-1, -1]

    @property
    def V_v(self) -> Estimate:
        """Linear response of `v`."""
        return self.V[-1, -1]


def seen_share(replicon: float, jumps: float) -> float:
    """Largest deviation from experiments seen in the table of docs/learning.md, relative to the test risk."""
    unstable = (share for least, share in _SEEN_UNSTABLE if replicon >= least)
    return next(unstable, _SEEN_WITH_JUMPS if jumps > _MANY_JUMPS else 0.0)
