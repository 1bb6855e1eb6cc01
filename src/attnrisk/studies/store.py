"""The store: one SQLite file with all results, indexed by the address of the question.

Rows are only added, each batch in one transaction. Any number of processes may use a store at once on one machine:
each waits for its turn to write, and of two answers to one point the first stays.
"""

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .._check import refuse
from .question import Record

FAILED = "failed"  # how the result of a computation begins that raised an exception
_MAGIC = b"SQLite format 3\0"
_APPLICATION = 0x61747231  # "atr1": who wrote the file, as SQLite lets a file say
_LAYOUT = 1
_PATIENCE = 60.0  # seconds to wait for another process that writes
_PAUSE = 0.01  # seconds between two attempts
_MOST_VARIABLES = 500  # in one statement; older SQLite allow 999

# The number that each record of these kinds has, with its error.
_NUMBERS = {
    **dict.fromkeys(("bayes", "element-wise floor", "population", "optimal", "amp"), "risk"),
    **dict.fromkeys(("formula minimum", "flipped minimum"), "risk"),
    **dict.fromkeys(("features bayes", "heads on atoms", "heads"), "risk"),
    **dict.fromkeys(("erm", "tuned-erm", "learning curve", "risk crossing"), "test_risk"),
    **dict.fromkeys(("heads erm", "learned heads"), "test_risk"),
}

_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    address TEXT PRIMARY KEY,
    question TEXT NOT NULL,
    numerics TEXT NOT NULL,
    inputs TEXT NOT NULL,
    outputs TEXT NOT NULL,
    result TEXT NOT NULL,
    converged INTEGER NOT NULL,
    versions TEXT NOT NULL,
    seconds REAL NOT NULL,
    host TEXT NOT NULL,
    answered TEXT NOT NULL
)
"""


class StoreError(OSError):
    """The store cannot be used; rows written before are kept."""


@dataclass(frozen=True)
class Row:
    """A point, its result and its origin; a `result` that is not `converged` gives the reason."""

    address: str
    question: str
    numerics: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    result: str
    converged: bool
    versions: dict[str, str]
    seconds: float
    host: str
    answered: str

    @property
    def failed(self) -> bool:
        """Whether the computation raised an exception."""
        return not self.outputs

    @property
    def sound(self) -> bool:
        """Whether the content is that of an answer of this kind; a row of which it is not counts as missing."""
        if self.failed:
            return self.result.startswith(FAILED)
        if not isinstance(self.outputs, dict):
            return False
        records = self.outputs.get("rows", [self.outputs])
        if not (records and isinstance(records, list) and all(map(_is_record, records))):
            return False
        number = _NUMBERS.get(self.question)
        needed = [each.get(name) for each in records for name in (number, f"{number}_error")]
        complete = not number or all(type(value) in (int, float) for value in needed)
        return complete and not (self.converged and not_numbers(records))

    @property
    def answer(self) -> Any:
        """The record, or list of records, of the result."""
        if "rows" in self.outputs:
            return self.outputs["rows"]
        return self.inputs | self.outputs | {"result": self.result, "converged": self.converged}


_COLUMNS = tuple(field.name for field in fields(Row))
_MARKS = ", ".join("?" * len(_COLUMNS))
_ADD = f"INSERT INTO answers VALUES ({_MARKS}) ON CONFLICT (address) DO NOTHING"


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def not_numbers(records: Iterable[Record]) -> list[str]:
    """The names of values that are NaN, which an answer that converged has none of."""
    values = [pair for each in records for pair in each.items()]
    return [name for name, it in values if isinstance(it, float) and math.isnan(it)]


def default_place() -> Path:
    """Path of the default store, in the user's data folder."""
    from platformdirs import user_data_path

    return user_data_path("attnrisk", appauthor=False) / "answers.sqlite"


