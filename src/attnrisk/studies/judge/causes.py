"""What an attention lacks, by counterfactuals: change one property, and compute how much of the gap that recovers.

Five changes are computed, unless they have no effect:

- normalisation: weights are divided by their sum;
- positivity: a kernel that vanishes falls exponentially instead, from one unit above the score where it vanishes, as
  ReLU becomes ELU + 1;
- temperature: scores are multiplied by `log L`, or divided by it where the attention knows the length; one that ignores
  the scale of its scores gets that scale back as the inverse temperature of its weights;
- bias: a number added to all scores is tuned;
- growth: weights are proportional to `e^χ`.

There are three tasks: ten tokens, ten on average, and a thousand tokens (fifty with random points). The change that
recovers most in total is named, then what recovers most of the rest, as long as it recovers `MATTERS` or more on one of
them. Of changes that recover nearly as much as the best, the first in the order above is named: it says more about the
attention. Normalised weights `e^χ/Σe^χ` are those of softmax, which has the Bayes risk on all these tasks (section
4.4), so that the last change leaves nothing unexplained.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...attention import AbstractAttention, Elementwise, General, Kernel
from ...attention.base import AbstractPerLength
from ...population.plan import is_exact
from ..questions import Bayes
from .family import kinks, recognise, safe_log
from .tasks import FIXED, VARIED, answer, has_tunable_bias, haystacks
from .traits import EXPONENTIAL, Traits, family_at_each_length, traits

MATTERS = 0.01  # of the variance of the label, which is one
_NEARLY = 0.9  # of what the best change recovers
NORMALISATION, POSITIVITY, TEMPERATURE, BIAS, GROWTH = KINDS = (
    "normalisation",
    "positivity",
    "temperature",
    "bias",
    "growth",
)
_LOWEST, _HALVINGS = (
    -64.0,
    60,
)  # from which score on, and how finely, a kernel is looked at for where it vanishes


class Gaps(NamedTuple):
    """Gaps to the Bayes risk: with ten tokens, with random lengths, and in a long sequence."""

    fixed: float
    lengths: float
    haystack: float


NO_GAPS = Gaps(0.0, 0.0, 0.0)


class Counterfactual(NamedTuple):
    """One change, and the gaps before and after it."""

    what: str
    before: Gaps
    after: Gaps

    @property
    def changes(self) -> Gaps:
        """The recovered gap on each task."""
        return Gaps(*(b - a for b, a in zip(self.before, self.after, strict=True)))

    @property
    def where(self) -> str:
        """The task on which it recovers most."""
        return Gaps._fields[int(np.argmax(self.changes))]

    @property
    def recovers(self) -> float:
        """The recovered gap on that task."""
        return max(self.changes)


class Causes(NamedTuple):
    """The changes that were computed for the attention, and those that explain its gap, in order.

    `later` are the changes that were computed after each of `lacks`, with the attention as changed before.
    """

    tried: tuple[Counterfactual, ...]
    lacks: tuple[Counterfactual, ...]
    later: tuple[tuple[Counterfactual, ...], ...] = ()


class AtWorst(NamedTuple):
    """The change that recovers most of the gap on one task, how much, and what all that were computed recover."""

    what: str
    recovers: float
    tried: tuple[tuple[str, float], ...] = ()


class _Stretched(AbstractPerLength):
    """An attention whose scores are first multiplied by `(log L)^power`."""

    name = "stretched"
    attention: AbstractAttention
    power: float

    @property
    def family(self) -> str:  # type: ignore[override]
        return self.attention.family

    @property
    def analytic(self) -> bool:  # type: ignore[override]
        return self.attention.analytic

    @property
    def compares_tokens(self) -> bool:  # type: ignore[override]
        return self.attention.compares_tokens

    def at_length(self, length: Any) -> tuple[AbstractAttention, Any]:
        known, stretch = self.attention.with_bias(self.bias).at_length(length)
        known = known.with_free_bias(self.free_bias)
        return known, stretch * _log_length(length) ** self.power


def _log_length(length: Any) -> Any:
    return jnp.log(jnp.maximum(length, 2.0))  # one token has all the weight, whatever its score


def measure(attention: AbstractAttention, known: Gaps | None = None) -> Gaps:
    """The gaps of an attention on the three tasks; gaps `known` to be small are not computed again."""
    places = FIXED, VARIED, haystacks(attention)[1]
    kept = dict(zip(places, known or (), strict=False))
    rows = answer(
        attention, [each for each in places if kept.get(each, 1.0) >= MATTERS], quick=True
    )
    return Gaps(*(float(rows[at].gap) if at in rows else kept[at] for at in places))


def find_causes(
    attention: AbstractAttention,
    gaps: Gaps,
    biased: Gaps | None = None,
    found: Traits | None = None,
) -> Causes:
    """Causes for an attention with these gaps and traits; `biased` are its gaps with a free bias, if they are known."""
    steps = [tried := _try_all(attention, gaps, biased, found)]
    lacks: list[Counterfactual] = []
    while True:
        useful = [(each, of) for each, of in tried if each.recovers >= MATTERS]
        if not useful:
            break
        most = max(sum(each.changes) for each, _ in useful)
        named, changed = next(
            pair for pair in useful if sum(pair[0].changes) >= _NEARLY * most or most <= 0
        )
        lacks.append(named)
        tried = []
        if changed is not None and max(named.after) >= MATTERS:
            tried = _try_all(changed, named.after)
        steps.append(tried)
    first, *later = (tuple(each for each, _ in step) for step in steps)
    return Causes(first, tuple(lacks), tuple(later))


def best_change(
    attention: AbstractAttention, place: Bayes, gap: float, found: Traits
) -> AtWorst | None:
    """The change that recovers most of the gap on one task, if it recovers at least 0.01.

    None is tried after one that recovers nearly all.
    """
    recovered: dict[str, float] = {}
    for what in KINDS:
        if what == GROWTH and found.normalised:
            recovered[what] = gap  # it is softmax then
        else:
            changed = _CHANGES[what](attention, found)
            if changed is not None:
                recovered[what] = gap - float(answer(changed, [place], quick=True)[place].gap)
        if recovered.get(what, 0.0) >= _NEARLY * gap:
            break
    most = max(recovered.values(), default=0.0)
    if most < MATTERS:
        return None
    tried = tuple(recovered.items())
    return AtWorst(*next(pair for pair in tried if pair[1] >= _NEARLY * most), tried)


def _try_all(
    attention: AbstractAttention,
    gaps: Gaps,
    biased: Gaps | None = None,
    found: Traits | None = None,
) -> list[tuple[Counterfactual, AbstractAttention | None]]:
    """Each effective change and the changed attention (`None`: softmax), in the order of `KINDS`.

    None is tried after one that recovers nearly all, which no other could be named before.
    """
    tried: list[tuple[Counterfactual, AbstractAttention | None]] = []
    if max(gaps) < MATTERS:
        return tried
    found = found or traits(attention)
    for what in KINDS:
        after = biased if what == BIAS else None
        if what == GROWTH and found.normalised:
            changed, after = None, NO_GAPS
        else:
            changed = _CHANGES[what](attention, found)
            if changed is None:
                continue
        if changed is not None and what == TEMPERATURE and not _is_scaleless(found):
            # At a fixed length k has the same effect. Growth would recover all of the rest, and be named instead.
            if found.normalised and gaps.lengths < _NEARLY * sum(gaps):
                continue
            gap = float(answer(changed, [VARIED], quick=True)[VARIED].gap)
            after = gaps._replace(lengths=gap)
        if after is None and changed is not None:
            # A bias that is tuned cannot lose.
            after = measure(changed, gaps if what == BIAS else None)
        each = Counterfactual(what, gaps, after or NO_GAPS)
        tried.append((each, changed))
        if sum(each.changes) >= _NEARLY * sum(gaps):
            break
    return tried


def _is_scaleless(found: Traits) -> bool:
    return found.slope == "scaleless" and found.family == "general"


def _normalise(attention: Any, found: Traits) -> AbstractAttention | None:
    """`w/Σw`, with negative weights set to zero."""
    if found.normalised:
        return None
    if found.family == "kernel":
        return _kernel_like(attention, lambda known, x: known.log_phi(x) + safe_log(known.share(x)))
    if found.family == "element-wise":
        return _kernel_like(attention, lambda known, x: safe_log(known.weight(x)))

    def divided(scores: Any) -> Any:
        weights = jnp.maximum(attention(scores), 0.0)
        total = jnp.sum(weights)
        return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), 0.0)

    return recognise(divided, "normalised")


def _make_positive(attention: Any, found: Traits) -> AbstractAttention | None:
    if found.family != "kernel":
        return None
    known, stretch = attention.with_bias(0.0).at_length(10.0)

    def log_psi(known: Any, x: Any) -> Any:
        return known.log_phi(x) + safe_log(known.share(x))

    read = jax.jit(lambda x: log_psi(known, stretch * x + known.bias))
    if not (np.isneginf(read(_LOWEST)) and np.isfinite(read(-_LOWEST))):
        return None
    low, high = _LOWEST, -_LOWEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if np.isneginf(read(middle)) else (low, middle)
    knee = float(stretch * high + known.bias) + 1.0

    def completed(known: Any, x: Any) -> Any:
        above = log_psi(known, jnp.maximum(x, knee))
        return above + jnp.minimum(x - knee, 0.0)

    return _kernel_like(attention, completed, knee)


def _kernel_like(
    attention: Any, log_phi: Callable[[Any, Any], Any], *knees: float
) -> AbstractAttention:
    """A kernel with this `log φ`, a function of the attention at each length, and with its bias and features."""
    plain = attention.with_bias(0.0)

    def at_length(score: Any, length: Any) -> Any:
        known, stretch = plain.at_length(length)
        return log_phi(known, stretch * score + known.bias)

    def at_any(score: Any) -> Any:
        return log_phi(plain, score)

    begins = kinks(lambda score: jnp.where(at_length(score, 10.0) > -jnp.inf, 1.0, 0.0))
    return Kernel(
        at_length if attention.knows_length else at_any,
        features=(*attention.features, *knees, *begins),
        bias=attention.bias,
        free_bias=attention.free_bias,
        analytic=attention.analytic and not knees and not begins,
    )


def _heat(attention: AbstractAttention, found: Traits) -> AbstractAttention | None:
    """The attention with scores times `log L`; divided by it if the formula contains the length."""
    whole: Any = attention
    if _is_scaleless(found):
        centred = attention.ignores_shifts

        def scaled(scores: Any) -> Any:
            size = jnp.std(scores) if centred else jnp.sqrt(jnp.mean(scores**2))
            return jax.nn.softmax(size * safe_log(whole(scores)))

        return recognise(scaled, "of its own temperature")
    if not is_exact(VARIED.problem, attention):
        knows_length = family_at_each_length(attention) is not None
        return (
            General(lambda scores: whole(scores / _log_length(scores.size)))
            if knows_length
            else None
        )
    power = -1.0 if attention.knows_length else 1.0
    return _Stretched(attention, power, bias=attention.bias, free_bias=attention.free_bias)


def _free_bias(attention: AbstractAttention, found: Traits) -> AbstractAttention | None:
    tunable = has_tunable_bias(attention) and is_exact(FIXED.problem, attention)
    return attention.with_free_bias() if tunable else None


def _grow(attention: AbstractAttention, found: Traits) -> AbstractAttention | None:
    return None if found.growth == EXPONENTIAL else Elementwise(jnp.exp, features=(), analytic=True)


_CHANGES: dict[str, Callable[[Any, Traits], AbstractAttention | None]] = {
    NORMALISATION: _normalise,
    POSITIVITY: _make_positive,
    TEMPERATURE: _heat,
    BIAS: _free_bias,
    GROWTH: _grow,
}
