"""Control variates of the equations: the response of a sample whose scores stay at their cavity fields (section 6.4).

With `a = σ(ω_χ)` held fixed and `w = 1 + V_v|a|²`, the pulls `f_v = a (y − a·ω_z)/w` are linear in the label and the
value fields, and `f_k = −∂/∂χ (y − a·ω_z)²/(2w)` is quadratic in them. Their means given the scores are known. The
deviations from these means have mean zero and follow those of the true pulls: regression on them removes most of the
noise of labels and value fields, which is largest for sums over many tokens.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from .proximal import Fitted, Sample, fit, residual
from .unknowns import Response

_REGULAR = 1e-8  # added to the correlations of controls, which may be copies of each other
# Seven controls with 34 points each had stated errors of half the spread over seeds; with 68 these agree.
_POINTS_PER_CONTROL = 60
_ROUNDING = 1e-24  # a variance, relative to the largest, of a control that is zero up to rounding


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


@eqx.filter_jit
def hold(
    attention: AbstractAttention,
    samples: Sample,
    location: Float[Array, "n L"],
    responses: Response,
    laws: ValueLaw,
) -> Held:
    """The controls of samples along the second axis of `samples`; the first axis is that of the unknowns."""

    def one(sample: Sample, here: Array, response: Response, law: ValueLaw) -> Held:
        def sums(chi: Array) -> tuple[Array, Array]:
            weights = attention.attend(chi)
            return jnp.sum(here * sample.variance * weights), jnp.sum(sample.variance * weights**2)

        def mean_loss(chi: Array) -> Array:
            own, square = sums(chi)
            missed = law.label_variance - 2.0 * law.m * own + law.q * square
            return missed / (1.0 + response.v * square) / 2.0

        def loss(chi: Array) -> Array:
            return residual(attention, chi, sample, response) ** 2 / 2.0

        chi = sample.keys
        own, square = sums(chi)
        width = 1.0 + response.v * square
        mean, slope = jax.value_and_grad(mean_loss)(chi)
        left = 2.0 * mean / width
        pulls = fit(attention, chi, sample, response)._replace(pull_k=-jax.grad(loss)(chi))
        terms = jnp.stack([own / width, square * left, square / width, left])
        return Held(pulls, -slope, terms)

    over_samples = jax.vmap(one, (0, 0, None, None))
    return jax.lax.map(
        lambda each: over_samples(each[0], location, *each[1:]), (samples, responses, laws)
    )


class Moments(NamedTuple):
    """Means over points: of terms and controls, and of the products of the controls with both."""

    terms: Float[np.ndarray, "*batch k"]
    controls: Float[np.ndarray, "*batch c"]
    squares: Float[np.ndarray, "*batch c c"]
    products: Float[np.ndarray, "*batch c k"]
    points: Float[np.ndarray, " *batch"]

    @classmethod
    def of(
        cls, terms: Float[np.ndarray, "m n k"], controls: Float[np.ndarray, "m n c"]
    ) -> "Moments":
        """Over the points of the second axis."""
        across, count = controls.swapaxes(1, 2), terms.shape[1]
        means = terms.mean(1), controls.mean(1)
        points = np.full(len(terms), float(count))
        return cls(*means, across @ controls / count, across @ terms / count, points)

    @property
    def coefficients(self) -> Float[np.ndarray, "*batch c k"]:
        """Regression coefficients of terms on controls, both centred; zero with few points."""
        mean = self.controls[..., None]
        covariance = self.squares - mean * mean.swapaxes(-1, -2)
        shared = self.products - mean * self.terms[..., None, :]
        variances = np.diagonal(covariance, axis1=-2, axis2=-1)
        matters = variances > _ROUNDING * np.max(variances, -1, keepdims=True)
        scale = np.sqrt(np.where(matters, variances, np.inf))[..., None]
        correlation = covariance / (scale * scale.swapaxes(-1, -2))
        regular = correlation + _REGULAR * np.eye(scale.shape[-2])
        enough = self.points >= _POINTS_PER_CONTROL * matters.sum(-1)
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
