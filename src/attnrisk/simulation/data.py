"""Datasets of finite dimension, held in memory or drawn anew at every pass (section 8).

Sequences of like length form groups, and a group is cut into blocks of equal shape. Each sequence has its own key, so
that a dataset depends on its key alone and not on how it is cut.
"""

import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray

from .._check import one_of, refuse
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from ..tasks import AbstractPlanted, AbstractSelected, AbstractTask, LengthLaw

PRECISIONS = ("float32", "float64")
MOST_SEQUENCES, LARGEST_DIM = 10**8, 10**8
_MOST_EXACT = 8  # lengths with a group each; of more, those of like size share one, padded
_CACHED = 2**22  # bytes of a block that its second product finds in the cache of one core
_MOST_SLICES = 64  # of the rows, in the transposed product on an accelerator
_STORED = {"f": float, "i": np.int32, "u": np.uint32}  # labels, lengths and keys of a sequence
_BURST = 2**28  # bytes of a block that is drawn anew on an accelerator, which launches slowly


class Block(eqx.Module):
    """Some sequences; `lengths` is 0 and all else zero where a row is empty, and tokens past the length are zero."""

    tokens: Float[Array, "s L D"]
    labels: Float[Array, " s"]
    lengths: Int[Array, " s"]
    locations: Int[Array, " s"]

    @property
    def mask(self) -> Bool[Array, "s L"]:
        """Which tokens there are."""
        return jnp.arange(self.tokens.shape[-2]) < self.lengths[..., None]

    def fields(self, vectors: Float[Array, "c D"]) -> Float[Array, "s L c"]:
        """`X w/√D` of several vectors, summed in the precision of the tokens."""
        rows = self.tokens.reshape(-1, self.tokens.shape[-1])
        vectors = (vectors / jnp.sqrt(rows.shape[-1])).astype(rows.dtype)
        if len(vectors) > _few():
            found = jnp.matmul(rows, vectors.T, precision="highest")
        else:
            each = [jnp.matmul(rows, vector, precision="highest") for vector in vectors]
            found = jnp.stack(each, -1)
        return found.astype(float).reshape(*self.tokens.shape[:-1], -1)

    def transposed(self, fields: Float[Array, "s L c"]) -> Float[Array, "c D"]:
        """`Xᵀ f/√D` of several fields, summed in the precision of the tokens, and slices of them in double."""
        rows = self.tokens.reshape(-1, self.tokens.shape[-1])
        fields = (fields / jnp.sqrt(rows.shape[-1])).reshape(rows.shape[0], -1).astype(rows.dtype)
        if (slices := _slices(rows.shape[0])) > 1:
            cut = (each.reshape(slices, -1, each.shape[-1]) for each in (rows, fields))
            return jnp.sum(jnp.einsum("prd,prc->pcd", *cut, precision="highest").astype(float), 0)
        if fields.shape[1] > _few():
            return jnp.matmul(fields.T, rows, precision="highest").astype(float)
        each = [jnp.matmul(column, rows, precision="highest") for column in fields.T]
        return jnp.stack(each).astype(float)


def _few() -> int:
    """Columns that are sooner multiplied one by one than together; an accelerator reads the tokens once for all."""
    return 2 if jax.default_backend() == "cpu" else 4


def _slices(rows: int) -> int:
    """Parts of a long sum, which keep an accelerator busy; a processor has short blocks instead."""
    most = 1 if jax.default_backend() == "cpu" else _MOST_SLICES
    return max(parts for parts in range(1, most + 1) if rows % parts == 0)


class Recipe(eqx.Module):
    """What a block is drawn from: for every sequence a key of its tokens, and what decides its location and noise.

    `chance` is uniform where the location is, and a Gumbel variable for each token where it depends on the tokens.
    """

    keys: PRNGKeyArray
    lengths: Int[Array, " s"]
    chance: Float[Array, "s _"]
    noise: Float[Array, " s"]
    longest: int = eqx.field(static=True)


