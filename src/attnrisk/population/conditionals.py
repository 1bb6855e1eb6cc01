"""`z` and `z*` of one token given its score, for one head (section 4.1)."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from ..numerics.linalg import ratio, root
from .overlaps import Overlaps


class Conditional(NamedTuple):
    """One token given its score `mean + deviation·x`.

    `E[z|χ] = value + slope·x`, `E[z*|χ] = label_slope·x`, with the variance of `z` and its covariance with `z*`.
    """

    value: Any
    slope: Any
    label_slope: Any
    variance: Any
    covariance: Any

    def expect_value(self, moments: Float[Array, "k ..."]) -> Array:
        """`E[F z]` from `E[F]`, `E[F x]`."""
        return self.value * moments[0] + self.slope * moments[1]

    def expect_square(self, moments: Float[Array, "k ..."]) -> Array:
        """`E[F z²]` from `E[F]`, `E[F x]`, `E[F x²]`."""
        with_slope = 2.0 * self.value * moments[1] + self.slope * moments[2]
        return (self.value**2 + self.variance) * moments[0] + self.slope * with_slope

    def expect_product(self, moments: Float[Array, "k ..."]) -> Array:
        """`E[F z z*]` from the same."""
        with_slope = self.value * moments[1] + self.slope * moments[2]
        return self.covariance * moments[0] + self.label_slope * with_slope


def given_score(overlaps: Overlaps, shift: Any = 0.0, spread: Any = 1.0) -> Conditional:
    """A token whose teacher key-field is `N(shift, spread²)`, given its score."""
    deviation = root(overlaps.q_kk)
    slope, label_slope = ratio(overlaps.q_kv, deviation), ratio(overlaps.m_kv, deviation)
    return Conditional(
        value=overlaps.m_vk * shift,
        slope=spread * slope,
        label_slope=spread * label_slope,
        variance=spread**2 * (overlaps.q_vv - slope**2),
        covariance=spread**2 * (overlaps.m_vv - slope * label_slope),
    )


def given_field_and_score(overlaps: Overlaps, field: Any) -> Conditional:
    """A token given its score and its teacher key-field; the score is `m_kk·field` plus independent noise."""
    deviation = left_by_field(overlaps)
    slope = ratio(overlaps.q_kv - overlaps.m_vk * overlaps.m_kk, deviation)
    label_slope = ratio(overlaps.m_kv, deviation)
    return Conditional(
        value=overlaps.m_vk * field,
        slope=slope,
        label_slope=label_slope,
        variance=overlaps.q_vv - overlaps.m_vk**2 - slope**2,
        covariance=overlaps.m_vv - slope * label_slope,
    )


def left_by_field(overlaps: Overlaps) -> Any:
    """Standard deviation of a score given its teacher key-field."""
    return root(overlaps.q_kk - overlaps.m_kk**2)
