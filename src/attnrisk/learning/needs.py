"""The sample size at which the tuned test risk falls below a value, or below that of another attention."""

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx

from .._check import real, refuse, whole
from .._results import ErrorKind, Estimate
from ..attention import AbstractAttention
from ..numerics.minimise import bisect
from ..population import population_minimum
from ..tasks import AbstractTask
from .asymptotics import ERMAsymptotics
from .scope import learnable, learner, learns_bias
from .tuning import tuned_erm_asymptotics

LEAST, MOST = 2.0**-3, 2.0**7  # the α searched
_LOG2_POINTS = 7  # errors of about 0.01
_RATIO = 1.05  # of the ends of the bracket in which the search ends


class Needs(eqx.Module):
    """The `α` at which a risk is reached, or another attention overtaken; `None` if that does not happen.

    `limit` is the limit of the risk minus the target (or minus the risk of the other) with infinite data. The error
    covers the final bracket of the search and the errors of the risks at its ends. `converged`
    is false if a fixed point on the way, or the minimum with infinite data, did not converge.
    """

    recorded: ClassVar[tuple[str, ...]] = ("alpha", "limit", "reason", "converged")
    alpha: Estimate | None
    limit: Estimate
    reason: str = eqx.field(static=True)
    converged: bool = eqx.field(static=True)


class Difference(NamedTuple):
    """The risk minus the target, or minus that of the other, at one `α`."""

    value: Estimate
    converged: bool


def needed_data(
    task: AbstractTask,
    attention: AbstractAttention,
    risk: float | None = None,
    other: AbstractAttention | None = None,
    seed: int = 0,
    log2_points: int = _LOG2_POINTS,
) -> Needs:
    """Find the `α = N/D` at which the test risk with tuned ridges falls to a value, or below that of another attention.

    By bisection in `log α` between 1/8 and 128; takes minutes. Of several crossings it is the one nearest to `α = 1`.

    Args:
        task: The task.
        attention: The attention that learns, with its bias if that is free.
        risk: The test risk to reach.
        other: Instead of `risk`, the attention to overtake.
        seed: Seed of the random points.
        log2_points: Logarithm of the number of random points, base 2; 7 by default, for errors of about 0.01.

    Returns:
        A `Needs` with `alpha` and its error, or `None` where the risk is never reached, for the `reason` given.

    Examples:
        >>> needs = ar.needed_data(ar.SpikedSLR(nu=5.0, length=3), ar.Linear(), risk=0.2)
        >>> needs.alpha is None
        True
    """
    if (risk is None) == (other is None):
        raise refuse("risk", "both" if risk is not None else "nothing", "one of risk and other")
    whole("log2_points", log2_points, 1, 24)
    target = 0.0 if risk is None else float(real("risk", risk, above=0.0))
    given = [each for each in (attention, other) if each is not None]
    rivals = [learner(each) for each in given]
    for each in rivals:
        learnable(task, each)
    # With infinite data; biases of several heads are not learned.
    fixed = [each.with_free_bias(learns_bias(each)) for each in rivals]
    minima = [population_minimum(task, each) for each in fixed]
    near: dict[int, ERMAsymptotics | None] = {}

    def learn(at: int, alpha: float) -> ERMAsymptotics:
        found = tuned_erm_asymptotics(
            task, rivals[at], alpha, seed, log2_points, start=near.get(at)
        )
        near[at] = found if found.converged else None
        return found

    def difference(alpha: float) -> Difference:
        found = [learn(at, alpha) for at in range(len(rivals))]
        own, *its = (each.test_risk for each in found)
        return Difference(own - (its[0] if its else target), all(it.converged for it in found))

    kinds = {each.risk.kind for each in minima}
    kind = ErrorKind.STANDARD if len(kinds) > 1 else kinds.pop()
    own, *its = (each.risk.as_kind(kind) for each in minima)
    limit = own - (its[0] if its else target)
    return crossing(difference, Difference(limit, all(each.converged for each in minima)))


def crossing(value: Callable[[float], Difference], infinite: Difference) -> Needs:
    """The zero crossing nearest to `α = 1`, located on powers of two, of a function with a value at infinite `α`."""
    limit = infinite.value
    if abs(float(limit)) <= float(limit.error):
        equal = "undecided: equal with infinite data, within the error"
        return Needs(None, limit, equal, infinite.converged)
    if float(limit) > 0:
        never = "never: not even infinite data suffice"
        return Needs(None, limit, never, infinite.converged)
    seen: dict[float, Difference] = {}

    def at(alpha: float) -> Difference:
        if alpha not in seen:
            seen[alpha] = value(alpha)
        return seen[alpha]

    def sound() -> bool:
        return all(each.converged for each in (infinite, *seen.values()))

    # From α = 1 towards where the value changes its sign.
    high = 1.0
    while float(at(high).value) >= 0 and high < MOST:
        high *= 2.0
    if float(at(high).value) >= 0:
        return Needs(None, limit, f"not up to α = {MOST:g}, though with infinite data", sound())
    low = high / 2.0
    while float(at(low).value) < 0 and low > LEAST:
        high, low = low, low / 2.0
    if float(at(low).value) < 0:
        bound = Estimate(low / 2.0, low / 2.0, ErrorKind.BOUND)
        return Needs(bound, limit, f"at any α down to {LEAST:g} and perhaps below", sound())
    low, high = bisect(lambda alpha: float(at(alpha).value) < 0, low, high, _RATIO)
    above, below = at(low).value, at(high).value
    span = math.log(high / low)
    fall = float(above) - float(below)
    share = float(above) / fall
    alpha = low * math.exp(share * span)
    noise = max(float(above.error), float(below.error)) / fall * span  # in log α
    error = alpha * min(math.hypot(span / 2.0, noise), math.log(MOST / LEAST))
    return Needs(Estimate(alpha, error, ErrorKind.STANDARD), limit, "reached", sound())
