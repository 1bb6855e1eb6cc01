"""Token tasks: multi-query associative recall, a needle among noise, and character language modelling.

Every task draws batches of one form. Arrays are int32 and float32, whatever the default precision of jax is.
"""

import inspect
import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import ndtr

from .._check import real, refuse, whole

LARGEST_LENGTH, LARGEST_VOCABULARY = 2**16, 2**17
SPLITS = ("train", "validation", "test")
# Keys of validation and test data, and of a finite training set: the same for every seed of a training.
_DATA_SEEDS = {"train": 20250921, "validation": 20250922, "test": 20250923}
_LEVELS = 16  # into which the noisy mark of the needle task is binned
_TEXT_SHARES = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}


class Batch(NamedTuple):
    """Sequences of tokens, and the targets after some of their positions.

    `weights` are 1 for targets and 0 for padding.
    """

    tokens: Int[Array, "count length"]
    positions: Int[Array, "count queries"]
    targets: Int[Array, "count queries"]
    weights: Float[Array, "count queries"]


class AbstractTokenTask(eqx.Module):
    """A next-token prediction task."""

    name: eqx.AbstractClassVar[str]

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Size of the vocabulary."""

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Number of tokens in a sequence."""

    @abstractmethod
    def batch(self, key: Array, count: int) -> Batch:
        """Random training sequences."""

    @abstractmethod
    def held_out(self, split: str, count: int) -> Batch:
        """At most `count` validation or test sequences, the same in every call."""


class AbstractDrawn(AbstractTokenTask):
    """A task whose sequences are generated: without limit, or as a training set of `sequences`."""

    sequences: eqx.AbstractVar[int | None]

    @abstractmethod
    def draw(self, key: Array) -> tuple[Array, Array, Array]:
        """Tokens, positions and targets of one sequence."""

    def batch(self, key: Array, count: int) -> Batch:
        if self.sequences is None:
            return self._drawn(jax.random.split(key, count))
        chosen = jax.random.randint(key, (count,), 0, self.sequences, jnp.int32)
        data = jax.random.key(_DATA_SEEDS["train"])
        return self._drawn(jax.vmap(lambda one: jax.random.fold_in(data, one))(chosen))

    def held_out(self, split: str, count: int) -> Batch:
        return self._drawn(jax.random.split(jax.random.key(_DATA_SEEDS[split]), count))

    def _drawn(self, keys: Array) -> Batch:
        tokens, positions, targets = jax.vmap(self.draw)(keys)
        return Batch(tokens, positions, targets, jnp.ones(targets.shape, jnp.float32))


