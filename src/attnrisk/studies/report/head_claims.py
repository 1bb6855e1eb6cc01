"""The claims of the abstract of arXiv 2603.03993 about heads, tested on the rows of the figures."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..figures.rows import Row
from .verdicts import FAILS, HOLDS, PARTLY, Claim, counted

_AGREE = 1e-9  # two exact risks that differ by less are one
_APART = 0.5  # keys whose overlaps with a feature differ by so much have specialised


def checked(rows: Mapping[str, Sequence[Row]]) -> list[Claim]:
    """The claims about heads, from the figures `stages`, `heads` and `pruning`."""
    return [
        unspecialised_first(rows["stages"]),
        one_after_the_other(rows["stages"]),
        softmax_one_is_quiet(rows["heads"], rows["pruning"]),
        joint_softmax_is_bayes([*rows["heads"], *rows["flipped"]]),
    ]


def _matrices(rows: Sequence[Row], curve: str) -> tuple[np.ndarray, np.ndarray]:
    """Times, and the overlaps of heads with features there."""
    path = [row for row in rows if row.curve == curve]
    times = sorted({row.time for row in path})
    heads, features = max(row.head for row in path), max(row.feature for row in path)
    found = np.zeros((len(times), heads, features))
    for row in path:
        found[times.index(row.time), row.head - 1, row.feature - 1] = row.overlap
    return np.array(times), found


def unspecialised_first(rows: Sequence[Row]) -> Claim:
    """When a key first has an overlap of one half, and when two keys differ by as much."""
    times, M = _matrices(rows, "bayes-softmax")
    reached = np.abs(M.mean(1)).max(1) >= _APART
    apart = (M.max(1) - M.min(1)).max(1) >= _APART
    first, split = (
        float(times[each.argmax()]) if each.any() else None for each in (reached, apart)
    )
    holds = first is not None and split is not None and first < split
    told = [("never" if when is None else f"at t = {when:.2g}") for when in (first, split)]
    return Claim(
        "Heads first learn the same mixture of features, and part later.",
        f"the mean key overlaps a feature by {_APART:g} {told[0]}; two keys differ by {_APART:g} {told[1]}",
        "Three heads of Bayes-softmax in online SGD from small random vectors, times in D steps (figure stages).",
        HOLDS if holds else FAILS,
    )


def one_after_the_other(rows: Sequence[Row]) -> Claim:
    """The times at which features are found, the strongest first."""
    when = {row.feature: row.found for row in rows if row.curve == "bayes-softmax"}
    times = [when[feature] for feature in sorted(when)]
    said = ", ".join("not found" if each is None else f"{each:.3g}" for each in times)
    known = [each for each in times if each is not None]
    holds = len(known) == len(times) and known == sorted(known)
    return Claim(
        "Then the features are found one after the other, the strongest first.",
        f"found at t = {said} (ν = 12, 6, 3)",
        "The same run: when the largest overlap of a key with a feature reaches half of its last value.",
        HOLDS if holds else PARTLY if known else FAILS,
    )


def softmax_one_is_quiet(rows: Sequence[Row], pruned: Sequence[Row]) -> Claim:
    """Against averaged softmax at every point, and what heads beyond the features cost."""
    risks = {(row.law, row.nu, row.length, row.curve): row.risk for row in rows}
    places = sorted({key[:3] for key in risks})
    gains = [risks[*at, "softmax"] - risks[*at, "softmax-1"] for at in places]
    best = places[int(np.argmax(gains))]
    left = {row.heads: row.risk for row in pruned if row.curve == "softmax-1" and row.pruned}
    most, spare = max(left), ""
    if 3 in left:
        spare = f"; removing {most - 3} of {most} heads costs {left[3] - left[most]:.1g}"
    return Claim(
        "Softmax-1 reduces the noise of heads that see nothing.",
        f"risk lower by up to {max(gains):.3f} (ν = {best[1]:g}, L = {best[2]}){spare}",
        f"Two heads, each for one feature: softmax-1 with biases against averaged softmax, at {len(places)} points "
        "(figures heads and pruning).",
        counted(sum(gain > 0 for gain in gains), len(gains)),
    )


def joint_softmax_is_bayes(rows: Sequence[Row]) -> Claim:
    """On atoms, at every point of the figures."""
    joint = [row for row in rows if row.curve == "bayes-softmax"]
    worst = max(abs(row.excess) for row in joint)
    longest = max(int(row.length) for row in joint)
    return Claim(
        "Bayes-softmax, normalised over tokens and heads together, is optimal.",
        f"at most {worst:.1g} from the Bayes risk, at {len(joint)} points",
        f"A head on each atom of the shift, up to {longest:,} tokens: two separate integrals.",
        HOLDS if worst < _AGREE + max(row.error for row in joint) else FAILS,
    )
