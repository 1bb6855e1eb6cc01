"""Which engine integrates a task and an attention, and by which rule: the one place that asks what kind they are.

Exact engines are registered by kind of task and kind of attention; Sobol points serve everything else.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from .._check import check_double_precision, refuse
from ..attention import (
    AbstractAttention,
    AbstractElementwise,
    AbstractKernel,
    Softmax,
)
from ..numerics.panels import bulk, composite, feature_edges, panels
from ..numerics.qmc import mean_estimate
from ..numerics.quadrature import normal_density, trapezoid
from ..tasks import (
    AbstractNeedle,
    AbstractPlanted,
    AbstractSelected,
    AbstractTask,
    AbstractWeighted,
)
from .engines import (
    AbstractEngine,
    PerLength,
    SelectedElementwise,
    SelectedKernel,
    SharpSelectedKernel,
    SobolFields,
    SobolScores,
    each_length,
)
from .engines.base import Range
from .engines.planted import (
    PINCH,
    light_biases,
    planted_elementwise_light,
    planted_elementwise_panels,
    planted_kernel_light,
    planted_kernel_panels,
)
from .engines.selection import light_selection, panel_selection, relevance
from .engines.sobol import MOST_POINTS, RANDOMISATIONS, draw_points
from .functions import in_numpy

ORDERS = (8, 12)  # of panels: the value is that of the last; their difference is the error
_LIGHT_ORDER = 6

# A selected task tabulates fields for scores that change by up to this much per unit of field: at any overlaps, and
# for a kernel at aligned ones, which beyond it is integrated without a table. All else is extrapolated.
SHARPEST, STEEPEST = 16.0, 32.0
_BLURRED = 4.0  # below this ratio of slope to noise, a kink of the kernel is smooth in the field
LONGEST = 1e3  # of k, where nothing else limits it
_SHARPER = 1.5  # than the teacher, up to which an exponential kernel is searched first
# Of a search: light rules right to 10^-13 or so, and the second with steps and windows wider by this factor.
SEARCH_FINENESS, WIDENED = 1.6, 1.07
_ROUGH_ORDER = 5  # of panels, where an integral takes seconds
_SEARCHED_RANDOMISATIONS = 4
SOFTMAX = Softmax()
_MOST_ENGINES = 32  # of an attention that knows the length, one for each length


class Method(NamedTuple):
    """How engines for a kind of task and attention are built: with panels of an order, which serve any attention; and
    light ones, for analytic attentions (`fineness`; `widened` for another rule of the same shape).

    `reaches` are the lengths of `k` along `k*` up to which a minimum is searched, each range at a higher cost than the
    one before. Before them comes `kink_reach` for an attention with a kink, and `smooth_reach` for others; for an
    exponential kernel, which does best about as sharp as the teacher, the least of `exponential_reaches` that is longer
    than that. Light rules serve up to `light_reach`.
    """

    with_panels: Callable[[Any, Any, Range, int], AbstractEngine]
    light: Callable[[Any, Any, Range, float, float], AbstractEngine]
    reaches: tuple[float, ...] = (LONGEST,)
    kink_reach: float | None = None
    smooth_reach: float | None = None
    exponential_reaches: tuple[float, ...] = (4.0, 8.0)
    light_reach: float = SHARPEST


def check_problem(
    task: Any, attention: Any = SOFTMAX, one_head: bool = False, known: bool = False
) -> None:
    """Refuse what is no task or no attention, and to compute in single precision.

    With `one_head`, refuse several key vectors or features; where numbers must be `known`, a traced task.
    """
    check_double_precision()
    if not isinstance(task, AbstractTask):
        raise refuse("task", repr(task), "a task, such as SpikedSLR(nu=5.0, length=10)")
    if not isinstance(attention, AbstractAttention):
        raise refuse("attention", repr(attention), "an attention, such as Softmax()")
    if one_head and attention.keys != 1:
        raise refuse("attention", f"(with {attention.keys} keys)", "one of a single key vector")
    if one_head and task.features != 1:
        raise refuse("task", f"(with {task.features} features)", "one of a single feature")
    if known and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(task)):
        raise refuse("task", "(traced by jit, grad or vmap)", "made of known numbers here")


def plan(
    task: AbstractTask,
    attention: AbstractAttention,
    scale: float,
    noise: float = 0.0,
    slope: float | None = None,
    order: int = ORDERS[0],
    seed: int = 0,
    randomisations: int = RANDOMISATIONS,
    kinks: tuple[float, ...] = (0.0,),
    log2_points: int = MOST_POINTS,
) -> AbstractEngine:
    """An engine of full accuracy for scores of this `Range`, whose noise is known; by default for `k` along `k*`.

    Where it has random points, there are at most `2^log2_points` in a randomisation.
    """
    method = find_method(task, attention)
    if method is None:
        kind = SobolScores if isinstance(task, AbstractNeedle) else SobolFields
        if isinstance(task, AbstractWeighted):
            weighted_engine(task, seed)  # which refuses a weight whose mean is not one
        return kind(draw_points(kind, task, attention.keys, seed, randomisations, log2_points))
    slope = scale if slope is None else slope
    if attention.knows_length:
        return PerLength(
            tuple(
                plan(alone, own, by * scale, by * noise, by * slope, order, kinks=kinks)
                for _, alone, own, by in each_length(task, attention)
            )
        )
    return method.with_panels(task, attention, Range(scale, noise, slope, noise, kinks), order)


def light_plan(
    task: AbstractTask,
    attention: AbstractAttention,
    scale: float,
    noise: float,
    slope: float,
    fineness: float = 1.0,
    widened: float = 1.0,
) -> AbstractEngine:
    """An engine at a fraction of the cost, right to some `10^{-8·fineness}`, for what asks thousands of times.

    For random points there is none, and they are those of `plan`.
    """
    method = find_method(task, attention)
    if method is None:
        return plan(task, attention, scale)
    if attention.knows_length:
        return PerLength(
            tuple(
                light_plan(alone, own, by * scale, by * noise, by * slope, fineness, widened)
                for _, alone, own, by in each_length(task, attention)
            )
        )
    within = Range(scale, noise, slope)
    if not attention.analytic:
        return method.with_panels(task, attention, within, math.ceil(_LIGHT_ORDER * fineness))
    return method.light(task, attention, within, fineness, widened)


def kinks_at(attention: AbstractAttention, m_kk: float) -> tuple[float, ...]:
    """Teacher fields at which the score of an aligned `k` passes a feature of an attention with kinks."""
    if attention.analytic or m_kk == 0.0:
        return (0.0,)
    return tuple((feature - float(attention.bias)) / m_kk for feature in attention.features)


def find_method(task: AbstractTask, attention: AbstractAttention) -> Method | None:
    """The exact method for a task and an attention; `None` where only random points serve."""
    if attention.knows_length:
        if len(task.length.lengths) > _MOST_ENGINES:
            return None
        attention, _ = attention.at_length(task.length.longest)
    for (task_kind, attention_kind), method in _EXACT.items():
        if isinstance(task, task_kind) and isinstance(attention, attention_kind):
            return method
    return None


def is_exact(task: AbstractTask, attention: AbstractAttention) -> bool:
    """Whether the risk comes from deterministic quadrature rather than from random points."""
    return find_method(task, attention) is not None


def by_kind(table: Mapping[Any, Any], task: Any, asked: str) -> Any:
    """The entry of a table for the kind of this task; others are refused where this is `asked`."""
    for kind, entry in table.items():
        if isinstance(task, kind):
            return entry
    raise refuse("task", task.name, f"planted (spiked) or selected (max) where {asked} is asked")


def steepest(task: AbstractTask, attention: AbstractAttention, aligned: bool) -> float:
    """The largest slope of scores in the teacher's field that can be integrated, for `k` along `k*` or for any."""
    if not isinstance(task, AbstractSelected):
        return math.inf
    attention, stretch = attention.at_length(task.length.longest)
    beyond_tables = aligned and (
        isinstance(attention, AbstractKernel)
        or task.sharpness <= SHARPEST
        or math.isinf(task.sharpness)
    )
    return math.inf if beyond_tables else SHARPEST / float(stretch)


