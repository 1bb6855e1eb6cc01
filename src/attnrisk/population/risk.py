"""The population risk at any overlaps, `E[(y − σ(χ)·z)²]`, noise included (section 4)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._check import is_traced, refuse
from .._results import Estimate
from ..attention import AbstractAttention, AbstractElementwise, AbstractKernel
from ..numerics.arrays import as_arrays
from ..numerics.gaussian import AnyRule, Rule, rounded_up, rule_for, trapezoid_for
from ..numerics.qmc import across, sobol
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask, AbstractWeighted
from . import general, planted, selected
from .correlations import Correlations
from .overlaps import Overlaps, aligned
from .teacher import Selection, light_selection, selection

ORDERS = (8, 12)  # the value is that of the last; their difference is the error
# The finer rule is far better where convergence is geometric, but little better at a kink.
_CAUTION = 2.0
ROUNDING = 4e-15  # of a sum over the nodes of a rule, relative to the largest term
DEFAULT_SCALE = 8.0  # of the scores, where the overlaps are traced and cannot be looked at

_LIGHT_ORDER = 6
_PINCH = 16  # panels that shrink by 2.5 each to 10^-7 of a unit, where a kernel that vanishes is not smooth

# A selected task tabulates fields for scores that change by up to this much per unit of field: at any overlaps, and
# for a kernel at aligned ones, which beyond it is integrated without a table. All else is extrapolated.
SHARPEST, STEEPEST = 16.0, 32.0
# Below this ratio of score to its own noise, a kink of the kernel is smooth in the field.
_BLURRED = 4.0


class Plan(eqx.Module):
    """Everything about an integral that does not depend on the overlaps: build it once, compile, reuse."""

    rule: AnyRule = eqx.field(static=True)
    noise_rule: AnyRule | None = eqx.field(static=True, default=None)
    hard: bool = eqx.field(static=True, default=False)
    table: Selection | None = None
    points: tuple[Any, ...] | None = None


def is_exact(task: AbstractTask, attention: AbstractAttention) -> bool:
    """Whether the risk comes from deterministic quadrature rather than from random points."""
    structured = isinstance(attention, AbstractKernel | AbstractElementwise)
    return structured and isinstance(task, AbstractPlanted | AbstractSelected)


def plan(
    task: AbstractTask,
    attention: AbstractAttention,
    scale: float = DEFAULT_SCALE,
    sharpness: float = np.inf,
    order: int = ORDERS[0],
    seed: int = 0,
    randomisations: int = general.RANDOMISATIONS,
) -> Plan:
    """A plan for scores of standard deviation up to `scale`.

    `sharpness`, the change of a score per unit of its teacher field over the width of its own noise, matters to
    selected tasks; it is at most `scale` where a kernel does the blurring, and less where noise does.
    """
    if attention.keys > 1:  # TEMPORARY: dropped at the merge
        size = (task.features + attention.keys + 2) * int(task.length.longest)
        return Plan(Rule(), points=(sobol(size, 12, randomisations, seed),))
    if not is_exact(task, attention):
        return Plan(Rule(), points=general.draw(task, seed, randomisations))
    vanishes = isinstance(attention, AbstractKernel) and attention.vanishes
    rule = rule_for(scale * float(getattr(task, "spread", 1.0)), order, _PINCH if vanishes else 0)
    if not isinstance(task, AbstractSelected):
        return Plan(rule)
    if isinstance(attention, AbstractKernel) and np.isinf(sharpness) and scale > STEEPEST:
        return Plan(rule, hard=bool(np.isinf(task.sharpness)))
    pinched = vanishes and sharpness > _BLURRED
    cells = _cells(min(scale, sharpness))
    table = selection(float(task.sharpness), int(task.length.longest), order, cells, pinched)
    return Plan(rule, table=table)


def light_plan(
    task: AbstractTask,
    attention: AbstractAttention,
    scale: float,
    noise: float,
    sharpness: float,
    fineness: float = 1.0,
) -> Plan:
    """A plan at a fraction of the price, right to some 10^-8, for what calls the risk thousands of times.

    For scores of standard deviation up to `scale`, that change by up to `sharpness` per unit of their teacher field,
    which leaves up to `noise` of them.
    """
    if not is_exact(task, attention):  # TEMPORARY: dropped at the merge
        return plan(task, attention)
    if not attention.analytic:
        return plan(task, attention, scale, sharpness, int(np.ceil(_LIGHT_ORDER * fineness)))
    longest, spread = int(task.length.longest), float(getattr(task, "spread", 1.0))
    shift = 0.0
    if isinstance(task, AbstractPlanted) and isinstance(attention, AbstractKernel):
        shift = scale * rounded_up(float(task.shift))  # the nodes of a transform have to cover it
    rule = trapezoid_for(scale * max(1.0, spread), shift, longest, fineness)
    if not isinstance(task, AbstractSelected):
        return Plan(rule)
    table = light_selection(float(task.sharpness), longest, sharpness, fineness)
    return Plan(rule, table=table, noise_rule=trapezoid_for(noise, 0.0, longest, fineness))


def _cells(sharpness: float) -> int:
    """Parts of a bulk panel, a power of two to share compiled code."""
    return 2 ** (int(np.ceil(min(max(sharpness, 1.0), STEEPEST) / 2)) - 1).bit_length()


def correlations(
    task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps, plan: Plan
) -> Correlations:
    """`E[y σ·z]` and `E[(σ·z)²]` at one set of overlaps; per randomisation where the plan has random points."""
    if attention.keys > 1 and plan.points is not None:  # TEMPORARY: dropped at the merge
        return jax.lax.map(
            lambda points: _many_keys(task, attention, overlaps, points), plan.points[0]
        )
    if plan.points is not None:
        return jax.lax.map(
            lambda points: general.correlations(task, attention, overlaps, points), plan.points
        )
    match task, attention:
        case AbstractPlanted(), AbstractKernel():
            return planted.kernel_correlations(task, attention, overlaps, plan.rule)
        case AbstractPlanted(), AbstractElementwise():
            return planted.elementwise_correlations(task, attention, overlaps, plan.rule)
        case AbstractSelected(), AbstractKernel() if plan.table is not None:
            rules = plan.rule, plan.noise_rule or plan.rule
            return selected.kernel_correlations(task, attention, overlaps, rules, plan.table)
        case AbstractSelected(), AbstractElementwise() if plan.table is not None:
            return selected.elementwise_correlations(
                task, attention, overlaps, plan.rule, plan.table
            )
    raise TypeError(f"this plan is not for {type(attention).__name__} on {type(task).__name__}")


def profile(
    task: AbstractTask, attention: AbstractAttention, m_kk: Any, plan: Plan
) -> Correlations:
    """`A` and `B`: the correlations at `k = m_kk k*`, `v = v*`."""
    match task, attention:
        case AbstractPlanted(), AbstractKernel():
            return planted.kernel_profile(task, attention, m_kk, plan.rule)
        case AbstractSelected(), AbstractElementwise() if plan.table is not None:
            return selected.elementwise_profile(task, attention, m_kk, plan.rule, plan.table)
        case AbstractSelected(), AbstractKernel() if plan.table is not None:
            return selected.kernel_profile(task, attention, m_kk, plan.rule, plan.table)
        case AbstractSelected(), AbstractKernel() if isinstance(plan.rule, Rule):
            return selected.sharp_kernel_profile(task, attention, m_kk, plan.rule, plan.hard)
    return correlations(task, attention, aligned(m_kk), plan)


def risk(task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps, plan: Plan) -> Any:
    """The risk, to be compiled and differentiated; per randomisation where the plan has random points."""
    label, power = correlations(task, attention, overlaps, plan)
    return task.label_variance - 2.0 * label + power


_risk = eqx.filter_jit(risk)
compiled_correlations = eqx.filter_jit(correlations)
compiled_profile = eqx.filter_jit(profile)


def population_risk(
    task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps, seed: int = 0
) -> Estimate:
    """The risk of the predictor with these overlaps, and its error.

    Deterministic quadrature for normalised kernels and element-wise attentions on planted and selected tasks, where
    the error is the difference between two rules; scrambled Sobol points (from `seed`) for all else, where it is one
    standard error. Under a jax transformation of the overlaps a rule for scores of moderate scale is used.
    """
    if any(is_traced(leaf) for leaf in jax.tree.leaves(overlaps)):
        return estimate(
            lambda order: risk(task, attention, overlaps, _moderate_plan(task, attention, order))
        )
    if not is_exact(task, attention):
        check_weight(task, seed)
        how = plan(task, attention, seed=seed)
        return across(_risk(*as_arrays((task, attention, overlaps, how))))
    steep = abs(float(overlaps.m_kk)) / max(1.0, own_noise(overlaps))
    untabled = isinstance(attention, AbstractKernel) and is_aligned(overlaps)
    if isinstance(task, AbstractSelected) and steep > SHARPEST and not untabled:
        return _extrapolated(task, attention, overlaps)
    return _exact_risk(task, attention, overlaps)


def _moderate_plan(task: AbstractTask, attention: AbstractAttention, order: int) -> Plan:
    """For overlaps that cannot be looked at."""
    return plan(task, attention, DEFAULT_SCALE, DEFAULT_SCALE, order)


def _exact_risk(task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps) -> Estimate:
    task_, attention_, overlaps_ = as_arrays((task, attention, overlaps))
    scale, noise = float(np.sqrt(overlaps.q_kk)), own_noise(overlaps)
    sharpness = abs(float(overlaps.m_kk)) / noise if noise > 0 else np.inf

    def at(order: int) -> Any:
        plan_ = as_arrays(plan(task, attention, scale, sharpness, order))
        if not is_aligned(overlaps):
            return _risk(task_, attention_, overlaps_, plan_)
        a, b = map(float, compiled_profile(task_, attention_, overlaps_.m_kk, plan_))
        return task.label_variance - 2.0 * overlaps.m_vv * a + overlaps.q_vv * b

    return estimate(at)


def is_aligned(overlaps: Overlaps) -> bool:
    """Whether `k` is exactly along `k*`, and `v` has no share in `k*` or `k`."""
    crossed = overlaps.m_kv or overlaps.m_vk or overlaps.q_kv
    return not crossed and abs(overlaps.q_kk - overlaps.m_kk**2) <= 1e-14 * overlaps.q_kk


def own_noise(overlaps: Overlaps) -> float:
    """Standard deviation of a score given its teacher field."""
    return float(np.sqrt(max(float(overlaps.q_kk - overlaps.m_kk**2), 0.0)))


def estimate(at_order: Callable[[int], Any]) -> Estimate:
    """The value at the finer order, with its distance from the coarser as error."""
    return compared(*(at_order(order) for order in ORDERS))


def compared(coarse: Any, fine: Any) -> Estimate:
    """The value of the finer rule, with its distance from another as error."""
    if not is_traced(fine):
        coarse, fine = float(coarse), float(fine)
    return Estimate(fine, _CAUTION * abs(fine - coarse) + ROUNDING * (1.0 + abs(fine)))


def _extrapolated(task: AbstractTask, attention: AbstractAttention, overlaps: Overlaps) -> Estimate:
    """The risk of a `k` too long for a table of fields, from shorter ones: a polynomial in their inverse length."""
    start = SHARPEST / abs(float(overlaps.m_kk))
    lengths = start / np.sqrt(2.0) ** np.arange(5)
    estimates = [_exact_risk(task, attention, overlaps.stretched(length)) for length in lengths]
    return extrapolate(lengths, estimates, 1.0)


def extrapolate(lengths: np.ndarray, estimates: list[Estimate], target: float) -> Estimate:
    """The polynomial in `1/length` through the estimates, at the length `target` (`inf` for the limit).

    The error is what the last estimate adds, plus what the errors of the estimates grow to.
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
    return Estimate(value, _CAUTION * step + float(np.abs(fine) @ errors))


