"""Risks in closed form (section 4.4), and the lowest risk of any element-wise attention."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import refuse
from .._results import Estimate
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.panels import bulk, panels
from ..numerics.quadrature import (
    AbstractRule,
    estimate_from,
    integrate_token,
    log_complement,
    normal_density,
    trapezoid,
)
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask, LengthLaw
from .bayes import bayes_risk, location_missed
from .engines.base import SHARPEST
from .engines.selection import relevance
from .plan import ORDERS, SOFTMAX, by_kind, check_problem, is_exact

_ROUNDING = 1e-14  # of a formula
_STEP, _TAIL = 0.1, 40.0  # in log(−log p); beyond the tail nothing is left in double precision
_FINENESS = 1.6, 2.0
_STEEPEST = 1e3  # √ν from which the floor of a planted task is zero in double precision
_GUMBEL_STEPS = 0.32, 0.26
_AT_A_TIME = 512  # nodes whose one-token integrals are held in memory together


def linear_risk(task: AbstractTask) -> Estimate:
    """Lowest risk of linear attention `1 + χ`, in closed form (section 4.4).

    Args:
        task: `SpikedSLR` with spread 1, or `MaxSLR`.

    Returns:
        The risk with its error, an `Estimate` of a scalar.

    Examples:
        >>> print(f"{ar.linear_risk(ar.SpikedSLR(nu=5.0, length=10)):.6f}")
        0.620690
    """
    _check_spread(task)
    risks: dict[Any, Any] = {AbstractPlanted: _planted_linear, AbstractSelected: _selected_linear}
    risk, error = by_kind(risks, task, "this formula")(task)
    return Estimate(float(task.noise**2) + risk, error + _ROUNDING)


def _planted_linear(task: AbstractPlanted) -> tuple[float, float]:
    mean_length = float(task.length.mean())
    if mean_length == 1:
        return 0.0, 0.0
    return 1 / (1 + 1 / (mean_length - 1) + float(task.shift) ** 2 / mean_length), 0.0


def _selected_linear(task: AbstractSelected) -> tuple[float, float]:
    field, mean_length = mean_relevant_field(task), float(task.length.mean())
    risk = 1 - (1 + field.value**2) / mean_length
    return risk, 2 * field.value * field.error / mean_length


def linear_scale(task: AbstractTask) -> Estimate:
    """The `m_kk` at which linear attention attains its lowest risk.

    Args:
        task: `SpikedSLR` with spread 1, or `MaxSLR`.

    Returns:
        `m_kk` with its error, an `Estimate` of a scalar.

    Examples:
        >>> print(f"{ar.linear_scale(ar.SpikedSLR(nu=5.0, length=10)):.6f}")
        2.012461
    """
    field, mean_length = mean_relevant_field(task), float(task.length.mean())
    shares: dict[Any, float] = {
        AbstractPlanted: (mean_length - 1) / mean_length,
        AbstractSelected: 1.0,
    }
    share = by_kind(shares, task, "this formula")
    return Estimate(share * field.value, share * field.error)


def mean_relevant_field(task: AbstractTask) -> Estimate:
    """Mean teacher field `E[χ*_ε]` of the relevant token, averaged over lengths.

    Args:
        task: A task of one feature.

    Returns:
        The mean with its error, an `Estimate` of a scalar.

    Examples:
        >>> print(f"{ar.mean_relevant_field(ar.MaxSLR(nu=float('inf'), length=10)):.6f}")
        1.538753
    """
    check_problem(task, known=True)
    fields: dict[Any, Any] = {
        AbstractPlanted: lambda task: Estimate(float(task.shift), 0.0),
        AbstractSelected: _selected_field,
    }
    return by_kind(fields, task, "this formula")(task)


def _selected_field(task: AbstractSelected) -> Estimate:
    """By Stein's lemma `ν (1 − E[Σp²])`."""
    if math.isinf(task.sharpness):
        return mean_of_largest(task.length)
    sharpness, missed = float(task.sharpness), location_missed(task)
    return Estimate(sharpness * missed.value, sharpness * missed.error)


def mean_of_largest(law: LengthLaw) -> Estimate:
    """Expected maximum of `L` independent standard normal variables, averaged over `L`.

    Args:
        law: The distribution of `L`, for example `fixed(10)` or `uniform(1, 3)`.

    Returns:
        The mean with its error, an `Estimate` of a scalar.

    Examples:
        >>> print(f"{ar.mean_of_largest(ar.fixed(10)):.6f}")
        1.538753
    """
    from scipy.special import ndtri

    law = LengthLaw(law)

    def by_steps(step: float) -> float:
        y, weights = _below(law, step)
        x = np.where(y < 0.5, -ndtri(-np.expm1(-y)), ndtri(np.exp(-y)))
        return float(weights @ (x * law.powers(-y, 1, drop=0)))

    return estimate_from(by_steps(1.5 * _STEP), by_steps(_STEP))


