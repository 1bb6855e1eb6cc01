"""What the store promises: nothing lost, nothing doubled, and one line where it cannot be used."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import numpy as np
import pytest

from attnrisk.studies import Row, Store, StoreError

ROW = Row(
    address="a",
    question="bayes",
    numerics="n",
    inputs={"nu": 1.0, "length": "2"},
    outputs={"risk": 0.1 + 0.2, "risk_error": 5e-324, "limit": float("inf"), "attained": True},
    result="converged",
    converged=True,
    versions={"jax": "1"},
    seconds=0.25,
    host="here",
    answered="2025-01-01T00:00:00+00:00",
)


def rows(*addresses):
    return [replace(ROW, address=address) for address in addresses]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "answers.sqlite"


def test_what_goes_in_comes_out(path):
    with Store(path) as store:
        assert store.add([ROW]) == 1
    with Store(path) as store:
        assert store.find(["a", "b"]) == {"a": ROW}


def test_the_first_answer_stays(path):
    with Store(path) as store:
        store.add(rows("a", "b"))
        assert store.add([replace(ROW, result="later"), *rows("c")]) == 1
        found = store.find("abc")
        assert found["a"] == ROW
        assert len(found) == 3


def test_more_addresses_than_one_statement_takes(path):
    addresses = [str(number) for number in range(1234)]
    with Store(path) as store:
        store.add(rows(*addresses))
        assert list(store.find(addresses)) == sorted(
            addresses, key=lambda each: (int(each) // 500, each)
        )


def test_rows_of_other_numerics_are_counted(path):
    with Store(path) as store:
        store.add([*rows("a", "b"), replace(ROW, address="c", numerics="old")])
        assert store.numerics() == {"n": 2, "old": 1}
        store.forget(["c"])
        assert store.numerics() == {"n": 2}


def test_all_of_a_batch_or_none(path):
    with Store(path) as store:
        store.add(rows("a"))
        with pytest.raises(StoreError):
            store.add([*rows("b"), replace(ROW, address="c", result=None)])
        assert set(store.find("abc")) == {"a"}
        store.add(rows("b"))
        assert set(store.find("abc")) == {"a", "b"}


def test_write_ahead(path):
    with Store(path), closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# files that cannot be used


def test_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"store = .* a file"):
        Store(tmp_path)


def test_what_is_no_regular_file_is_left_alone(tmp_path):
    """As root SQLite would write a journal beside a device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"store = .* a file"):
        Store(pipe)
    assert list(tmp_path.iterdir()) == [pipe]
    with pytest.raises(ValueError, match=r"store = .* in a folder that can be written"):
        Store(pipe / "a.sqlite")


