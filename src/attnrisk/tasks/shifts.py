"""The law of the relevant token's shift along the features: a mixture of Gaussians (section 10)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from .._check import is_traced, numbers, of_type, real, refuse, shown
from .._results import AbstractValue
from ..numerics.linalg import cholesky, solve

LARGEST_NU = 1e8  # of a named law: its square root is a field, and fields are squared
MOST_FEATURES, MOST_COMPONENTS = 100, 1000


class ShiftMixture(AbstractValue):
    """Distribution of the shift along `F` features: `θ ~ Σ_j w_j N(μ_j, S_j)` with `J` components.

    Args:
        means: Array of shape `(J, F)`.
        weights: Probabilities of shape `(J,)`; equal if not given.
        covariances: Array of shape `(J, F, F)`; if not given, the components are atoms.
        name: Name shown in tables.

    Examples:
        >>> shift = ar.ShiftMixture([[2.0, 0.0], [0.0, 3.0]], weights=[0.5, 0.5])
        >>> shift.features
        2
    """

    means: Float[Any, "J F"]
    weights: Float[Any, " J"]
    covariances: Float[Any, "J F F"] | None
    name: str = eqx.field(static=True)

    def __init__(
        self, means: Any, weights: Any = None, covariances: Any = None, name: str = "mixture"
    ):
        self.name = of_type("name", name, str, "a word")
        if any(is_traced(each) for each in jax.tree.leaves((means, weights, covariances))):
            count = np.shape(means)[0]
            self.means, self.covariances = means, covariances
            self.weights = jnp.full(count, 1.0 / count) if weights is None else weights
            return
        allowed = (
            f"a table of shifts, a row for each of up to {MOST_COMPONENTS} components, "
            f"with a number for each of up to {MOST_FEATURES} features"
        )
        self.means = _bounded("means", means, allowed)
        if self.means.ndim != 2 or not self.means.size:
            raise refuse("means", f"(of shape {self.means.shape})", allowed)
        count, features = self.means.shape
        if count > MOST_COMPONENTS or features > MOST_FEATURES:
            raise refuse("means", f"(of shape {self.means.shape})", allowed)
        allowed = "a probability for each component, of sum one"
        given = np.full(count, 1.0 / count) if weights is None else weights
        self.weights = numbers("weights", given, allowed)
        proper = self.weights.shape == (count,) and np.all(self.weights >= 0)
        if not proper or not abs(self.weights.sum() - 1) <= 1e-9:
            raise refuse("weights", shown(weights), allowed)
        self.covariances = None
        if covariances is not None:
            allowed = f"{count} positive semidefinite matrices of {features} rows"
            read = _bounded("covariances", covariances, allowed)
            if read.shape != (count, features, features):
                raise refuse("covariances", f"(of shape {read.shape})", allowed)
            symmetric = np.allclose(read, read.swapaxes(1, 2), rtol=1e-9, atol=1e-9)
            if not symmetric or np.min(np.linalg.eigvalsh(read)) < -1e-9 * (1.0 + np.max(read)):
                raise refuse("covariances", shown(covariances), allowed)
            self.covariances = read if np.any(read) else None

    def __str__(self) -> str:
        return self.name

    @property
    def features(self) -> int:
        """Number of features `F`."""
        return int(np.shape(self.means)[1])

    @property
    def all_covariances(self) -> Float[Any, "J F F"]:
        """Covariance of each component, zero for atoms."""
        if self.covariances is not None:
            return self.covariances
        return np.zeros((*np.shape(self.means), self.features))

    @property
    def uniforms(self) -> int:
        """Number of uniform random numbers that `draw` needs."""
        choose = int(np.shape(self.means)[0] > 1)
        return choose + (self.features if self.covariances is not None else 0)

    def draw(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        """Draw a shift from uniform random numbers."""
        means, component = jnp.asarray(self.means), jnp.asarray(0)
        if means.shape[0] > 1:
            component = jnp.sum(uniforms[0] > jnp.cumsum(jnp.asarray(self.weights))[:-1])
            uniforms = uniforms[1:]
        if self.covariances is None:
            return means[component]
        roots = jax.vmap(cholesky)(jnp.asarray(self.covariances))
        return means[component] + roots[component] @ ndtri(uniforms)

    def log_ratio(self, fields: Float[Array, "*n F"]) -> Float[Array, "*n"]:
        """`log Λ(x)`, `Λ(x) = Σ_j w_j N(x; μ_j, I + S_j)/N(x; 0, I)`."""
        means, weights = jnp.asarray(self.means), jnp.asarray(self.weights)
        if self.covariances is None:
            exponents = fields @ means.T - jnp.sum(means**2, 1) / 2
            return jax.nn.logsumexp(exponents, -1, b=weights)
        spreads = jnp.eye(self.features) + jnp.asarray(self.covariances)
        precisions = jax.vmap(
            lambda matrix: jax.vmap(lambda e: solve(matrix, e))(jnp.eye(len(matrix)))
        )(spreads)
        pulls = jnp.einsum("jfg,jg->jf", precisions, means)
        kept = jnp.eye(self.features) - precisions  # S (I + S)⁻¹
        roots = jax.vmap(cholesky)(spreads)
        halves = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), 1)
        exponents = (
            jnp.einsum("...f,jfg,...g->...j", fields, kept, fields) / 2
            + fields @ pulls.T
            - jnp.sum(pulls * means, 1) / 2
            - halves
        )
        return jax.nn.logsumexp(exponents, -1, b=weights)


def _bounded(name: str, values: Any, allowed: str) -> np.ndarray:
    read = numbers(name, values, allowed)
    if np.any(np.abs(read) > LARGEST_NU):
        raise refuse(name, shown(values), f"{allowed}, of size at most {LARGEST_NU:g}")
    return read


def _strengths(name: str, values: Any) -> list[float]:
    given = numbers(name, values, "a list of numbers, one for each feature")
    if given.ndim != 1 or not 1 <= given.size <= MOST_FEATURES:
        raise refuse(
            name, shown(values), f"a list of 1 to {MOST_FEATURES} numbers, one for each feature"
        )
    return [real(name, each, minimum=0.0, maximum=LARGEST_NU) for each in given.tolist()]


def _listed(numbers: list[float]) -> str:
    return ",".join(f"{each:g}" for each in numbers)


def flipped(nu: Any) -> ShiftMixture:
    """Shift `θ = ±√ν` along one feature, with equal probabilities.

    Args:
        nu: Signal strength `ν ≥ 0`.

    Returns:
        The distribution, a `ShiftMixture` with `F = 1`.

    Examples:
        >>> ar.flipped(9.0).means.tolist()
        [[3.0], [-3.0]]
    """
    strength = real("nu", nu, minimum=0.0, maximum=LARGEST_NU)
    root = strength**0.5
    return ShiftMixture([[root], [-root]], name=f"flipped:{strength:g}")


def one_of(nus: Any, weights: Any = None) -> ShiftMixture:
    """Shift `θ = √ν_f e_f` with probability `w_f`: the relevant token has one of `F` features.

    Args:
        nus: Signal strengths, shape `(F,)`.
        weights: Probabilities, shape `(F,)`; equal if not given.

    Returns:
        The distribution, a `ShiftMixture`.

    Examples:
        >>> ar.one_of([9.0, 4.0]).means.tolist()
        [[3.0, 0.0], [0.0, 2.0]]
    """
    strengths = _strengths("nus", nus)
    name = f"one-of:{_listed(strengths)}" if weights is None else "one-of"
    return ShiftMixture(np.diag(np.sqrt(strengths)), weights, name=name)


def gaussian(variances: Any) -> ShiftMixture:
    """Gaussian shift `θ ~ N(0, diag(variances))`.

    Args:
        variances: Variance along each feature, shape `(F,)`.

    Returns:
        The distribution, a `ShiftMixture` with one component.

    Examples:
        >>> ar.gaussian([9.0, 4.0]).covariances.shape
        (1, 2, 2)
    """
    sizes = _strengths("variances", variances)
    zero = np.zeros((1, len(sizes)))
    return ShiftMixture(zero, covariances=np.diag(sizes)[None], name=f"gaussian:{_listed(sizes)}")


# Laws that words can ask for, each of a list of numbers.
SHIFT_LAWS: dict[str, Callable[[list[float]], ShiftMixture]] = {
    "flipped": lambda given: flipped(*given),
    "one-of": one_of,
    "gaussian": gaussian,
}
