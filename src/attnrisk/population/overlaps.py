"""The order parameters that a population risk depends on: overlaps as matrices (sections 4 and 10).

A student has `P` vectors, its keys first and its value vector last; a teacher has `T`, its key directions (features)
first and `v*` last. One head is `P = T = 2`, and its seven numbers keep their names `m_kk … q_vv`.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import LARGEST, Refusal, is_traced, real, refuse
from ..numerics.linalg import cholesky

# Of each name, the matrix, the row and the column; of `Q` the lower triangle is read.
_ENTRIES = {
    "m_kk": ("M", 0, 0),
    "m_kv": ("M", 0, 1),
    "m_vk": ("M", 1, 0),
    "m_vv": ("M", 1, 1),
    "q_kk": ("Q", 0, 0),
    "q_kv": ("Q", 1, 0),
    "q_vv": ("Q", 1, 1),
}
NAMES = tuple(_ENTRIES)
_VALID = 1e-9  # how negative an eigenvalue of `Q − M Mᵀ` may be by rounding, relative to the largest of `Q`


class Overlaps(eqx.Module):
    """Overlaps of the learned vectors with the teacher's, `M`, and among themselves, `Q`, divided by `D`.

    Built from the two matrices (with any batch axes in front), or for one head from its seven numbers by name, those
    not given being zero. Only the lower triangle of `Q` is read.
    """

    M: Float[Any, "*batch P T"]
    Q: Float[Any, "*batch P P"]

    def __init__(self, M: Any = None, Q: Any = None, **named: Any):
        if (M is None) != (Q is None) or (M is not None and named):
            given = ", ".join(
                [*(["M"] if M is not None else []), *(["Q"] if Q is not None else []), *named]
            )
            raise refuse("overlaps", f"({given})", "both matrices M and Q, or numbers by name")
        if M is None:
            M, Q = _from_names(named)
        self.M, self.Q = (each if is_traced(each) else _as_matrix(each) for each in (M, Q))

    def __check_init__(self) -> None:
        M, Q = self.M, self.Q
        shapes = np.shape(M), np.shape(Q)
        few = min((*shapes[0][-2:], 2)) < 2
        if len(shapes[0]) < 2 or few or shapes[1] != (*shapes[0][:-1], shapes[0][-2]):
            allowed = "of shapes P×T and P×P, with two vectors or more each"
            raise refuse("overlaps", f"(shapes {shapes[0]} and {shapes[1]})", allowed)
        if is_traced(M) or is_traced(Q):
            return
        for name, matrix in (("M", M), ("Q", Q)):
            if np.iscomplexobj(matrix) or not np.all(np.abs(matrix) <= LARGEST):
                raise refuse(
                    name, np.asarray(matrix).tolist(), f"of real numbers up to {LARGEST:g}"
                )
        if not np.allclose(Q, np.swapaxes(Q, -1, -2), rtol=_VALID, atol=_VALID):
            raise refuse("Q", np.asarray(Q).tolist(), "symmetric")
        lowest = float(np.min(np.linalg.eigvalsh(self.residual), initial=0.0))
        if lowest < -_VALID * max(1.0, float(np.max(Q, initial=0.0))):
            raise Refusal(
                f"overlaps with residual Q - M Mᵀ of eigenvalue {lowest:.3g} are not allowed: "
                "overlaps must have Q - M Mᵀ positive semidefinite"
            )

    @property
    def residual(self) -> Any:
        """`R = Q − M Mᵀ`, what of the student lies outside the span of the teacher (lower triangle)."""
        return self.Q - self.M @ self.M.swapaxes(-1, -2)

    @property
    def m_kk(self) -> Any:
        return self.M[..., 0, 0]

    @property
    def m_kv(self) -> Any:
        return self.M[..., 0, 1]

    @property
    def m_vk(self) -> Any:
        return self.M[..., 1, 0]

    @property
    def m_vv(self) -> Any:
        return self.M[..., 1, 1]

    @property
    def q_kk(self) -> Any:
        return self.Q[..., 0, 0]

    @property
    def q_kv(self) -> Any:
        return self.Q[..., 1, 0]

    @property
    def q_vv(self) -> Any:
        return self.Q[..., 1, 1]

    @property
    def is_one_head(self) -> bool:
        """Whether the seven names apply."""
        return bool(np.shape(self.M)[-2:] == (2, 2))

    def as_dict(self) -> dict[str, Any]:
        """The seven numbers of one head by name; else the matrices as lists."""
        if self.is_one_head:
            return {name: np.asarray(getattr(self, name), float).tolist() for name in NAMES}
        return {"M": np.asarray(self.M).tolist(), "Q": np.asarray(self.Q).tolist()}

    def stretched(self, factor: Any) -> "Overlaps":
        """The overlaps of the student whose keys are all longer by this factor, which may have batch axes."""
        xp = jnp if isinstance(self.M, jnp.ndarray) or isinstance(factor, jnp.ndarray) else np
        is_key = np.arange(np.shape(self.M)[-2]) < np.shape(self.M)[-2] - 1
        scale = xp.where(is_key, xp.asarray(factor)[..., None], 1.0)
        return Overlaps(scale[..., None] * self.M, scale[..., None] * scale[..., None, :] * self.Q)


def _as_matrix(values: Any) -> Any:
    if isinstance(values, jnp.ndarray):
        return values
    try:
        return np.asarray(values) if np.iscomplexobj(values) else np.asarray(values, float)
    except (TypeError, ValueError):
        raise refuse("overlaps", repr(values), "matrices of numbers") from None


def _from_names(named: dict[str, Any]) -> tuple[Any, Any]:
    for name, value in named.items():
        if name not in _ENTRIES:
            raise refuse("overlaps", f"({name})", "named " + ", ".join(NAMES))
        if np.isscalar(value):
            real(name, value)
    numbers = {name: named.get(name, 0.0) for name in NAMES}
    xp: Any = jnp if any(isinstance(value, jnp.ndarray) for value in named.values()) else np
    m_kk, m_kv, m_vk, m_vv, q_kk, q_kv, q_vv = xp.broadcast_arrays(
        *(xp.asarray(value, float) for value in numbers.values())
    )

    def matrix(*entries: Any) -> Any:
        return xp.stack(entries, -1).reshape(*entries[0].shape, 2, 2)

    return matrix(m_kk, m_kv, m_vk, m_vv), matrix(q_kk, q_kv, q_kv, q_vv)


def vectors_of(overlaps: Overlaps) -> Float[Array, "P n"]:
    """Student vectors with these overlaps, in `T` coordinates along the teacher's and `P` orthogonal to them.

    What overlaps are to vectors of any dimension, they are to these, which cannot violate `R ⪰ 0`.
    """
    return jnp.concatenate([overlaps.M, cholesky(overlaps.residual)], -1)


def overlaps_of(vectors: Float[Array, "P n"], teachers: int = 2) -> Overlaps:
    """The overlaps of vectors whose first coordinates are those along the teacher's."""
    return Overlaps(vectors[..., :teachers], vectors @ vectors.swapaxes(-1, -2))


def aligned(m_kk: Any, m_vv: Any = 1.0) -> Overlaps:
    """One head with `k = m_kk k*`, `v = m_vv v*`."""
    traced = isinstance(m_kk, jnp.ndarray) or isinstance(m_vv, jnp.ndarray)
    M = (jnp if traced else np).stack([m_kk, 0.0 * m_kk, 0.0 * m_vv, m_vv]).reshape(2, 2)
    return Overlaps(M, M**2)


def swapped(size: float = 1.0) -> Overlaps:
    """One head with the roles exchanged, `k = size·v*`, `v = size·k*`: the start that leads to mismatched minima."""
    return Overlaps(m_kv=size, m_vk=size, q_kk=size**2, q_vv=size**2)