def _below(law: LengthLaw, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes `y = −log p` and weights for integrals over the probability `p` that a field lies below a value.

    Equal steps in `log y`: `L p^{L−1}` is concentrated where `y` is about `1/L`.
    """
    tau = np.arange(-math.log(float(law.longest)) - _TAIL, math.log(_TAIL), step)
    y = np.exp(tau)
    return y, step * y * np.exp(-y)


def elementwise_floor(task: AbstractTask) -> Estimate:
    """Lowest risk of any element-wise attention, for a task of spread 1.

    `A²/B` is maximal if the weight of a token is the probability that it is relevant, given its own field only. On the
    spiked task this is a sigmoid of the field with slope `√ν` and bias `−ν/2 − log(L̄−1)` (section 4.4). The difference
    to the Bayes risk is the benefit of normalisation.

    Args:
        task: `SpikedSLR` with spread 1, or `MaxSLR`.

    Returns:
        The risk with its error, an `Estimate` of a scalar.

    Examples:
        >>> print(f"{ar.elementwise_floor(ar.SpikedSLR(nu=5.0, length=10)):.6f}")
        0.457319
    """
    _check_spread(task)
    floors: dict[Any, Any] = {AbstractPlanted: _planted_floor, AbstractSelected: _selected_floor}
    missed = by_kind(floors, task, "the element-wise floor")(task)
    return Estimate(float(task.noise) ** 2 + missed.value, missed.error)


def floor(task: AbstractTask, attention: AbstractAttention) -> Estimate:
    """The lowest risk of any element-wise attention."""
    if attention.compares_tokens or task.spread != 1.0 or not is_exact(task, attention):
        return bayes_risk(task)
    return elementwise_floor(task)


def _planted_floor(task: AbstractPlanted) -> Estimate:
    """`E[1 − sigmoid]` over the field of the relevant token."""
    mean_length, shift = float(task.length.mean()), float(task.shift)
    if mean_length == 1:
        return Estimate(0.0, 0.0)
    mean = math.log(mean_length - 1) - shift**2 / 2

    def by_steps(fineness: float) -> float:
        grid = trapezoid(min(shift, _STEEPEST), (1.0, mean_length), fineness)
        return float(grid.mass @ np.exp(-np.logaddexp(0.0, -mean - shift * grid.x)))

    return estimate_from(*map(by_steps, _FINENESS))


def _selected_floor(task: AbstractSelected) -> Estimate:
    """`1 − E[r(x)²]/L̄`, with `r` the density of the relevant token's field over that of any token's."""
    law, sharpness, mean_length = task.length, float(task.sharpness), float(task.length.mean())

    def hard(step: float) -> float:
        y, weights = _below(law, step)
        return 1.0 - float(weights @ law.powers(-y, 1, drop=0) ** 2) / mean_length

    def by_steps(fineness: float) -> float:
        sharp = max(sharpness, math.sqrt(2.0 * math.log(float(law.longest))), 1.0)
        grid = trapezoid(sharp, (1.0, float(law.longest)), fineness)
        return 1.0 - float(grid.mass @ relevance(task, grid.x, fineness) ** 2) / mean_length

    def by_gumbel(step: float) -> float:
        x, ratio = _sharp_relevance(task, step)
        mass = (x[1] - x[0]) * normal_density(x)
        return 1.0 - float(mass @ ratio**2) / mean_length

    if math.isinf(sharpness):
        return estimate_from(hard(1.5 * _STEP), hard(_STEP))
    if sharpness <= SHARPEST:
        return estimate_from(*map(by_steps, _FINENESS))
    return estimate_from(*map(by_gumbel, _GUMBEL_STEPS))


def _sharp_relevance(task: AbstractSelected, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Fields at equal steps and the density ratio there, for a sharp selection: `r(x) = E[K(x + Gumbel/sharpness)]`.

    `K(y)` is the length times the probability that all other perturbed fields lie below `y`. Steps of the noise are
    those of the fields, so that `K` is needed on one grid.
    """
    sharpness, longest = float(task.sharpness), float(task.length.longest)
    gumbel = np.arange(-5.0, 36.0, step)
    weights = step * np.exp(-gumbel - np.exp(-gumbel))
    reach = bulk(longest)[-1]
    x = np.arange(-reach, reach, step / sharpness)
    y = x[0] + (gumbel[0] + step * np.arange(x.size + gumbel.size - 1)) / sharpness
    arrays = as_arrays((panels(sharpness, longest, ORDERS[0]), sharpness, sharpness * y))
    log_kept = np.asarray(_log_kept(*arrays))
    return x, np.correlate(task.length.powers(log_kept, 1, drop=0), weights, "valid")


@eqx.filter_jit
def _log_kept(rule: AbstractRule, sharpness: Array, u: Float[Array, " u"]) -> Array:
    def some(u: Array) -> Array:
        lost, _, _ = integrate_token(SOFTMAX, 0, 0.0, sharpness, u, rule)
        return log_complement(lost[0])

    padded = jnp.pad(u, (0, -u.size % _AT_A_TIME), mode="edge")
    return jax.lax.map(some, padded.reshape(-1, _AT_A_TIME)).ravel()[: u.size]


def _check_spread(task: AbstractTask) -> None:
    check_problem(task, known=True)
    if task.spread != 1.0:
        raise refuse("spread", f"{task.spread:g}", "1 for this formula")
