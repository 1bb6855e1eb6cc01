"""The order parameters that a population risk depends on: overlaps as matrices (sections 4 and 10).

A student has `P` vectors, its keys first and its value vector last; a teacher has `T`, its key directions (features)
first and `v*` last. One head is `P = T = 2`, and its seven numbers keep their names `m_kk … q_vv`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import LARGEST, Refusal, numbers, of_type, real, refuse
from .._results import AbstractValue
from ..numerics.linalg import cholesky

NAMES = ("m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv")
_VALID = 1e-9  # how negative an eigenvalue of `Q − M Mᵀ` may be by rounding, relative to the largest of `Q`


class Overlaps(AbstractValue):
    """Overlaps: normalised inner products of student vectors with teacher vectors (`M`) and each other (`Q`).

    The student has `P` vectors, its keys first and `v` last; the teacher has `T`, its key directions first and `v*`
    last. `Q − M Mᵀ` must be positive semidefinite. Only the lower triangle of `Q` is read.

    Args:
        M: Array of shape `(..., P, T)`, inner products of student and teacher vectors divided by `D`.
        Q: Array of shape `(..., P, P)`, inner products of student vectors divided by `D`.
        **named: Instead of the matrices, for one head: any of `m_kk`, `m_kv`, `m_vk`, `m_vv`, `q_kk`, `q_kv`, `q_vv`;
            the others are 0.

    Examples:
        >>> overlaps = ar.Overlaps(m_kk=1.0, q_kk=2.0, m_vv=0.5, q_vv=0.5)
        >>> overlaps.M.tolist(), overlaps.Q.tolist()
        ([[1.0, 0.0], [0.0, 0.5]], [[2.0, 0.0], [0.0, 0.5]])
    """

    M: Float[Any, "*batch P T"]
    Q: Float[Any, "*batch P P"]

    def __init__(self, M: Any = None, Q: Any = None, **named: Any):
        if (M is None) != (Q is None) or (M is not None and named):
            given = [*(["M"] if M is not None else []), *(["Q"] if Q is not None else []), *named]
            allowed = "both matrices M and Q, or numbers by name"
            raise refuse("overlaps", f"({', '.join(given)})", allowed)
        if M is None:
            M, Q = _from_names(named)
        kinds = (jnp.ndarray, np.ndarray)
        M, Q = (each if isinstance(each, kinds) else numbers("overlaps", each) for each in (M, Q))
        if not all(jnp.issubdtype(each.dtype, jnp.floating) for each in (M, Q)):
            M, Q = numbers("overlaps", M), numbers("overlaps", Q)
        self.M, self.Q = M, Q
        shape = M.shape
        if len(shape) < 2 or min(shape[-2:]) < 2 or Q.shape != (*shape[:-1], shape[-2]):
            allowed = "of shapes P×T and P×P, with two vectors or more each"
            raise refuse("overlaps", f"(shapes {shape} and {Q.shape})", allowed)
        if isinstance(M, jax.core.Tracer) or isinstance(Q, jax.core.Tracer):
            return
        for name, matrix in (("M", M), ("Q", Q)):
            if not np.all(np.abs(matrix) <= LARGEST):
                allowed = f"of real numbers up to {LARGEST:g}"
                raise refuse(name, np.asarray(matrix).tolist(), allowed)
        if not np.allclose(Q, np.swapaxes(Q, -1, -2), rtol=_VALID, atol=_VALID):
            raise refuse("Q", np.asarray(Q).tolist(), "symmetric")
        residual = Q - M @ np.swapaxes(M, -1, -2)
        lowest = float(np.min(np.linalg.eigvalsh(residual), initial=0.0))
        if lowest < -_VALID * max(1.0, float(np.max(Q, initial=0.0))):
            raise Refusal(
                f"overlaps with residual Q - M Mᵀ of eigenvalue {lowest:.3g} are not allowed: "
                "overlaps must have Q - M Mᵀ positive semidefinite"
            )

    @property
    def residual(self) -> Any:
        """Gram matrix `R = Q − M Mᵀ` of the student components outside the span of the teacher (lower triangle)."""
        return self.Q - self.M @ self.M.swapaxes(-1, -2)

    @property
    def m_kk(self) -> Any:
        """Overlap of `k` with `k*`."""
        return self.M[..., 0, 0]

    @property
    def m_kv(self) -> Any:
        """Overlap of `k` with `v*`."""
        return self.M[..., 0, 1]

    @property
    def m_vk(self) -> Any:
        """Overlap of `v` with `k*`."""
        return self.M[..., 1, 0]

    @property
    def m_vv(self) -> Any:
        """Overlap of `v` with `v*`."""
        return self.M[..., 1, 1]

    @property
    def q_kk(self) -> Any:
        """Squared norm of `k` divided by `D`."""
        return self.Q[..., 0, 0]

    @property
    def q_kv(self) -> Any:
        """Overlap of `k` with `v`."""
        return self.Q[..., 1, 0]

    @property
    def q_vv(self) -> Any:
        """Squared norm of `v` divided by `D`."""
        return self.Q[..., 1, 1]

    @property
    def is_one_head(self) -> bool:
        """Whether the seven names apply."""
        return bool(np.shape(self.M)[-2:] == (2, 2))

    def as_dict(self) -> dict[str, Any]:
        """The seven overlaps of one head by name; otherwise the matrices as lists."""
        if self.is_one_head:
            return {name: np.asarray(getattr(self, name)).tolist() for name in NAMES}
        return {"M": np.asarray(self.M).tolist(), "Q": np.asarray(self.Q).tolist()}

    def stretched(self, factor: Any, value: float = 1.0) -> "Overlaps":
        """Overlaps of a student with its keys multiplied by `factor` and its value vector by `value`.

        `factor` can have batch axes.
        """
        xp = jnp if isinstance(self.M, jnp.ndarray) or isinstance(factor, jnp.ndarray) else np
        is_key = np.arange(np.shape(self.M)[-2]) < np.shape(self.M)[-2] - 1
        scale = xp.where(is_key, xp.asarray(factor)[..., None], value)
        return Overlaps(scale[..., None] * self.M, scale[..., None] * scale[..., None, :] * self.Q)


def _from_names(named: dict[str, Any]) -> tuple[Any, Any]:
    for name, value in named.items():
        if name not in NAMES:
            raise refuse("overlaps", f"({name})", "named " + ", ".join(NAMES))
        if np.ndim(value) == 0:
            real(name, value)
    arrays = any(isinstance(value, jnp.ndarray) for value in named.values())
    xp: Any = jnp if arrays else np
    values = [named.get(name, 0.0) for name in NAMES]
    try:
        parts = xp.broadcast_arrays(*(xp.asarray(value, float) for value in values))
    except (TypeError, ValueError):
        raise refuse("overlaps", named, "numbers, or arrays of one shape") from None
    m_kk, m_kv, m_vk, m_vv, q_kk, q_kv, q_vv = parts
    shape = *m_kk.shape, 2, 2
    M = xp.stack([m_kk, m_kv, m_vk, m_vv], -1).reshape(shape)
    return M, xp.stack([q_kk, q_kv, q_kv, q_vv], -1).reshape(shape)


def check_overlaps(
    task: Any, attention: Any, overlaps: Any, name: str = "overlaps", batch: int = 0
) -> None:
    """Refuse overlaps of the wrong type or shape for this attention and task."""
    of_type(name, overlaps, Overlaps, "of type Overlaps, such as aligned(1.0)")
    shape, needed = np.shape(overlaps.M)[batch:], (attention.keys + 1, task.features + 1)
    if shape != needed:
        allowed = f"of {needed[0]} student and {needed[1]} teacher vectors"
        raise refuse(name, f"(M of shape {shape})", allowed)


def vectors_of(overlaps: Overlaps) -> Float[Array, "P n"]:
    """Student vectors with these overlaps, in `T` coordinates along the teacher's and `P` orthogonal to them.

    These vectors have the given overlaps and cannot violate `R ⪰ 0`.
    """
    return jnp.concatenate([overlaps.M, cholesky(overlaps.residual)], -1)


def overlaps_of(vectors: Float[Array, "P n"], teachers: int = 2) -> Overlaps:
    """The overlaps of vectors whose first coordinates are those along the teacher's."""
    return Overlaps(vectors[..., :teachers], vectors @ vectors.swapaxes(-1, -2))


