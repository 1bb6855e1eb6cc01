"""The league: the catalogue, by what each attention loses with infinite data."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from ..._results import Estimate
from ...attention import CATALOGUE, get_attention
from .tasks import GRID, Row, answer, mean_gap
from .traits import Traits, traits

Progress = Callable[[str, int, int], None]

_THREADS = 2


@dataclass(frozen=True)
class Standing:
    """An attention, and its mean gap to Bayes over `rows`, those of `judge`."""

    name: str
    traits: Traits
    gap: Estimate
    rows: tuple[Row, ...]


def league(
    names: Iterable[str] = tuple(CATALOGUE), progress: Progress | None = None
) -> list[Standing]:
    """The attentions of the catalogue, best first."""
    with ThreadPoolExecutor(_THREADS) as pool:
        jobs = {pool.submit(_standing, name): name for name in dict.fromkeys(names)}
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            if progress is not None:
                progress(jobs[job], done, len(jobs))
    return sorted((job.result() for job in jobs), key=lambda standing: float(standing.gap))


def _standing(name: str) -> Standing:
    student = get_attention(name)
    rows = tuple(answer(student, question) for question in GRID)
    return Standing(name, traits(student), mean_gap(rows), rows)
