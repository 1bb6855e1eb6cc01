"""Properties of an attention, measured numerically: normalisation, growth, derivative."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...attention import AbstractAttention, AbstractKernel
from .checks import call, same

EXPONENTIAL, BOUNDED, SPARSE = "exponential", "bounded", "sparse"
_DEGREES = {1.0: "linear", 2.0: "quadratic", 3.0: "cubic"}

# Scores from which growth is measured, over two doublings: within the range of exponentials, and of their ratios.
_FAR, _NEAR = 60.0, 8.0
_TOKENS = 10.0  # among which an attention that knows the length is looked at
_SUM = 1e-9  # by which the weights of a sequence may miss one
_SATURATED = 0.05  # a smaller gain of log φ from a doubling is that of a function with a bound
_LEAST_DEGREE = 0.1  # of a power that is none
# Scores of order one are stretched by this factor; an ε ≤ 1e-4 beside their size changes weights by less than this.
_STRETCH, _SCALELESS = 8.0, 1e-3
_FASTER = (
    1.5  # what an exponential gains from a doubling doubles each time, what a power gains stays
)


class Traits(NamedTuple):
    """Properties of an attention, measured numerically.

    `normalised` says whether weights sum to one. `constant` is what a kernel adds to its sum. `slope` says whether
    there is a gradient to learn by: `fine`, `flat`, `undefined`, `missing` where JAX has no second derivative, or
    `scaleless` where it leads to no minimum, since the scale of the scores has no effect, up to a small number in a
    denominator.
    """

    family: str
    normalised: bool
    constant: float
    growth: str
    slope: str

    @property
    def words(self) -> str:
        """The family, in a phrase."""
        if self.family == "kernel" and self.constant > 0:
            return (
                f"a kernel over a constant plus its sum, φ(χ)/(c + Σφ), growth of φ: {self.growth}"
            )
        if self.family == "kernel" and not self.normalised:
            return f"a kernel ψ(χ)/Σφ, where ψ is φ or zero, growth of φ: {self.growth}"
        if self.family == "kernel":
            return f"a normalised kernel φ(χ)/Σφ, growth of φ: {self.growth}"
        if self.family == "element-wise":
            return f"element-wise, each weight depends on one score only, growth: {self.growth}"
        normalised = "normalised" if self.normalised else "not normalised"
        return f"neither a kernel nor element-wise, permutation-equivariant, {normalised}, growth: {self.growth}"


def traits(attention: Any) -> Traits:
    """Properties measured on random scores."""
    known, _ = attention.at_length(_TOKENS)
    constant, normalised = 0.0, attention.family != "kernel" and _sums_to_one(attention)
    if attention.family == "kernel":
        probes = jnp.asarray(np.linspace(-_NEAR, _NEAR, 9))
        constant = known.constant
        normalised = constant == 0 and bool(np.all(np.asarray(known.share(probes)) == 1.0))
    return Traits(attention.family, normalised, constant, _growth(attention), _slope(attention))


def family_at_each_length(attention: Any) -> str | None:
    """The family of a general attention at each fixed length, or `None`."""
    rng, families = np.random.default_rng(4), []
    for length in (3, 7):
        scores = rng.standard_normal((16, length))
        weights = call(attention, scores)
        alone = np.zeros((scores.size, length))
        alone[:, 0] = scores.ravel()
        pairs = call(attention, alone)
        if same(weights, pairs[:, 0].reshape(scores.shape)):
            families.append("element-wise")
            continue
        with np.errstate(divide="ignore", invalid="ignore"):  # weights that vanish
            kernel = (pairs[:, 0] / pairs[:, 1]).reshape(scores.shape)
            shares = kernel / kernel.sum(-1, keepdims=True)
        sums = weights.sum(-1, keepdims=True)
        if np.ptp(sums) < _SUM and same(weights, sums * shares):
            families.append("kernel")
    return families[0] if len(families) == 2 and len(set(families)) == 1 else None


def _sums_to_one(attention: AbstractAttention) -> bool:
    rng = np.random.default_rng(2)
    sums = [call(attention, rng.standard_normal((16, length))).sum(-1) for length in (2, 3, 7)]
    return bool(np.all(np.abs(np.array(sums) - 1.0) < _SUM))


def _growth(attention: AbstractAttention) -> str:
    """Growth in the faster of the two directions, since the sign of `k` is learned."""
    sides = [_one_sided(attention, side) for side in (1.0, -1.0)]
    if any(np.isposinf(logs).any() for logs in sides):
        return SPARSE
    found = [(logs[2] - logs[1], logs[1] - logs[0]) for logs in sides if np.isfinite(logs).all()]
    last, first = max(found, default=(0.0, 0.0))
    if last < _SATURATED:
        return BOUNDED
    if last > _FASTER * first:
        return EXPONENTIAL
    # Without the correction in 1/χ that lower powers make.
    degree = (2 * last - first) / np.log(2.0)
    if degree < _LEAST_DEGREE:
        return BOUNDED
    return _DEGREES.get(round(degree, 1), f"like χ^{degree:.2g}")


def _one_sided(attention: Any, side: float) -> np.ndarray:
    """The logarithm of a weight, relative to that of a small score, at a large one, and at twice and four times it."""
    far = side * np.array([1.0, 2.0, 4.0])
    known, stretch = attention.at_length(_TOKENS)
    with np.errstate(divide="ignore", invalid="ignore"):  # weights that vanish
        if attention.family == "kernel":
            return np.asarray(_log_phi(known, jnp.asarray(stretch * _FAR * far)))
        if attention.family == "element-wise":
            return np.log(np.abs(call(known, stretch * _FAR * far[:, None])[:, 0]))
        beside = side * np.ones(3)
        weights = call(attention, np.stack([_NEAR * far, beside, 0 * beside], -1))
        return np.log(np.abs(weights[:, 0])) - np.log(np.abs(weights[:, 1]))


@eqx.filter_jit
def _log_phi(kernel: AbstractKernel, scores: Array) -> Array:
    return kernel.log_phi(scores)


def _slope(attention: AbstractAttention) -> str:
    scores = np.random.default_rng(3).standard_normal((64, 3))
    try:
        jax.eval_shape(jax.hessian(lambda some: jnp.sum(attention(some))), scores[0])
        # JAX writes out all fields of a callable object, which a plain function does not have.
        slope = jax.jacfwd(lambda some: attention(some))
        slopes = np.asarray(jax.jit(jax.vmap(slope))(scores))
    except (TypeError, ValueError):  # loops of unknown length, or a rule for one derivative only
        return "missing"
    if not np.isfinite(slopes).all():
        return "undefined"
    if not np.any(slopes != 0):
        return "flat"
    if attention.family == "general":
        # Up to an ε in a denominator. Weights that hardly change at all, as near hardmax, are another matter.
        changes = np.median(np.abs(slopes).max((1, 2))) > _SCALELESS
        plain, stretched = call(attention, scores), call(attention, _STRETCH * scores)
        near = np.abs(stretched - plain).max() <= _SCALELESS * np.abs(plain).max()
        return "scaleless" if changes and near else "fine"
    return "fine" if attention.is_scale_sensitive else "scaleless"