class AbstractDataset(eqx.Module):
    """`n` sequences, their labels and the teacher `k*, v*`, with `|k*|² = |v*|² = D` and `k*·v* = 0` exactly.

    A teacher of this norm makes section 4 at the measured overlaps exact at any dimension.
    """

    task: eqx.AbstractVar[AbstractTask]
    teacher: eqx.AbstractVar[Float[Array, "2 D"]]
    groups: eqx.AbstractVar[tuple[Any, ...]]
    precision: eqx.AbstractVar[str]

    @abstractmethod
    def open(self, part: Any) -> Block:
        """The block of one part of a group."""

    @property
    def dim(self) -> int:
        """`D`."""
        return int(self.teacher.shape[-1])

    @property
    def n(self) -> int:
        """Sequences."""
        return int(sum(np.count_nonzero(group.lengths) for group in self.groups))

    @property
    def alpha(self) -> float:
        """`N/D`."""
        return self.n / self.dim

    @property
    def nbytes(self) -> int:
        """What its tokens take in memory, or would take."""
        rows = sum(group.lengths.size * longest_of(group) for group in self.groups)
        return int(rows * self.dim * np.dtype(self.precision).itemsize)

    def scan(
        self, step: Callable[[Any, Block, Any], tuple[Any, Any]], carry: Any, extras: Any = None
    ) -> tuple[Any, tuple[Any, ...]]:
        """`carry, output = step(carry, block, extra)` over all blocks, inside compiled code.

        `extras` and the outputs returned have an entry for each group, with an axis of blocks in front.
        """
        outputs = []
        for at, group in enumerate(self.groups):
            extra = None if extras is None else extras[at]

            def one(carry: Any, part: tuple[Any, Any]) -> tuple[Any, Any]:
                return step(carry, self.open(part[0]), part[1])

            carry, output = _over_blocks(one, carry, (group, extra))
            outputs.append(output)
        return carry, tuple(outputs)

    def traceable(self) -> Any:
        """Itself with the numbers of its task as arrays, so that compiled code is shared between their values."""
        return eqx.tree_at(lambda data: data.task, self, as_arrays(self.task))

    def overlaps(self, vectors: Float[Any, "2 D"]) -> Overlaps:
        """Of a `k` and a `v`."""
        students, teacher = np.asarray(vectors, float), np.asarray(self.teacher)
        return Overlaps(students @ teacher.T / self.dim, students @ students.T / self.dim)

    def save(self, path: str | Path) -> None:
        """Write an .npz file; `load_dataset` reads it, and so does `numpy.load`."""
        from .files import save

        save(self, path)


class Dataset(AbstractDataset):
    """All tokens in the memory of the device."""

    task: AbstractTask
    teacher: Float[Array, "2 D"]
    groups: tuple[Block, ...]
    precision: str = eqx.field(static=True)

    def open(self, part: Block) -> Block:
        return part


class StreamedDataset(AbstractDataset):
    """Nothing stored: every pass draws the tokens anew from their keys."""

    task: AbstractTask
    teacher: Float[Array, "2 D"]
    groups: tuple[Recipe, ...]
    precision: str = eqx.field(static=True)

    def open(self, part: Recipe) -> Block:
        return draw(self.task, self.teacher, part, self.precision)


def sample(
    task: AbstractTask, key: PRNGKeyArray, n: int, dim: int, dtype: DTypeLike = float
) -> Dataset:
    """Draw `n` sequences with tokens in `dim` dimensions, float32 or float64, and hold them in memory."""
    recipe = _recipe(task, key, n, dim, dtype, _CACHED)
    check_fits(recipe.nbytes, f"n = {n}, dim = {dim}")
    groups = tuple(_held(recipe.traceable(), group) for group in recipe.groups)
    # An interpreter that is interrupted while threads draw would crash.
    jax.block_until_ready(groups)
    return Dataset(task, recipe.teacher, groups, recipe.precision)


