"""The risk of heads whose keys lie in the span of the features and `v` along `v*` (section 10).

With `A_h = E[σ_hε]` and `B_hh' = E[Σ_ℓ σ_hℓ σ_h'ℓ]` the risk with the best `v` is `E[y²] − A²/B`, and with free head
weights `E[y²] − Aᵀ B⁻¹ A`: a function of the keys and the biases.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..attention import AbstractAttention
from ..numerics.linalg import solve
from ..tasks import AbstractNeedle
from .engines.sobol import needle_sequence
from .overlaps import Overlaps

_WHOLE = 1e-12  # added to the diagonal of B relative to its trace, for heads that are copies


class ManifoldProblem(eqx.Module):
    """A point is the components of the keys, along the features and one direction outside them, then the free biases.

    One direction is enough for any dimension: the Hessian is the same in all. A descent from a point without that
    component stays without it. For heads normalised together, only differences of biases matter, and the first is 0.
    An `integral` is an engine, or `RandomSequences`.
    """

    task: AbstractNeedle
    attention: AbstractAttention

    def unpack(self, point: Float[Array, " n"]) -> tuple[Float[Array, "H n"], AbstractAttention]:
        """The keys, and the attention with its biases."""
        attention, heads = self.attention, self.attention.keys
        if not attention.free_bias:
            return point.reshape(heads, -1), attention
        end = point.size - heads + attention.is_joint
        biases = jnp.append(0.0, point[end:]) if attention.is_joint else point[end:]
        known = attention.with_bias(biases.reshape(jnp.shape(attention.bias)))
        return point[:end].reshape(heads, -1), known

    def first_biases(self, squares: Float[np.ndarray, "s H"]) -> Float[np.ndarray, "s n"]:
        """Initial biases for keys of these squared norms: heads respond to tokens that are probably relevant."""
        if not self.attention.free_bias:
            return squares[:, :0]
        if self.attention.is_joint:
            return (squares[:, :1] - squares[:, 1:]) / 2.0
        return -squares / 2.0 - np.log(float(self.task.length.longest)) / 2.0

    def overlaps(self, keys: Float[Array, "H n"]) -> Overlaps:
        """Overlaps with `v = v*`."""
        features = self.task.features
        M = jnp.zeros((len(keys) + 1, features + 1)).at[:-1, :-1].set(keys[:, :features])
        Q = jnp.zeros((len(keys) + 1,) * 2).at[:-1, :-1].set(keys @ keys.T)
        return Overlaps(M.at[-1, -1].set(1.0), Q.at[-1, -1].set(1.0))

    def correlations(self, integral: Any, point: Float[Array, " n"]) -> tuple[Array, Array]:
        """`A` and `B`, of each head and each pair where the weights of heads are free."""
        keys, attention = self.unpack(point)
        attention = attention.given_norms(jnp.sum(keys**2, 1))

        if attention.free_weights:
            return integral.by_head(self.task, attention, self.overlaps(keys))
        return integral.correlations(self.task, attention, self.overlaps(keys))

    def explained(self, integral: Any, point: Float[Array, " n"]) -> Array:
        """`A²/B`, or `Aᵀ B⁻¹ A`."""
        label, power = self.correlations(integral, point)
        if label.ndim == 0:
            return label**2 / power
        return label @ best_weights(label, power)

    def loss(self, integral: Any, point: Float[Array, " n"]) -> Array:
        """Minus the logarithm of `explained`."""
        explained = self.explained(integral, point)
        sound = explained > 0
        return jnp.where(sound, -jnp.log(jnp.where(sound, explained, 1.0)), jnp.inf)


def best_weights(label: Float[Array, " H"], power: Float[Array, "H H"]) -> Float[Array, " H"]:
    """`B⁻¹ A`."""
    return solve(power + _WHOLE * jnp.trace(power) * jnp.eye(label.size), label)


class RandomSequences(eqx.Module):
    """`A` and `B` over random sequences, at overlaps on the manifold.

    Scores come from drawn fields along the features, smooth in the keys.
    """

    points: Float[Any, "n d"]

    def correlations(
        self, task: AbstractNeedle, attention: AbstractAttention, overlaps: Overlaps
    ) -> tuple[Array, Array]:
        features, keys = task.features, overlaps.M[:-1, :-1]  # none has a component outside

        def at_point(point: Array) -> tuple[Array, Array]:
            drawn = needle_sequence(task, point, features)
            fields = jnp.where(drawn.relevant[:, None], drawn.shift, 0.0)
            fields = fields + drawn.deviations[:, None] * drawn.normals
            weights = attention.attend(keys @ fields.T)
            squares = drawn.deviations**2
            return jnp.sum(squares * drawn.relevant * weights), jnp.sum(squares * weights**2)

        label, power = jax.vmap(at_point)(self.points)
        return jnp.mean(label), jnp.mean(power)

    def by_head(
        self, task: AbstractNeedle, attention: Any, overlaps: Overlaps
    ) -> tuple[Array, Array]:
        """`A` is linear in the weights of heads, and `B` quadratic."""

        def at(weights: Array) -> tuple[Array, Array]:
            return self.correlations(task, attention.with_head_weights(weights), overlaps)

        weights = jnp.asarray(attention.head_weights)
        label = jax.jacfwd(lambda c: at(c)[0])(weights)
        return label, jax.jacfwd(jax.jacfwd(lambda c: at(c)[1]))(weights) / 2.0
