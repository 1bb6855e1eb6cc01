"""What every answer is made of: estimates with their errors, the reason a computation stopped, and flat records."""

import math
from enum import StrEnum
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ._check import refuse, shown


class ErrorKind(StrEnum):
    """What the error of an `Estimate` means."""

    BOUND = "bound"
    STANDARD = "standard error"


class AbstractValue(eqx.Module):
    """A module whose equality and hash are those of its structure and of its numbers."""

    def _key(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(self)
        arrays = [np.asarray(leaf, float) + 0.0 for leaf in leaves]  # −0 is 0
        return structure, *((array.shape, array.tobytes()) for array in arrays)

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self._key() == other._key()


class Estimate(eqx.Module):
    """A value, its error, and what the error means.

    A `bound` (deterministic quadrature) is an estimate of the largest distance to the exact number, from two rules
    that are refined differently; a `standard error` (random points, data) is one standard deviation. Bounds add;
    standard errors, which must be independent, add in squares. The two kinds do not mix by themselves: see `as_kind`.
    """

    value: Any
    error: Any
    kind: ErrorKind = eqx.field(static=True, default=ErrorKind.BOUND)

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        if np.ndim(self.value):
            return f"{np.asarray(self.value)} ± {np.asarray(self.error)}"
        value, error = float(self.value), float(self.error)
        if not error > 0:
            return f"{value:.12g}"
        if not math.isfinite(error):
            return f"{value:.3g} ± {error:g}"
        digits = min(14, max(1, 1 - math.floor(math.log10(error))))
        return f"{value:.{digits}f} ± {error:.1g}"

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __neg__(self) -> "Estimate":
        return Estimate(-self.value, self.error, self.kind)

    def __add__(self, other: Any) -> "Estimate":
        if not isinstance(other, Estimate):
            return Estimate(self.value + other, self.error, self.kind)
        if self.kind is not other.kind:
            allowed = "of one kind to be added: turn the bound into a standard error with as_kind"
            raise refuse("errors", f"({self.kind} and {other.kind})", allowed)
        if self.kind is ErrorKind.BOUND:
            return Estimate(self.value + other.value, self.error + other.error, self.kind)
        return Estimate(self.value + other.value, np.hypot(self.error, other.error), self.kind)

    __radd__ = __add__

    def __rsub__(self, other: Any) -> "Estimate":
        return (-self) + other

    def __sub__(self, other: Any) -> "Estimate":
        return self + (-other)

    def as_kind(self, kind: ErrorKind) -> "Estimate":
        """The same with an error of this kind; a bound serves as a standard error, which overstates it.

        A standard error is never a bound, and asking for that is refused.
        """
        if kind is ErrorKind.BOUND and self.kind is not kind:
            raise refuse("kind", kind, f"{self.kind} here: a standard error bounds nothing")
        return Estimate(self.value, self.error, kind)


class Result(StrEnum):
    """Why a computation stopped; the members are the sentences a user reads."""

    CONVERGED = "converged"
    ON_MANIFOLD = "converged; only k along k* and v along v* were searched"
    K_DIVERGES = "infimum, not attained: |k| grows without bound"
    WEIGHTS_VANISH = "infimum, not attained: weights vanish and |v| grows without bound"
    BECOMES_SOFTMAX = "infimum, not attained: as its bias grows without bound it becomes softmax"
    BECOMES_POWER = (
        "infimum, not attained: as |k| and its bias grow together it becomes a power of the score"
    )
    FINISHED = "all steps done"
    MAX_STEPS = "not converged: the largest number of steps was reached"
    TIME_OVER = "not converged: the last time was reached"
    LEFT_DOMAIN = "not converged: left the range of overlaps that can be integrated"
    STALLED = "not converged: no step lowers the objective"
    NOT_STATIONARY = "not converged: the gradient does not vanish"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"

    @property
    def converged(self) -> bool:
        """Whether the answer is what was asked for: a fixed point, a minimum, an infimum, or a number of steps."""
        return self in (Result.CONVERGED, Result.ON_MANIFOLD, Result.FINISHED) or self.is_infimum

    @property
    def is_infimum(self) -> bool:
        """Whether the answer is a limit that no finite vectors attain."""
        return self.startswith("infimum")


def record(answer: Any) -> dict[str, Any]:
    """An answer as a flat dictionary, for JSON, the store, tables and CSV.

    The names are those that the class of the answer lists in `recorded`. An `Estimate` gives two entries, the second
    with `_error` appended; what has an `as_dict` (overlaps) gives its own entries, and so does any other answer with
    `recorded` names, after the name of its field: `ridge_k`. Arrays (matrices of several heads, a batch) are lists.
    """
    if not hasattr(answer, "recorded"):
        raise refuse("answer", shown(answer), "what a function of attnrisk returns")
    flat: dict[str, Any] = {}
    for name in answer.recorded:
        value = getattr(answer, name)
        if isinstance(value, Estimate):
            flat |= {name: value.value, f"{name}_error": value.error}
        elif hasattr(value, "as_dict"):
            flat |= value.as_dict()
        elif hasattr(value, "recorded"):
            flat |= {f"{name}_{key}": each for key, each in record(value).items()}
        else:
            flat[name] = value
    return {name: _plain(value) for name, value in flat.items()}


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | bool | int):
        return str(value) if isinstance(value, str) else value
    return _plain(np.asarray(value).tolist()) if np.ndim(value) else np.asarray(value).item()