def stream(
    task: AbstractTask, key: PRNGKeyArray, n: int, dim: int, dtype: DTypeLike = float
) -> StreamedDataset:
    """The dataset that `sample` would draw, for one that does not fit: slow, in next to no memory."""
    size = _CACHED if jax.default_backend() == "cpu" else _BURST
    return _recipe(task, key, n, dim, dtype, size)


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number in this range."""
    if not isinstance(value, int | np.integer) or not least <= value <= most:
        raise refuse(name, value, f"a whole number from {least} to {most}")
    return int(value)


def check_fits(needed: int, what: str) -> None:
    """Refuse what the memory of the device has no room for."""
    free = free_memory()
    if needed > free:
        sizes = f"{needed / 2**30:.3g} GiB of tokens"
        allowed = f"at most the {free / 2**30:.3g} GiB that are free; stream what is larger"
        raise refuse("size", f"{sizes} ({what})", allowed)


def free_memory() -> float:
    """Bytes that the device has left; infinite where it does not say."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats.get("bytes_limit", np.inf) - stats.get("bytes_in_use", 0)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (available,) = (line for line in lines if line.startswith("MemAvailable"))
        return 1024.0 * int(available.split()[1])
    except (OSError, ValueError):  # no Linux: all of the memory, as the free part is not known
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def samplable(task: AbstractTask) -> AbstractPlanted | AbstractSelected:
    """The task, if there is an exact way to draw from it."""
    if isinstance(task, AbstractPlanted | AbstractSelected):
        return task
    allowed = "planted (spiked) or selected (max) to be drawn: a free weight has no exact sampler"
    raise refuse("task", task.name, allowed)


def longest_of(group: Any) -> int:
    """Tokens of a sequence in this group, padding included."""
    return int(group.tokens.shape[-2] if isinstance(group, Block) else group.longest)


def as_precision(dtype: DTypeLike) -> str:
    """`float32` or `float64`."""
    return one_of("dtype", np.dtype(dtype).name, PRECISIONS)


def orthogonal(pair: Float[np.ndarray, "2 D"]) -> Float[np.ndarray, "2 D"]:
    """`k*` and `v*` of squared norm `D`, `v*` without its share along `k*`."""
    first, second = pair
    second = second - first * (first @ second) / (first @ first)
    both = np.stack([first, second])
    return both * np.sqrt(pair.shape[1] / np.sum(both**2, 1, keepdims=True))


def arrange(lengths: np.ndarray, law: LengthLaw) -> list[tuple[int, np.ndarray]]:
    """Which sequences form a group, and how long its longest may be: each length of the law has its own, or shares one
    with lengths down to more than half of it."""
    support = np.asarray(law.lengths)
    if support.size > _MOST_EXACT:
        octaves = [int(length - 1).bit_length() for length in support.tolist()]
        support = np.array([support[octaves == octave].max() for octave in np.unique(octaves)])
    of_group = np.searchsorted(support, lengths)
    order = np.argsort(of_group, kind="stable")
    bounds = np.searchsorted(of_group[order], np.arange(support.size + 1))
    found = (
        (int(longest), order[start:end])
        for longest, start, end in zip(support, bounds, bounds[1:], strict=False)
    )
    return [(longest, members) for longest, members in found if members.size]


def held_shape(count: int, longest: int, dim: int, itemsize: int) -> tuple[int, int]:
    """Blocks of a group in memory, and sequences in each; an accelerator gains nothing from small blocks."""
    if jax.default_backend() != "cpu":
        return 1, count
    return blocks_of(count, longest, dim, itemsize, _CACHED)


