"""Argument checks: a `ValueError` names the argument, the value given and the values allowed."""

import difflib
import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

LARGEST = 1e12  # of any number given: its square and its fourth power are still far from overflow
_LONGEST = 300  # characters of what was given that are repeated


class Refusal(ValueError):
    """Invalid input, described in one line.

    `parts` are the name of the argument, the value given and the values allowed, if one argument is invalid.
    """

    parts: tuple[str, str, str] | None = None


def is_traced(value: Any) -> bool:
    """Whether `value` is a JAX tracer, whose number is not known."""
    from jax.core import Tracer  # a refusal can be caught without a second of import

    return isinstance(value, Tracer)


def refuse_single_precision() -> Refusal:
    """The exception to raise if double precision is disabled."""
    return Refusal(
        "jax_enable_x64 = False is not allowed: attnrisk computes in double precision; "
        'switch it on again with jax.config.update("jax_enable_x64", True)'
    )


def refuse(name: str, given: Any, allowed: str) -> Refusal:
    """The exception to raise, with a message of one line."""
    shown = " ".join(str(given).split())
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}…"
    refusal = Refusal(f"{name} = {shown} is not allowed: {name} must be {allowed}")
    refusal.parts = name, shown, allowed
    return refusal


def shown(value: Any) -> str:
    """A short text of the value given."""
    try:
        return repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "(a number of thousands of digits)"


def real(
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = LARGEST,
    below: float = math.inf,
    infinite: bool = False,
) -> Any:
    """`value` as a float in `[minimum, maximum]` and `(above, below)`; traced values are not checked."""
    lowest = f"> {above:g}" if above > -math.inf else f"≥ {max(minimum, -LARGEST):g}"
    highest = f"< {below:g}" if below < math.inf else f"≤ {maximum:g}"
    allowed = f"a number {lowest} and {highest}" + (", or inf" if infinite else "")
    try:
        if getattr(value, "ndim", 0):
            raise TypeError  # an array with one entry could be read as its entry
        number = float(value)
        if math.isinf(number) and isinstance(value, str) and "inf" not in value.lower():
            raise OverflowError
    except OverflowError:  # a whole number of hundreds of digits
        raise refuse(name, "(beyond 1e308)", allowed) from None
    except (TypeError, ValueError):
        if is_traced(value):
            return value
        raise refuse(name, shown(value), allowed) from None
    fits = max(minimum, -LARGEST) <= number <= maximum and above < number < below
    if not fits and not (infinite and number == math.inf):
        raise refuse(name, f"{number:g}", allowed)
    return number


def whole(name: str, value: Any, minimum: int = 1, maximum: int | None = None) -> int:
    """`value` as an integer within `[minimum, maximum]`."""
    allowed = (
        f"a whole number {f'≥ {minimum}' if maximum is None else f'from {minimum} to {maximum}'}"
    )
    try:
        number = operator.index(value)
    except TypeError:
        raise refuse(name, shown(value), allowed) from None
    if number < minimum or (maximum is not None and number > maximum):
        raise refuse(name, shown(number), allowed)
    return number


def numbers(name: str, values: Any, allowed: str = "finite real numbers") -> "np.ndarray":
    """`values` as an array of finite real numbers."""
    import numpy as np  # a refusal can be caught without a tenth of a second of import

    try:
        if np.iscomplexobj(values):
            raise TypeError
        found = np.asarray(values, float)
    except (TypeError, ValueError, OverflowError):
        raise refuse(name, shown(values), allowed) from None
    if not np.all(np.isfinite(found)):
        raise refuse(name, shown(values), allowed)
    return found


def function(name: str, value: Any) -> Callable[..., Any]:
    """`value` if it can be called."""
    if not callable(value):
        raise refuse(name, shown(value), "a function")
    return value


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value` if it is one of the `allowed` words, else an error that suggests the nearest."""
    allowed = list(allowed)
    if isinstance(value, str) and value in allowed:
        return value
    near = difflib.get_close_matches(shown(value).strip("'"), allowed, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise refuse(name, shown(value), "one of " + ", ".join(allowed) + hint)


def of_type(name: str, value: Any, kind: Any, allowed: str) -> Any:
    """`value` if it is of this type."""
    if not isinstance(value, kind):
        raise refuse(name, shown(value), allowed)
    return value


def prng_key(name: str, value: Any) -> Any:
    """`value` if it is one key for random numbers."""
    import jax

    if is_traced(value):
        return value
    known = jax.random.key(0)
    if isinstance(value, jax.Array):
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key) and value.shape == ():
            return value
        words = jax.random.key_data(known)
        if (value.dtype, value.shape) == (words.dtype, words.shape):
            return value
    raise refuse(name, shown(value), "a key, such as jax.random.key(0)")