class Store:
    """A SQLite file of results, created if missing; close it, or use it as a context manager."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        _check_file(self.path)
        with self._in_words():
            self._file = _open(self.path)
        try:
            with self._in_words():
                self._prepare()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def check_writable(self) -> None:
        """Raise an error if rows cannot be added, without adding any."""
        with self._in_words():
            self._file.execute("DELETE FROM answers WHERE 0")

    def add(self, rows: Iterable[Row]) -> int:
        """Add the rows, all or none; return the number of new rows."""
        listed = [_encoded(row) for row in rows]
        with self._in_words(), self._file:
            self._file.execute("BEGIN IMMEDIATE")
            return self._file.executemany(_ADD, listed).rowcount

    def find(self, addresses: Iterable[str]) -> dict[str, Row]:
        """The existing rows at these addresses."""
        wanted, found = list(addresses), []
        for start in range(0, len(wanted), _MOST_VARIABLES):
            some = wanted[start : start + _MOST_VARIABLES]
            marks = ", ".join("?" * len(some))
            with self._in_words():
                found += self._file.execute(
                    f"SELECT * FROM answers WHERE address IN ({marks})", some
                ).fetchall()
        return {row.address: row for row in map(self._decoded, found)}

    def of_question(self, question: str, numerics: str) -> Iterator[Row]:
        """All rows of one kind of question computed by this version of the code."""
        asked = "SELECT * FROM answers WHERE question = ? AND numerics = ?"
        with self._in_words():
            found = self._file.execute(asked, (question, numerics)).fetchall()
        return map(self._decoded, found)

    def _decoded(self, values: tuple[Any, ...]) -> Row:
        named = dict(zip(_COLUMNS, values, strict=True))
        try:
            for name in ("inputs", "outputs", "versions"):
                named[name] = json.loads(named[name])
                if not isinstance(named[name], dict):
                    raise ValueError(f"{name} is no table")
            _check_types(named)
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"the store {self.path} is damaged: the row {str(named['address'])[:16]} cannot be read ({error}); "
                "choose another with --store"
            ) from None
        return Row(**named | {"converged": bool(named["converged"])})

    def forget(self, addresses: Iterable[str]) -> None:
        """Remove rows, so that their points are computed again."""
        with self._in_words(), self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "DELETE FROM answers WHERE address = ?", [(each,) for each in addresses]
            )

    def numerics(self, question: str | None = None) -> dict[str, int]:
        """Number of rows of each version of the code, for one question or all."""
        which, given = ("", ()) if question is None else ("WHERE question = ?", (question,))
        with self._in_words():
            counts = f"SELECT numerics, count(*) FROM answers {which} GROUP BY numerics"
            return dict(self._file.execute(counts, given))

    def _prepare(self) -> None:
        """Check that the file is a store, and create the table of a new one."""
        with self._file:
            self._file.execute("BEGIN")  # one look, while another process may be making the file
            application = self._one("PRAGMA application_id")
            layout = self._one("PRAGMA user_version")
            tables = self._one("SELECT count(*) FROM sqlite_master")
        if application != _APPLICATION and (tables or application):
            raise _foreign(self.path)
        if layout > _LAYOUT:
            raise StoreError(f"the store {self.path} was written by a newer attnrisk: upgrade")
        sound = self._one("PRAGMA quick_check(1)")
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        if not tables:
            self._create()
        columns = [name for _, name, *_ in self._file.execute("PRAGMA table_info(answers)")]
        if columns != list(_COLUMNS):
            raise sqlite3.DatabaseError("its table has other columns")

    def _one(self, query: str) -> Any:
        return self._file.execute(query).fetchone()[0]

    def _create(self) -> None:
        last = time.monotonic() + _PATIENCE
        while True:  # SQLite does not wait for a process that is creating the same file
            try:
                self._file.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                    raise
                time.sleep(_PAUSE)
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute(_TABLE)
            self._file.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._file.execute(f"PRAGMA user_version = {_LAYOUT}")

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """A one-line message for an error of SQLite, with advice."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(_words(self.path, error)) from error


def _open(path: Path) -> sqlite3.Connection:
    """For reading and writing where the file allows it, else for reading."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"in a folder that can be written ({error.strerror})"
        raise refuse("store", repr(str(path)), allowed) from None
    if path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        alone = not path.with_name(path.name + "-wal").exists()  # nobody writes: no lock is needed
        where = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
        return sqlite3.connect(where, uri=True, timeout=_PATIENCE, isolation_level=None)
    file = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    file.execute("PRAGMA synchronous = FULL")
    return file


def _check_file(path: Path) -> None:
    """Refuse a folder, a device, and a file that is no database, before SQLite writes to it or beside it."""
    if path.exists() and not path.is_file():
        raise refuse("store", repr(str(path)), "a file, or a name that is free")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if start != _MAGIC:
            raise _foreign(path)


def _foreign(path: Path) -> Exception:
    return refuse(
        "store", repr(str(path)), "a store that attnrisk has made, or a name that is free"
    )


def _words(path: Path, error: sqlite3.Error) -> str:
    match getattr(error, "sqlite_errorname", "SQLITE_CORRUPT").split("_")[1]:
        case "FULL":
            said = "is on a full disk: make room and run again"
        case "READONLY" | "CANTOPEN" | "PERM":
            said = "cannot be written: choose another with --store"
        case "BUSY" | "LOCKED":
            said = f"was kept by another process for more than {_PATIENCE:g} s: run again"
        case "CORRUPT" | "NOTADB":
            said = "is damaged: save what is left with `sqlite3 FILE .recover`, or choose another"
        case _:
            said = "cannot be used"
    return f"the store {path} {said}; nothing that it holds was changed ({error})"


def _check_types(named: dict[str, Any]) -> None:
    """Raise a `ValueError` if values are of other types than those of the rows that are written."""
    words = "question", "numerics", "result", "host", "answered"
    wrong = [name for name in words if not isinstance(named[name], str)]
    wrong += [name for name in ("converged", "seconds") if not isinstance(named[name], int | float)]
    records = named["outputs"].get("rows", [named["outputs"]])
    if not isinstance(records, list) or not all(isinstance(each, dict) for each in records):
        raise ValueError("the rows of outputs are no list of tables")
    for record in records:  # a number and its error have names that belong together
        errors = [name for name in record if name.endswith("_error")]
        numbers = {*errors, *(name.removesuffix("_error") for name in errors)}
        kinds = int | float | list | None
        wrong += [name for name in sorted(numbers) if not isinstance(record.get(name), kinds)]
    if wrong:
        raise ValueError(f"{wrong[0]} has the wrong type")


def _encoded(row: Row) -> tuple[Any, ...]:
    return tuple(json.dumps(value) if isinstance(value, dict) else value for value in astuple(row))
