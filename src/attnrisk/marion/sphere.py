"""Pairs of unit vectors `k, v`: initialisation and steps of a descent on the sphere.

Their risk depends on products with each other and with `k*, v*` only, so four coordinates hold both: two along the
teacher, two outside its span.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._check import is_traced, numbers, prng_key, refuse, refuse_single_precision, whole
from ..numerics.linalg import ratio
from ..population.overlaps import Overlaps

SPAN = 4  # of k*, v*, k and v
_MOST = 10**8  # repeats, and coordinates
_UNIT = 1e-9  # how far from one a norm may be: rounding, in vectors that a user has normalised


def _as_vectors(name: str, given: Any) -> Array:
    if is_traced(given):
        return given
    return jnp.asarray(numbers(name, given, "unit vectors, of shape (repeats, coordinates)"))


class UnitPair(eqx.Module):
    """Unit vectors `k` and `v`, one pair per repetition, in coordinates whose first two are along `k*` and `v*`."""

    k: Float[Array, "repeats n"] = eqx.field(converter=partial(_as_vectors, "k"))
    v: Float[Array, "repeats n"] = eqx.field(converter=partial(_as_vectors, "v"))

    def __check_init__(self) -> None:
        if not jax.config.read("jax_enable_x64"):
            raise refuse_single_precision()
        if is_traced(self.k) or is_traced(self.v):
            return
        for name, vectors in (("k", self.k), ("v", self.v)):
            if vectors.ndim != 2 or vectors.shape != self.k.shape or vectors.shape[1] < 2:
                allowed = "of shape (repeats, two coordinates or more), the same for k and v"
                raise refuse(name, f"(shape {vectors.shape})", allowed)
            norms = np.linalg.norm(vectors, axis=-1)
            if not np.all(np.abs(norms - 1.0) <= _UNIT):
                raise refuse(name, f"(norms {norms.min():g} to {norms.max():g})", "unit vectors")

    @property
    def cosines(self) -> Overlaps:
        """The overlaps of `k` and `v`.

        Norms are treated as constants: this changes the gradient only in directions that the projection removes.
        """
        return Overlaps(
            m_kk=self.k[..., 0],
            m_kv=self.k[..., 1],
            m_vk=self.v[..., 0],
            m_vv=self.v[..., 1],
            q_kk=1.0,
            q_kv=jnp.sum(self.k * self.v, -1),
            q_vv=1.0,
        )


def sphere_starts(key: PRNGKeyArray, dim: int, repeats: int) -> UnitPair:
    """Initial vectors `k` and `v`, uniform on the unit sphere.

    Args:
        key: JAX random key.
        dim: Dimension of the vectors.
        repeats: Number of pairs.

    Returns:
        A `UnitPair` with `repeats` pairs.

    Examples:
        >>> ar.sphere_starts(jax.random.key(0), dim=50, repeats=3).k.shape[0]
        3
    """
    shape = 2, whole("repeats", repeats, 1, _MOST), whole("dim", dim, SPAN, _MOST)
    return in_four_coordinates(*_normalised(jax.random.normal(prng_key("key", key), shape)))


def manifold_starts(key: PRNGKeyArray, dim: int, repeats: int) -> UnitPair:
    """Initial unit vectors, uniform with `k ⊥ v*` and `v ⊥ k*, k`, so `m_kv = m_vk = q_kv = 0` exactly.

    Args:
        key: JAX random key.
        dim: Dimension of the vectors.
        repeats: Number of pairs.

    Returns:
        A `UnitPair` with `repeats` pairs.

    Examples:
        >>> ar.manifold_starts(jax.random.key(0), dim=50, repeats=3).k.shape[0]
        3
    """
    repeats, dim = whole("repeats", repeats, 1, _MOST), whole("dim", dim, SPAN, _MOST)
    keys = jax.random.split(prng_key("key", key))
    k = _normalised(jax.random.normal(keys[0], (repeats, dim - 1)))
    v = _normalised(jax.random.normal(keys[1], (repeats, dim - 2)))
    none = jnp.zeros(repeats)
    k_rest, v_rest = (jnp.linalg.norm(vectors[:, 1:], axis=-1) for vectors in (k, v))
    return UnitPair(
        jnp.stack([k[:, 0], none, k_rest, none], -1), jnp.stack([none, v[:, 0], none, v_rest], -1)
    )


def step_on_sphere(vectors: Array, gradient: Array, step_size: Any) -> Array:
    """A step along the sphere, `k − step (I − k kᵀ) ∇`, brought back to it."""
    radial = jnp.sum(vectors * gradient, -1, keepdims=True)
    return _normalised(vectors - step_size * (gradient - radial * vectors))


def _normalised(vectors: Array) -> Array:
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def in_four_coordinates(k: Float[Array, "repeats n"], v: Float[Array, "repeats n"]) -> UnitPair:
    """The pair in four coordinates: two along the teacher, one for the rest of `k`, and one for the rest of `v`."""
    k_rest, v_rest = k[:, 2:], v[:, 2:]
    length = jnp.linalg.norm(k_rest, axis=-1)
    axis = ratio(k_rest, length[:, None])
    shared = jnp.sum(v_rest * axis, -1)
    own = jnp.linalg.norm(v_rest - shared[:, None] * axis, axis=-1)
    return UnitPair(
        jnp.stack([k[:, 0], k[:, 1], length, jnp.zeros_like(length)], -1),
        jnp.stack([v[:, 0], v[:, 1], shared, own], -1),
    )