def blocks_of(count: int, longest: int, dim: int, itemsize: int, size: int) -> tuple[int, int]:
    """How many blocks of about `size` bytes, and sequences in each."""
    blocks = -(-count * longest * dim * itemsize // size)
    each = -(-count // min(max(int(blocks), 1), count))
    return -(-count // each), each


def _recipe(
    task: AbstractTask, key: PRNGKeyArray, n: int, dim: int, dtype: DTypeLike, size: int
) -> StreamedDataset:
    """Everything but the tokens, which are drawn on the device; this little is drawn here, to compile less."""
    task, precision = samplable(task), as_precision(dtype)
    n, dim = whole("n", n, 1, MOST_SEQUENCES), whole("dim", dim, 2, LARGEST_DIM)
    words, key_kind = np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)
    rng = np.random.default_rng(words)
    teacher = orthogonal(rng.normal(size=(2, dim)))
    lengths = rng.choice(task.length.lengths, n, p=task.length.probabilities)
    keys = rng.integers(2**32, size=(n, *words.shape), dtype=np.uint32)
    uniform, noise = rng.random((n, 1)), rng.normal(size=n)
    groups = []
    for longest, members in arrange(lengths, task.length):
        shape = blocks_of(members.size, longest, dim, np.dtype(precision).itemsize, size)
        gumbel = rng.gumbel(size=(members.size, longest))
        chance = uniform[members] if isinstance(task, AbstractPlanted) else gumbel
        recipe = Recipe(
            keys=jax.random.wrap_key_data(padded(keys[members], shape), impl=key_kind),
            lengths=padded(lengths[members], shape),
            chance=padded(chance, shape),
            noise=padded(noise[members], shape),
            longest=longest,
        )
        groups.append(recipe)
    return StreamedDataset(task, jnp.asarray(teacher), tuple(groups), precision)


def padded(values: np.ndarray, shape: tuple[int, int]) -> Array:
    """One value for each sequence, in blocks, and zeros to fill the last."""
    flat = np.zeros((shape[0] * shape[1], *values.shape[1:]), _STORED[values.dtype.kind])
    flat[: len(values)] = values
    return jnp.asarray(flat.reshape(*shape, *values.shape[1:]))


@eqx.filter_jit
def _held(recipe: StreamedDataset, group: Recipe) -> Block:
    """A group in memory, drawn block by block."""
    blocks = jax.lax.map(recipe.open, group)
    if jax.default_backend() == "cpu":
        return blocks
    return jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), blocks)


def _over_blocks(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, parts: Any
) -> tuple[Any, Any]:
    """A scan, without a loop where there is but one block."""
    if parts[0].lengths.shape[0] > 1:
        return jax.lax.scan(step, carry, parts)
    carry, output = step(carry, jax.tree.map(lambda leaf: leaf[0], parts))
    return carry, jax.tree.map(lambda leaf: leaf[None], output)


def draw(task: Any, teacher: Float[Array, "2 D"], recipe: Recipe, precision: str) -> Block:
    """The sequences of a recipe (section 1)."""
    shape, lengths = (recipe.longest, teacher.shape[-1]), recipe.lengths
    tokens = jax.vmap(lambda key: jax.random.normal(key, shape, precision))(recipe.keys)
    there = (jnp.arange(recipe.longest) < lengths[:, None])[..., None]
    plain = Block(jnp.where(there, tokens, 0.0), jnp.zeros(lengths.shape), lengths, 0 * lengths)
    planted = isinstance(task, AbstractPlanted)
    located = (_planted if planted else _selected)(task, teacher, plain, recipe.chance)
    values = located.fields(teacher[1:])[jnp.arange(lengths.size), located.locations, 0]
    labels = jnp.where(lengths > 0, values + task.noise * recipe.noise, 0.0)
    return eqx.tree_at(lambda block: block.labels, located, labels)


def _planted(task: Any, teacher: Array, block: Block, uniform: Float[Array, "s 1"]) -> Block:
    """The block with one token of every sequence shifted and spread."""
    locations = jnp.floor(uniform[:, 0] * block.lengths).astype(block.lengths.dtype)
    here = (jnp.arange(block.tokens.shape[-2]) == locations[:, None]) & block.mask
    shift = (task.shift * teacher[0] / jnp.sqrt(teacher.shape[-1])).astype(block.tokens.dtype)
    moved = jnp.asarray(task.spread, block.tokens.dtype) * block.tokens + shift
    tokens = jnp.where(here[..., None], moved, block.tokens)
    return Block(tokens, block.labels, block.lengths, locations)


def _selected(task: Any, teacher: Array, block: Block, gumbel: Float[Array, "s L"]) -> Block:
    """The block with a token of every sequence chosen by its field."""
    fields, hard = block.fields(teacher[:1])[..., 0], jnp.isinf(task.sharpness)
    scores = jnp.where(hard, fields, jnp.where(hard, 0.0, task.sharpness) * fields + gumbel)
    locations = jnp.argmax(jnp.where(block.mask, scores, -jnp.inf), -1)
    return eqx.tree_at(lambda it: it.locations, block, locations.astype(block.lengths.dtype))
