"""A trapezoid rule whose nodes cluster at kinks, for Gaussian integrals of piecewise analytic functions."""

import math
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .quadrature import Nodes, normal_density

_STEP = 0.42  # in `s` at fineness 1, as in `u`: e^{-w} with w = e^s is tame up to |Im s| = π/2
_TAIL = 2.0  # beyond the accuracy asked: of the probability that nodes closest to a kink leave out


class Clusters(eqx.Module):
    """Nodes for `E[F(x)]`, `x ~ N(0, 1)`, where `F` is analytic but for kinks.

    Between kinks `a` and `b`, `x = a + c (softplus(s) − softplus(s − (b − a)/c))`: equal steps `step` in `s` are equal
    steps in `x` away from the kinks, and shrink geometrically towards them, so that a power of the distance is resolved
    at every scale. All intervals together take `linear` steps, and `clustered` more for each kink, wherever the kinks
    are: those beyond reach are moved to its end.
    """

    step: Any
    scale: Any
    linear: int = eqx.field(static=True)
    clustered: int = eqx.field(static=True)

    @property
    def reach(self) -> Any:
        """The largest `|x|`."""
        return self.linear * self.step * self.scale / 2.0

    @property
    def tail(self) -> Any:
        """The length in `s` on each side of a kink; the nearest nodes are at a distance of `scale e^{-tail}`."""
        return self.clustered * self.step / 2.0

    def around(self, kinks: Float[Array, " k"]) -> Nodes:
        """Nodes `x` and weights that include the normal density.

        They move with the kinks, and so have derivatives: at fixed nodes those of `F` would miss changes at a kink on
        a scale below the distance of the nearest nodes.
        """
        kinks = jnp.sort(jnp.clip(kinks, -self.reach, self.reach))
        count = self.linear + kinks.size * self.clustered
        s = self.step * (jnp.arange(count) + 0.5)
        x, slope, start = jnp.zeros(count), jnp.zeros(count), jnp.zeros(())
        ends = [-self.reach, *kinks, self.reach]
        for at, (low, high) in enumerate(pairwise(ends)):
            first, last = at == 0, at == kinks.size
            length = (high - low) / self.scale + self.tail * (2.0 - first - last)
            here = (s >= start) & ((s < start + length) | last)
            left = s - start if first else s - start - self.tail
            risen, rising = (left, 1.0) if first else (jax.nn.softplus(left), jax.nn.sigmoid(left))
            if not last:
                right = s - start - length + self.tail
                risen, rising = risen - jax.nn.softplus(right), rising - jax.nn.sigmoid(right)
            x = jnp.where(here, low + self.scale * risen, x)
            slope = jnp.where(here, self.scale * rising, slope)
            start = start + length
        return x, self.step * slope * normal_density(x)


def clusters(
    scale: float, reach: float, fineness: float, widened: float = 1.0, power: float = 1.0
) -> Clusters:
    """For arguments of standard deviation up to `scale` and `|x|` up to `reach`: accurate to about `10^{-8·fineness}`.

    `power` is the largest power of the distance from a kink with which the argument of an exponential vanishes there.
    `widened` steps give another rule of the same shape.
    """
    step = _STEP / fineness / power
    linear = math.ceil(2.0 * reach * 2.0 * fineness * max(scale, 1.0))
    clustered = math.ceil(2.0 * (18.4 * fineness + _TAIL) / step)
    return Clusters(widened * step, 2.0 * reach / linear / step, linear, clustered)
