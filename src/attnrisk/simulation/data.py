"""Datasets of finite dimension, held in memory or drawn again at every pass (section 8).

Sequences of similar length form a group, and a group is divided into blocks of equal shape. Each sequence has its own
random key, so that a dataset depends on its key alone and not on how it is divided.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray

from .._check import of_type, one_of, prng_key, real, refuse, shown, whole
from ..numerics.arrays import as_arrays
from ..population.overlaps import Overlaps
from ..tasks import AbstractSamplable, AbstractTask, LengthLaw

PRECISIONS = ("float32", "float64")
MOST_SEQUENCES, LARGEST_DIM = 10**8, 10**8
_MOST_NUMBERS = 1e13  # in the tokens of a dataset that is not stored
_MOST_EXACT = 8  # lengths with a group each; of more, those of similar size share one, padded
_CACHED = 2**22  # bytes of a block that its second product finds in the cache of one core
_BURST = 2**28  # bytes of a block that is drawn on an accelerator, where launches are slow
_MOST_SLICES = 64  # of the rows, in the transposed product on an accelerator
_STORED = {"f": float, "i": np.int32, "u": np.uint32}  # labels, lengths and keys of a sequence
_SEQUENCE_BYTES = 48  # of the key, length, location, label and noise of a sequence, with copies


def sequence_count(alpha: Any, dim: int) -> int:
    """`N`, the whole number nearest to `αD`."""
    if 1 <= (count := round(real("alpha", alpha, above=0.0) * dim)) <= MOST_SEQUENCES:
        return count
    raise refuse("alpha", alpha, f"such that N = alpha · dim is from 1 to {MOST_SEQUENCES}")


class Block(eqx.Module):
    """A block of sequences. An empty row has length 0 and zeros elsewhere; tokens past the length are zero."""

    tokens: Float[Array, "s L D"]
    labels: Float[Array, " s"]
    lengths: Int[Array, " s"]
    locations: Int[Array, " s"]

    @property
    def mask(self) -> Bool[Array, "s L"]:
        """Which tokens are not padding."""
        return jnp.arange(self.tokens.shape[-2]) < self.lengths[..., None]

    def fields(self, vectors: Float[Array, "c D"]) -> Float[Array, "s L c"]:
        """`X w/√D` of several vectors, summed in the precision of the tokens."""
        return _fields(self, vectors)

    def transposed(self, fields: Float[Array, "s L c"]) -> Float[Array, "c D"]:
        """`Xᵀ f/√D` of several fields, summed in the precision of the tokens, and slices of them in double."""
        rows = self.tokens.reshape(-1, self.tokens.shape[-1])
        fields = (fields / jnp.sqrt(rows.shape[-1])).reshape(rows.shape[0], -1).astype(rows.dtype)
        # Parts of a long sum keep an accelerator busy; a processor has short blocks instead.
        most = 1 if jax.default_backend() == "cpu" else _MOST_SLICES
        slices = max(parts for parts in range(1, most + 1) if rows.shape[0] % parts == 0)
        if slices > 1:
            cut = (each.reshape(slices, -1, each.shape[-1]) for each in (rows, fields))
            return jnp.sum(jnp.einsum("prd,prc->pcd", *cut, precision="highest").astype(float), 0)
        if fields.shape[1] > _few():
            return jnp.matmul(fields.T, rows, precision="highest").astype(float)
        each = [jnp.matmul(column, rows, precision="highest") for column in fields.T]
        return jnp.stack(each).astype(float)


@jax.custom_vjp
def _fields(block: Block, vectors: Float[Array, "c D"]) -> Float[Array, "s L c"]:
    rows = block.tokens.reshape(-1, block.tokens.shape[-1])
    vectors = (vectors / jnp.sqrt(rows.shape[-1])).astype(rows.dtype)
    if len(vectors) > _few():
        found = jnp.matmul(rows, vectors.T, precision="highest")
    else:
        each = [jnp.matmul(rows, vector, precision="highest") for vector in vectors]
        found = jnp.stack(each, -1)
    return found.astype(float).reshape(*block.tokens.shape[:-1], -1)


_fields.defvjp(
    lambda block, vectors: (_fields(block, vectors), block),
    lambda block, slopes: (None, block.transposed(slopes)),
)


def _few() -> int:
    """Number of columns up to which separate products are faster than one."""
    return 2 if jax.default_backend() == "cpu" else 4


class Recipe(eqx.Module):
    """The random numbers that a block is drawn from.

    For every sequence these are the key of its tokens, the numbers from which the task chooses the location and moves
    the relevant token, and the noise of the label.
    """

    keys: PRNGKeyArray
    lengths: Int[Array, " s"]
    location_noise: Float[Array, "s _"]
    label_noise: Float[Array, " s"]
    longest: int = eqx.field(static=True)


class AbstractDataset(eqx.Module):
    """`n` sequences with labels, and the teacher: its key directions, and `v*` in the last row.

    The teacher vectors have squared norm `D` and are exactly orthogonal, so the risk of section 4 at the measured
    overlaps is exact at any dimension.
    """

    task: eqx.AbstractVar[AbstractTask]
    teacher: eqx.AbstractVar[Float[Array, "T D"]]
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
        """The number of sequences."""
        return int(sum(np.count_nonzero(group.lengths) for group in self.groups))

    @property
    def alpha(self) -> float:
        """`N/D`."""
        return self.n / self.dim

    @property
    def nbytes(self) -> int:
        """Memory of all tokens in bytes, stored or not."""
        rows = sum(group.lengths.size * longest_of(group) for group in self.groups)
        return int(rows * self.dim * np.dtype(self.precision).itemsize)

    def scan(
        self, step: Callable[[Any, Block, Any], tuple[Any, Any]], carry: Any, extras: Any = None
    ) -> tuple[Any, tuple[Any, ...]]:
        """Compute `carry, output = step(carry, block, extra)` over all blocks, inside compiled code.

        `extras` and the outputs have one entry per group, with a leading axis of blocks.
        """
        outputs = []
        for at, group in enumerate(self.groups):
            parts = group, None if extras is None else extras[at]

            def one(carry: Any, part: tuple[Any, Any]) -> tuple[Any, Any]:
                return step(carry, self.open(part[0]), part[1])

            if group.lengths.shape[0] > 1:
                carry, output = jax.lax.scan(one, carry, parts)
            else:  # no loop around a single block
                carry, output = one(carry, jax.tree.map(lambda leaf: leaf[0], parts))
                output = jax.tree.map(lambda leaf: leaf[None], output)
            outputs.append(output)
        return carry, tuple(outputs)

    def traceable(self) -> Any:
        """A copy in which the numbers of the task are arrays, so compiled code is shared between their values."""
        return eqx.tree_at(lambda data: data.task, self, as_arrays(self.task))

    def overlaps(self, vectors: Float[Any, "P D"]) -> Overlaps:
        """Overlaps of student vectors of shape `(P, D)`."""
        students, teacher = np.asarray(vectors, float), np.asarray(self.teacher)
        return Overlaps(students @ teacher.T / self.dim, students @ students.T / self.dim)

    def save(self, path: str | Path) -> None:
        """Write an .npz file that `load_dataset` and `numpy.load` can read."""
        from .files import save

        save(self, path)


class Dataset(AbstractDataset):
    """A dataset whose tokens are stored in the memory of the device."""

    task: AbstractTask
    teacher: Float[Array, "T D"]
    groups: tuple[Block, ...]
    precision: str = eqx.field(static=True)

    def open(self, part: Block) -> Block:
        return part


class StreamedDataset(AbstractDataset):
    """A dataset whose tokens are not stored: every pass draws them again."""

    task: AbstractSamplable
    teacher: Float[Array, "T D"]
    groups: tuple[Recipe, ...]
    precision: str = eqx.field(static=True)

    def open(self, part: Recipe) -> Block:
        """The sequences of a recipe (section 1)."""
        shape, lengths = (part.longest, self.dim), part.lengths
        tokens = jax.vmap(lambda key: jax.random.normal(key, shape, self.precision))(part.keys)
        mask = jnp.arange(part.longest) < lengths[:, None]
        tokens = jnp.where(mask[..., None], tokens, 0.0)
        block = Block(tokens, jnp.zeros(lengths.shape), lengths, 0 * lengths)
        keys, value, noise = self.teacher[:-1], self.teacher[-1:], part.location_noise
        locations = self.task.choose_locations(noise, block.fields(keys), mask)
        is_relevant = (jnp.arange(part.longest) == locations[:, None]) & mask
        moved = self.task.move_relevant(tokens, keys, noise)
        tokens = jnp.where(is_relevant[..., None], moved, tokens)
        block = Block(tokens, block.labels, lengths, locations.astype(lengths.dtype))
        values = block.fields(value)[jnp.arange(lengths.size), locations, 0]
        labels = jnp.where(lengths > 0, values + self.task.noise * part.label_noise, 0.0)
        return eqx.tree_at(lambda block: block.labels, block, labels)


def sample(
    task: AbstractTask, key: PRNGKeyArray, n: int, dim: int, dtype: DTypeLike = float
) -> Dataset:
    """Draw a dataset of `n` sequences and store its tokens in memory.

    Args:
        task: A task with an exact sampler (`SpikedSLR`, `MaxSLR`, `FeatureSLR`).
        key: JAX random key.
        n: Number of sequences `N`.
        dim: Dimension `D` of a token.
        dtype: Floating-point type of the tokens, float32 or float64.

    Returns:
        A `Dataset`; `teacher` has shape `(F+1, D)`, its key directions first and `v*` last.

    Examples:
        >>> data = ar.sample(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(0), n=120, dim=30)
        >>> data.n, data.alpha, data.teacher.shape
        (120, 4.0, (2, 30))
    """
    recipe = _draw_recipe(task, key, n, dim, dtype, held=True)
    groups = tuple(_hold(recipe.traceable(), group) for group in recipe.groups)
    # An interpreter that is interrupted while threads draw would crash.
    jax.block_until_ready(groups)
    return Dataset(task, recipe.teacher, groups, recipe.precision)


def stream(
    task: AbstractTask, key: PRNGKeyArray, n: int, dim: int, dtype: DTypeLike = float
) -> StreamedDataset:
    """The same dataset as `sample` draws, without storing it: the tokens are drawn again at every pass.

    This is slower and needs little memory.

    Args:
        task: A task with an exact sampler.
        key: JAX random key.
        n: Number of sequences `N`.
        dim: Dimension `D` of a token.
        dtype: Floating-point type of the tokens, float32 or float64.

    Returns:
        A `StreamedDataset`, which the fitting functions accept like a `Dataset`.

    Examples:
        >>> ar.stream(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(0), n=120, dim=30).n
        120
    """
    return _draw_recipe(task, key, n, dim, dtype, held=False)


def check_data(data: Any) -> Any:
    return of_type("data", data, AbstractDataset, "a dataset, such as sample(task, key, 100, 20)")


def check_memory(needed: int, what: str, remedy: str = "") -> None:
    """Refuse a dataset larger than the free memory of the device."""
    if needed > (free := free_memory()):
        allowed = f"at most the {free / 2**30:.3g} GiB that are free{remedy}"
        raise refuse("size", f"{needed / 2**30:.3g} GiB ({what})", allowed)


def free_memory() -> float:
    """Free memory of the device in bytes; infinite if unknown."""
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


def longest_of(group: Any) -> int:
    """Tokens of a sequence in this group, padding included."""
    return int(group.tokens.shape[-2] if isinstance(group, Block) else group.longest)


def group_by_length(lengths: np.ndarray, law: LengthLaw) -> list[tuple[int, np.ndarray]]:
    """The largest length of each group, and its sequences.

    Each length of the law has its own group, or shares one with lengths down to more than half of the largest.
    """
    support = np.asarray(law.lengths)
    if support.size > _MOST_EXACT:
        octaves = [int(length - 1).bit_length() for length in support.tolist()]
        support = np.array([support[octaves == octave].max() for octave in np.unique(octaves)])
    group = np.searchsorted(support, lengths)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(1, support.size))
    members = zip(support.tolist(), np.split(order, bounds), strict=True)
    return [(longest, rows) for longest, rows in members if rows.size]


def block_shape(count: int, sequence_bytes: int, size: int | None = None) -> tuple[int, int]:
    """Number of blocks of about `size` bytes, and of sequences in each.

    Without a `size`, the default for data in memory; accelerators use one large block.
    """
    if size is None:
        size = _CACHED if jax.default_backend() == "cpu" else count * sequence_bytes
    blocks = min(max(-(-count * sequence_bytes // size), 1), count)
    each = -(-count // blocks)
    return -(-count // each), each


def in_blocks(values: np.ndarray, shape: tuple[int, int]) -> Array:
    """Values of each sequence, divided into blocks, with zeros to fill the last."""
    flat = np.zeros((shape[0] * shape[1], *values.shape[1:]), _STORED[values.dtype.kind])
    flat[: len(values)] = values
    return jnp.asarray(flat.reshape(*shape, *values.shape[1:]))


def _draw_recipe(
    task: AbstractTask, key: PRNGKeyArray, n: int, dim: int, dtype: DTypeLike, held: bool
) -> StreamedDataset:
    """Draw everything but the tokens with NumPy, to compile less; the tokens are drawn on the device."""
    if not isinstance(task, AbstractSamplable):
        given = task.name if isinstance(task, AbstractTask) else shown(task)
        allowed = "one with an exact sampler to be drawn: spiked, max or features"
        raise refuse("task", given, allowed)
    try:
        named = np.dtype(dtype).name
    except (TypeError, ValueError):
        raise refuse("dtype", shown(dtype), f"one of {', '.join(PRECISIONS)}") from None
    precision = one_of("dtype", named, PRECISIONS)
    n, dim = whole("n", n, 1, MOST_SEQUENCES), whole("dim", dim, 2, LARGEST_DIM)
    if not held and (count := n * task.length.mean() * dim) > _MOST_NUMBERS:
        given = f"{count:.1g} numbers (n = {n}, dim = {dim}, length = {task.length})"
        allowed = f"at most {_MOST_NUMBERS:g}, which a pass takes hours to draw"
        raise refuse("size", given, allowed)
    key = prng_key("key", key)
    words, key_kind = np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)
    rng = np.random.default_rng(words)
    token_bytes, vectors = dim * np.dtype(precision).itemsize, task.features + 1
    if dim < vectors:
        raise refuse("dim", dim, f"at least {vectors}, the number of directions of the teacher")
    size = _CACHED if held or jax.default_backend() == "cpu" else _BURST

    def check_size(groups: Iterable[tuple[int, int]]) -> None:
        needed = 2 * vectors * dim * 8  # the teacher and its copy on the device
        for longest, count in groups:
            # No numbers are drawn for no sequences, but their shape says how many there would be.
            numbers = task.location_noise(rng, np.empty((0, 1)), longest).shape[1]
            block = count if held else block_shape(count, longest * token_bytes, size)[1]
            needed += count * (_SEQUENCE_BYTES + 2 * 8 * numbers) + block * longest * token_bytes
        remedy = "; stream what is larger" if held else ""
        check_memory(needed, f"n = {n}, dim = {dim}, length = {task.length}", remedy)

    check_size([(int(task.length.lengths[0]), n)])
    teacher = _orthogonalise(rng.normal(size=(vectors, dim)))
    lengths = rng.choice(task.length.lengths, n, p=task.length.probabilities)
    members = group_by_length(lengths, task.length)
    check_size((longest, rows.size) for longest, rows in members)
    keys = rng.integers(2**32, size=(n, *words.shape), dtype=np.uint32)
    uniform, label_noise = rng.random((n, 1)), rng.normal(size=n)
    groups = []
    for longest, rows in members:
        shape = block_shape(rows.size, longest * token_bytes, size)
        recipe = Recipe(
            keys=jax.random.wrap_key_data(in_blocks(keys[rows], shape), impl=key_kind),
            lengths=in_blocks(lengths[rows], shape),
            location_noise=in_blocks(task.location_noise(rng, uniform[rows], longest), shape),
            label_noise=in_blocks(label_noise[rows], shape),
            longest=longest,
        )
        groups.append(recipe)
    return StreamedDataset(task, jnp.asarray(teacher), tuple(groups), precision)


def _orthogonalise(vectors: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T D"]:
    """Gram–Schmidt in place, to squared norms `D`."""
    for at, vector in enumerate(vectors):
        for earlier in vectors[:at]:
            vector -= earlier * (earlier @ vector) / (earlier @ earlier)
    for vector in vectors:
        vector *= np.sqrt(vector.size / np.sum(vector**2))
    return vectors


@eqx.filter_jit
def _hold(recipe: StreamedDataset, group: Recipe) -> Block:
    """A group in memory, drawn block by block."""
    blocks = jax.lax.map(recipe.open, group)
    if jax.default_backend() == "cpu":
        return blocks
    return jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), blocks)
