"""Datasets as .npz files, which `numpy.load` reads too: all tokens one below the other, and how many each sequence has.

| array | shape | meaning |
|---|---|---|
| `format` | | `attnrisk dataset 1` |
| `tokens` | (Σ lengths, D) | the tokens of the first sequence, then those of the second, and so on |
| `lengths`, `labels`, `locations` | (n,) | `L`, `y` and `ε` of each sequence |
| `teacher` | (2, D) | `k*` and `v*` |
| `task`, `nu`, `noise`, `spread` | | the task; `spread` is 1 where it has none |
| `law_lengths`, `law_probabilities` | (lengths,) | the law of the length |
"""

import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._check import one_of, refuse
from ..tasks import AbstractTask, LengthLaw, MaxSLR, SpikedSLR
from .data import (
    PRECISIONS,
    AbstractDataset,
    Block,
    Dataset,
    arrange,
    check_fits,
    held_shape,
    padded,
)

FORMAT = "attnrisk dataset 1"
_PER_SEQUENCE = "lengths", "labels", "locations"
_NUMBERS = "nu", "noise", "spread"
_LAW = "law_lengths", "law_probabilities"
_SLAB = 4096
# What reading raises: the last is zipfile's word for a compression that it does not know, as in a foreign file.
_DAMAGE = ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError


def save(data: AbstractDataset, path: str | Path) -> None:
    """Write block by block, so that a dataset larger than the memory can be saved; a file is there when it is whole."""
    path, described = Path(path), _described(data)
    part = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            columns = _write_tokens(archive, data)
            for name, values in (described | columns).items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _described(data: AbstractDataset) -> dict[str, Any]:
    """Everything about a dataset that is not one of its sequences."""
    task = data.task
    if not isinstance(task, SpikedSLR | MaxSLR):
        raise refuse("task", task.name, "spiked or max where a dataset is saved")
    numbers = (task.nu, task.noise, getattr(task, "spread", 1.0))
    law = (task.length.lengths, task.length.probabilities)
    named = dict(zip(_NUMBERS + _LAW, numbers + law, strict=True))
    return {"format": FORMAT, "task": task.name, "teacher": data.teacher} | named


def _write_tokens(archive: zipfile.ZipFile, data: AbstractDataset) -> dict[str, np.ndarray]:
    """Write the tokens, and return what else is known of the sequences."""
    rows = sum(int(np.sum(group.lengths)) for group in data.groups)
    shape = rows, data.dim
    header = {"descr": np.dtype(data.precision).str, "fortran_order": False, "shape": shape}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _PER_SEQUENCE}
    with archive.open("tokens.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for block in _blocks(data):
            member.write(np.ascontiguousarray(block.tokens[np.asarray(block.mask)]).data)
            there = block.lengths > 0
            for name, parts in columns.items():
                parts.append(getattr(block, name)[there])
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _blocks(data: AbstractDataset) -> Iterator[Block]:
    """One after the other, as NumPy arrays."""
    opened = eqx.filter_jit(lambda data, part: data.open(part))
    known = data.traceable()
    for group in data.groups:
        for at in range(group.lengths.shape[0]):
            part = jax.tree.map(lambda leaf: leaf[at], group)  # noqa: B023
            yield jax.tree.map(np.asarray, opened(known, part))


def load_dataset(path: str | Path) -> Dataset:
    """Read what `save` wrote; anything else is refused."""
    path = Path(path)
    check_fits(path.stat().st_size, f"file {path.name}")
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an .npz file")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _dataset(arrays)
    except _DAMAGE as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise refuse("path", repr(str(path)), f"a whole dataset of attnrisk ({why})") from None


def _dataset(arrays: dict[str, np.ndarray]) -> Dataset:
    """The dataset of these arrays, each of which is looked at."""
    if arrays["format"].dtype.kind != "U" or arrays["format"].item() != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    law = LengthLaw(*(arrays[name] for name in _LAW))
    task = _task(arrays["task"].item(), law, *(arrays[name].item() for name in _NUMBERS))
    _check_shapes(arrays)
    _check_values(arrays, law)
    groups = tuple(_groups(arrays, law))
    return Dataset(task, jnp.asarray(arrays["teacher"]), groups, arrays["tokens"].dtype.name)


def _task(name: str, law: LengthLaw, nu: float, noise: float, spread: float) -> AbstractTask:
    one_of("task", name, (SpikedSLR.name, MaxSLR.name))
    return SpikedSLR(nu, law, noise, spread) if name == SpikedSLR.name else MaxSLR(nu, law, noise)


def _check_shapes(arrays: dict[str, np.ndarray]) -> None:
    tokens, lengths = arrays["tokens"], arrays["lengths"]
    kinds = {"lengths": "iu", "labels": "f", "locations": "iu", "teacher": "f"}
    if tokens.dtype.name not in PRECISIONS or tokens.ndim != 2 or tokens.shape[1] < 2:
        raise ValueError("its tokens are not a table of float32 or float64")
    for name, kind in kinds.items():
        expected = (2, tokens.shape[1]) if name == "teacher" else (lengths.size,)
        if arrays[name].dtype.kind not in kind or arrays[name].shape != expected:
            raise ValueError(f"its {name} have the wrong shape or type")
    if not lengths.size or np.sum(lengths) != len(tokens):
        raise ValueError("its lengths do not add up to its tokens")


def _check_values(arrays: dict[str, np.ndarray], law: LengthLaw) -> None:
    lengths, locations, teacher = arrays["lengths"], arrays["locations"], arrays["teacher"]
    finite = all(np.all(np.isfinite(arrays[name])) for name in ("labels", "teacher"))
    if not finite or not all(np.all(np.isfinite(rows)) for rows in _slabs(arrays["tokens"])):
        raise ValueError("not all of its numbers are finite")
    if not np.all(np.isin(lengths, law.lengths)):
        raise ValueError("its lengths are not those of its law")
    if not np.all((locations >= 0) & (locations < lengths)):
        raise ValueError("its locations are not within its sequences")
    if not np.allclose(teacher @ teacher.T / teacher.shape[1], np.eye(2), atol=1e-9):
        raise ValueError("its teacher does not have |k*|² = |v*|² = D and k*·v* = 0")


def _slabs(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Some rows at a time, so that what is computed of them stays small."""
    return (rows[start : start + _SLAB] for start in range(0, len(rows), _SLAB))


def _groups(arrays: dict[str, np.ndarray], law: LengthLaw) -> Iterator[Block]:
    tokens, lengths = arrays["tokens"], arrays["lengths"].astype(int)
    first = np.cumsum(lengths) - lengths
    for longest, members in arrange(lengths, law):
        shape = held_shape(members.size, longest, tokens.shape[1], tokens.dtype.itemsize)
        held = np.zeros((*shape, longest, tokens.shape[1]), tokens.dtype)
        flat = held.reshape(-1, *held.shape[2:])
        for row, (at, length) in enumerate(zip(first[members], lengths[members], strict=True)):
            flat[row, :length] = tokens[at : at + length]
        columns = {name: arrays[name][members] for name in _PER_SEQUENCE}
        yield Block(jnp.asarray(held), **{name: padded(c, shape) for name, c in columns.items()})