def check_weight(task: AbstractTask, seed: int) -> None:
    """Refuse a weighted task whose weight does not have mean one."""
    if not isinstance(task, AbstractWeighted):
        return
    tilt = across(general.mean_tilt(task, general.draw(task, seed))[0])
    if not abs(tilt.value - 1.0) <= 6.0 * tilt.error + 1e-6:
        raise refuse("log_weight", f"(E[g] = {tilt})", "the logarithm of a weight with E[g] = 1")


def _many_keys(task: Any, attention: AbstractAttention, overlaps: Overlaps, points: Any) -> Any:
    """TEMPORARY: dropped at the merge. Several keys on a planted task, with plain random fields."""
    import jax.numpy as jnp
    from jax.scipy.special import ndtri

    from ..numerics.linalg import cholesky

    students, teachers = overlaps.M.shape

    def at(point: Any) -> Any:
        fields = ndtri(point).reshape(students + teachers, -1)
        teacher = fields[:teachers].at[0, 0].add(task.shift)
        student = overlaps.M @ teacher + cholesky(overlaps.residual) @ fields[teachers:]
        output = jnp.sum(attention.attend(student[:-1]) * student[-1])
        return Correlations(teacher[-1, 0] * output, output**2)

    return jax.tree.map(jnp.mean, jax.vmap(at)(points))