class SearchPlan(NamedTuple):
    """An engine to search a minimum with up to a length `reach` of `k`, and another whose distance is the error.

    `value` is the index of the one whose value is reported; `last` if there is no longer range; `differentiable` if
    second derivatives in the bias are right, at kinks too.
    """

    engines: tuple[AbstractEngine, AbstractEngine]
    value: int
    reach: float
    last: bool
    exact: bool = True
    differentiable: bool = True


def search_plan(
    task: AbstractTask,
    attention: AbstractAttention,
    stage: int,
    seed: int,
    light: bool = True,
    reach: float | None = None,
) -> SearchPlan:
    """For `k` along `k*` in one range of lengths after another, by `stage`; without light rules if they have failed.

    With a `reach`, light rules up to there.
    """
    if reach is not None:
        return SearchPlan(_light_pair(task, attention, reach), 0, reach, last=False)
    method = find_method(task, attention)
    if method is None:
        few, all_points = (
            plan(task, attention, LONGEST, seed=seed, randomisations=randomisations)
            for randomisations in (_SEARCHED_RANDOMISATIONS, RANDOMISATIONS)
        )
        return SearchPlan((few, all_points), 1, LONGEST, last=True, exact=False)
    nearest = method.smooth_reach if attention.analytic else method.kink_reach
    if attention.exponential and not math.isinf(task.strength):
        needed = _SHARPER * float(task.strength)
        nearest = next((each for each in method.exponential_reaches if each >= needed), None)
    reaches = method.reaches
    if nearest is not None:
        reaches = (nearest, *(each for each in reaches if each > nearest))
    reach, last = reaches[stage], stage == len(reaches) - 1
    if light and attention.analytic and reach <= method.light_reach:
        return SearchPlan(_light_pair(task, attention, reach), 0, reach, last)
    # Beyond tables an integral takes seconds.
    slow = isinstance(task, AbstractSelected) and reach > STEEPEST and not math.isinf(task.strength)
    coarse, fine = (
        plan(task, attention, reach, order=order)
        for order in ((_ROUGH_ORDER, ORDERS[0]) if slow else ORDERS)
    )
    by_parts = isinstance(task, AbstractPlanted) and attention.compares_tokens
    return SearchPlan((coarse, fine), 1, reach, last, differentiable=attention.analytic or by_parts)


