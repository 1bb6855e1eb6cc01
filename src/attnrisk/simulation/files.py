"""Datasets as .npz files, which `numpy.load` reads too: all tokens one below the other, and how many each sequence has.

| array | shape | meaning |
|---|---|---|
| `format` | | `attnrisk dataset 1` |
| `tokens` | (Σ lengths, D) | the tokens of the first sequence, then those of the second, and so on |
| `lengths`, `labels`, `locations` | (n,) | `L`, `y` and `ε` of each sequence |
| `teacher` | (T, D) | the key directions of the teacher, and `v*` |
| `task`, `nu`, `noise`, `spread` | | the name of the task and its numbers |
| `law_lengths`, `law_probabilities` | (lengths,) | the law of the length |
"""

import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from math import inf, prod
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._check import of_type, one_of, refuse
from .._files import replacement
from ..tasks import TASKS, AbstractTask, LengthLaw
from .data import (
    PRECISIONS,
    AbstractDataset,
    Block,
    Dataset,
    block_shape,
    check_memory,
    group_by_length,
    in_blocks,
)

FORMAT = "attnrisk dataset 1"
_COLUMNS = {"lengths": "iu", "labels": "f", "locations": "iu"}  # of each sequence, and their types
_LAW = "law_lengths", "law_probabilities"
_MOST_DESCRIBED = 2**24  # bytes of an array about the task; a law of 10^6 lengths takes half
_MOST_COMPRESSED = 100  # times; Gaussian numbers hardly shrink
# What reading raises. RuntimeError is how zipfile refuses what is encrypted or compressed in an unknown way, OSError
# comes of offsets that no file has, and TokenError of headers that NumPy cannot parse.
_DAMAGE = (
    *(ValueError, KeyError, EOFError, OSError, RuntimeError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def save(data: AbstractDataset, path: str | Path) -> None:
    """Write block by block, so that a dataset larger than the memory can be saved, and replace the file at the end."""
    task = data.task
    if TASKS.get(task.name) is not type(task):
        raise refuse("task", task.name, f"one of {', '.join(TASKS)} where a dataset is saved")
    described = {"format": FORMAT, "task": task.name, "teacher": data.teacher}
    described |= {name: getattr(task, name) for name in (*_numbers(type(task)), "spread")}
    law = task.length.lengths, task.length.probabilities
    described |= dict(zip(_LAW, law, strict=True))
    with replacement(path) as part, zipfile.ZipFile(part, "w", allowZip64=True) as archive:
        for name, values in (_write_tokens(archive, data) | described).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)


def _numbers(kind: type[AbstractTask]) -> list[str]:
    """The names of the numbers that a task is made from."""
    return [field.name for field in fields(kind) if field.name != "length"]


def _write_tokens(archive: zipfile.ZipFile, data: AbstractDataset) -> dict[str, Any]:
    """Write the tokens, and return the columns of the sequences."""
    rows = sum(int(np.sum(group.lengths)) for group in data.groups)
    precision = np.dtype(data.precision).str
    header = {"descr": precision, "fortran_order": False, "shape": (rows, data.dim)}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
    opened = eqx.filter_jit(lambda data, part: data.open(part))
    arrays = data.traceable()
    with archive.open("tokens.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for group in data.groups:
            for at in range(group.lengths.shape[0]):
                part = jax.tree.map(lambda leaf: leaf[at], group)  # noqa: B023
                block = jax.tree.map(np.asarray, opened(arrays, part))
                member.write(np.ascontiguousarray(block.tokens[np.asarray(block.mask)]).data)
                for name, parts in columns.items():
                    parts.append(getattr(block, name)[block.lengths > 0])
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def load_dataset(path: str | Path) -> Dataset:
    """Load a dataset written by `save`.

    Args:
        path: The .npz file.

    Returns:
        A `Dataset`.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "data.npz"
        >>> ar.sample(ar.SpikedSLR(nu=2.0, length=3), jax.random.key(0), n=12, dim=4).save(path)
        >>> ar.load_dataset(path).n
        12
    """
    path = Path(of_type("path", path, str | os.PathLike, "the path of a file"))
    try:
        if path.exists() and not path.is_file():  # a device may be endless
            raise refuse("path", repr(str(path)), "a regular file")
        opened = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise refuse("path", repr(str(path)), f"a file that can be read ({why})") from None
    with opened as file:
        with _refusing(path):
            if not zipfile.is_zipfile(file):
                raise ValueError("it is not an .npz file")
            archive = zipfile.ZipFile(file)
            task = _read_task(archive)
            n, (rows, dim), dtype = _check_headers(archive, task)
        law, size = task.length, rows * dim * dtype.itemsize
        groups = group_by_length(law.lengths, law)
        padded = sum(longest * law.probabilities[of].sum() for longest, of in groups) / law.mean()
        # In NumPy and on the device.
        check_memory(int(2 * size * padded), f"file {path.name}, n = {n}, dim = {dim}")
        with _refusing(path):
            return _read_dataset(archive, task, rows, dim, dtype)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Convert errors from damaged or foreign files to one line."""
    try:
        yield
    except _DAMAGE as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise refuse("path", repr(str(path)), f"a whole dataset of attnrisk ({why})") from None


def _read_header(
    archive: zipfile.ZipFile, name: str, kinds: str, shape: tuple[int, ...] | None = None
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, refused unless it is of these kinds and the archive holds as much as it says."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        np.lib.format.read_magic(member)
        found, is_transposed, dtype = np.lib.format.read_array_header_1_0(member)
        held = info.file_size - member.tell()
    if dtype.kind not in kinds or not dtype.isnative or shape not in (None, found) or is_transposed:
        raise ValueError(f"its {name} have the wrong shape or type")
    if prod(found) * dtype.itemsize != held:
        raise ValueError(f"its {name} are not as many as their header says")
    return found, dtype


def _read(archive: zipfile.ZipFile, name: str, kinds: str, most: float = _MOST_DESCRIBED) -> Any:
    """An array of one of these kinds and at most so many bytes."""
    if archive.getinfo(f"{name}.npy").file_size > most:
        raise ValueError(f"its {name} take more than {most} bytes")
    _read_header(archive, name, kinds)
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _read_task(archive: zipfile.ZipFile) -> AbstractTask:
    if _read(archive, "format", "U").item() != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    kind = TASKS[one_of("task", _read(archive, "task", "U").item(), TASKS)]
    law = LengthLaw(*(_read(archive, name, "fiu").ravel() for name in _LAW))
    numbers = {name: _read(archive, name, "fiu").item() for name in _numbers(kind)}
    return kind(length=law, **numbers)


def _check_headers(
    archive: zipfile.ZipFile, task: AbstractTask
) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """How many sequences there are, and shape and type of their tokens."""
    shape, dtype = _read_header(archive, "tokens", "fiu")
    if dtype.name not in PRECISIONS or len(shape) != 2 or shape[1] < 2:
        raise ValueError("its tokens are not a table of float32 or float64")
    info = archive.getinfo("tokens.npy")
    if info.file_size > _MOST_COMPRESSED * info.compress_size:
        raise ValueError("its tokens are compressed more than Gaussian numbers can be")
    _read_header(archive, "teacher", "f", (task.features + 1, shape[1]))
    n = prod(_read_header(archive, "lengths", "iu")[0])
    if not 1 <= n <= shape[0]:
        raise ValueError("its lengths do not add up to its tokens")
    for name, kinds in _COLUMNS.items():
        _read_header(archive, name, kinds, (n,))
    return n, shape, dtype


def _read_dataset(
    archive: zipfile.ZipFile, task: AbstractTask, rows: int, dim: int, dtype: np.dtype[Any]
) -> Dataset:
    """The dataset, each array of which is checked."""
    columns = {name: _read(archive, name, kinds, inf) for name, kinds in _COLUMNS.items()}
    lengths, labels, locations = columns.values()
    teacher = _read(archive, "teacher", "f", inf).astype(float)
    if not np.all(np.isfinite(labels)):
        raise ValueError("not all of its numbers are finite")
    if not np.all(np.isin(lengths, task.length.lengths)):
        raise ValueError("its lengths are not those of its law")
    if np.sum(lengths) != rows:
        raise ValueError("its lengths do not add up to its tokens")
    if not np.all((locations >= 0) & (locations < lengths)):
        raise ValueError("its locations are not within its sequences")
    if not np.allclose(teacher @ teacher.T / dim, np.eye(len(teacher)), atol=1e-9):
        raise ValueError("its teacher does not have |k*|² = |v*|² = D and k*·v* = 0")
    sequences: list[Any] = [None] * lengths.size  # where the tokens of each are held
    blocks = []
    for longest, members in group_by_length(lengths.astype(int), task.length):
        shape = block_shape(members.size, longest * dim * dtype.itemsize)
        held = np.zeros((*shape, longest, dim), dtype)
        for member, tokens in zip(members, held.reshape(-1, longest, dim), strict=False):
            sequences[member] = tokens[: lengths[member]]
        blocks.append(
            (held, {name: in_blocks(each[members], shape) for name, each in columns.items()})
        )
    is_finite = True
    with archive.open("tokens.npy") as stored:
        np.lib.format.read_magic(stored)
        np.lib.format.read_array_header_1_0(stored)
        for tokens in sequences:
            tokens.flat = np.frombuffer(stored.read(tokens.nbytes), dtype)
            is_finite = is_finite and bool(np.all(np.isfinite(tokens)))
    if not is_finite:
        raise ValueError("not all of its numbers are finite")
    groups = tuple(Block(jnp.asarray(held), **of_sequences) for held, of_sequences in blocks)
    return Dataset(task, jnp.asarray(teacher), groups, dtype.name)
