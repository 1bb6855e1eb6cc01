"""Results: estimates with errors, the reason why a computation stopped, and flat records."""

import math
from enum import StrEnum
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np

from ._check import refuse, shown


class ErrorKind(StrEnum):
    """Kind of the error of an `Estimate`."""

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
    """A value with its error and the kind of the error.

    A `bound` (deterministic quadrature) is an estimated upper bound on the distance to the exact value, from two
    quadrature rules. A `standard error` (Sobol points, data) is one standard deviation. Bounds add; independent
    standard errors add in quadrature. Adding the two kinds raises an error: convert one with `as_kind`.

    Examples:
        >>> risk = ar.Estimate(0.5, 0.01, ar.ErrorKind.STANDARD)
        >>> print(risk, "|", float(risk), "|", risk.kind)
        0.500 ± 0.01 | 0.5 | standard error
    """

    recorded: ClassVar[tuple[str, ...]] = ("value", "error", "kind")
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

    def __getitem__(self, at: Any) -> "Estimate":
        """Some of the numbers, with their errors."""
        if not np.ndim(self.value):
            raise TypeError("an Estimate of one number has no entries")
        error = self.error if np.ndim(self.error) else np.broadcast_to(self.error, self.value.shape)
        return Estimate(self.value[at], error[at], self.kind)

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
        """A copy with an error of this kind. A bound can serve as a (conservative) standard error.

        Converting a standard error into a bound raises an error.
        """
        if kind is ErrorKind.BOUND and self.kind is not kind:
            raise refuse("kind", kind, f"{self.kind} here: a standard error bounds nothing")
        return Estimate(self.value, self.error, kind)


class Result(StrEnum):
    """Reason why a computation stopped; the members are the sentences shown to the user."""

    CONVERGED = "converged"
    ON_MANIFOLD = "converged; only k along k* and v along v* were searched"
    K_DIVERGES = "infimum, not attained: |k| grows without bound"
    WEIGHTS_VANISH = "infimum, not attained: weights vanish and |v| grows without bound"
    BECOMES_SOFTMAX = "infimum, not attained: as its bias grows without bound it becomes softmax"
    BECOMES_POWER = (
        "infimum, not attained: as |k| and its bias grow together it becomes a power of the score"
    )
    FINISHED = "all steps done"
    STOPPED_EARLY = "stopped early: the loss on the sequences held out no longer falls"
    TOO_FEW_POINTS = "not converged: too few points: the errors are as large as the values"
    OVERCONFIDENT = (
        "not converged: the estimates are not as long as their variances say; with many tokens and a small dimension, "
        "wrong tokens explain the labels"
    )
    MAX_STEPS = "not converged: the largest number of steps was reached"
    TIME_OVER = "not converged: the last time was reached"
    LEFT_DOMAIN = "not converged: left the range of overlaps that can be integrated"
    STALLED = "not converged: no step lowers the objective"
    NOT_STATIONARY = "not converged: the gradient does not vanish"
    SADDLE = "not converged: the search ended at a saddle point"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"

    @property
    def converged(self) -> bool:
        """Whether the computation succeeded: a fixed point, a minimum, an infimum, or the requested number of steps."""
        done = Result.CONVERGED, Result.ON_MANIFOLD, Result.FINISHED, Result.STOPPED_EARLY
        return self in done or self.is_infimum

    @property
    def is_infimum(self) -> bool:
        """Whether the result is a limit that no finite vectors attain."""
        return self.startswith("infimum")


class AbstractResult(eqx.Module):
    """An answer with the reason why its computation stopped."""

    result: Result = eqx.field(static=True, kw_only=True)

    @property
    def converged(self) -> bool:
        """Whether the computation succeeded; `result` says why not."""
        return self.result.converged


def record(answer: Any) -> dict[str, Any]:
    """Convert a result into a flat dictionary, for JSON, databases, tables and CSV.

    The keys are the names that the class of the result lists in `recorded`. An `Estimate` gives two entries, the second
    with `_error` appended. Overlaps give their own entries (`as_dict`). A nested result gives its entries prefixed with
    the field name, as in `ridge_k`. Arrays become lists.

    Args:
        answer: A result of a function of attnrisk, such as a `Minimum` or an `Estimate`.

    Returns:
        A dictionary of strings, numbers, booleans, `None` and lists.

    Examples:
        >>> best = ar.population_minimum(ar.SpikedSLR(nu=5.0, length=10), ar.Linear())
        >>> sorted(ar.record(best))[:4]
        ['attained', 'bias', 'converged', 'm_kk']
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
    """The value as plain JSON types."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | bool | int):
        return str(value) if isinstance(value, str) else value
    return _plain(np.asarray(value).tolist()) if np.ndim(value) else np.asarray(value).item()
