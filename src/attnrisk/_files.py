"""Files that are replaced as a whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacement(path: str | Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end, and is removed after an error."""
    path = Path(path).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