def _light_pair(
    task: AbstractTask, attention: AbstractAttention, reach: float
) -> tuple[AbstractEngine, AbstractEngine]:
    first, second = (
        light_plan(task, attention, reach, 0.0, reach, SEARCH_FINENESS, widened)
        for widened in (1.0, WIDENED)
    )
    return first, second


def weighted_engine(task: AbstractWeighted, seed: int) -> SobolFields:
    """Points for a weighted task by itself, whose weight is refused unless it has mean one."""
    engine = SobolFields(draw_points(SobolFields, task, 1, seed, RANDOMISATIONS))
    tilt = mean_estimate(engine.mean_tilt(task)[0])
    if not abs(tilt.value - 1.0) <= 6.0 * tilt.error + 1e-6:
        raise refuse("log_weight", f"(E[g] = {tilt})", "the logarithm of a weight with E[g] = 1")
    return engine


def _selected_kernel_panels(
    task: AbstractSelected, attention: AbstractKernel, within: Range, order: int
) -> AbstractEngine:
    longest, sharpness = int(task.length.longest), float(task.sharpness)
    pinch = PINCH if attention.vanishes else 0
    rule = panels(within.scale, longest, order, pinch, transform_cells=2)
    if within.noise == 0.0 and within.slope > STEEPEST:
        return SharpSelectedKernel(rule, hard=math.isinf(sharpness))
    blur = within.slope / within.least_noise if within.least_noise > 0 else math.inf
    needed = within.slope / max(1.0, within.least_noise)
    pinch_growth = 0.0
    if attention.vanishes and blur <= _BLURRED:
        needed = max(needed, 2.0 * blur)
    elif attention.vanishes:
        # A kink at zero looks the same on every scale; one blurred by noise is smooth on no larger scale than its
        # distance.
        pinch_growth = 4.0 if within.noise == 0.0 else 2.8
    table = panel_selection(sharpness, longest, order, _cells(needed), pinch_growth, within.kinks)
    return SelectedKernel(rule, rule, table)


