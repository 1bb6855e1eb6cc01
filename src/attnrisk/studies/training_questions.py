"""Questions that are answered by training small decoders."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from .._check import one_of, whole
from .._results import record
from .question import AbstractQuestion, Answer, Record


@dataclass(frozen=True)
class AbstractTraining(AbstractQuestion):
    """A small decoder with an attention of the catalogue or a recurrence; sizes that are `None` are those of the task.

    `length` is a word where it comes from a study, as all lengths there.
    """

    package: ClassVar[str] = "trained"

    attention: str
    task: str = "recall"
    width: int = 64
    layers: int = 2
    steps: int = 1000
    batch_size: int = 64
    length: str | int | None = None
    pairs: int | None = None
    vocabulary: int | None = None
    precision: str = "float32"

    @property
    def label(self) -> str:
        return f"{self.attention}, {self.task}, width {self.width}"

    @property
    def compiled_with(self) -> tuple[Any, ...]:
        return tuple(getattr(self, each.name) for each in fields(AbstractTraining))

    @property
    def setting(self) -> Any:
        """What is trained."""
        from ..trained import TASKS, setting_of  # and optax, which only this needs

        one_of("task", self.task, TASKS)
        length = self.length
        if isinstance(length, str):
            length = whole("length", int(length) if length.isdecimal() else length)
        return setting_of(self.inputs | {"length": length})

    def check(self) -> None:
        assert self.setting is not None


@dataclass(frozen=True)
class Train(AbstractTraining):
    """One training, as `attnrisk train` does it."""

    kind: ClassVar[str] = "train"
    batch: ClassVar[int] = 12

    learning_rate: float = 3e-3
    seed: int = 0

    def answer(self) -> Record:
        (found,) = self.answer_all([self])
        assert isinstance(found, dict)
        return found

    @classmethod
    def answer_all(cls, questions: Sequence[Self]) -> list[Answer]:
        from ..trained import Copy, train

        copies = [Copy(each.learning_rate, each.seed) for each in questions]
        return [record(each) for each in train(questions[0].setting, copies)]


@dataclass(frozen=True)
class TrainGrid(AbstractTraining):
    """A training for each pair of a learning rate and a seed, all at once.

    `best_accuracy` is that of the Bayes predictor, where it is known.
    """

    kind: ClassVar[str] = "train grid"

    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    seeds: tuple[int, ...] = (0, 1, 2)

    def answer(self) -> list[Record]:
        from ..trained import train_grid

        return train_grid(self.inputs)
