"""A study: one question asked at every point of a grid."""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .._check import LARGEST, Refusal, one_of, real, refuse, shown
from ..attention import DEFAULT_BIAS, FREE_BIAS
from ..tasks import parse_lengths
from .question import AbstractQuestion
from .questions import QUESTIONS
from .store import Row

MOST_POINTS = 10**6
_RANGE = ("from", "to", "points", "spacing")
Reader = Callable[[str, Any], Any]  # of one value, with the name of its axis
_SPACINGS: dict[str, Callable[..., np.ndarray]] = {"linear": np.linspace, "log": np.geomspace}


def _listed(given: Any) -> Any:
    """One value, a list of them, or the table of a range, as a list."""
    if isinstance(given, dict):
        return _range(given)
    if isinstance(given, str) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def _range(table: dict[str, Any]) -> list[float]:
    """`{from = 0.1, to = 10, points = 5, spacing = "log"}`; the spacing is linear if not given."""
    for key in table:
        one_of("range", key, _RANGE)
    for key in _RANGE[:3]:
        if key not in table:
            raise refuse("range", f"without {key!r}", "a table of from, to, points and spacing")
    spacing = one_of("spacing", table.get("spacing", "linear"), _SPACINGS)
    lowest = 0.0 if spacing == "log" else -math.inf
    ends = (real(key, _number(key, table[key]), above=lowest) for key in ("from", "to"))
    count = _whole("points", table["points"])
    if not 1 <= count <= MOST_POINTS:
        raise refuse("points", count, f"a whole number from 1 to {MOST_POINTS}")
    return _SPACINGS[spacing](*ends, count).tolist()


def _values(name: str, read: Reader, given: Any) -> tuple[Any, ...]:
    """The values of an axis, each read, none twice."""
    found = tuple(read(name, each) for each in _listed(given))
    if not found:
        raise refuse(name, "[]", "a value or a list that is not empty")
    if len(set(found)) < len(found):
        raise refuse(name, list(found), "a list without repetition")
    return found


def _number(name: str, value: Any) -> float:
    """A number; its range is checked by the question."""
    if isinstance(value, bool) or (isinstance(value, str) and value != "inf"):
        raise refuse(name, repr(value), "a number")
    return float(real(name, value, infinite=True)) + 0.0  # of the two zeros, the positive


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if not math.isfinite(number) or number != round(number):
        raise refuse(name, repr(value), "a whole number")
    return round(number)


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(name, repr(value), "a word")
    return value


def _bias(name: str, value: Any) -> str:
    """`free`, `default`, or a number in one spelling."""
    if isinstance(value, str) and value in (DEFAULT_BIAS, FREE_BIAS):
        return value
    allowed = f"{FREE_BIAS}, {DEFAULT_BIAS}, or a number between ±{LARGEST:g}"
    try:
        number = _number(name, value)
    except Refusal:
        raise refuse(name, shown(value), allowed) from None
    if abs(number) > LARGEST:
        raise refuse(name, shown(value), allowed)
    return repr(number)


def _law(name: str, value: Any) -> str:
    """A law of the length in the one spelling that keeps all digits of its probabilities."""
    law = parse_lengths(str(value))
    if ":" not in str(law):
        return str(law)
    pairs = zip(law.lengths.tolist(), law.probabilities.tolist(), strict=True)
    return ",".join(f"{length}:{probability!r}" for length, probability in pairs)


AXES: dict[str, Reader] = {
    **{"task": _word, "nu": _number, "length": _law, "noise": _number, "spread": _number},
    **{"features": _word, "attention": _word, "heads": _whole, "bias": _bias},
    **{"alpha": _number, "ridge_k": _number, "ridge_v": _number, "dim": _whole},
    **{"width": _whole, "layers": _whole, "steps": _whole, "batch_size": _whole, "pairs": _whole},
    **{"vocabulary": _whole, "learning_rate": _number, "seed": _whole},
}
# What may be left out though the question has no default for it, and what it is then: `ridge_v` equals `ridge_k`.
_MAY_LACK: dict[str, Any] = {"task": "spiked", "ridge_v": None, "seed": 0}


