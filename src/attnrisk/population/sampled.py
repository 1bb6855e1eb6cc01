"""Lowest risk from few Sobol points, for a quick evaluation of an attention without an exact method."""

import math

import numpy as np
from scipy.optimize import minimize_scalar

from .._results import Estimate, Result
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.qmc import mean_estimate
from ..tasks import AbstractTask
from .engines import Correlations
from .minimisers import Minimum
from .overlaps import aligned
from .plan import LONGEST, plan
from .risk import compiled_profile

# Of Sobol points: 32 times fewer than `population_minimum` has, for standard errors of a risk below 1e-3. One engine
# for the search and the value at its end, since to compile it takes longer than both.
_RANDOMISATIONS, _LOG2_POINTS = 8, 10
# Lengths of `k` in a scan: few against the direction of the needle, which only a decreasing weight needs.
_BACKWARD, _FORWARD = -np.geomspace(0.1, LONGEST, 4), np.geomspace(0.1, LONGEST, 14)
# Shorter ones, for scores that are divided by their own size plus a small number. They are tried only where the
# shortest above explains this share of what the best explains, since a NumPy function is slow.
_SHORT, _SHORT_MATTERS = np.geomspace(1e-8, 0.01, 7), 0.9
_NARROW = 1e-2  # of the logarithm of a length
_FALLING = 1e-6  # share of what is explained by which the longest `k` is better than all others


def sampled_minimum(task: AbstractTask, attention: AbstractAttention) -> Minimum:
    """Lowest risk over `k` along `k*` at a fixed bias, by a scan and Brent's method."""
    engine = plan(
        task, attention, LONGEST, randomisations=_RANDOMISATIONS, log2_points=_LOG2_POINTS
    )

    arrays = as_arrays((engine, task, attention))

    def profile(m_kk: float) -> Correlations:
        return compiled_profile(*(*arrays, as_arrays(m_kk)))

    def loss(m_kk: float) -> float:
        a, b = (float(np.mean(each)) for each in profile(m_kk))
        return -((a / math.sqrt(b)) ** 2) if b > 0 else 0.0  # weights may be huge

    def scan(lengths: np.ndarray) -> dict[float, float]:
        return {float(m_kk): loss(m_kk) for m_kk in lengths}

    sides = [scan(_BACKWARD), scan(_FORWARD)]
    lowest = min(min(side.values()) for side in sides)
    for at, side in enumerate(sides):
        shortest = min(side, key=abs)
        if side[shortest] <= _SHORT_MATTERS * lowest:
            sides[at] = scan(math.copysign(1.0, shortest) * _SHORT) | side
    side = min(sides, key=lambda each: min(each.values()))
    lengths, losses = np.array(list(side)), np.array(list(side.values()))
    best = int(np.argmin(losses))
    m_kk = float(lengths[best])
    others = min(
        *np.delete(losses, best), *(min(each.values()) for each in sides if each is not side)
    )
    falling = abs(m_kk) == LONGEST and losses[best] < (1.0 + _FALLING) * others
    if not falling:
        sign, sizes = math.copysign(1.0, m_kk), np.log(np.abs(lengths))
        before = sizes[best - 1] if best > 0 else sizes[0] - (sizes[1] - sizes[0])
        found = minimize_scalar(
            lambda log_size: loss(sign * math.exp(log_size)),
            bounds=(before, sizes[min(best + 1, sizes.size - 1)]),
            method="bounded",
            options={"xatol": _NARROW},
        )
        m_kk = sign * math.exp(found.x)
    a, b = profile(m_kk)
    m_vv = float(np.mean(a) / np.mean(b)) if np.mean(b) > 0 else 0.0
    risk = mean_estimate(float(task.label_variance) - 2.0 * m_vv * a + m_vv**2 * b)
    if falling:  # the limit is further on, by about as much as the last factor of two has gained
        rest = abs(loss(m_kk) - loss(m_kk / 2.0))
        risk = Estimate(float(risk), float(risk.error) + rest, risk.kind)
    result = Result.K_DIVERGES if falling else Result.CONVERGED
    return Minimum(risk, aligned(m_kk, m_vv), attention, result)