class Recall(AbstractDrawn):
    """Multi-query associative recall: `pairs` of a key and a value, then each key again, with its value as the target.

    Keys are the lower half of the `vocabulary`, values the upper half. The positions of the queries are drawn without
    replacement, with probabilities proportional to `slot^(power - 1)`; 1 is uniform. The rest is filled with values, or
    with any token if `keys_in_filler` is set.
    """

    name: ClassVar[str] = "recall"
    pairs: int = eqx.field(static=True, default=16)
    vocabulary: int = eqx.field(static=True, default=256)
    length: int = eqx.field(static=True, default=128)
    power: float = eqx.field(static=True, default=1.0)
    keys_in_filler: bool = eqx.field(static=True, default=False)
    sequences: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        whole("pairs", self.pairs)
        whole("vocabulary", self.vocabulary, 2, LARGEST_VOCABULARY)
        whole("length", self.length, 1, LARGEST_LENGTH)
        real("power", self.power, above=0.0)
        if self.vocabulary < 2 * self.pairs:
            raise refuse("vocabulary", self.vocabulary, f"at least {2 * self.pairs}: half are keys")
        if self.length < 4 * self.pairs:
            raise refuse("length", self.length, f"at least {4 * self.pairs}, four per pair")

    @property
    def tokens(self) -> int:
        return self.vocabulary

    @property
    def sequence_length(self) -> int:
        return self.length

    def draw(self, key: Array) -> tuple[Array, Array, Array]:
        half, context = self.vocabulary // 2, 2 * self.pairs
        slots = np.arange(1, (self.length - context) // 2 + 1, dtype=np.float32)
        sizes = half, self.pairs, slots.size, self.length
        # One call for all random numbers: each call is compiled in every training.
        uniform = jax.random.uniform(key, (sum(sizes),), jnp.float32, 1e-30)
        for_keys, for_values, for_slots, for_filler = jnp.split(uniform, np.cumsum(sizes)[:-1])
        keys = jax.lax.top_k(for_keys, self.pairs)[1].astype(jnp.int32)
        values = _whole_numbers(for_values, half, self.vocabulary)
        # The largest of log-probability plus Gumbel noise: a draw without replacement.
        gumbel = -jnp.log(-jnp.log(for_slots))
        chosen = jax.lax.top_k((self.power - 1.0) * np.log(slots) + gumbel, self.pairs)[1]
        positions = context + 2 * chosen.astype(jnp.int32)
        filler = _whole_numbers(for_filler, 0 if self.keys_in_filler else half, self.vocabulary)
        told = jnp.stack([keys, values], 1).ravel()
        tokens = filler.at[:context].set(told).at[positions].set(keys)
        return tokens, positions, values


def _whole_numbers(uniform: Array, low: int, high: int) -> Array:
    """Whole numbers from `low` to below `high`, of numbers between 0 and 1."""
    drawn = low + jnp.floor(uniform * (high - low)).astype(jnp.int32)
    return jnp.minimum(drawn, high - 1)  # rounding may reach `high`


class Needle(AbstractDrawn):
    """Single-location regression as a token task: the target is the value of one marked token among `length`.

    A token is a pair of a mark and one of `vocabulary` values. The mark is the binned field `χ*` of the spiked task:
    `N(√ν, 1)` for the needle and `N(0, 1)` for the others. `nu` is `4 log(length)` by default, where exact risks
    separate the attentions.
    """

    name: ClassVar[str] = "needle"
    vocabulary: int = eqx.field(static=True, default=16)
    length: int = eqx.field(static=True, default=64)
    nu: float | None = eqx.field(static=True, default=None)
    sequences: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        whole("vocabulary", self.vocabulary, 2, LARGEST_VOCABULARY // _LEVELS)
        whole("length", self.length, 2, LARGEST_LENGTH)
        if self.nu is not None:
            real("nu", self.nu, minimum=0.0, maximum=1e4)

    @property
    def tokens(self) -> int:
        return _LEVELS * self.vocabulary + 1

    @property
    def sequence_length(self) -> int:
        return self.length + 1

    @property
    def shift(self) -> float:
        """`√ν`."""
        return math.sqrt(4.0 * math.log(self.length) if self.nu is None else self.nu)

    @property
    def edges(self) -> Float[Array, " edges"]:
        """Edges of the bins of the mark; the two outer bins are open."""
        return jnp.linspace(-2.0, self.shift + 2.0, _LEVELS - 1, dtype=jnp.float32)

    def draw(self, key: Array) -> tuple[Array, Array, Array]:
        marks, values, needle = self._draw(key)
        query = jnp.full(1, self.tokens - 1, jnp.int32)
        tokens = jnp.concatenate([marks * self.vocabulary + values, query])
        return tokens, jnp.full(1, self.length, jnp.int32), values[needle][None]

    def _draw(self, key: Array) -> tuple[Array, Array, Array]:
        for_marks, for_others = jax.random.split(key)
        drawn = jax.random.uniform(for_others, (self.length + 1,), jnp.float32)
        needle = _whole_numbers(drawn[0], 0, self.length)
        values = _whole_numbers(drawn[1:], 0, self.vocabulary)
        fields = jax.random.normal(for_marks, (self.length,), jnp.float32)
        fields = fields.at[needle].add(jnp.float32(self.shift))
        marks = jnp.sum(fields[:, None] > self.edges, 1, dtype=jnp.int32)
        return marks, values, needle

    def best_accuracy(self, count: int = 20_000) -> float:
        """Accuracy of the Bayes predictor, which knows the distribution of the marks, measured on `count` sequences."""
        edges = np.asarray(self.edges, float)
        cuts = [np.r_[0.0, ndtr(edges - mean), 1.0] for mean in (self.shift, 0.0)]
        needle, noise = (jnp.asarray(np.diff(cut), jnp.float32) for cut in cuts)
        ratio = needle / jnp.maximum(noise, 1e-30)  # a bin that noise never reaches

        def is_right(key: Array) -> Array:
            marks, values, at = self._draw(key)
            chances = jnp.zeros(self.vocabulary, jnp.float32).at[values].add(ratio[marks])
            return jnp.argmax(chances) == values[at]

        keys = jax.random.split(jax.random.key(_DATA_SEEDS["test"]), count)
        return float(jnp.mean(jax.jit(jax.vmap(is_right))(keys)))


class Text(AbstractTokenTask):
    """Next-character prediction; the text is split in order, 80 % training, 10 % validation, 10 % test."""

    name: ClassVar[str] = "text"
    text: str = eqx.field(static=True, repr=False)
    length: int = eqx.field(static=True, default=256)

    def __check_init__(self) -> None:
        whole("length", self.length, 2, LARGEST_LENGTH)
        if len(self.text) < 100:  # ten characters to be tested on
            raise refuse("text", f"{len(self.text)} characters", "at least 100 characters")
        if len(set(self.text)) < 2:
            raise refuse("text", "one character repeated", "of at least two different characters")
        if len(self.characters) > LARGEST_VOCABULARY:
            allowed = f"at most {LARGEST_VOCABULARY} different characters"
            raise refuse("text", f"{len(self.characters)} different characters", allowed)

    @cached_property
    def characters(self) -> str:
        """The distinct characters, sorted."""
        return "".join(sorted(set(self.text)))

    @cached_property
    def codes(self) -> np.ndarray:
        """The text as token numbers."""
        number = {character: code for code, character in enumerate(self.characters)}
        return np.array([number[character] for character in self.text], np.int32)

    @property
    def tokens(self) -> int:
        return len(self.characters)

    @property
    def sequence_length(self) -> int:
        return self.length

    def _part(self, split: str) -> np.ndarray:
        first, last = (round(share * self.codes.size) for share in _TEXT_SHARES[split])
        return self.codes[first:last]

    def batch(self, key: Array, count: int) -> Batch:
        part = jnp.asarray(self._part("train"))
        starts = jax.random.randint(
            key, (count,), 0, max(part.size - self.length, 1), dtype=jnp.int32
        )
        return self._windows(part, starts)

    def held_out(self, split: str, count: int) -> Batch:
        part = jnp.asarray(self._part(split))
        starts = jnp.arange(0, part.size - 1, self.length, dtype=jnp.int32)[:count]
        return self._windows(part, starts)

    def _windows(self, part: Any, starts: Array) -> Batch:
        """Windows of the text; one that reaches beyond the end is padded."""
        positions = jnp.arange(self.length, dtype=jnp.int32)
        at = starts[:, None] + positions
        last = part.size - 1
        return Batch(
            part[jnp.minimum(at, last)],
            jnp.broadcast_to(positions, at.shape),
            part[jnp.minimum(at + 1, last)],
            (at < last).astype(jnp.float32),
        )


def python_documentation() -> str:
    """The documentation text that ships with Python; it differs slightly between versions of Python."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


# The recall benchmark of Arora et al. (arXiv 2312.04927, figure 2): (length, pairs) of its four settings.
ZOOLOGY_SIZES = ((64, 4), (128, 8), (256, 16), (512, 64))


def zoology(length: int) -> Recall:
    """The setting of Arora et al. with sequences of this length."""
    pairs = dict(ZOOLOGY_SIZES).get(length)
    if pairs is None:
        allowed = "one of " + ", ".join(str(each) for each, _ in ZOOLOGY_SIZES)
        raise refuse("length", length, allowed)
    return Recall(
        pairs=pairs,
        vocabulary=8192,
        length=length,
        power=0.01,
        keys_in_filler=True,
        sequences=100_000,
    )


TASKS = ("recall", "needle", "text", "zoology")


def get_task(
    name: str,
    *,
    length: int | None = None,
    pairs: int | None = None,
    vocabulary: int | None = None,
    text: str | None = None,
) -> AbstractTokenTask:
    """Get a task by name; sizes that are not given have its defaults. Sizes it does not have raise an error."""
    sizes = {"length": length, "pairs": pairs, "vocabulary": vocabulary, "text": text}
    given = {size: value for size, value in sizes.items() if value is not None}
    kinds: dict[str, Any] = {"recall": Recall, "needle": Needle, "text": Text, "zoology": zoology}
    for size, value in given.items():
        if size not in inspect.signature(kinds[name]).parameters:
            shown = f"{len(value)} characters" if isinstance(value, str) else value
            raise refuse(size, shown, f"left out where the task is {name}")
    if name == "text":
        given.setdefault("text", python_documentation())
    if name == "zoology":
        given.setdefault("length", ZOOLOGY_SIZES[0][0])
    return kinds[name](**given)
