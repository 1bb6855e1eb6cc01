"""The posterior of the location given noisy teacher fields (sections 7 and 7.1 of docs/theory.md).

Where the teacher fields of token `ℓ` follow `N(ω_ℓ, U)`, location `ε` has the weight `G_ε(ω) = E[g(ε, χ*)]`. A label
that has likelihood `P(y|ε)` if token `ε` is the relevant one has the evidence `Z = (1/L) Σ_ε G_ε P(y|ε)`, whose terms
are, up to a factor, the posterior of the location.
"""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..numerics.linalg import cholesky, solve
from ..numerics.noisy_argmax import NoiseTable, select, tabulate
from .shifts import ShiftMixture

Mask = Bool[Array, " L"] | None


class Weights(NamedTuple):
    """`log(G_ε/L)` of every location, and quantities for its derivatives."""

    log: Float[Array, " L"]
    slopes: Any = None


class Posterior(NamedTuple):
    """The posterior of the location given a label, `∂ log Z/∂ω` and `log Z`."""

    probability: Float[Array, " L"]
    score: Float[Array, "F L"]
    log_evidence: Float[Array, ""]


class AbstractLocation(eqx.Module):
    """The location of a task whose teacher fields have a given variance `U` (one row per feature).

    `has_centred_scores`: the mean of `∂ log Z/∂ω` over sequences is zero.
    """

    has_centred_scores: ClassVar[bool] = False

    @abstractmethod
    def weigh(self, means: Float[Array, "F L"], mask: Mask = None) -> Weights:
        """The weights of the locations given the means `ω` of the fields of one sequence."""

    @abstractmethod
    def score(self, weights: Weights, probability: Float[Array, " L"]) -> Float[Array, "F L"]:
        """`Σ_ε p_ε ∂ log G_ε/∂ω` for any law `p` of the location."""

    @property
    @abstractmethod
    def precision(self) -> Float[Array, "F F"]:
        """The prior precision of the keys that each sample adds through the normalisation of `g`."""

    @property
    @abstractmethod
    def softmax_scale(self) -> Any:
        """The factor `s` if the law of the location is `softmax(s ω)`, and `None` if it is not of this form."""

    def law(self, means: Float[Array, "F L"], mask: Mask = None) -> Float[Array, " L"]:
        """The law of the location without a label."""
        return jax.nn.softmax(self.weigh(means, mask).log)

    def posterior(self, weights: Weights, log_likelihood: Float[Array, " L"]) -> Posterior:
        """The posterior of the location given `log P(y|ε)` of a label."""
        joint = weights.log + log_likelihood
        probability = jax.nn.softmax(joint)
        score = self.score(weights, probability)
        return Posterior(probability, score, jax.nn.logsumexp(joint))


class PlantedLocation(AbstractLocation):
    """The relevant token is shifted: `G_ε = exp(shift·ω_ε − shift·(1−U)·shift/2)`."""

    shift: Float[Array, " F"]
    variance: Float[Array, "F F"]

    def __init__(self, shift: Any, variance: Any):
        self.shift = jnp.atleast_1d(jnp.asarray(shift, float))
        self.variance = jnp.atleast_2d(jnp.asarray(variance, float))

    def weigh(self, means: Float[Array, "F L"], mask: Mask = None) -> Weights:
        known = jnp.eye(self.shift.size) - self.variance
        count = means.shape[-1] if mask is None else jnp.sum(mask)
        log = jnp.sum(self.shift[:, None] * means, 0)
        log = log - jnp.sum(self.shift * (known @ self.shift)) / 2 - jnp.log(count)
        return Weights(log if mask is None else jnp.where(mask, log, -jnp.inf))

    def score(self, weights: Weights, probability: Float[Array, " L"]) -> Float[Array, "F L"]:
        return self.shift[:, None] * probability

    @property
    def precision(self) -> Float[Array, "F F"]:
        return jnp.outer(self.shift, self.shift)

    @property
    def softmax_scale(self) -> Any:
        return self.shift[0] if self.shift.size == 1 else None