def aligned(m_kk: Any, m_vv: Any = 1.0) -> Overlaps:
    """Overlaps of one head with `k = m_kk k*` and `v = m_vv v*`.

    Args:
        m_kk: Norm of `k` relative to `k*`.
        m_vv: Norm of `v` relative to `v*`.

    Returns:
        `Overlaps` with `M` and `Q` of shape `(2, 2)`.

    Examples:
        >>> ar.aligned(2.0, 0.5).as_dict()["q_kk"]
        4.0
    """
    m_kk, m_vv = real("m_kk", m_kk), real("m_vv", m_vv)
    arrays = isinstance(m_kk, jnp.ndarray) or isinstance(m_vv, jnp.ndarray)
    M = (jnp if arrays else np).stack([m_kk, 0.0 * m_kk, 0.0 * m_vv, m_vv]).reshape(2, 2)
    return Overlaps(M, M**2)


def swapped(size: float = 1.0) -> Overlaps:
    """Overlaps of one head with the roles exchanged, `k = size·v*` and `v = size·k*`.

    From here gradient flow converges to the mismatched minimum, if it exists.

    Args:
        size: Norm of both vectors relative to the teacher vectors.

    Returns:
        `Overlaps` with `M` and `Q` of shape `(2, 2)`.

    Examples:
        >>> ar.swapped().M.tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    size = real("size", size)
    return Overlaps(m_kv=size, m_vk=size, q_kk=size**2, q_vv=size**2)
