"""Comparison of attentions at several lengths, with their own bias and with a free bias."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from ..._check import of_type, one_of, real, refuse, whole
from ...attention import AbstractAttention, BayesSoftmax, Heads, get_heads
from ...population import HeadsMinimum, bayes_risk, population_minimum
from ...population.plan import is_exact
from ...tasks import AbstractTask, FeatureSLR, SpikedSLR, parse_features
from ..execute import Progress
from ..questions import Bayes
from .family import attention_name, recognise
from .tasks import JUDGED, SIGNAL, Row, answer, has_tunable_bias

LENGTHS = (10, 1000, 100_000)
_LONGEST_DRAWN = 4096  # tokens, over random points


@dataclass(frozen=True)
class Compared:
    """The lowest risk of an attention at one length, with its own bias and with a free bias.

    `minimum` is that of the first, a `HeadsMinimum`, with several heads or features.
    """

    attention: str
    plain: Row
    biased: Row
    minimum: HeadsMinimum | None = None


def compare(
    *attentions: Any,
    lengths: Sequence[int] = LENGTHS,
    nu: float | None = None,
    signal: float = SIGNAL,
    task: str = "spiked",
    progress: Progress | None = None,
    features: str | None = None,
    heads: int = 1,
) -> list[Compared]:
    """Compare attentions at several lengths, with their own bias and with a free bias.

    Args:
        attentions: Names of the catalogue, attentions of this package, or functions as for `judge`.
        lengths: Numbers of tokens; 10, 1000 and 100000 by default.
        nu: Signal strength, the same at each length.
        signal: Without `nu`, the signal strength is `signal · log L`; 4 by default.
        task: `"spiked"`, `"max"` or `"features"`.
        progress: Called before each attention with its name, how many are done, and of how many.
        features: With `task="features"`, the distribution of the shift as in `parse_features`. Its numbers are in units
            of `signal · log L`, or of `nu`: `flipped:1`, `one-of:1,0.5`.
        heads: Number of heads of each attention; several, and `"bayes-softmax"`, on spiked tasks and features.

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
    signal = float(real("signal", signal, minimum=0.0))
    signals = [signal * log(length) if nu is None else nu for length in sizes]
    one_of("task", task, ("spiked", "max", "features"))
    if (features is None) == (task == "features"):
        allowed = "given where the task is features, and left out elsewhere"
        raise refuse("features", "nothing" if features is None else repr(features), allowed)
    count = whole("heads", heads, 1, 100)
    if features is not None or count > 1 or BayesSoftmax.name in map(attention_name, attentions):
        return _compare_heads(
            attentions, task, features, count, list(zip(sizes, signals, strict=True)), progress
        )
    places = [Bayes(task, nu, str(length)) for length, nu in zip(sizes, signals, strict=True)]
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


def _compare_heads(
    attentions: Sequence[Any],
    task: str,
    features: str | None,
    count: int,
    sizes: Sequence[tuple[int, float]],
    progress: Progress | None,
) -> list[Compared]:
    """Several heads, or one on features; by the searches of `population_minimum`."""
    if task == "max":
        raise refuse("task", task, "spiked or features for several heads")
    places = [(nu, _needle(features, length, nu)) for length, nu in sizes]
    bayes = [bayes_risk(place) for _, place in places]
    table = []
    for done, given in enumerate(attentions):
        name = attention_name(given)
        if progress is not None:
            progress(name, done, len(attentions))
        plain = _heads_of(given, name, count, [length for length, _ in sizes])
        free = plain.with_free_bias() if has_tunable_bias(plain.one_head) else plain
        students = [plain] if free is plain else [plain, free]
        for (nu, place), known in zip(places, bayes, strict=True):
            minima = [population_minimum(place, student) for student in students]
            rows = [
                Row(task, nu, str(place.length), each.risk, known, each.result) for each in minima
            ]
            has_matrices = features is not None or plain.family == "heads"
            table.append(Compared(name, rows[0], rows[-1], minima[0] if has_matrices else None))
    return table


def _needle(features: str | None, length: int, nu: float) -> AbstractTask:
    """The spiked task, or features whose numbers are in units of `ν`."""
    if features is None:
        return SpikedSLR(nu, length)
    parse_features(features)
    kind, _, listed = features.partition(":")
    numbers = ",".join(repr(nu * float(each)) for each in listed.split(","))
    return FeatureSLR(parse_features(f"{kind}:{numbers}"), length)


def _heads_of(given: Any, name: str, count: int, lengths: Sequence[int]) -> AbstractAttention:
    """Heads of what is given; names of the catalogue as in `get_heads`."""
    if isinstance(given, str) and (count > 1 or given == BayesSoftmax.name):
        return get_heads(given, count)
    one = recognise(given, name, lengths=(*JUDGED, *lengths))
    return one if count == 1 or one.keys > 1 else Heads(one, count)