def _selected_kernel_light(
    task: AbstractSelected,
    attention: AbstractKernel,
    within: Range,
    fineness: float,
    widened: float,
) -> SelectedKernel:
    lengths = float(task.length.lengths[0]), float(task.length.longest)
    kernel = in_numpy(attention)
    rules = [
        trapezoid(within.scale, lengths, fineness, widened, kernel, [(bias, within.scale)])
        for bias in light_biases(attention, within.scale)
    ]
    rule = max(rules, key=lambda rule: rule.nodes)
    noise_rule = trapezoid(within.noise, fineness=fineness, widened=widened)
    sharpness, longest = float(task.sharpness), int(task.length.longest)
    table = light_selection(sharpness, longest, within.slope, fineness, widened)
    return SelectedKernel(rule, noise_rule, table)


def _selected_elementwise_panels(
    task: AbstractSelected, attention: AbstractElementwise, within: Range, order: int
) -> SelectedElementwise:
    longest, sharpness = int(task.length.longest), float(task.sharpness)
    needed = within.slope / max(1.0, within.least_noise)
    if needed > SHARPEST:
        # The score is a function of the field, of any scale: panels meet at its features, for `k` of either sign.
        sharp = sharpness if math.isfinite(sharpness) else 1.0
        edges = bulk(longest, _cells(max(sharp, math.sqrt(2.0 * math.log(longest)))))
        grades = panels(within.scale, longest, order).grades
        knees = (feature_edges(attention.features, grades) - float(attention.bias)) / within.slope
        knees = np.clip(np.concatenate([knees, -knees]), edges[0], edges[-1])
        fields, weights = composite(np.sort(np.concatenate([edges, knees])), order)
        mass = weights * normal_density(fields)
        relevant = mass * relevance(task, fields, min(order / 5.0, 2.0))
        return SelectedElementwise(panels(within.scale, longest, order), fields, relevant, mass)
    table = panel_selection(sharpness, longest, order, _cells(needed), kinks=within.kinks)
    rule = panels(within.scale, longest, order)
    return SelectedElementwise(rule, table.fields, table.relevant(task.length), table.mass)


def _selected_elementwise_light(
    task: AbstractSelected,
    attention: AbstractElementwise,
    within: Range,
    fineness: float,
    widened: float,
) -> SelectedElementwise:
    longest, sharpness = float(task.length.longest), float(task.sharpness)
    rule = trapezoid(within.scale, fineness=fineness, widened=widened)
    if SHARPEST < sharpness < math.inf:
        table = light_selection(sharpness, int(longest), within.slope, fineness, widened)
        return SelectedElementwise(rule, table.fields, table.relevant(task.length), table.mass)
    # The largest of many fields has a law of width 1/√(2 log L), which equal steps have to resolve.
    sharp = max(within.slope, math.sqrt(2.0 * math.log(longest)) / 1.5)
    grid = trapezoid(sharp, (1.0, longest), fineness, widened)
    relevant = grid.mass * relevance(task, grid.x, fineness)
    return SelectedElementwise(rule, grid.x, relevant, grid.mass)


def _cells(slope: float) -> int:
    """Parts of a bulk panel, a power of two to share compiled code."""
    return 2 ** (math.ceil(min(max(slope, 1.0), STEEPEST) / 2) - 1).bit_length()


_EXACT: dict[tuple[type[AbstractTask], type[AbstractAttention]], Method] = {
    (AbstractPlanted, AbstractKernel): Method(
        planted_kernel_panels,
        planted_kernel_light,
        (SHARPEST, LONGEST),
        kink_reach=8.0,
        smooth_reach=8.0,
    ),
    (AbstractPlanted, AbstractElementwise): Method(
        planted_elementwise_panels, planted_elementwise_light, (SHARPEST, LONGEST)
    ),
    (AbstractSelected, AbstractKernel): Method(
        _selected_kernel_panels,
        _selected_kernel_light,
        (SHARPEST, STEEPEST, LONGEST),
        kink_reach=4.0,
        smooth_reach=8.0,
        exponential_reaches=(4.0, 6.0, 8.0, 12.0, SHARPEST, 24.0),
        light_reach=STEEPEST,
    ),
    (AbstractSelected, AbstractElementwise): Method(
        _selected_elementwise_panels,
        _selected_elementwise_light,
        (SHARPEST,),
        light_reach=STEEPEST,
    ),
}
