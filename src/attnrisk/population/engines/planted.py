"""Planted tasks: exact correlations from one-token integrals (sections 4.1 to 4.3)."""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...attention import AbstractElementwise, AbstractKernel
from ...numerics.linalg import root
from ...numerics.panels import Panels, fixed_panels, panels
from ...numerics.quadrature import (
    AbstractRule,
    integrate_token,
    log_complement,
    moments_by_parts,
    trapezoid,
)
from ...tasks import AbstractPlanted, AbstractTask
from ..conditionals import given_score
from ..overlaps import Overlaps
from .base import SEARCHED_BIASES, AbstractEngine, Correlations, Range

PINCH = 16  # panels that shrink by 2.5 each to 10^-7 of a unit, where a kernel that vanishes is not smooth
_SLIGHT_PINCH = 5  # for a kernel that behaves like a fractional power beside a constant


class PlantedKernel(AbstractEngine):
    """Normalised kernels: one Laplace transform, whose cost does not depend on the length (section 4.2)."""

    rule: AbstractRule

    def correlations(
        self, task: AbstractPlanted, attention: AbstractKernel, overlaps: Overlaps
    ) -> Correlations:
        bias, deviation = attention.bias, root(overlaps.q_kk)
        tokens = (bias + overlaps.m_kk * task.shift, task.spread * deviation), (bias, deviation)
        u, du = self.rule.for_transform(attention, tokens, task.length.lengths[-1])
        (lost, first, second), (other_lost, other_first, other_second) = (
            moments_by_parts(partial(integrate_token, attention), 2, mean, deviation, u, self.rule)
            for mean, deviation in tokens
        )
        here, there = given_score(overlaps, task.shift, task.spread), given_score(overlaps)
        kept, value = 1.0 - lost[0], there.expect_value(other_first)
        log_kept = log_complement(other_lost[0])
        alone, beside, between = (task.length.powers(log_kept, k, drop=1) for k in range(3))
        label = here.expect_product(first) * alone - here.label_slope * lost[1] * value * beside
        power = (
            here.expect_square(second) * alone
            + there.expect_square(other_second) * kept * beside
            + 2.0 * here.expect_value(first) * value * beside
            + value**2 * kept * between
        )
        return Correlations(jnp.sum(du * label), jnp.sum(du * power))

    def profile(self, task: AbstractPlanted, attention: AbstractKernel, m_kk: Any) -> Correlations:
        bias, scale = attention.bias, abs(m_kk)
        tokens = (bias + m_kk * task.shift, task.spread * scale), (bias, scale)
        u, du = self.rule.for_transform(attention, tokens, task.length.lengths[-1])
        ((lost,), (first,), (second,)), ((other_lost,), _, (other_second,)) = (
            moments_by_parts(partial(integrate_token, attention), 0, mean, deviation, u, self.rule)
            for mean, deviation in tokens
        )
        log_kept = log_complement(other_lost)
        alone, beside = (task.length.powers(log_kept, k, drop=1) for k in range(2))
        label = task.spread**2 * first * alone
        power = task.spread**2 * second * alone + other_second * (1.0 - lost) * beside
        return Correlations((du * label).sum(), (du * power).sum())


class PlantedElementwise(AbstractEngine):
    """Element-wise attentions: products of one-token integrals (section 4.3)."""

    rule: AbstractRule

    def correlations(
        self, task: AbstractPlanted, attention: AbstractElementwise, overlaps: Overlaps
    ) -> Correlations:
        deviation, mean = root(overlaps.q_kk), overlaps.m_kk * task.shift
        here, there = given_score(overlaps, task.shift, task.spread), given_score(overlaps)
        first, second = weight_moments(attention, mean, task.spread * deviation, self.rule)
        other_first, other_second = weight_moments(attention, 0.0, deviation, self.rule)
        value = there.expect_value(other_first)
        beside, between = (task.length.powers(jnp.zeros(()), k, drop=1) for k in (1, 2))
        power = (
            here.expect_square(second)
            + there.expect_square(other_second) * beside
            + 2.0 * here.expect_value(first) * value * beside
            + value**2 * between
        )
        return Correlations(here.expect_product(first), power)

    def profile(
        self, task: AbstractPlanted, attention: AbstractElementwise, m_kk: Any
    ) -> Correlations:
        deviation, features = abs(m_kk), attention.features
        tokens = (m_kk * task.shift, task.spread * deviation), (0.0, deviation)
        nodes = [self.rule.for_function(features, attention.bias + m, d) for m, d in tokens]
        arguments = [m + d * x for (m, d), (x, _) in zip(tokens, nodes, strict=True)]
        xp = arguments[0].__array_namespace__()
        weight = attention.weight(attention.bias + xp.concatenate(arguments))
        beside = task.length.powers(xp.zeros(()), 1, drop=1)
        (_, here), (_, there) = nodes
        here = task.spread**2 * here
        power = xp.concatenate([here, beside * there])
        label = here * weight[..., : here.size]
        return Correlations(label.sum(-1), (power * weight**2).sum(-1))


