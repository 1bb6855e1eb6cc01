"""Control variates of the equations: the response of a sample whose scores stay at their cavity fields (section 6.4).

With `a = σ(ω_χ)` held fixed and `w = 1 + V_v|a|²`, the pulls `f_v = a (y − a·ω_z)/w` are linear in the label and the
value fields, and `f_k = −∂/∂χ (y − a·ω_z)²/(2w)` is quadratic in them. Their means given the scores are known. The
deviations from these means have mean zero and follow those of the true pulls: regression on them removes most of the
noise of labels and value fields, which is largest for sums over many tokens.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..attention import AbstractAttention
from .energy import Fitted, Sample
from .unknowns import Response

_REGULAR = 1e-8  # added to the correlations of controls, which may be copies of each other
# Seven controls with 34 points each had stated errors of half the spread over seeds; with 68 these agree.
_POINTS_PER_CONTROL = 60
# A variance, relative to the largest, of a control that is zero by symmetry, up to the tolerance of Newton's method: if
# it came and went with rounding, the equations would jump by a finite amount.
_ROUNDING = 1e-14


class ValueLaw(NamedTuple):
    """Parameters of the distribution of the label and the value fields: `m_v`, `q_v` and `E[y²]`."""

    m: Any
    q: Any
    label_variance: Any


class Held(NamedTuple):
    """The responses `f` with the scores fixed at the cavity fields, and means given the scores.

    The means are those of `f_k` and of the terms of `m̂_v`, `q̂_v`, `V̂_v` and the training error.
    """

    pulls: Fitted
    mean_pull_k: Float[Any, "H L"]
    mean_value_terms: Float[Any, "4"]


def hold(
    attention: AbstractAttention,
    sample: Sample,
    location: Float[Array, " L"],
    response: Response,
    law: ValueLaw,
) -> Held:
    """The controls of one sample, given its location."""

    def weigh(chi: Array) -> tuple[Array, ...]:
        weights = attention.attend(chi)
        own, seen = (jnp.sum(it * weights) for it in (location * sample.variance, sample.values))
        return own, seen, jnp.sum(sample.variance * weights**2), weights

    (own, seen, square, weights), pull_back = jax.vjp(weigh, sample.keys)
    width, missed = 1.0 + response.v * square, sample.label - seen
    mean_missed = law.label_variance - 2.0 * law.m * own + law.q * square
    left, mean_left = missed / width, mean_missed / width**2
    none = jnp.zeros_like(weights)
    # The derivatives of `missed²/(2 width)` and of its mean in the sums of the weights.
    (slope,) = pull_back((0.0 * own, -left, -response.v * left**2 / 2.0, none))
    by_square = (law.q / width - response.v * mean_left) / 2.0
    (mean_slope,) = pull_back((-law.m / width, 0.0 * own, by_square, none))
    terms = jnp.stack([own / width, square * mean_left, square / width, mean_left])
    return Held(Fitted(-slope, weights * left, left**2), -mean_slope, terms)


class Moments(NamedTuple):
    """Means over points: of terms and controls, and of the products of the controls with both."""

    terms: Float[np.ndarray, "*batch k"]
    controls: Float[np.ndarray, "*batch c"]
    squares: Float[np.ndarray, "*batch c c"]
    products: Float[np.ndarray, "*batch c k"]
    points: Float[np.ndarray, " *batch"]

    @classmethod
    def of(
        cls, terms: Float[np.ndarray, "*batch n k"], controls: Float[np.ndarray, "*batch n c"]
    ) -> "Moments":
        """Over the points of the last axis but one."""
        across, count = controls.swapaxes(-1, -2), terms.shape[-2]
        means = terms.mean(-2), controls.mean(-2)
        points = np.full(terms.shape[:-2], float(count))
        return cls(*means, across @ controls / count, across @ terms / count, points)

    @property
    def varies(self) -> Bool[np.ndarray, "*batch c"]:
        """Which controls are not zero up to rounding."""
        variances = np.diagonal(self.squares, axis1=-2, axis2=-1) - self.controls**2
        return variances > _ROUNDING * np.max(variances, -1, keepdims=True)

    def coefficients(self, used: Bool[np.ndarray, "*batch c"]) -> Float[np.ndarray, "*batch c k"]:
        """Regression coefficients of terms on controls, both centred; zero with few points."""
        mean = self.controls[..., None]
        covariance = self.squares - mean * mean.swapaxes(-1, -2)
        shared = self.products - mean * self.terms[..., None, :]
        variances = np.diagonal(covariance, axis1=-2, axis2=-1)
        scale = np.sqrt(np.where(used, variances, np.inf))[..., None]
        correlation = covariance / (scale * scale.swapaxes(-1, -2))
        regular = correlation + _REGULAR * np.eye(scale.shape[-2])
        enough = self.points >= _POINTS_PER_CONTROL * used.sum(-1)
        return np.where(
            enough[..., None, None], np.linalg.solve(regular, shared / scale) / scale, 0.0
        )

    @property
    def of_others(self) -> "Moments":
        """For each randomisation, along the first axis, the mean of the others.

        Coefficients fitted to its own points would explain part of its noise, and its spread would be too small.
        """
        count = len(self.terms)
        if count == 1:
            return self
        others = Moments(*((each.sum(0) - each) / (count - 1) for each in self))
        return others._replace(points=(count - 1) * others.points)

    def controlled(
        self, coefficients: Float[np.ndarray, "*batch c k"]
    ) -> Float[np.ndarray, "*batch k"]:
        """The terms minus their regression on the controls."""
        return self.terms - (self.controls[..., None, :] @ coefficients)[..., 0, :]