class MixtureLocation(AbstractLocation):
    """The relevant token is shifted at random, `θ ~ Σ_j w_j N(μ_j, S_j)`: `G_ε = E_θ[exp(θ·ω_ε − θ·(1−U)·θ/2)]`."""

    shifts: ShiftMixture
    variance: Float[Array, "F F"]

    def weigh(self, means: Float[Array, "F L"], mask: Mask = None) -> Weights:
        law, known = self.shifts, jnp.eye(len(self.variance)) - jnp.asarray(self.variance)
        centres, weights = jnp.asarray(law.means), jnp.asarray(law.weights)

        def component(mean: Array, covariance: Array, field: Array) -> Array:
            """With `S = C Cᵀ`, `log E` of a Gaussian shift."""
            pulled = known @ mean
            flat = mean @ field - mean @ pulled / 2
            if law.covariances is None:
                return flat
            root = cholesky(covariance)
            spread = jnp.eye(len(known)) + root.T @ known @ root
            half = jnp.sum(jnp.log(jnp.diagonal(cholesky(spread))))
            along = root.T @ (field - pulled)
            return flat + along @ solve(spread, along) / 2 - half

        def log_weight(field: Array) -> Array:
            each = jax.vmap(component, (0, 0, None))
            exponents = each(centres, jnp.asarray(law.all_covariances), field)
            return jax.nn.logsumexp(exponents, b=weights)

        log, slopes = jax.vmap(jax.value_and_grad(log_weight), 1, (0, 1))(means)
        count = means.shape[-1] if mask is None else jnp.sum(mask)
        log = log - jnp.log(count)
        return Weights(log if mask is None else jnp.where(mask, log, -jnp.inf), slopes)

    def score(self, weights: Weights, probability: Float[Array, " L"]) -> Float[Array, "F L"]:
        return weights.slopes * probability

    @property
    def precision(self) -> Float[Array, "F F"]:
        """`E[θ θᵀ]`, on average over shifts."""
        means, weights = jnp.asarray(self.shifts.means), jnp.asarray(self.shifts.weights)
        outer = jnp.einsum("j,jf,jg->fg", weights, means, means)
        return outer + jnp.einsum("j,jfg->fg", weights, jnp.asarray(self.shifts.all_covariances))

    @property
    def softmax_scale(self) -> Any:
        return None


class SelectedLocation(AbstractLocation):
    """The location is the argmax of `sharpness·χ* + Gumbel`, of fields along one direction: `Σ_ε G_ε/L = 1`."""

    has_centred_scores: ClassVar[bool] = True
    slope: Float[Array, ""]
    table: NoiseTable

    def __init__(self, sharpness: Any, variance: Any):
        spread = jnp.reshape(jnp.asarray(variance, float), ())
        self.slope = 1.0 / jnp.sqrt(spread + 1.0 / jnp.asarray(sharpness, float) ** 2)
        self.table = tabulate(self.slope * jnp.sqrt(spread))

    def weigh(self, means: Float[Array, "1 L"], mask: Mask = None) -> Weights:
        present = jnp.ones(means.shape[-1], bool) if mask is None else mask
        selection = select(self.slope * means[0], present, self.table)
        return Weights(jnp.log(selection.probability), selection)

    def score(self, weights: Weights, probability: Float[Array, " L"]) -> Float[Array, "1 L"]:
        present = weights.log > -jnp.inf
        odds = jnp.where(present, probability * jnp.exp(-jnp.where(present, weights.log, 0.0)), 0.0)
        return self.slope * weights.slopes.pull(odds)[None]

    @property
    def precision(self) -> Float[Array, "1 1"]:
        return jnp.zeros((1, 1))

    @property
    def softmax_scale(self) -> Any:
        return None
