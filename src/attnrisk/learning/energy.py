"""The energy that each sample of empirical risk minimisation minimises (sections 6 and 10).

    ½(y − a(χ)·z)² + ½Σ_ℓ (χ_ℓ−ω_ℓ)ᵀ V_k⁻¹ (χ_ℓ−ω_ℓ) + |z−ω_z|²/(2V_v)

`z` is eliminated exactly. The scores of one kernel, or of one element-wise attention, meet only in two or three sums
over tokens (section 6.1).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from .unknowns import Response


class Sample(NamedTuple):
    """The cavity fields of one sequence (plus a learned bias), its label, and the variance `γ²` of each token."""

    keys: Float[Any, "H L"]
    values: Float[Any, " L"]
    label: Float[Any, ""]
    variance: Float[Any, " L"]


class Fitted(NamedTuple):
    """The responses `f = V⁻¹(χ−ω)` of a sample for the scores and the values, and the residual of its label."""

    pull_k: Float[Any, "H L"]
    pull_v: Float[Any, " L"]
    loss: Float[Any, ""]


def apply(matrix: Float[Array, "H H"], fields: Float[Array, "H L"]) -> Float[Array, "H L"]:
    """Their product, as a sum that is fused with what surrounds it."""
    return jnp.sum(matrix[:, :, None] * fields, 1)


def residual(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """The residual of the label after eliminating `z`; the sample minimises half its square."""
    weights = attention.attend(chi)
    missed = sample.label - jnp.sum(weights * sample.values)
    return missed / jnp.sqrt(1.0 + response.v * jnp.sum(sample.variance * weights**2))


def energy(
    attention: AbstractAttention, chi: Array, sample: Sample, response: Response
) -> Float[Array, ""]:
    """The function that the sample minimises, after eliminating `z`."""
    return energy_at(residual(attention, chi, sample, response), chi, sample, response)


def energy_at(left: Array, chi: Array, sample: Sample, response: Response) -> Float[Array, ""]:
    away = chi - sample.keys
    bent = apply(response.stiffness, away) / sample.variance
    return left**2 / 2.0 + jnp.sum(away * bent) / 2.0


def fit(attention: AbstractAttention, chi: Array, sample: Sample, response: Response) -> Fitted:
    """The responses at scores that minimise the energy."""
    weights = attention.attend(chi)
    width = 1.0 + response.v * jnp.sum(sample.variance * weights**2)
    left = (sample.label - jnp.sum(weights * sample.values)) / width
    pull = apply(response.stiffness, chi - sample.keys) / sample.variance
    return Fitted(pull, weights * left, left**2)


def summands(
    attention: Any, scores: Float[Array, " L"], sample: Sample, top: Array
) -> tuple[Float[Array, " L"], ...]:
    """The terms of each token in the sums: `φz`, `γ²φ²` and, for normalised weights, the term of the denominator."""
    own, counted = attention.strengths(scores, top)
    added = own * sample.values, sample.variance * own**2
    return added if counted is None else (*added, counted)


def residual_of_sums(
    attention: Any, sums: Any, sample: Sample, response: Response, top: Any
) -> Float[Array, "*batch"]:
    """`residual` as a function of the sums, in an array or a tuple."""
    total = attention.total(sums[-1], top)
    return (sample.label * total - sums[0]) / jnp.sqrt(total**2 + response.v * sums[1])
