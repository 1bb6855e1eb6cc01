"""One way to refuse bad input: a `ValueError` naming the argument, what was given and what is allowed."""

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
    """Bad input, said in one line for the person who gave it."""


def is_traced(value: Any) -> bool:
    """Whether `value` is inside a jax transformation, where its number cannot be looked at."""
    from jax.core import Tracer  # a refusal can be caught without a second of import

    return isinstance(value, Tracer)


def check_double_precision() -> None:
    """Refuse to compute while the program has switched double precision off."""
    import jax  # a refusal can be caught without a second of import

    if not jax.config.read("jax_enable_x64"):
        raise Refusal(
            "jax_enable_x64 = False is not allowed: attnrisk computes in double precision; "
            'switch it on again with jax.config.update("jax_enable_x64", True)'
        )


def refuse(name: str, given: Any, allowed: str) -> Refusal:
    """The exception to raise."""
    shown = " ".join(str(given).split())
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}…"
    return Refusal(f"{name} = {shown} is not allowed: {name} must be {allowed}")


def real(
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    infinite: bool = False,
) -> Any:
    """`value` as a float within `[minimum, ∞)` and `(above, ∞)`; traced values pass through unseen."""
    lowest = f"> {above:g}" if above > -math.inf else f"≥ {max(minimum, -LARGEST):g}"
    allowed = f"a number {lowest} and ≤ {LARGEST:g}" + (", or inf" if infinite else "")
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise refuse(name, "(beyond 1e308)", allowed) from None
    except (TypeError, ValueError):
        if is_traced(value):
            return value
        raise refuse(name, repr(value), allowed) from None
    known = abs(number) <= LARGEST or (infinite and number == math.inf)
    if not known or number < minimum or number <= above:
        raise refuse(name, f"{number:g}", allowed)
    return number


def whole(name: str, value: Any, minimum: int = 1, maximum: int | None = None) -> int:
    """`value` as an integer within `[minimum, maximum]`."""
    allowed = f"a whole number ≥ {minimum}" + ("" if maximum is None else f" and ≤ {maximum}")
    try:
        number = operator.index(value)
    except TypeError:
        raise refuse(name, repr(value), allowed) from None
    if number < minimum or (maximum is not None and number > maximum):
        raise refuse(name, number, allowed)
    return number


def numbers(name: str, values: Any) -> "np.ndarray":
    """`values` as an array of real numbers."""
    import numpy as np  # a refusal can be caught without a tenth of a second of import

    try:
        if np.iscomplexobj(values):
            raise TypeError
        return np.asarray(values, float)
    except (TypeError, ValueError, OverflowError):
        raise refuse(name, repr(values), "real numbers") from None


def function(name: str, value: Any) -> Callable[..., Any]:
    """`value` if it can be called."""
    if not callable(value):
        raise refuse(name, repr(value), "a function")
    return value


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value` if it is one of the `allowed` words, else an error that suggests the nearest."""
    allowed = list(allowed)
    if value in allowed:
        return value
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise refuse(name, repr(value), "one of " + ", ".join(allowed) + hint)
