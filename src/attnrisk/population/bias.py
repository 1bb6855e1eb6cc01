"""Lowest risks over the norm of `k` and a free bias, with exact engines (section 12).

A kernel with an exponential tail, such as softplus below zero, becomes softmax as its bias diverges. For a
homogeneous attention, such as ReLU, only the ratio of bias and norm matters. One that grows like a power on both sides
can have its infimum where both diverge together. All others have a minimum, found by a search over both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._check import LARGEST, refuse
from .._results import Result
from ..attention import AbstractAttention
from ..attention.kernel import PowerKernel, power_limit
from ..numerics.arrays import as_arrays
from ..numerics.quadrature import estimate_from
from ..tasks import AbstractTask
from .engines import Correlations
from .minimisers import Minimum, softmax_minimum, value_norm
from .overlaps import Overlaps, aligned
from .plan import ORDERS, SOFTMAX, is_exact, kinks_at, plan
from .risk import compiled_profile, population_risk

# Biases at which a kernel may have become softmax, beyond its scores.
_BEYOND = (16.0, 64.0, 256.0, 1024.0)
_FINITE_LENGTH = 8.0  # of k, at which kernels are compared where softmax does best with one that grows without bound
_FARTHEST = 9.0  # deviations of a field beyond which it hardly matters
_STRAIGHT = 1e-3  # departure of log φ from a line, above which a kernel is not tried
_IS_SOFTMAX = 1e-7  # difference of risks below which a kernel counts as softmax
_SMALLEST_SINE = 1e-4  # of the angle, below which a fixed bias is as good as none
_LARGEST_BIAS = 1e2  # with which the best k is not longer than overlaps may be
_TOLERANCE = 1e-7  # of the angle, where a minimum is flat to double precision
_SAME_POWER = 1e-9  # difference of log φ from a power, up to which it is one
_DENSE, _BESIDE = np.linspace(-40.0, 40.0, 3201), 1e-6  # scores at which they are compared
_STRETCHED = 16.0  # length of (k, bias) at which a limit is checked and reported


def biased_minima(
    tasks: Sequence[AbstractTask],
    attention: AbstractAttention,
    search: Callable[..., list[Minimum]],
) -> list[Minimum]:
    """The infimum for each task over the norm of `k` and, if it is free, the bias of the attention.

    `search` minimises over both within a range of norms.
    """
    if not attention.free_bias:
        exact = all(is_exact(task, attention) for task in tasks)
        if not exact or attention.analytic or not attention.is_homogeneous:
            return search(tasks, attention)
        if abs(float(attention.bias)) > _LARGEST_BIAS:
            allowed = f"between ±{_LARGEST_BIAS:g} where only its ratio to the length of k matters"
            raise refuse("bias", f"{float(attention.bias):g}", allowed)
        return [homogeneous_minimum(task, attention) for task in tasks]
    plain = attention.with_bias(0.0).with_free_bias(False)
    if attention.bias_is_void:
        return search(tasks, plain)
    if not all(is_exact(task, attention) for task in tasks):
        return search(tasks, attention)
    homogeneous = not attention.analytic and attention.is_homogeneous
    if not homogeneous and not attention.compares_tokens:
        return search(tasks, attention)
    minima = []
    for task in tasks:
        if attention.compares_tokens and (task.strength == 0 or task.length.longest == 1):
            # k = 0 is best, with any bias at which weights do not vanish.
            minima += search([task], plain.with_bias(1.0))
        elif homogeneous:
            minima.append(homogeneous_minimum(task, attention))
        else:
            minima.append(_kernel_minimum(task, attention, search))
    return minima


def _kernel_minimum(
    task: AbstractTask, attention: Any, search: Callable[..., list[Minimum]]
) -> Minimum:
    """The lowest of the limits of the kernel and, if they are not the Bayes risk, of the minimum found by a search."""
    is_optimal = task.spread == 1.0  # for softmax
    softmax = softmax_minimum(task) if is_optimal else search([task], SOFTMAX)[0]
    limit = softmax_limit(task, attention, softmax)
    if limit is not None and is_optimal:
        return limit
    found = shifted_power_minimum(task, attention)
    if found is not None:
        return found
    power = two_sided_power(attention)
    stretched = None if power is None else power_minimum(task, attention, power)
    (searched,) = search([task], attention, nearest=stretched is not None)
    candidates = [each for each in (limit, stretched, searched) if each is not None]
    lowest = min(candidates, key=lambda found: float(found.risk))
    if lowest.converged:
        return lowest
    # It falls below the limit beyond the first range.
    return search([task], attention)[0]


def softmax_limit(
    task: AbstractTask,
    attention: Any,
    softmax: Minimum,
    risk: Callable[[AbstractTask, Any, Overlaps], Any] = population_risk,
) -> Minimum | None:
    """The risk of softmax, if it is the limit of the attention at a large bias; with the overlaps and the bias there.

    Around a bias where `log φ` has slope `a`, scores divided by `a` have the weights of softmax.
    """
    length = float(softmax.overlaps.m_kk) if softmax.attained else _FINITE_LENGTH
    m_vv, reach = float(softmax.overlaps.m_vv), float(task.relevant_field) + _FARTHEST
    fields = np.linspace(-reach, reach, 65)
    biases = [sign * (abs(length) * reach + size) for size in _BEYOND for sign in (-1.0, 1.0)]
    steepness = np.asarray(slopes(attention, np.array(biases)))
    reference = None
    for bias, slope in zip(biases, steepness.tolist(), strict=True):
        if not (math.isfinite(slope) and abs(slope) > 1.0 / LARGEST):
            continue
        values = np.asarray(log_phi(attention, bias + length / slope * fields))
        line = values[fields.size // 2] + length * fields
        if not np.max(np.abs(values - line)) < _STRAIGHT:
            continue
        overlaps, biased = aligned(length / slope, m_vv), attention.with_bias(bias)
        if reference is None:
            reference = float(risk(task, SOFTMAX, aligned(length, m_vv)))
        if abs(float(risk(task, biased, overlaps)) - reference) < _IS_SOFTMAX:
            return Minimum(softmax.risk, overlaps, biased, Result.BECOMES_SOFTMAX)
    return None


def explained(profile: Correlations) -> float:
    """`A²/B`, the decrease of the risk from `E[y²]` with the best `v`."""
    label, power = float(profile.label), float(profile.power)
    return label * label / power if power > 0 else 0.0  # a power would raise where it overflows


@eqx.filter_jit
def log_phi(attention: Any, argument: Any) -> Any:
    return attention.log_phi(argument)


@eqx.filter_jit
def slopes(attention: Any, arguments: Any) -> Any:
    return jax.vmap(jax.grad(attention.log_phi))(arguments)


def two_sided_power(attention: Any) -> PowerKernel | None:
    """The limiting power kernel as `k` and the bias diverge together; `None` if there is none or it is one-sided."""
    power = None if attention.constant > 0 else power_limit(attention)
    return power if power is not None and math.isfinite(power.log_ratio) else None


def shifted_power_minimum(
    task: AbstractTask,
    attention: Any,
    homogeneous: Callable[[AbstractTask, Any], Minimum] | None = None,
) -> Minimum | None:
    """The minimum for a kernel that is a power of shifted scores, by that of the power; `None` for any other.

    All multiples of `k` and of the shifted bias have the same risk: a search over both has no single minimum.
    """
    power = two_sided_power(attention)
    shift = None if power is None else _shift_to_power(attention, power)
    if power is None or shift is None:
        return None
    bias = float(attention.bias) + shift
    if bias == 0.0 and not attention.free_bias:
        return None  # its risk depends on the sign of `k` only
    shifted = power.with_bias(bias).with_free_bias(attention.free_bias)
    found = (homogeneous or homogeneous_minimum)(task, shifted)
    return replace(found, attention=attention.with_bias(found.bias - shift))


def _shift_to_power(attention: Any, power: PowerKernel) -> float | None:
    """The shift of the scores that makes a kernel equal to its limiting power; `None` if it only tends to it."""
    shifts = [-feature for feature in attention.features]
    if power.exponent > 0:
        slope = float(slopes(attention, np.zeros(1))[0])
        if not 1.0 / LARGEST < abs(slope) < LARGEST:
            return None
        shifts = [power.exponent / slope]
    # Where tokens lie, far out, and beside and between the features.
    sizes, features = np.geomspace(0.01, 100.0, 33), np.sort(np.array(attention.features))
    between = (features[1:] + features[:-1]) / 2
    scores = np.concatenate(
        [_DENSE, -sizes, sizes, features - _BESIDE, features + _BESIDE, between]
    )
    for shift in shifts:
        arguments = scores + shift
        # At its zero a power is not known to so many digits.
        arguments = arguments[np.abs(arguments) > (sizes[0] if power.exponent > 0 else _BESIDE / 2)]
        difference = log_phi(attention, arguments - shift) - log_phi(power, arguments)
        if np.ptp(np.asarray(difference)) < _SAME_POWER:
            return shift
    return None


def power_minimum(
    task: AbstractTask,
    attention: Any,
    power: PowerKernel,
    risk: Callable[[AbstractTask, Any, Overlaps], Any] = population_risk,
    homogeneous: Callable[[AbstractTask, Any], Minimum] | None = None,
) -> Minimum | None:
    """The infimum as `k` and the bias diverge together; `None` if the risk is lower at finite values."""
    found = (homogeneous or homogeneous_minimum)(task, power.with_free_bias())
    m_kk, m_vv = float(found.overlaps.m_kk), float(found.overlaps.m_vv)
    overlaps, biased = (
        aligned(_STRETCHED * m_kk, m_vv),
        attention.with_bias(_STRETCHED * found.bias),
    )
    # The first correction is a shift of the bias, which at the minimum changes nothing; the next falls like the inverse
    # square of the length, so that one place tells from which side the limit is approached.
    if float(risk(task, biased, overlaps)) < float(found.risk) - float(found.risk.error):
        return None
    return Minimum(found.risk, overlaps, biased, Result.BECOMES_POWER)


def _largest_weight(attention: AbstractAttention, score: float) -> float:
    return float(jnp.max(attention.with_bias(0.0)(score * jnp.array([-1.0, 1.0]))))


def unbiased_minimum(task: AbstractTask, attention: AbstractAttention) -> Minimum:
    """The minimum for a homogeneous attention without a bias: the risk depends on the sign of `k` only."""

    def profile(m_kk: float, order: int) -> Correlations:
        engine = plan(task, attention, 1.0, order=order, kinks=kinks_at(attention, m_kk))
        return compiled_profile(*as_arrays((engine, task, attention, m_kk)))

    m_kk = max((1.0, -1.0), key=lambda sign: explained(profile(sign, ORDERS[0])))
    coarse, fine = (profile(m_kk, order) for order in ORDERS)
    variance = float(task.label_variance)
    risk = estimate_from(variance - explained(coarse), variance - explained(fine))
    result = Result.CONVERGED if task.spread == 1.0 else Result.ON_MANIFOLD
    return Minimum(risk, aligned(m_kk, value_norm(attention, *fine)), attention, result)


def threshold_angles(task: AbstractTask) -> np.ndarray:
    """Angles of `(k, bias)` from thresholds `−bias/m_kk`, in standard deviations: from the largest field down to where
    all tokens are above the threshold."""
    highest = float(task.relevant_field) + max(
        6.0, math.sqrt(2.0 * math.log(float(task.length.longest))) + 1.0
    )
    thresholds = np.concatenate([-np.geomspace(highest, 0.5, 8), np.arange(0.0, highest, 0.4)])
    return np.sort(np.concatenate([-np.arctan(thresholds), math.pi - np.arctan(thresholds)]))


def homogeneous_minimum(task: AbstractTask, attention: AbstractAttention) -> Minimum:
    """The minimum over the angle of the unit vector `(k, bias)`: a scan, then Brent's method.

    A fixed bias determines the norm of the vector, and its sign selects half of the angles.
    """
    from scipy.optimize import minimize_scalar

    def profile(angle: float, order: int) -> Correlations:
        m_kk, biased = math.cos(angle), attention.with_bias(math.sin(angle))
        engine = plan(task, biased, 1.0, order=order, kinks=kinks_at(biased, m_kk))
        return compiled_profile(*as_arrays((engine, task, biased, m_kk)))

    def gain(angle: float) -> float:
        return explained(profile(angle, ORDERS[0]))

    angles = threshold_angles(task)
    allowed = np.full(angles.size, True)
    if not attention.free_bias:
        allowed = np.sin(angles) * float(attention.bias) >= 0
    gains = [
        gain(angle) if fits else -math.inf for angle, fits in zip(angles, allowed, strict=True)
    ]
    best = int(np.argmax(gains))
    near = [at for at in (best - 1, best, best + 1) if 0 <= at < angles.size and allowed[at]]
    bounds = angles[near[0]], angles[near[-1]]
    angle = float(
        minimize_scalar(
            lambda angle: -gain(angle),
            bounds=bounds,
            method="bounded",
            options={"xatol": _TOLERANCE},
        ).x
    )
    coarse, fine = (profile(angle, order) for order in ORDERS)
    variance = float(task.label_variance)
    risk = estimate_from(variance - explained(coarse), variance - explained(fine))
    m_vv = value_norm(attention, *fine)
    m_kk, bias = math.cos(angle), math.sin(angle)
    if not attention.free_bias:
        stretch = abs(float(attention.bias)) / max(abs(bias), _SMALLEST_SINE)
        growth = _largest_weight(attention, stretch) / _largest_weight(attention, 1.0)
        m_kk, bias, m_vv = stretch * m_kk, float(attention.bias), m_vv / growth
    biased = attention.with_bias(bias)
    result = Result.CONVERGED if task.spread == 1.0 else Result.ON_MANIFOLD
    if abs(math.sin(angle)) < _SMALLEST_SINE and not attention.free_bias:
        result = Result.K_DIVERGES  # the best k is along k* without a bias
    return Minimum(risk, aligned(m_kk, m_vv), biased, result)
