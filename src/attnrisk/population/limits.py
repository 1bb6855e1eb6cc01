"""Limits of the lowest risk as the norm of `k` diverges (section 4.4)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._results import Estimate, Result
from ..attention.kernel import power_limit
from ..numerics.arrays import as_arrays
from ..numerics.minimise import map_batch
from ..tasks import AbstractTask
from .bias_search import best_biases
from .closed_forms import floor
from .engines import Correlations
from .minimisers import Minimum
from .overlaps import aligned
from .plan import LONGEST, ORDERS, find_method, plan
from .risk import compiled_profile, extrapolate

EXTRAPOLATED = 5  # lengths of k through which the limit is drawn
# Where all scores are negative: the chance of it below which it is left out, and the drop of `log φ` between two scores
# by which an exponential tail is known.
_NEGLIGIBLE, _FAR_BELOW, _STEEP = 1e-15, (50.0, 100.0), 20.0


def profiles_at_infinity(
    task: AbstractTask, attention: Any, sign: float
) -> tuple[Correlations, Correlations] | None:
    """`A` and `B` of a kernel on a selected task as the norm of `k = m_kk k*` diverges, by panels of two orders.

    As scores diverge, a kernel that grows like a power becomes that power, and an exponential kernel
    selects the largest score, which is that of the relevant token where the selection is hard. So does a kernel that
    falls exponentially below zero where all scores are negative. `None` for any other.
    """
    method = find_method(task, attention)
    if method is None or not method.has_limit or attention.knows_length:
        return None
    all_negative = float(task.length.powers(np.log(np.array(0.5)), 0, drop=0))
    finds_relevant = math.isinf(task.strength) and sign > 0
    if attention.exponential and finds_relevant:
        # A constant is negligible unless all scores are negative.
        found = 1.0 - all_negative if attention.constant > 0 else 1.0
        return Correlations(found, found), Correlations(found, found)
    power = None if attention.exponential else power_limit(attention)
    if power is None:
        return None
    selected = 0.0
    # Tails of a power on both sides, or weights of zero, are in the limit already.
    if math.isinf(power.log_ratio) and attention.constant == 0 and all_negative > _NEGLIGIBLE:
        near, far = (float(attention.log_phi(jnp.asarray(-size))) for size in _FAR_BELOW)
        if not math.isinf(near):
            if not (finds_relevant and far < near - _STEEP):
                return None
            selected = all_negative
    coarse, fine = (
        compiled_profile(*as_arrays((plan(task, power, 1.0, order=order), task, power, sign)))
        for order in ORDERS
    )
    return jax.tree.map(lambda each: each + selected, (coarse, fine))


def find_limit(search: Any, infinite: tuple[Correlations, ...] | None = None) -> Minimum:
    """The risk at norms of `k` too large to integrate: its minimum there, or its limit.

    From a polynomial in `1/|k|`, through the profiles of an `infinite` `k` where they are known; with random
    points, whose noise an extrapolation would amplify, from the largest norm alone.
    """
    known = None if infinite is None else search.risk(infinite)
    if known is not None and float(known[0]) <= float(floor(search.task, search.attention)):
        overlaps = aligned(search.sign * LONGEST, known[1])
        return Minimum(known[0], overlaps, search.attention, Result.K_DIVERGES)
    lengths = search.plan.reach / np.sqrt(2.0) ** np.arange(EXTRAPOLATED)
    signed = np.copysign(lengths, search.outcome.m_kk)
    biases = np.full((EXTRAPOLATED, 1), float(search.outcome.bias))
    problem = replace(search.last, lengths=signed, biases=biases)
    ((tuned, found),) = map_batch(best_biases, [problem])
    profiles = [
        jax.tree.map(lambda leaf: leaf[at], found)  # noqa: B023
        for at in range(EXTRAPOLATED)
    ]
    return extrapolated(search, signed, float(tuned[0]), profiles, known)


def extrapolated(
    search: Any,
    signed: np.ndarray,
    bias: float,
    profiles: Sequence[tuple[Correlations, ...]],
    known: tuple[Estimate, float] | None = None,
) -> Minimum:
    """The same from the profiles at some norms of `k`, the largest first, and the risk at infinite norm."""
    risks = [search.risk(each) for each in profiles]
    lengths = np.abs(signed)
    estimates, m_vv = [risk for risk, _ in risks], risks[0][1]
    overlaps, attention = aligned(signed[0], m_vv), search.attention.with_bias(bias)
    if not search.plan.exact:
        step = abs(float(estimates[0].value - estimates[2].value))  # from half the length
        last = estimates[0]
        limit = Estimate(last.value, last.error + step, last.kind)
        return Minimum(limit, overlaps, attention, Result.K_DIVERGES)
    inverses = np.linspace(0.0, 1.0 / lengths[0], 101)
    if known is not None:
        lengths, estimates = np.append(np.inf, lengths), [known[0], *estimates]
        overlaps = aligned(search.sign * LONGEST, known[1])
    curve = [extrapolate(lengths, estimates, 1.0 / x if x else np.inf) for x in inverses]
    least = int(np.argmin([point.value for point in curve]))
    if curve[least].value > curve[0].value - curve[0].error - curve[least].error:
        return Minimum(curve[0], overlaps, attention, Result.K_DIVERGES)
    m_kk = float(np.copysign(1.0 / inverses[least], signed[0]))
    return Minimum(curve[least], aligned(m_kk, m_vv), attention)