@pytest.mark.parametrize("content", [b"question = 1\n", b"SQLite format 3\0" + bytes(4000)])
def test_a_file_that_is_no_database(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises((ValueError, StoreError)) as error:
        Store(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    assert path.read_bytes() == content


def test_a_database_of_someone_else(tmp_path):
    path = tmp_path / "file"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE answers (address TEXT PRIMARY KEY)")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="a store that attnrisk has made"):
        Store(path)
    assert path.read_bytes() == before


def test_a_store_of_the_future(path):
    Store(path).close()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer attnrisk"):
        Store(path)


def test_a_truncated_store_is_left_as_it_is(path):
    with Store(path) as store:
        store.add(rows(*map(str, range(500))))
    whole = path.read_bytes()
    for part in (0.3, 0.7, 0.95):
        cut = whole[: int(part * len(whole))]
        path.write_bytes(cut)
        with pytest.raises(
            StoreError, match=r"damaged.*recover.*nothing that it holds was changed"
        ):
            Store(path)
        assert path.read_bytes() == cut
    path.write_bytes(whole)  # the control: it was the cut
    with Store(path) as store:
        assert len(store.find(map(str, range(500)))) == 500


@pytest.mark.parametrize("text", ["{", "", "[1]", "3", "null", "[" * 100_000])
@pytest.mark.parametrize("column", ["inputs", "outputs", "versions"])
def test_a_damaged_row_is_one_line(path, column, text):
    with Store(path) as store:
        store.add(rows("a", "b"))
        store._file.execute(f"UPDATE answers SET {column} = ? WHERE address = 'a'", (text,))
        with pytest.raises(StoreError, match=r"damaged: the row a cannot be read") as error:
            store.find("ab")
        assert "\n" not in str(error.value)
        with pytest.raises(StoreError, match="damaged"):
            list(store.of_question("bayes", "n"))
        assert set(store.find("b")) == {"b"}


@pytest.mark.parametrize(
    ("column", "content"),
    [
        ("outputs", '{"risk": "low", "risk_error": 0.1}'),
        ("outputs", '{"risk": 0.1, "risk_error": "small"}'),
        ("outputs", '{"rows": {"risk": 0.1}}'),
        ("outputs", '{"rows": [0.1]}'),
        ("outputs", '{"rows": [{"risk": {}, "risk_error": 0.1}]}'),
        ("converged", "yes"),
        ("seconds", "long"),
        ("host", b"\x00"),
    ],
)
def test_a_row_with_values_of_other_types_is_one_line(path, column, content):
    with Store(path) as store:
        store.add(rows("a", "b"))
        store._file.execute(f"UPDATE answers SET {column} = ? WHERE address = 'a'", (content,))
        with pytest.raises(StoreError, match=r"damaged: the row a cannot be read \([^\n]+$"):
            store.find("ab")
        assert set(store.find("b")) == {"b"}


def test_a_table_with_other_columns_is_damage(path):
    Store(path).close()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("ALTER TABLE answers DROP COLUMN host")
    with pytest.raises(StoreError, match=r"damaged.*other columns"):
        Store(path)


def test_a_full_disk_loses_nothing(path):
    with Store(path) as store:
        store.add(rows("a"))
        pages = store._one("PRAGMA page_count")
        store._one(f"PRAGMA max_page_count = {pages + 2}")  # the error is that of a full disk
        with pytest.raises(StoreError, match=r"full disk: make room and run again"):
            store.add(rows(*map(str, range(1000))))
        assert set(store.find(["a", "1"])) == {"a"}
        store._one("PRAGMA max_page_count = 100000")
        store.add(rows("1"))
        assert set(store.find(["a", "1"])) == {"a", "1"}


READ_ONLY = """
import os, sys
from attnrisk.studies import Store, StoreError
if os.getuid() == 0:
    os.setuid(65534)  # the superuser may write what is read-only
for path in sys.argv[1:]:
    with Store(path) as store:
        print(len(store.find(["a"])))
        try:
            store.check_writable()
        except StoreError as error:
            print(error)
"""


@pytest.fixture
def anybodys_folder():
    """Not `tmp_path`, which lies in folders that only its owner may enter."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_read_only_store_can_be_read(anybodys_folder):
    """In a folder that can be written, and in one that cannot."""
    modes = {anybodys_folder / "file": 0o777, anybodys_folder / "folder": 0o555}
    paths = [folder / "answers.sqlite" for folder in modes]
    for path, mode in zip(paths, modes.values(), strict=True):
        path.parent.mkdir()
        with Store(path) as store:
            store.add(rows("a"))
        path.chmod(0o444)
        path.parent.chmod(mode)
    ran = subprocess.run([sys.executable, "-c", READ_ONLY, *paths], capture_output=True, text=True)
    for folder in modes:
        folder.chmod(0o755)
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert lines[::2] == ["1", "1"]
    assert len(lines) == 4
    for line in lines[1::2]:
        assert "cannot be written: choose another with --store" in line


# processes that write at once, and that are killed

WRITER = """
import sys
from dataclasses import replace
sys.path[:0] = [{here!r}]
from test_store import ROW
from attnrisk.studies import Store
first, last = map(int, sys.argv[2:])
print("ready", flush=True)
with Store(sys.argv[1]) as store:
    for number in range(first, last):
        store.add([replace(ROW, address=str(2 * number + half)) for half in (0, 1)])
"""


@contextmanager
def writer(path, first, last):
    code = WRITER.format(here=os.path.dirname(__file__))
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(first), str(last)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        yield process


@pytest.mark.slow
def test_two_writers_at_once(path):
    with writer(path, 0, 300) as one, writer(path, 200, 500) as other:
        assert [one.wait(), other.wait()] == [0, 0]
    with Store(path) as store:
        assert store.numerics() == {"n": 1000}


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_batches(path):
    moments = random.Random(5)
    for _ in range(10):
        with writer(path, 0, 10**6) as process:
            time.sleep(moments.uniform(0.0, 0.3))
            process.send_signal(signal.SIGKILL)
        with Store(path) as store:
            found = set(store.find(map(str, range(10**4))))
        assert {str(int(each) ^ 1) for each in found} == found
    assert found


def test_numbers_keep_all_their_digits(path, rng):
    numbers = rng.normal(size=100) * 10.0 ** rng.integers(-300, 300, 100)
    outputs = {str(index): float(number) for index, number in enumerate(numbers)}
    with Store(path) as store:
        store.add([replace(ROW, outputs=outputs)])
        kept = store.find(["a"])["a"].outputs
    assert np.array_equal([kept[str(index)] for index in range(100)], numbers)


def test_a_store_that_another_process_is_making(path):
    """SQLite does not wait for a lock on a new file when it switches that to write-ahead."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path, check_same_thread=False, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        release = Timer(0.3, other.execute, ["COMMIT"])
        release.start()
        with Store(path) as store:
            assert store.numerics() == {}
        release.join()
