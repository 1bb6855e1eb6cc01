"""The population risk at any overlaps, `E[(y − σ(χ)·z)²]`, noise included (section 4)."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import is_traced, refuse
from .._results import Estimate
from ..attention import AbstractAttention, AbstractElementwise
from ..attention.base import refuse_weights
from ..numerics.arrays import as_arrays
from ..numerics.panels import panels
from ..numerics.qmc import mean_estimate
from ..numerics.quadrature import AbstractRule, estimate_from
from ..tasks import AbstractTask
from .engines import AbstractEngine
from .engines.base import SHARPEST, HeadRange, head_range
from .engines.planted import weight_moments
from .overlaps import Overlaps, check_overlaps
from .plan import (
    ORDERS,
    check_problem,
    has_exact_heads,
    heads_engine,
    is_exact,
    kinks_at,
    plan,
    steepest,
)

_CAUTION = 6.0  # towards what the last length of an extrapolation adds: a series in 1/length is only asymptotic
_ANY_SCALE = 1e3  # of scores, where overlaps are traced by jit or vmap and cannot be looked at
_LEAST_NOISE = 1e-9  # of scores that are not those of an aligned `k`, or are differentiated
_MODERATE_SLOPE = 8.0  # of scores on a selected task, or of several heads or features, likewise
# Of rules for heads, by the dimension of the grid for the scores of a token; and how much wider the steps of a second
# rule are, which shares compiled code with the first and is about the square root as accurate.
_HEAD_FINENESS, _WIDENED = {1: 1.6, 2: 1.6, 3: 1.0}, 1.3
_LEAST_VARIANCE_ERROR = 1e-12  # what engines for heads add to variances


def population_risk(
    task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps, seed: int = 0
) -> Estimate:
    """Population risk `E[(y − σ(χ)·z)²]` of a predictor with given overlaps, label noise included.

    Deterministic quadrature is used for normalised kernels and element-wise attentions on planted and selected tasks,
    for heads of kernels, and for Bayes-softmax with up to three heads on needle tasks (keys of norm up to 16).
    The error is then an estimated bound, from two quadrature rules. All other combinations use scrambled Sobol points,
    and the error is a standard error.

    Supports `jax.grad` with respect to the overlaps. Inside `jit` or `vmap`, where the values of the overlaps are
    unknown, planted tasks are exact at any overlaps, selected tasks for `|m_kk| ≤ 8`, and several heads or features for
    scores of standard deviation up to 8.

    Args:
        task: The task.
        attention: The attention, with `H` heads.
        overlaps: Overlaps `M` of shape `(H+1, F+1)` and `Q` of shape `(H+1, H+1)`, where `F` is the number of features
            of the task; for one head and one feature also by name, `Overlaps(m_kk=..., ...)`.
        seed: Seed of the Sobol points.

    Returns:
        The risk with its error, an `Estimate` of a scalar.

    Examples:
        >>> task = ar.SpikedSLR(nu=5.0, length=10)
        >>> overlaps = ar.Overlaps(m_kk=1.0, m_vv=0.5, q_kk=2.0, q_vv=0.5)
        >>> print(f"{ar.population_risk(task, ar.Softmax(), overlaps):.6f}")
        0.804311
    """
    found = _risk(task, attention, overlaps, seed)
    if not is_traced(found.value) and not math.isfinite(found.value):
        raise refuse_weights(attention, "whose weights, or their squares, are not finite numbers")
    return found


def _risk(
    task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps, seed: int
) -> Estimate:
    """The risk with its error, whatever it is."""
    check_problem(task, attention)
    attention = attention.as_one_head()
    check_problem(task, attention, known=steepest(task, attention, aligned=False) < math.inf)
    check_overlaps(task, attention, overlaps)
    if not is_exact(task, attention) and has_exact_heads(task, attention):
        found = _heads_risk(task, attention, overlaps)
        if found is not None:
            return found
    if not is_exact(task, attention):
        engine = plan(task, attention, _ANY_SCALE, seed=seed)
        return mean_estimate(compiled_risk(*as_arrays((engine, task, attention, overlaps))))
    # Under `jax.grad` alone these are numbers.
    here, bias = jax.lax.stop_gradient((overlaps, attention.bias))
    if is_traced(attention.bias):
        attention = attention.with_free_bias()  # engines differentiate in one that is
    if any(is_traced(leaf) for leaf in jax.tree.leaves(here)):
        return _by_two_orders(task, attention, overlaps, _ANY_SCALE, _LEAST_NOISE, _MODERATE_SLOPE)
    traced = any(is_traced(leaf) for leaf in jax.tree.leaves((overlaps, attention.bias)))
    aligned = is_aligned(here) and not traced
    scale, slope = math.sqrt(float(here.q_kk)), abs(float(here.m_kk))
    noise = math.sqrt(max(float(here.q_kk) - slope**2, 0.0))
    longest = steepest(task, attention, aligned) * max(1.0, noise)
    if slope <= longest:
        noise = 0.0 if aligned else max(noise, _LEAST_NOISE)
        known = attention.with_bias(0.0 if is_traced(bias) else float(bias))
        kinks = kinks_at(known, float(here.m_kk))
        return _by_two_orders(task, attention, overlaps, scale, noise, slope, aligned, kinks)
    if traced:
        raise refuse("m_kk", f"{slope:g}", f"at most {longest:g} where it is differentiated")
    lengths = steepest(task, attention, aligned) / slope / np.sqrt(2.0) ** np.arange(5)
    values = np.ones(lengths.size)
    if not attention.compares_tokens:
        # Weights may grow with the scores. A shorter `k` then takes a longer `v`, so that predictions stay as large.
        rule, deviations = panels(scale, 1.0, ORDERS[0]), scale * np.append(1.0, lengths)
        sizes = np.asarray(_weight_sizes(*as_arrays((rule, attention, deviations))))
        values = sizes[0] / sizes[1:]
    estimates = [
        population_risk(task, attention, overlaps.stretched(length, value))
        for length, value in zip(lengths, values, strict=True)
    ]
    return extrapolate(lengths, estimates, 1.0)


def _heads_risk(task: Any, attention: AbstractAttention, overlaps: Overlaps) -> Estimate | None:
    """The risk of heads and features by two trapezoid rules; `None` if the norm of the keys is too large."""
    here = jax.lax.stop_gradient(overlaps)
    if any(is_traced(leaf) for leaf in jax.tree.leaves((here, task, attention))):
        longest = _MODERATE_SLOPE * (1.0 if is_traced(task.strength) else float(task.strength))
        within = HeadRange(_MODERATE_SLOPE, longest, -longest, longest)
    else:
        within = head_range(task, attention, here)
    if any(is_traced(leaf) for leaf in jax.tree.leaves(overlaps)):
        within = within._replace(independent=False)
    if within.deviation > SHARPEST:
        return None
    joint = attention.keys if attention.is_joint and not within.independent else 1

    def by_rule(widened: float) -> Any:
        engine = heads_engine(task, attention, within, _HEAD_FINENESS[joint], widened)
        return compiled_risk(*as_arrays((engine, task, attention, overlaps)))

    found = estimate_from(by_rule(_WIDENED), by_rule(1.0))
    return Estimate(found.value, found.error + _LEAST_VARIANCE_ERROR)


def _by_two_orders(
    task: AbstractTask,
    attention: AbstractAttention,
    overlaps: Overlaps,
    scale: float,
    noise: float,
    slope: float,
    aligned: bool = False,
    kinks: tuple[float, ...] = (0.0,),
) -> Estimate:
    """The risk by panels of two orders, for scores within this range."""

    def at(order: int, overlaps: Overlaps, attention: AbstractAttention) -> Any:
        engine = plan(task, attention, scale, noise, slope, order, kinks=kinks)
        arrays = as_arrays((engine, task, attention, overlaps if not aligned else overlaps.m_kk))
        if not aligned:
            return compiled_risk(*arrays)
        a, b = map(float, compiled_profile(*arrays))
        return task.label_variance - 2.0 * overlaps.m_vv * a + overlaps.q_vv * b

    fine = at(ORDERS[1], overlaps, attention)
    if not is_traced(fine):
        return estimate_from(at(ORDERS[0], overlaps, attention), fine)
    # Only the value is differentiated, so that its derivative takes one rule.
    still, bias, value = jax.lax.stop_gradient((overlaps, attention.bias, fine))
    if is_traced(attention.bias):
        attention = eqx.tree_at(lambda each: each.bias, attention, bias)
    return Estimate(fine, estimate_from(at(ORDERS[0], still, attention), value).error)


@eqx.filter_jit
def compiled_risk(
    engine: AbstractEngine, task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps
) -> Any:
    """The risk; per randomisation where the engine has random points."""
    return engine.risk(task, attention, overlaps)


@eqx.filter_jit
def _weight_sizes(
    rule: AbstractRule, attention: AbstractElementwise, deviations: Float[Array, " n"]
) -> Float[Array, " n"]:
    """`√E[h²]` of tokens whose scores have these deviations."""
    squares = jax.vmap(lambda each: weight_moments(attention, 0.0, each, rule)[1][0])
    return jnp.sqrt(squares(deviations))


@eqx.filter_jit
def compiled_profile(
    engine: AbstractEngine, task: AbstractTask, attention: AbstractAttention, m_kk: Any
) -> Any:
    """`A` and `B` at `k = m_kk k*`."""
    return engine.profile(task, attention, m_kk)


def is_aligned(overlaps: Overlaps) -> bool:
    """Whether `k` is exactly along `k*`, and `v` is orthogonal to `k*` and `k`."""
    crossed = overlaps.m_kv or overlaps.m_vk or overlaps.q_kv
    return not crossed and bool(abs(overlaps.q_kk - overlaps.m_kk**2) <= 1e-14 * overlaps.q_kk)


def extrapolate(lengths: np.ndarray, estimates: list[Estimate], target: float) -> Estimate:
    """The polynomial in `1/length` through the estimates, at the length `target` (`inf` for the limit).

    The error is the contribution of the last estimate plus the propagated errors of the estimates.
    """
    nodes, at = 1.0 / lengths, 1.0 / target
    values = np.array([float(estimate.value) for estimate in estimates])
    errors = np.array([float(estimate.error) for estimate in estimates])

    def weights(nodes: np.ndarray) -> np.ndarray:
        differences = nodes[:, None] - nodes + np.eye(nodes.size)
        others = np.where(np.eye(nodes.size, dtype=bool), 1.0, at - nodes)
        return np.prod(others / differences, 1)

    fine, coarse = weights(nodes), weights(nodes[:-1])
    value = float(fine @ values)
    step = abs(value - float(coarse @ values[:-1]))
    error = _CAUTION * step + float(np.abs(fine) @ errors)
    return Estimate(value, error, estimates[0].kind)
