"""Selection of the engine and the quadrature rule for a task and an attention, by their kinds.

Exact engines are registered by kind of task and kind of attention; all other combinations use Sobol points.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

from .._check import refuse, refuse_single_precision, shown
from ..attention import (
    AbstractAttention,
    AbstractElementwise,
    AbstractKernel,
    BayesSoftmax,
    Heads,
    Softmax,
)
from ..numerics.arrays import as_arrays
from ..numerics.qmc import mean_estimate
from ..tasks import (
    AbstractNeedle,
    AbstractPlanted,
    AbstractSelected,
    AbstractTask,
    AbstractWeighted,
)
from .engines import AbstractEngine
from .engines.base import SHARPEST, STEEPEST, HeadRange, Range
from .engines.heads import needle_heads
from .engines.joint import MOST_JOINT_HEADS, needle_bayes_softmax
from .engines.per_length import PerLength, each_length
from .engines.planted import (
    planted_elementwise_light,
    planted_elementwise_panels,
    planted_kernel_at,
    planted_kernel_light,
    planted_kernel_panels,
)
from .engines.selected_rules import (
    selected_elementwise_light,
    selected_elementwise_panels,
    selected_kernel_at,
    selected_kernel_light,
    selected_kernel_panels,
)
from .engines.sobol import (
    MOST_POINTS,
    RANDOMISATIONS,
    SobolFields,
    SobolScores,
    draw_points,
)

ORDERS = (8, 12)  # of panels: the value is that of the last; their difference is the error
_LIGHT_ORDER = 6

LONGEST = 1e3  # of k, where nothing else limits it
_SHARPER = 1.5  # than the teacher, up to which an exponential kernel is searched first
# Of a search: light rules right to 10^-13 or so, and the second with steps and windows wider by this factor.
SEARCH_FINENESS, WIDENED = 1.6, 1.07
_ROUGH_ORDER = 5  # of panels, where an integral takes seconds
_SEARCHED_RANDOMISATIONS = 4
SOFTMAX = Softmax()
_MOST_ENGINES = 32  # of an attention that knows the length, one for each length


class Method(NamedTuple):
    """How engines for a kind of task and attention are built: with panels of an order, which serve any attention; light
    ones, for analytic attentions (`fineness`; `widened` for another rule of the same shape); and `panels_at`, for
    kernels with kinks in NumPy: panels for one norm of `k`, given their order and the largest number of cells.

    `reaches` are the lengths of `k` along `k*` up to which a minimum is searched, each range at a higher cost than the
    one before. Before them comes `kink_reach` for an attention with a kink, and `smooth_reach` for others; for an
    exponential kernel, which does best about as sharp as the teacher, the least of `exponential_reaches` that is longer
    than that. Light rules serve up to `light_reach`, and in sums of NumPy any length if `light_beyond`. An integral
    takes seconds beyond `slow_beyond`. `by_parts`: derivatives in the bias are right at kinks too. `has_limit`: `A` and
    `B` are known as `k` grows without bound.
    """

    with_panels: Callable[[Any, Any, Range, int], AbstractEngine]
    light: Callable[[Any, Any, Range, float, float], AbstractEngine]
    panels_at: Callable[[Any, Any, Range, int, int], AbstractEngine] | None = None
    reaches: tuple[float, ...] = (LONGEST,)
    kink_reach: float | None = None
    smooth_reach: float | None = None
    exponential_reaches: tuple[float, ...] = (4.0, 8.0)
    light_reach: float = SHARPEST
    light_beyond: bool = False
    slow_beyond: float = math.inf
    by_parts: bool = False
    has_limit: bool = False


class HeadsMethod(NamedTuple):
    """How an engine for several heads or features is built, accurate to about `10^{-8·fineness}`, and the attentions of
    its kind it serves. `widened` steps give another of the same shape."""

    build: Callable[[Any, Any, HeadRange, float, float], AbstractEngine]
    serves: Callable[[Any], bool]


def check_problem(
    task: Any, attention: Any = SOFTMAX, one_head: bool = False, known: bool = False
) -> None:
    """Refuse arguments that are not a task and an attention, and single precision.

    With `one_head`, refuse several key vectors or features; where numbers must be `known`, a traced task.
    """
    if not jax.config.read("jax_enable_x64"):
        raise refuse_single_precision()
    if not isinstance(task, AbstractTask):
        raise refuse("task", shown(task), "a task, such as SpikedSLR(nu=5.0, length=10)")
    if not isinstance(attention, AbstractAttention):
        raise refuse("attention", shown(attention), "an attention, such as Softmax()")
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
    within = Range(scale, noise, scale if slope is None else slope, noise, kinks)
    return method.with_panels(task, attention, within, order)


def light_plan(
    task: AbstractTask,
    attention: AbstractAttention,
    scale: float,
    noise: float,
    slope: float,
    fineness: float = 1.0,
    widened: float = 1.0,
) -> AbstractEngine:
    """An engine at a fraction of the cost, accurate to about `10^{-8·fineness}`, for many evaluations.

    With Sobol points it is that of `plan`.
    """
    method = find_method(task, attention)
    if method is None:
        return plan(task, attention, scale)
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
    """The exact method for a task with one feature and an attention with one head, or `None`."""
    if attention.knows_length:
        known, _ = attention.at_length(task.length.longest)
        method = find_method(task, known) if len(task.length.lengths) <= _MOST_ENGINES else None
        return method and method._replace(
            with_panels=_at_each_length(method.with_panels),
            light=_at_each_length(method.light),
            panels_at=method.panels_at and _at_each_length(method.panels_at),
        )
    for (task_kind, attention_kind), method in _EXACT.items():
        if isinstance(task, task_kind) and isinstance(attention, attention_kind):
            return method
    return None


def _at_each_length(build: Callable[..., AbstractEngine]) -> Callable[..., AbstractEngine]:
    """Method for an attention whose formula contains the length: one engine for each length."""

    def build_all(
        task: AbstractTask, attention: AbstractAttention, within: Any, *accuracy: Any
    ) -> PerLength:
        return PerLength(
            tuple(
                build(alone, own, within.stretched(float(by)), *accuracy)
                for _, alone, own, by in each_length(task, attention)
            )
        )

    return build_all


def _find_heads(
    task: AbstractTask, attention: AbstractAttention
) -> Callable[..., AbstractEngine] | None:
    """Method for several heads or features, or `None` (section 10)."""
    if attention.knows_length:
        known, _ = attention.at_length(task.length.longest)
        build = _find_heads(task, known) if len(task.length.lengths) <= _MOST_ENGINES else None
        return build and _at_each_length(build)
    for kind, method in _EXACT_HEADS.items():
        if isinstance(task, AbstractNeedle) and isinstance(attention, kind):
            return method.build if method.serves(attention) else None
    return None


def heads_engine(
    task: AbstractTask,
    attention: AbstractAttention,
    within: HeadRange,
    fineness: float,
    widened: float = 1.0,
) -> Any:
    """An exact engine for several heads or features; `has_exact_heads` says whether there is one (section 10)."""
    build: Any = _find_heads(task, attention)
    return build(task, attention, within, fineness, widened)


def has_exact_heads(task: AbstractTask, attention: AbstractAttention) -> bool:
    """Whether heads or features are integrated by deterministic quadrature (section 10)."""
    return _find_heads(task, attention) is not None


def check_needle(task: Any, asked: str) -> AbstractNeedle:
    """Refuse tasks without a shifted token for the quantity `asked`."""
    if not isinstance(task, AbstractNeedle):
        given = task.name if isinstance(task, AbstractTask) else shown(task)
        raise refuse("task", given, f"one with a shifted token (spiked or features) for {asked}")
    return task


def is_exact(task: AbstractTask, attention: AbstractAttention) -> bool:
    """Whether the risk comes from deterministic quadrature rather than from random points."""
    return find_method(task, attention) is not None


def by_kind(table: Mapping[Any, Any], task: Any, asked: str) -> Any:
    """The entry of a table for the kind of this task; other tasks are refused for the quantity `asked`."""
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
    """Engines for `k` along `k*` in the range of norms of this `stage`; without light rules if they have failed.

    A `reach` replaces the range of the stage.
    """
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
    last = reach is None and stage == len(reaches) - 1
    if reach is None:
        reach = reaches[stage]
        light = light and reach <= method.light_reach
    if light and attention.analytic:
        first, second = (
            method.light(task, attention, Range(reach, 0.0, reach), SEARCH_FINENESS, widened)
            for widened in (1.0, WIDENED)
        )
        return SearchPlan((first, second), 0, reach, last)
    slow = reach > method.slow_beyond and not math.isinf(task.strength)
    coarse, fine = (
        plan(task, attention, reach, order=order)
        for order in ((_ROUGH_ORDER, ORDERS[0]) if slow else ORDERS)
    )
    smooth = attention.analytic or method.by_parts
    return SearchPlan((coarse, fine), 1, reach, last, differentiable=smooth)


@eqx.filter_jit
def compiled_mean_tilt(engine: SobolFields, task: AbstractWeighted) -> Any:
    """`E[g]` and `E[g Σp²]`, per randomisation."""
    return engine.mean_tilt(task)


def weighted_engine(task: AbstractWeighted, seed: int) -> SobolFields:
    """The engine of a weighted task; a density ratio whose mean is not one is refused."""
    engine = SobolFields(draw_points(SobolFields, task, 1, seed, RANDOMISATIONS))
    tilt = mean_estimate(compiled_mean_tilt(*as_arrays((engine, task)))[0])
    if not abs(tilt.value - 1.0) <= 6.0 * tilt.error + 1e-6:
        raise refuse("log_weight", f"(E[g] = {tilt})", "the logarithm of a weight with E[g] = 1")
    return engine


# Of one key and one feature.
_EXACT: dict[tuple[type[AbstractTask], type[AbstractAttention]], Method] = {
    (AbstractPlanted, AbstractKernel): Method(
        planted_kernel_panels,
        planted_kernel_light,
        planted_kernel_at,
        (SHARPEST, LONGEST),
        kink_reach=8.0,
        smooth_reach=8.0,
        light_beyond=True,
        by_parts=True,
    ),
    (AbstractPlanted, AbstractElementwise): Method(
        planted_elementwise_panels,
        planted_elementwise_light,
        reaches=(SHARPEST, LONGEST),
        light_beyond=True,
    ),
    (AbstractSelected, AbstractKernel): Method(
        selected_kernel_panels,
        selected_kernel_light,
        selected_kernel_at,
        (SHARPEST, STEEPEST, LONGEST),
        kink_reach=4.0,
        smooth_reach=8.0,
        exponential_reaches=(4.0, 6.0, 8.0, 12.0, SHARPEST, 24.0),
        light_reach=STEEPEST,
        slow_beyond=STEEPEST,
        has_limit=True,
    ),
    (AbstractSelected, AbstractElementwise): Method(
        selected_elementwise_panels,
        selected_elementwise_light,
        reaches=(SHARPEST,),
        light_reach=STEEPEST,
    ),
}

# Of several heads or features, for tasks with a shifted token.
_EXACT_HEADS: dict[Any, HeadsMethod] = {
    AbstractKernel: HeadsMethod(needle_heads, lambda kernel: True),
    Heads: HeadsMethod(needle_heads, lambda heads: isinstance(heads.one_head, AbstractKernel)),
    BayesSoftmax: HeadsMethod(needle_bayes_softmax, lambda heads: heads.keys <= MOST_JOINT_HEADS),
}
