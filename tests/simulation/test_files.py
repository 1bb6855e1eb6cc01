"""Datasets as files: what is written is read again, and nothing else is."""

import io
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.tasks import AbstractSelected

TASKS = {
    "spiked": ar.SpikedSLR(2.0, 3, noise=0.1, spread=0.7),
    "hard": ar.MaxSLR(np.inf, ar.uniform(1, 2)),
    "padded": ar.MaxSLR(0.5, ar.uniform(17, 25)),
}


def assert_same(one, other):
    assert repr(one.task) == repr(other.task)
    assert (one.n, one.dim, one.precision) == (other.n, other.dim, other.precision)
    trees = (jax.tree.leaves((data.teacher, data.groups)) for data in (one, other))
    for ours, theirs in zip(*trees, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "dtype"), [("spiked", "float32"), ("hard", "float64"), ("padded", "float64")]
)
def test_round_trip(name, dtype, tmp_path):
    data = ar.sample(TASKS[name], jax.random.key(0), 100, 8, dtype)
    data.save(tmp_path / "data.npz")
    assert_same(ar.load_dataset(tmp_path / "data.npz"), data)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_a_stream_is_saved_too(tmp_path):
    held, streamed = (d(TASKS["spiked"], jax.random.key(0), 100, 8) for d in (ar.sample, ar.stream))
    streamed.save(tmp_path / "data.npz")
    assert_same(ar.load_dataset(tmp_path / "data.npz"), held)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "data.npz"
    ar.sample(TASKS["hard"], jax.random.key(0), 100, 8).save(path)
    return path


@pytest.fixture
def saved(original, tmp_path):
    return Path(shutil.copy(original, tmp_path))


def test_others_can_read_it(saved):
    with np.load(saved) as file:
        tokens, lengths, labels = file["tokens"], file["lengths"], file["labels"]
        locations, teacher = file["locations"], file["teacher"]
    relevant = tokens[np.cumsum(lengths) - lengths + locations]
    np.testing.assert_allclose(relevant @ teacher[1] / np.sqrt(8), labels, atol=1e-12)


def test_sequences_may_come_in_any_order(saved, rng):
    """Someone else's file need not be sorted by length."""
    with np.load(saved) as file:
        arrays = dict(file)
    order = rng.permutation(100)
    ends = np.cumsum(arrays["lengths"])
    starts = ends - arrays["lengths"]
    arrays["tokens"] = np.concatenate([arrays["tokens"][starts[i] : ends[i]] for i in order])
    for name in ("lengths", "labels", "locations"):
        arrays[name] = arrays[name][order]
    np.savez(saved.with_name("other.npz"), **arrays)
    one, other = (ar.load_dataset(p) for p in (saved, saved.with_name("other.npz")))
    attention, ridge = ar.Softmax(), ar.Ridge(1.0, 1.0)
    objectives = [ar.fit_erm(data, attention, ridge).objective for data in (one, other)]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-9)


def changed(name, change):
    """The same file with one array changed."""

    def change_file(path):
        with np.load(path) as file:
            arrays = dict(file)
        arrays[name] = change(arrays[name])
        np.savez(path, **{key: value for key, value in arrays.items() if value is not None})

    return change_file


