"""The seven order parameters that a population risk depends on (section 4)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import Refusal, is_traced, real

NAMES = ("m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv")


class Overlaps(eqx.Module):
    """Overlaps of the learned `k, v` with the hidden `k*, v*` (`m`) and among themselves (`q`), divided by `D`."""

    m_kk: Any = 0.0
    m_kv: Any = 0.0
    m_vk: Any = 0.0
    m_vv: Any = 0.0
    q_kk: Any = 0.0
    q_kv: Any = 0.0
    q_vv: Any = 0.0

    def __check_init__(self) -> None:
        values = [getattr(self, name) for name in NAMES]
        if any(is_traced(value) or (not np.isscalar(value) and np.ndim(value)) for value in values):
            return
        for name, value in zip(NAMES, values, strict=True):
            real(name, value)
        lowest = np.linalg.eigvalsh(self.residual)[0]
        if lowest < -1e-9 * max(1.0, float(self.q_kk), float(self.q_vv)):
            raise Refusal(
                f"overlaps with residual Q - M Mᵀ of eigenvalue {lowest:.3g} are not allowed: "
                "overlaps must have Q - M Mᵀ positive semidefinite"
            )

    @property
    def residual(self) -> Any:
        """`R = Q − M Mᵀ`, what of `k` and `v` lies outside the span of `k*` and `v*`."""
        r_kk = self.q_kk - self.m_kk**2 - self.m_kv**2
        r_kv = self.q_kv - self.m_kk * self.m_vk - self.m_kv * self.m_vv
        r_vv = self.q_vv - self.m_vk**2 - self.m_vv**2
        array = jnp.array if is_traced(r_kk) or is_traced(r_kv) or is_traced(r_vv) else np.array
        return array([[r_kk, r_kv], [r_kv, r_vv]])

    def as_dict(self) -> dict[str, float]:
        """The seven numbers by name."""
        return {name: float(getattr(self, name)) for name in NAMES}


def vectors_of(overlaps: Overlaps) -> Float[Array, "2 4"]:
    """A `k` and a `v` with these overlaps: along `k*`, along `v*`, and in two directions orthogonal to both.

    What the seven numbers are to vectors of any dimension, these are too, and they cannot violate `R ⪰ 0`.
    """
    (r_kk, r_kv), (_, r_vv) = overlaps.residual
    across = jnp.sqrt(jnp.maximum(r_kk, 0.0))
    shared = jnp.where(across > 0, r_kv / jnp.where(across > 0, across, 1.0), 0.0)
    own = jnp.sqrt(jnp.maximum(r_vv - shared**2, 0.0))
    key = [overlaps.m_kk, overlaps.m_kv, across, 0.0]
    value = [overlaps.m_vk, overlaps.m_vv, shared, own]
    return jnp.array([key, value], float)


def overlaps_of(vectors: Float[Array, "2 n"]) -> Overlaps:
    """The overlaps of a `k` and a `v` whose first two coordinates are those along `k*` and `v*`."""
    k, v = vectors
    return Overlaps(m_kk=k[0], m_kv=k[1], m_vk=v[0], m_vv=v[1], q_kk=k @ k, q_kv=k @ v, q_vv=v @ v)


def aligned(m_kk: Any, m_vv: Any = 1.0) -> Overlaps:
    """`k = m_kk k*`, `v = m_vv v*`."""
    return Overlaps(m_kk=m_kk, m_vv=m_vv, q_kk=m_kk**2, q_vv=m_vv**2)
