"""Sweeps: all questions of a study, answered into a store."""

from collections.abc import Iterable
from typing import NamedTuple

from .cluster import EngineError
from .execute import Progress, Workers, execute
from .store import Row, Store
from .study import Study


class Status(NamedTuple):
    """How many points a study has, how many are answered, and how many of those failed or did not converge."""

    points: int
    done: int
    failed: int
    unconverged: int

    @property
    def missing(self) -> int:
        """Points not asked yet."""
        return self.points - self.done


def status(study: Study, store: Store) -> Status:
    """What the store holds of a study."""
    return _counted(Status(len(study), 0, 0, 0), rows_of(study, store).values())


def rows_of(study: Study, store: Store) -> dict[str, Row]:
    """The rows of the study that are in the store, by address; takes as long as the store is large, not the study."""
    rows = store.of_question(study.question, study.numerics)
    return {row.address: row for row in rows if study.has(row)}


def retry(study: Study, store: Store) -> None:
    """Forget the points that failed, so that a sweep asks them again."""
    store.forget(address for address, row in rows_of(study, store).items() if row.failed)


def sweep(
    study: Study,
    store: Store,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Status:
    """Ask every point that has no answer yet, on `workers` local processes or on the cluster of a Dask `scheduler`.

    `progress` is told how many failed or did not converge, how many are done, and of how many. Stopped at any moment, a
    sweep continues where it was. A study of which every point failed is an `EngineError`.
    """
    found = rows_of(study, store)
    now = _counted(Status(len(study), 0, 0, 0), found.values())

    def tell() -> None:
        if progress is not None:
            failures = f"{now.failed} failed, {now.unconverged} not converged"
            progress(failures, now.done, now.points)

    tell()
    row = next(iter(found.values()), None)
    if now.missing:
        missing = [point for point in study.points if point.address not in found]
        with Workers(scheduler, workers) as backend:
            for row in execute(missing, backend, store):
                now = _counted(now, [row])
                tell()
    if row is not None and now.failed == now.points:
        every = "all points" if now.points > 1 else "the only point"
        raise EngineError(f"{every} of the study {row.result}")
    return now


def _counted(before: Status, rows: Iterable[Row]) -> Status:
    rows = list(rows)
    failed = sum(row.failed for row in rows)
    unconverged = sum(not row.converged for row in rows) - failed
    return Status(
        before.points,
        before.done + len(rows),
        before.failed + failed,
        before.unconverged + unconverged,
    )