def flipped(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    path.write_bytes(raw)


def one_array(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def with_objects(path):
    np.savez(path, format=np.array([{"a": 1}], dtype=object))


def with_negative(array):
    array = array.copy()
    array.flat[0] = -1
    return array


def with_nan(array):
    array = array.copy()
    array.flat[3] = np.nan
    return array


def with_header(name, shape, dtype="<f8", end=b"}"):
    """The same file with one array that has this header and no numbers."""

    def change_file(path):
        with zipfile.ZipFile(path) as archive:
            members = {each: archive.read(each) for each in archive.namelist()}
        header = io.BytesIO()
        described = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        members[f"{name}.npy"] = header.getvalue().replace(b"}", end)
        with zipfile.ZipFile(path, "w") as archive:
            for each, content in members.items():
                archive.writestr(each, content)

    return change_file


def inflating(path):
    """A few kilobytes that would become 64 megabytes."""
    with np.load(path) as file:
        arrays = dict(file) | {"tokens": np.zeros((2**20, 8))}
    np.savez_compressed(path, **arrays)


DAMAGE = {
    "empty": (lambda path: path.write_bytes(b""), "not an .npz"),
    "text": (lambda path: path.write_text("tokens"), "not an .npz"),
    "one array": (one_array, "not an .npz"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps([1])), "not an .npz"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-300]), "not an .npz"),
    "flipped": (flipped, "CRC"),
    "objects": (with_objects, "format"),
    "foreign": (lambda path: np.savez(path, x=np.ones(3)), "format"),
    "no arrays": (lambda path: zipfile.ZipFile(path, "w").close(), "format"),
    "another format": (changed("format", lambda a: np.array("attnrisk dataset 2")), "format"),
    "numeric format": (changed("format", lambda a: np.array(1.0)), "format"),
    "no tokens": (changed("tokens", lambda a: None), "tokens"),
    "fewer tokens": (changed("tokens", lambda a: a[:-1]), "add up"),
    "integers": (changed("tokens", lambda a: a.astype(int)), "float32 or float64"),
    "not finite": (changed("tokens", with_nan), "finite"),
    "infinite label": (changed("labels", lambda a: a / 0.0), "finite"),
    "fewer labels": (changed("labels", lambda a: a[:-1]), "labels"),
    "negative length": (changed("lengths", with_negative), "lengths"),
    "place outside": (changed("locations", lambda a: a + 2), "locations"),
    "another law": (changed("law_lengths", lambda a: a + 5), "law"),
    "improbable law": (changed("law_probabilities", lambda a: 2 * a), "sum one"),
    "long teacher": (changed("teacher", lambda a: 2 * a), "teacher"),
    "unknown task": (changed("task", lambda a: np.array("min")), "task = 'min'"),
    "negative nu": (changed("nu", lambda a: -a), "nu = -inf"),
    "inflating": (inflating, "compressed more"),
    "10^15 tokens": (with_header("tokens", (10**15, 8)), "as many as their header says"),
    "10^15 labels": (with_header("labels", (10**15,)), "labels"),
    "10^15 of the law": (with_header("law_lengths", (10**15,), "<i8"), "law_lengths"),
    "unclosed header": (with_header("labels", (100,), end=b" "), "EOF"),
    "big-endian": (changed("tokens", lambda a: a.astype(">f8")), "tokens have the wrong"),
    "big-endian labels": (changed("labels", lambda a: a.astype(">f8")), "labels have the wrong"),
    "complex": (changed("tokens", lambda a: a.astype(complex)), "tokens have the wrong"),
    "complex nu": (changed("nu", lambda a: a * 1j), "nu have the wrong"),
    "long word": (changed("task", lambda a: np.array("max" * 10**7)), "task take more than"),
    "three vectors": (changed("teacher", lambda a: np.ones((3, 8))), "teacher"),
    "no sequences": (changed("lengths", lambda a: a[:0]), "lengths"),
    "many nu": (changed("nu", lambda a: np.array([1.0, 2.0])), "size 1"),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of making the damage
def test_damaged_and_foreign_files_are_refused_in_one_line(name, saved):
    damage, word = DAMAGE[name]
    damage(saved)
    with pytest.raises(ValueError, match="path = ") as refusal:
        ar.load_dataset(saved)
    line = str(refusal.value)
    assert word in line
    assert "\n" not in line


def test_a_file_that_would_not_fit_is_refused_from_its_header(saved, monkeypatch):
    """By the size of what it holds, which of a compressed file says little."""
    monkeypatch.setattr("attnrisk.simulation.data.free_memory", lambda: 2.0**12)
    monkeypatch.setattr("attnrisk.simulation.files._read_dataset", None)
    with pytest.raises(ValueError, match=r"size = .* \(file data\.npz, n = 100, dim = 8\)"):
        ar.load_dataset(saved)


def test_a_compressed_file_is_read(saved):
    whole = ar.load_dataset(saved)
    changed("nu", lambda a: a)(saved)
    with np.load(saved) as file:
        np.savez_compressed(saved.with_name("small.npz"), **dict(file))
    assert_same(ar.load_dataset(saved.with_name("small.npz")), whole)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path / "no.npz", "a\0b"):
        with pytest.raises(ValueError, match=r"^path = .* a file that can be read"):
            ar.load_dataset(path)
    for path in (tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match=r"^path = .* a regular file"):
            ar.load_dataset(path)
    with pytest.raises(ValueError, match=r"^path = 3 .* the path of a file"):
        ar.load_dataset(3)


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    """As root a device would become a file."""
    data, pipe = ar.sample(TASKS["spiked"], jax.random.key(0), 10, 5), tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "a\0b", 3):
        with pytest.raises(ValueError, match=r"^path = "):
            data.save(path)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


class Nameless(AbstractSelected):
    """A task of somebody's own, which no name in a file could tell from another."""

    name: ClassVar[str] = "max"
    length: ar.LengthLaw = ar.fixed(2)
    noise: float = 0.0
    sharpness: float = 1.0

    def log_odds(self, chi):
        return chi


def test_a_task_without_a_name_cannot_be_saved(tmp_path):
    data = ar.stream(Nameless(), jax.random.key(0), 10, 5)
    with pytest.raises(ValueError, match="task = max"):
        data.save(tmp_path / "data.npz")
    assert not list(tmp_path.iterdir())
