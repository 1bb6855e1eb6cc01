"""What empirical risk minimisation arrives at, with errors (section 6)."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import real
from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from ..population.risk import is_exact, light_plan, plan, risk
from .channel import Hats
from .scope import Solvable
from .step import Moved

CONVERGED = Result.CONVERGED
_RARE = 1e-3  # a share of samples that does not matter
# Of the slope of the map, from samples that jump, above which the values are called approximate: with few points
# it is known to some 0.05.
_JUMPY = 0.1


class Ridge(eqx.Module):
    """`r_k` and `r_v`."""

    recorded: ClassVar[tuple[str, ...]] = ("k", "v")
    k: Any
    v: Any

    def __check_init__(self) -> None:
        real("ridge_k", self.k, above=0.0)
        real("ridge_v", self.v, above=0.0)


class ERMAsymptotics(eqx.Module):
    """What empirical risk minimisation arrives at; errors cover sampling and what the fixed point still moves.

    `start` tells from where this fixed point was found, and `rivals` are the others, of higher objective. `slope` is
    the derivative of the test risk in the two ridges; `identities` holds `r m − αE[χ* f]` and `r q − αE[χ f]`.
    Where `replicon` is above one, replica symmetry is unstable. `jumps` is how much of the slope of the equations comes
    from samples that change from one minimum to another as low, at which replica symmetry cannot be exact either.
    `unresolved` is the share of samples without a stationary minimum. In all three cases everything here is an
    approximation, and `warning` says so.
    """

    recorded: ClassVar[tuple[str, ...]] = (
        "test_risk",
        "train_error",
        "objective",
        "m_k",
        "q_k",
        "V_k",
        "m_v",
        "q_v",
        "V_v",
        "replicon",
        "jumps",
        "warning",
        "result",
        "converged",
    )
    test_risk: Estimate
    train_error: Estimate
    objective: Estimate
    m_k: Estimate
    q_k: Estimate
    V_k: Estimate
    m_v: Estimate
    q_v: Estimate
    V_v: Estimate
    alpha: float
    ridge: Ridge
    result: Result = eqx.field(static=True)
    start: str = eqx.field(static=True)
    residual: float
    identities: Float[np.ndarray, "4"]
    replicon: float
    unresolved: float
    jumps: float
    slope: Float[np.ndarray, "2"]
    rivals: tuple["ERMAsymptotics", ...] = ()

    @property
    def converged(self) -> bool:
        """Whether this is a fixed point."""
        return self.result == CONVERGED

    @property
    def warning(self) -> str | None:
        """What to distrust, if anything."""
        if self.unresolved > _RARE:
            return (
                f"{self.unresolved:.0%} of the samples have their minimum at a kink of the attention, or it was not "
                "found: the values are approximate"
            )
        if self.replicon >= 1.0:
            return "replica symmetry is unstable here, as at low regularisation: the values are approximate"
        if self.jumps > _JUMPY:
            return (
                "many samples have two minima about as low, between which they jump, so that replica symmetry is not "
                "exact: the values are approximate"
            )
        return None

    @property
    def overlaps(self) -> Overlaps:
        """Of the learned directions; the cross overlaps vanish by symmetry."""
        return Overlaps(
            m_kk=float(self.m_k), m_vv=float(self.m_v), q_kk=float(self.q_k), q_vv=float(self.q_v)
        )


class Settled(NamedTuple):
    """Where Newton's method ended: the unknowns, the displacements `χ − ω` there, and the last step of the map."""

    alpha: float
    ridge: Ridge
    start: str
    x: Float[np.ndarray, "6"]
    displacements: Any
    moved: Moved
    result: Result

    @property
    def converged(self) -> bool:
        """Whether this is a fixed point."""
        return self.result == CONVERGED

    @property
    def penalty(self) -> Float[np.ndarray, "6"]:
        """The derivative of the ridges' part of the objective, which is linear in the unknowns."""
        return np.array([0, self.ridge.k / 2, 0, 0, self.ridge.v / 2, 0], float)

    @property
    def objective(self) -> float:
        """Per dimension."""
        return self.alpha * float(np.mean(self.moved.train)) / 2 + float(self.penalty @ self.x)

    @property
    def answer(self) -> Float[np.ndarray, "6 6"]:
        """`(1 − T')⁻¹`: how the fixed point answers to a small change of the map."""
        return np.linalg.inv(np.eye(6) - self.moved.jacobian)

    @property
    def shifts(self) -> Float[np.ndarray, "r 6"]:
        """How far the fixed point of each randomisation is from that of all, `(1 − T')⁻¹(T_r − T)`."""
        return np.asarray((self.moved.spread - self.moved.target) @ self.answer.T)

    def error(self, gradient: Any, own: Any = 0.0) -> float:
        """Of a function of the unknowns with this gradient, to which each randomisation adds `own`."""
        replicates = self.shifts @ gradient + own
        left = self.answer @ (self.moved.target - self.x)
        return float(np.std(replicates, ddof=1) / np.sqrt(len(replicates)) + abs(left @ gradient))

    def slope(self, by_unknowns: Float[np.ndarray, "6"]) -> Float[np.ndarray, "2"]:
        """The derivative in the two ridges of a function of the unknowns."""
        return np.asarray(by_unknowns @ self.answer @ self.moved.by_ridge)


