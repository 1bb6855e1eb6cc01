"""What is chosen on the page, and the link that restores it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .._check import Refusal, one_of, refuse
from ..attention import CATALOGUE
from ..tasks import LengthLaw, parse_lengths

VIEWS = ("risk", "weights", "flow", "learning")
TASKS = ("spiked", "max")

# Positions of the sliders. On the max task, integrals take a minute where the signal is stronger, and finite.
NU: dict[str, tuple[float, ...]] = {
    "spiked": tuple(i / 4 for i in range(49)),
    "max": (*(i / 4 for i in range(25)), math.inf),
}
ALPHA = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)

# Points of the curves: fewer where each takes seconds.
CURVE_NU: dict[str, tuple[float, ...]] = {
    "spiked": (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0),
    "max": (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0),
}
CURVE_LENGTHS = {"spiked": (2, 5, 10, 30, 100, 1000), "max": (2, 4, 10, 30, 100)}

MOST_ATTENTIONS = 6  # more lines than that are a tangle
_LONGEST, _MOST_LENGTHS = 10**6, 1000
SEEDS = 10**6


@dataclass(frozen=True)
class State:
    """All that the page depends on; `length` as in `parse_lengths`."""

    view: str = "risk"
    task: str = "spiked"
    nu: float = 5.0
    length: str = "10"
    attentions: tuple[str, ...] = ("softmax", "softplus", "erf", "linear")
    alpha: float = 2.0
    seed: int = 0
    followed: str = "softmax"


def read_law(text: str) -> LengthLaw:
    """The law of the length, if it is one that this page can be quick about."""
    law = parse_lengths(text)
    if law.longest > _LONGEST or len(law.lengths) > _MOST_LENGTHS:
        allowed = f"at most {_MOST_LENGTHS} lengths of at most {_LONGEST} tokens on this page"
        raise refuse("length", text, allowed)
    return law


def nearest(positions: Sequence[float], value: float) -> float:
    """The position of a slider that is next to the value."""
    if value in positions:
        return value
    finite = [position for position in positions if math.isfinite(position)]
    return min(finite, key=lambda position: abs(position - min(value, finite[-1])))


def to_query(state: State) -> dict[str, str]:
    """The parameters of the link."""
    written = {field.name: getattr(state, field.name) for field in fields(State)}
    return {name: _written(value) for name, value in written.items()}


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def from_query(parameters: Mapping[str, str]) -> tuple[State, list[str]]:
    """The state of a link, and a sentence for each of its parameters that is not understood."""
    usual, found, notes = State(), dict[str, Any](), list[str]()
    readers = _readers(parameters.get("task", ""))
    for name, word in parameters.items():
        if name not in readers:
            notes.append(f"{name} is no parameter of this page.")
            continue
        try:
            found[name] = readers[name](word)
        except Refusal as refusal:
            usual_word = _written(getattr(usual, name))
            notes.append(f"{refusal}. The page shows {usual_word} instead.")
    return State(**found), notes


def _readers(task: str) -> dict[str, Callable[[str], Any]]:
    """How to read each parameter, on this task."""
    nu = NU.get(task, NU[State.task])
    return {
        "view": lambda word: one_of("view", word, VIEWS),
        "task": lambda word: one_of("task", word, TASKS),
        "nu": lambda word: _position("nu", word, nu),
        "length": lambda word: str(read_law(word)),
        "attentions": _read_attentions,
        "alpha": lambda word: _position("alpha", word, ALPHA),
        "seed": _read_seed,
        "followed": lambda word: one_of("followed", word, CATALOGUE),
    }


def _position(name: str, word: str, positions: Sequence[float]) -> float:
    allowed = f"a position of the slider, from {positions[0]:g} to {positions[-1]:g}"
    try:
        number = float(word)
    except ValueError:
        raise refuse(name, repr(word), allowed) from None
    if number not in positions:
        raise refuse(name, f"{number:g}", allowed)
    return number


def _read_attentions(word: str) -> tuple[str, ...]:
    given = word.split(",") if word else []
    names = tuple(dict.fromkeys(one_of("attentions", name, CATALOGUE) for name in given))
    if len(names) > MOST_ATTENTIONS:
        raise refuse("attentions", f"{len(names)} names", f"at most {MOST_ATTENTIONS}")
    return names


def _read_seed(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < len(str(SEEDS))):
        raise refuse("seed", repr(word), f"a whole number from 0 to {SEEDS - 1}")
    return int(word)
