"""Files that are replaced as a whole, and places that can be written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._check import of_type, refuse


def writable_file(given: str, name: str = "out") -> Path:
    """The path of a new or regular file in a writable folder; `name` is that of the argument."""
    path = Path(given)
    try:
        taken = path.resolve().exists() and not path.is_file()
    except (OSError, ValueError) as error:
        raise refuse(name, repr(given), _cannot_be_written(error)) from None
    if taken or given.endswith("/"):
        raise refuse(name, repr(given), "a file, or a name that is free")
    writable_folder(given, name, path.parent)
    return path


def writable_folder(given: str, name: str = "out", folder: Path | None = None) -> Path:
    """The path of a writable folder, created if missing; `name` is that of the argument."""
    from tempfile import TemporaryFile

    path = folder or Path(given)
    if not given:
        raise refuse(name, repr(given), "a folder" if folder is None else "a file")
    try:
        path.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()
    except (FileExistsError, NotADirectoryError):
        allowed = "a folder, or a name that is free" if folder is None else "in a folder"
        raise refuse(name, repr(given), allowed) from None
    except (OSError, ValueError) as error:
        raise refuse(name, repr(given), _cannot_be_written(error)) from None
    return path


def _cannot_be_written(error: OSError | ValueError) -> str:
    """ValueError: a null character in the name."""
    why = error.strerror if isinstance(error, OSError) else error
    return f"a place that can be written ({why})"


@contextmanager
def replacement(path: str | os.PathLike[str], name: str = "path") -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end, and is removed after an error.

    What exists and is no regular file, such as a device, is refused.
    """
    given = os.fspath(of_type(name, path, str | os.PathLike, "the path of a file"))
    path = writable_file(given, name).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
