"""A question: a frozen request with an address, answered by a flat record or a list of them."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from .._results import Estimate, Result
from .fingerprint import fingerprint

Record = dict[str, Any]
Answer = Record | list[Record]
_CONVERGED = frozenset(result.value for result in Result if result.converged)


def is_converged(result: str) -> bool:
    """Whether the `result` of a record is that of an answer which converged."""
    return result in _CONVERGED


def estimated(risk: Estimate) -> Record:
    """The record of an answer that is one converged number."""
    error = {"risk": float(risk.value), "risk_error": float(risk.error)}
    return error | {"result": str(Result.CONVERGED), "converged": True}


@dataclass(frozen=True)
class AbstractQuestion(ABC):
    """All inputs of a result, as plain numbers and strings.

    `kind` is its name in the store and in study files, and `package` the highest package that computes the answer. At
    most `batch` questions that share compiled code make one task of a worker: few where one takes long, so that little
    is lost when the worker is killed.
    """

    kind: ClassVar[str]
    package: ClassVar[str]
    batch: ClassVar[int] = 1

    @property
    def inputs(self) -> dict[str, Any]:
        """The fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def numerics(self) -> str:
        """The fingerprint of the code that answers."""
        return fingerprint(type(self))

    @property
    def address(self) -> str:
        """A hash of what decides the answer: the kind of question, its inputs, and the code."""
        content = [self.numerics, self.kind, self.inputs]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def label(self) -> str:
        """What progress displays show."""
        return self.kind

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        """Questions of one kind that agree in this share compiled code."""
        return ()

    def check(self) -> None:  # noqa: B027 -- most have nothing to refuse
        """Refuse inputs that are not allowed, before anything is computed."""

    @abstractmethod
    def answer(self) -> Answer:
        """Compute the answer."""

    @classmethod
    def answer_all(cls, questions: Sequence[Self]) -> list[Answer]:
        """The same for several questions that share compiled code."""
        return [question.answer() for question in questions]
