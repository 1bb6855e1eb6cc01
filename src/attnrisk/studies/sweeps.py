"""Sweeps: all questions of a study, answered into a store; its answers as a labelled grid, and as files."""

import csv
import json
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from .._check import one_of
from .._files import replacement
from .execute import Progress, Workers, execute
from .fingerprint import versions
from .store import Row, Store
from .study import AXES, Study

if TYPE_CHECKING:
    import xarray as xr

MISSING = "missing"
_MISSING_VALUES: dict[type, Any] = {float: np.nan, str: "", bool: False}


class Status(NamedTuple):
    """Counts of a study: points, computed ones, and those of them that failed or did not converge."""

    points: int
    done: int
    failed: int
    unconverged: int

    @property
    def missing(self) -> int:
        """Number of points that have not been computed."""
        return self.points - self.done

    def counted(self, row: Row) -> Self:
        """With one more computed point."""
        unconverged = self.unconverged + (not row.converged and not row.failed)
        done, failed = self.done + 1, self.failed + row.failed
        return self._replace(done=done, failed=failed, unconverged=unconverged)


def status(study: Study, store: Store) -> Status:
    """Count the computed points of a study.

    Args:
        study: The study.
        store: The store of results.

    Returns:
        The counts, a `Status`.
    """
    rows = rows_of(study, store).values()
    return reduce(Status.counted, rows, Status(len(study), 0, 0, 0))


def rows_of(study: Study, store: Store) -> dict[str, Row]:
    """Rows of the study in the store, by address; the time is proportional to the size of the store."""
    rows = store.of_question(study.question, study.numerics)
    return {row.address: row for row in rows if row.sound and study.has(row)}


def retry(study: Study, store: Store) -> None:
    """Remove failed points from the store, so that a sweep computes them again."""
    store.forget(address for address, row in rows_of(study, store).items() if row.failed)


def sweep(
    study: Study,
    store: Store,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Status:
    """Compute every missing point of a study; an interrupted sweep resumes where it stopped.

    Args:
        study: The study.
        store: The store of results.
        scheduler: Address of a Dask scheduler, such as `tcp://host:8786`, whose workers compute.
        workers: Number of local processes; by default one per core.
        progress: A function that is called with a text (failures), the number of computed points and the total.

    Returns:
        The counts after the sweep, a `Status`.
    """
    found = rows_of(study, store)
    now = reduce(Status.counted, found.values(), Status(len(study), 0, 0, 0))

    def tell() -> None:
        if progress is not None:
            failures = f"{now.failed} failed, {now.unconverged} not converged"
            progress(failures, now.done, now.points)

    tell()
    if now.missing:
        missing = [point for point in study.points if point.address not in found]
        with Workers(scheduler, workers) as backend:
            for row in execute(missing, backend, store):
                now = now.counted(row)
                tell()
    return now


def dataset(study: Study, store: Store) -> "xr.Dataset":
    """The results of a study as an xarray dataset.

    For points that are missing or failed, `result` says so, `converged` is false and values are NaN.

    Args:
        study: The study.
        store: The store of results.

    Returns:
        An `xarray.Dataset` with one dimension per axis; every output has its error next to it, and `result` and
        `converged`.
    """
    import xarray as xr

    found = rows_of(study, store)
    rows = [found.get(point.address) for point in study.points]
    shape = tuple(map(len, study.axes.values()))
    columns = {name: _column(rows, name) for name in _outputs(rows)}
    columns["result"] = np.array([MISSING if row is None else row.result for row in rows])
    columns["converged"] = np.array([row is not None and row.converged for row in rows])
    columns["seconds"] = np.array([np.nan if row is None else row.seconds for row in rows])
    return xr.Dataset(
        {name: (tuple(study.axes), values.reshape(shape)) for name, values in columns.items()},
        {name: list(values) for name, values in study.axes.items()},
        {
            "question": study.question,
            "numerics": study.numerics,
            "attnrisk": versions()["attnrisk"],
        },
    )


def _outputs(rows: list[Row | None]) -> list[str]:
    return sorted({name for row in rows if row is not None for name in row.outputs})


def _column(rows: list[Row | None], name: str) -> np.ndarray:
    found = [None if row is None else row.outputs.get(name) for row in rows]
    # Matrices of several heads differ in shape from point to point: in a grid they are text.
    values = [json.dumps(each) if isinstance(each, list) else each for each in found]
    kind = next((type(value) for value in values if value is not None), float)
    kind = float if kind is int else kind
    lack = _MISSING_VALUES[kind]
    return np.array([lack if value is None else value for value in values])


def write_nc(study: Study, store: Store, path: Path) -> None:
    """Write the dataset as NetCDF."""
    dataset(study, store).to_netcdf(path, engine="scipy")


def write_csv(study: Study, store: Store, path: Path) -> None:
    """Write one line per point, including missing ones, with all digits."""
    found = rows_of(study, store)
    rows = [found.get(point.address) for point in study.points]
    outputs = _outputs(rows)
    origin = ("result", "converged", "seconds", "host", "answered", "numerics", "address")
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        inputs = [name for name in study.points[0].inputs if name in AXES]
        table.writerow([*inputs, *outputs, *origin, *versions()])
        for point, row in zip(study.points, rows, strict=True):
            given = [point.inputs[name] for name in inputs]
            if row is None:
                table.writerow([*given, *("" for _ in outputs), MISSING, False])
            else:
                answer = [row.outputs.get(name, "") for name in outputs]
                told = [getattr(row, name) for name in origin]
                stood_on = [row.versions.get(name, "") for name in versions()]
                table.writerow([*given, *answer, *told, *stood_on])


FORMATS: dict[str, Callable[[Study, Store, Path], None]] = {"csv": write_csv, "nc": write_nc}


def export(study: Study, store: Store, path: str | Path, form: str) -> None:
    """Write the results of a study to a file, which is replaced only when the new one is complete.

    Args:
        study: The study.
        store: The store of results.
        path: The file.
        form: `"csv"` or `"nc"` (NetCDF).
    """
    write = FORMATS[one_of("export", form, FORMATS)]
    with replacement(path) as part:
        write(study, store, part)
