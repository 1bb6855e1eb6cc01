"""Quadrature rules for selected tasks, at full accuracy and at a fraction of the cost."""

import math

import numpy as np

from ...attention import AbstractElementwise, AbstractKernel
from ...numerics.panels import bulk, composite, feature_edges, panels
from ...numerics.quadrature import normal_density, trapezoid
from ...tasks import AbstractSelected
from .base import SEARCHED_BIASES, SHARPEST, STEEPEST, AbstractEngine, Range
from .planted import PINCH, kink_panels
from .selected import SelectedElementwise, SelectedKernel, SharpSelectedKernel
from .selection import light_selection, panel_selection, relevance

_BLURRED = 4.0  # below this ratio of slope to noise, a kink of the kernel is smooth in the field


def selected_kernel_panels(
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


def selected_kernel_at(
    task: AbstractSelected, attention: AbstractKernel, within: Range, order: int, most_cells: int
) -> SelectedKernel:
    """Panels for one norm of `k`, also around the fields where the score passes a feature, with NumPy."""
    rule = kink_panels(task, attention, within, order, most_cells)
    knees = feature_edges(attention.features, rule.grades, rule.pinch) - float(attention.bias)
    inside = np.abs(knees) < rule.edges[-1] * within.scale
    kinks = tuple((knees[inside] / within.slope).tolist())
    cells = min(_cells(min(within.scale, SHARPEST)), 4 * most_cells)
    sharpness, longest = float(task.sharpness), int(task.length.longest)
    table = panel_selection(sharpness, longest, order, cells, kinks=kinks)
    return SelectedKernel(rule, rule, table)


def selected_kernel_light(
    task: AbstractSelected,
    attention: AbstractKernel,
    within: Range,
    fineness: float,
    widened: float,
) -> SelectedKernel:
    lengths = float(task.length.lengths[0]), float(task.length.longest)
    biases = within.scale * SEARCHED_BIASES if attention.free_bias else [attention.bias]
    rules = [
        trapezoid(within.scale, lengths, fineness, widened, attention, [(bias, within.scale)])
        for bias in biases
    ]
    rule = max(rules, key=lambda rule: rule.nodes)
    noise_rule = trapezoid(within.noise, fineness=fineness, widened=widened)
    sharpness, longest = float(task.sharpness), int(task.length.longest)
    table = light_selection(sharpness, longest, within.slope, fineness, widened)
    return SelectedKernel(rule, noise_rule, table)


def selected_elementwise_panels(
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


def selected_elementwise_light(
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
    """Number of parts of a bulk panel, a power of two to share compiled code."""
    return 2 ** (math.ceil(min(max(slope, 1.0), STEEPEST) / 2) - 1).bit_length()