def weight_moments(
    attention: AbstractElementwise, mean: Any, deviation: Any, rule: AbstractRule
) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
    """`E[x^k h]` and `E[x^k h²]`, `k = 0, 1, 2`, of a token whose score is `N(mean, deviation²)`."""

    def integrate(
        degree: int, mean: Array, deviation: Array, rule: AbstractRule
    ) -> tuple[Array, ...]:
        x, weights = rule.for_function(attention.features, mean, deviation)
        weight = attention.weight(mean + deviation * x)
        powers = jnp.stack([weights * x**k for k in range(degree + 1)])
        return powers @ weight, powers @ weight**2

    first, second = moments_by_parts(integrate, 2, mean + attention.bias, deviation, rule)
    return first, second


def planted_kernel_panels(
    task: AbstractPlanted, attention: AbstractKernel, within: Range, order: int
) -> PlantedKernel:
    pinch = PINCH if attention.vanishes else 0
    scale = within.scale * max(1.0, float(task.spread))
    return PlantedKernel(panels(scale, float(task.length.longest), order, pinch))


def planted_kernel_at(
    task: AbstractPlanted, attention: AbstractKernel, within: Range, order: int, most_cells: int
) -> PlantedKernel:
    """Panels for one norm of `k`, with NumPy."""
    return PlantedKernel(kink_panels(task, attention, within, order, most_cells))


def kink_panels(
    task: AbstractTask, attention: AbstractKernel, within: Range, order: int, most_cells: int
) -> Panels:
    """Panels that meet at the features of a kernel; away from these it has to be smooth on the scale of its argument,
    as powers are, or over many units of score."""
    pinch = PINCH if attention.vanishes else _SLIGHT_PINCH
    scale, longest = within.scale * max(1.0, float(task.spread)), float(task.length.longest)
    return fixed_panels(scale, longest, order, pinch, most_cells=most_cells)


def planted_kernel_light(
    task: AbstractPlanted, attention: AbstractKernel, within: Range, fineness: float, widened: float
) -> PlantedKernel:
    """The engine with equal steps; the transform has enough nodes for the largest range of `log φ`."""
    scale, shift = within.scale * max(1.0, float(task.spread)), within.scale * float(task.shift)
    lengths, rules = (float(task.length.lengths[0]), float(task.length.lengths[-1])), []
    biases = (scale + shift) * SEARCHED_BIASES if attention.free_bias else [attention.bias]
    for bias in biases:
        tokens = [(bias + sign * shift, scale) for sign in (-1.0, 1.0)] + [(bias, scale)]
        rules.append(trapezoid(scale, lengths, fineness, widened, attention, tokens))
    return PlantedKernel(max(rules, key=lambda rule: rule.nodes))


def planted_elementwise_panels(
    task: AbstractPlanted, attention: AbstractElementwise, within: Range, order: int
) -> PlantedElementwise:
    scale = within.scale * max(1.0, float(task.spread))
    return PlantedElementwise(panels(scale, float(task.length.longest), order))


def planted_elementwise_light(
    task: AbstractPlanted,
    attention: AbstractElementwise,
    within: Range,
    fineness: float,
    widened: float,
) -> PlantedElementwise:
    scale = within.scale * max(1.0, float(task.spread))
    return PlantedElementwise(trapezoid(scale, fineness=fineness, widened=widened))