@dataclass(frozen=True, init=False)
class Study:
    """A quantity and a parameter grid on which it is evaluated, as the values of each axis.

    Each keyword is an axis: one value, a list, or a range `{"from": 1, "to": 8, "points": 4, "spacing": "log"}`. Axes
    that the question does not have, and invalid points, raise an error. If `ridge_v` is left out, it equals `ridge_k`
    at every point.
    """

    question: str
    axes: Mapping[str, tuple[Any, ...]] = field(hash=False)

    def __init__(self, **given: Any):
        for key in given:
            one_of("key", key, ("question", *AXES))
        if "question" not in given:
            raise refuse("question", "nothing", "given")
        question = one_of("question", _word("question", given["question"]), QUESTIONS)
        values = {name: _values(name, AXES[name], given[name]) for name in AXES if name in given}
        known = {each.name: each.default for each in fields(QUESTIONS[question])}
        for name in AXES:
            if name not in known and name in values:
                raise refuse(name, list(values[name]), f"left out where the question is {question}")
            if known.get(name) is MISSING and name not in (*values, *_MAY_LACK):
                raise refuse(name, "nothing", f"given where the question is {question}")
        usual = {
            name: (_MAY_LACK.get(name) if default is MISSING else default,)
            for name, default in known.items()
            if name in AXES
        }
        axes = {name: values.get(name, only) for name, only in usual.items()}
        axes = {name: values for name, values in axes.items() if values != (None,)}
        vars(self).update(question=question, axes=MappingProxyType(axes))
        if len(self) > MOST_POINTS:
            raise refuse("points", len(self), f"at most {MOST_POINTS}")
        self._check_points()

    def _check_points(self) -> None:
        """Refuse invalid points before the first is computed."""
        question = QUESTIONS[self.question]
        # What is allowed of a number is an interval, so that its ends tell of all.
        axes = {
            name: values if isinstance(values[0], str) else tuple({min(values), max(values)})
            for name, values in self.axes.items()
        }
        first = {name: values[:1] for name, values in axes.items()}
        alone = ({**first, name: values} for name, values in axes.items())
        crossed = (
            *(("task", "nu", "spread"), ("task", "length", "pairs")),
            *(("attention", "heads", "bias"), ("features", "dim"), ("length", "heads")),
        )
        together = (
            first | {name: axes[name] for name in names if name in axes} for names in crossed
        )
        for some in (*alone, *together):
            for inputs in _grid(some):
                question(**inputs).check()

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    @property
    def numerics(self) -> str:
        """Fingerprint of the code that computes the results."""
        return QUESTIONS[self.question](**next(iter(_grid(self.axes)))).numerics

    def has(self, row: Row) -> bool:
        """Whether a row of the store belongs to one of the points."""
        given, known = row.inputs, {each.name for each in fields(QUESTIONS[self.question])}
        if not given.keys() <= known:
            return False
        try:
            fits = all(given.get(name) in values for name, values in self._values.items())
        except TypeError:  # a damaged row may have lists
            return False
        if not fits:
            return False
        alike = "ridge_k" in given and "ridge_v" not in self.axes
        if alike and given["ridge_v"] != given["ridge_k"]:
            return False
        return QUESTIONS[self.question](**given).address == row.address

    @cached_property
    def _values(self) -> dict[str, frozenset[Any]]:
        return {name: frozenset(values) for name, values in self.axes.items()}

    @property
    def points(self) -> list[AbstractQuestion]:
        """The questions at all points, last axis fastest."""
        return [QUESTIONS[self.question](**inputs) for inputs in _grid(self.axes)]


def read_study(path: str | Path) -> Study:
    """Read a study from a TOML file.

    Args:
        path: The file.

    Returns:
        A `Study`.
    """
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers of 5000 digits, and deep brackets
        raise refuse("study", repr(str(path)), f"a TOML file ({error})") from None
    return Study(**given)


def _grid(axes: Mapping[str, tuple[Any, ...]]) -> Iterable[dict[str, Any]]:
    for values in product(*axes.values()):
        inputs = dict(zip(axes, values, strict=True))
        if "ridge_k" in inputs:
            inputs.setdefault("ridge_v", inputs["ridge_k"])
        yield inputs