def report(
    task: Solvable,
    attention: AbstractAttention,
    settled: Settled,
    replicon: float,
    unresolved: float,
    jumps: float,
) -> ERMAsymptotics:
    """The values at a fixed point, their errors and what is to be doubted."""
    moved, x, alpha = settled.moved, settled.x, settled.alpha
    value, by_unknowns = population(task, attention, x)
    train = float(np.mean(moved.train))
    own = moved.train - train
    by_objective = alpha * moved.train_slope / 2 + settled.penalty
    m_k, q_k, v_k, m_v, q_v, v_v = (
        Estimate(float(value), settled.error(unit))
        for value, unit in zip(x, np.eye(6), strict=True)
    )
    return ERMAsymptotics(
        test_risk=Estimate(value, settled.error(by_unknowns)),
        train_error=Estimate(train, settled.error(moved.train_slope, own)),
        objective=Estimate(settled.objective, settled.error(by_objective, alpha * own / 2)),
        m_k=m_k,
        q_k=q_k,
        V_k=v_k,
        m_v=m_v,
        q_v=q_v,
        V_v=v_v,
        alpha=alpha,
        ridge=settled.ridge,
        result=settled.result,
        start=settled.start,
        residual=float(np.max(np.abs(moved.target - x))),
        identities=_identities(settled),
        replicon=replicon,
        unresolved=unresolved,
        jumps=jumps,
        slope=settled.slope(by_unknowns),
    )


def _identities(settled: Settled) -> np.ndarray:
    """`r m − αE[χ* f]` and `r q − αE[χ f]` for both directions, zero at a fixed point."""
    alpha, ridge = settled.alpha, settled.ridge
    hat = Hats(*(float(np.mean(part)) for part in settled.moved.hats))
    m_k, q_k, v_k, m_v, q_v, v_v = settled.x
    return np.array(
        [
            ridge.k * m_k - alpha * (hat.m_k - m_k * hat.V_k),
            ridge.k * q_k - alpha * (hat.q_k * v_k + m_k * hat.m_k - q_k * hat.V_k),
            ridge.v * m_v - alpha * (hat.m_v - m_v * hat.V_v),
            ridge.v * q_v - alpha * (hat.q_v * v_v + m_v * hat.m_v - q_v * hat.V_v),
        ]
    )


def population(
    task: Solvable, attention: AbstractAttention, x: np.ndarray
) -> tuple[float, np.ndarray]:
    """The test risk and its derivatives in the six unknowns."""
    scale = 2.0 ** max(1, int(np.ceil(np.log2(np.sqrt(x[1])))))
    exact = is_exact(task, attention)
    how = light_plan(task, attention, scale, scale, scale) if exact else plan(task, attention)
    value, slope = _population(as_arrays((task, attention, how)), as_arrays(x))
    return float(value), np.asarray(slope)


@eqx.filter_jit
def _population(known: Any, x: Array) -> tuple[Array, Array]:
    task, attention, how = known

    def at(x: Array) -> Array:
        overlaps = Overlaps(m_kk=x[0], m_vv=x[3], q_kk=x[1], q_vv=x[4])
        return jnp.mean(risk(task, attention, overlaps, how))

    return jax.value_and_grad(at)(x)
