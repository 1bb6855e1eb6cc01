"""A study: one question asked at every point of a grid."""

import difflib
import math
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from .._check import LARGEST, Refusal, one_of, real, refuse, shown
from ..attention import DEFAULT_BIAS, FREE_BIAS
from ..tasks import parse_lengths
from .question import AbstractQuestion
from .questions import QUESTIONS
from .store import Row

MOST_POINTS = 10**6
_RANGE = ("from", "to", "points", "spacing")
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


def _axis(name: str, read: Callable[[str, Any], Any]) -> BeforeValidator:
    """The values of an axis, each read, none twice."""

    def values(given: Any) -> tuple[Any, ...]:
        found = tuple(read(name, each) for each in _listed(given))
        if not found:
            raise refuse(name, "[]", "a value or a list that is not empty")
        if len(set(found)) < len(found):
            raise refuse(name, list(found), "a list without repetition")
        return found

    return BeforeValidator(values)


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


Words = tuple[str, ...]
Numbers = tuple[float, ...]
Wholes = tuple[int, ...]


class Study(BaseModel):
    """A quantity and a parameter grid on which it is evaluated.

    Each keyword is an axis: one value, a list, or a range `{"from": 1, "to": 8, "points": 4, "spacing": "log"}`. Axes
    that the question does not have, and invalid points, raise an error. If `ridge_v` is left out, it equals `ridge_k`
    at every point.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: Annotated[str, BeforeValidator(partial(_word, "question"))]
    task: Annotated[Words | None, _axis("task", _word)] = None
    nu: Annotated[Numbers | None, _axis("nu", _number)] = None
    length: Annotated[Words | None, _axis("length", _law)] = None
    noise: Annotated[Numbers | None, _axis("noise", _number)] = None
    spread: Annotated[Numbers | None, _axis("spread", _number)] = None
    features: Annotated[Words | None, _axis("features", _word)] = None
    attention: Annotated[Words | None, _axis("attention", _word)] = None
    heads: Annotated[Wholes | None, _axis("heads", _whole)] = None
    bias: Annotated[Words | None, _axis("bias", _bias)] = None
    alpha: Annotated[Numbers | None, _axis("alpha", _number)] = None
    ridge_k: Annotated[Numbers | None, _axis("ridge_k", _number)] = None
    ridge_v: Annotated[Numbers | None, _axis("ridge_v", _number)] = None
    dim: Annotated[Wholes | None, _axis("dim", _whole)] = None
    width: Annotated[Wholes | None, _axis("width", _whole)] = None
    layers: Annotated[Wholes | None, _axis("layers", _whole)] = None
    steps: Annotated[Wholes | None, _axis("steps", _whole)] = None
    batch_size: Annotated[Wholes | None, _axis("batch_size", _whole)] = None
    pairs: Annotated[Wholes | None, _axis("pairs", _whole)] = None
    vocabulary: Annotated[Wholes | None, _axis("vocabulary", _whole)] = None
    learning_rate: Annotated[Numbers | None, _axis("learning_rate", _number)] = None
    seed: Annotated[Wholes | None, _axis("seed", _whole)] = None

    def __init__(self, **given: Any):
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _refusal(error) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        axes = _axes_of(one_of("question", self.question, QUESTIONS))
        for name in AXES:
            values = getattr(self, name)
            if values is None and name in axes and axes[name] is MISSING and name not in _MAY_LACK:
                raise refuse(name, "nothing", f"given where the question is {self.question}")
            if values is not None and name not in axes:
                raise refuse(name, list(values), f"left out where the question is {self.question}")
        if len(self) > MOST_POINTS:
            raise refuse("points", len(self), f"at most {MOST_POINTS}")
        self._check_points()
        return self

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
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Values of each axis with more than one value."""
        named = {}
        for name, default in _axes_of(self.question).items():
            usual = _MAY_LACK.get(name) if default is MISSING else default
            values = getattr(self, name)
            if values is not None or usual is not None:
                named[name] = (usual,) if values is None else values
        return named

    @property
    def numerics(self) -> str:
        """Fingerprint of the code that computes the results."""
        return QUESTIONS[self.question](**next(iter(_grid(self.axes)))).numerics

    def has(self, row: Row) -> bool:
        """Whether a row of the store belongs to one of the points."""
        given = row.inputs
        if not all(given.get(name) in values for name, values in self._values.items()):
            return False
        if "ridge_k" in given and self.ridge_v is None and given["ridge_v"] != given["ridge_k"]:
            return False
        return QUESTIONS[self.question](**given).address == row.address

    @cached_property
    def _values(self) -> dict[str, frozenset[Any]]:
        return {name: frozenset(values) for name, values in self.axes.items()}

    @property
    def points(self) -> list[AbstractQuestion]:
        """The questions at all points, last axis fastest."""
        return [QUESTIONS[self.question](**inputs) for inputs in _grid(self.axes)]


AXES = tuple(name for name in Study.model_fields if name != "question")
# What may be left out though the question has no default for it, and what it is then: `ridge_v` equals `ridge_k`.
_MAY_LACK: dict[str, Any] = {"task": "spiked", "ridge_v": None, "seed": 0}


def _axes_of(question: str) -> dict[str, Any]:
    """The axes that a question has, each with its default."""
    return {each.name: each.default for each in fields(QUESTIONS[question]) if each.name in AXES}


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


def _grid(axes: dict[str, tuple[Any, ...]]) -> Iterable[dict[str, Any]]:
    for values in product(*axes.values()):
        inputs = dict(zip(axes, values, strict=True))
        if "ridge_k" in inputs:
            inputs.setdefault("ridge_v", inputs["ridge_k"])
        yield inputs


def _refusal(error: ValidationError) -> Refusal:
    """The first error, in one line."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "study"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Study.model_fields, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return refuse("key", repr(name), "one of " + ", ".join(Study.model_fields) + hint)
    if first["type"] == "missing":
        return refuse(name, "nothing", "given")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Refusal):
        return cause
    return refuse(name, repr(first["input"]), first["msg"])
