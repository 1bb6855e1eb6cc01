"""Attentions side by side at several lengths, each as it is and with a free bias."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from ..._check import of_type, refuse, whole
from ...population.plan import is_exact
from ..execute import Progress
from ..questions import Bayes
from .family import attention_name, recognise
from .tasks import JUDGED, Row, answer, has_tunable_bias

SIGNAL = 4.0  # of ν = c log L, twice what the needle needs to be found in a long sequence
LENGTHS = (10, 1000, 100_000)
_LONGEST_DRAWN = 4096  # tokens, over random points


@dataclass(frozen=True)
class Compared:
    """The least risk of an attention at one length, as it is and with a free bias."""

    attention: str
    plain: Row
    biased: Row


def compare(
    *attentions: Any,
    lengths: Sequence[int] = LENGTHS,
    nu: float | None = None,
    signal: float = SIGNAL,
    task: str = "spiked",
    progress: Progress | None = None,
) -> list[Compared]:
    """Compare attentions at several lengths, as they are and with a free bias.

    Args:
        attentions: Names of the catalogue, attentions of this package, or functions as for `judge`.
        lengths: Numbers of tokens.
        nu: Signal strength, the same at each length.
        signal: Without `nu`, the signal strength is `signal · log L`.
        task: `"spiked"` or `"max"`.
        progress: Called before each attention with its name, how many are done, and of how many.

    Returns:
        A list of `Compared`, for each attention one entry per length, shorter ones first.

    Examples:
        >>> table = ar.compare("softmax", "taylor-2", lengths=(10, 1000))
        >>> [f"{each.attention} {each.plain.length} {float(each.plain.risk):.4f}" for each in table]
        ['softmax 10 0.1356', 'softmax 1000 0.0432', 'taylor-2 10 0.2664', 'taylor-2 1000 0.7828']
    """
    if not attentions:
        raise refuse("attentions", "nothing", "one attention or more")
    of_type("lengths", lengths, Sequence, "a list of numbers of tokens")
    sizes = sorted({whole("lengths", length) for length in lengths})
    places = [
        Bayes(task, signal * log(length) if nu is None else nu, str(length)) for length in sizes
    ]
    for place in places:
        place.check()
    table = []
    for done, given in enumerate(attentions):
        name = attention_name(given)
        if progress is not None:
            progress(name, done, len(attentions))
        student = recognise(given, name, lengths=(*JUDGED, *sizes))
        if not is_exact(places[-1].problem, student) and sizes[-1] > _LONGEST_DRAWN:
            allowed = f"a kernel or element-wise at more than {_LONGEST_DRAWN} tokens"
            raise refuse("attention", f"{name} (neither)", allowed)
        rows = biased = answer(student, places)
        if has_tunable_bias(student) and is_exact(places[0].problem, student):
            biased = answer(student.with_free_bias(), places)
        table += [Compared(name, rows[place], biased[place]) for place in places]
    return table
