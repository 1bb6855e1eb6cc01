"""The least risk of an attention with infinite data (sections 4 and 4.4): which method finds it."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .._check import refuse
from .._results import ErrorKind, Result
from ..attention import AbstractAttention, Kernel
from ..tasks import AbstractTask
from .bias import biased_minima, unbiased_minimum
from .heads_minimum import heads_minimum
from .minimisers import Minimum
from .plan import check_problem, is_exact
from .search import search_minima

__all__ = ["Minimum", "population_minima", "population_minimum"]

_LARGE_ERROR = 0.01  # of a risk between 0 and 1, which quadrature has only where something is wrong
_STEEP = 100.0  # factor by which log φ grows from 10 to 20, beyond any kernel in use


def population_minimum(task: AbstractTask, attention: AbstractAttention, seed: int = 0) -> Any:
    """Lowest population risk of an attention over its parameters, with infinite data.

    Minimises over `k` along `k*`, `v` along `v*` and, if it is free, the bias. With several heads (`Heads`,
    `BayesSoftmax`) or features (`FeatureSLR`), minimises from many initialisations over all keys in the span of the
    features, free biases and free head weights (section 10).

    Args:
        task: The task, for example `SpikedSLR(nu=5.0, length=10)`.
        attention: The attention, for example `Softmax()` or `get_attention("relu", bias="free")`.
        seed: Seed of the Sobol points, for combinations without an exact engine, and of random initialisations.

    Returns:
        A `Minimum`, or a `HeadsMinimum` with several heads or features. `risk` is the lowest risk with its error,
        `overlaps` is where it is attained, `attained` is false for an infimum that no finite vectors attain, and
        `result` says how the search ended.

    Examples:
        >>> best = ar.population_minimum(ar.SpikedSLR(nu=5.0, length=10), ar.Erf(free_bias=True))
        >>> print(f"{best.risk:.6f} at k = {best.overlaps.m_kk:.3f} k*, bias {best.bias:.3f}, {best.result}")
        0.457644 at k = 0.916 k*, bias -1.930, converged
    """
    check_problem(task, attention, known=True)
    attention = attention.as_one_head()
    if attention.family == "heads" or task.has_random_shift:
        return heads_minimum(task, attention, seed)
    (found,) = population_minima([task], attention, seed)
    # Where weights vanish the error is the distance to a lower bound.
    exact = found.risk.kind is ErrorKind.BOUND and found.result is not Result.WEIGHTS_VANISH
    if exact and found.risk.error > _LARGE_ERROR:
        _warn_of_error(found)
    return found


def _warn_of_error(found: Minimum) -> None:
    """That quadrature failed, with a guess at the reason."""
    attention: Any = found.attention
    why = "it is too steep, or has a kink that its features do not name"
    if isinstance(attention, Kernel) and not attention.knows_length:
        near, far = (float(attention.log_phi(jnp.asarray(score))) for score in (10.0, 20.0))
        if far > _STEEP * near > 0:
            why = "its log_phi grows like an exponential: is it φ, whose logarithm is wanted?"
    warnings.warn(
        f"the risk of {attention.name} is {found.risk}: {why}", RuntimeWarning, stacklevel=3
    )


def population_minima(
    tasks: Sequence[AbstractTask], attention: AbstractAttention, seed: int = 0
) -> list[Minimum]:
    """Lowest population risk of one attention on several tasks, in one call.

    Results are bitwise equal to those of `population_minimum` for each task. Tasks of one shape (class, number of
    lengths, range of `k`) share compiled code.

    Args:
        tasks: A list of `n` tasks with one feature.
        attention: An attention with one head.
        seed: Seed of the Sobol points, for combinations without an exact engine.

    Returns:
        A list of `n` `Minimum`, in the order of the tasks.

    Examples:
        >>> tasks = [ar.SpikedSLR(nu=nu, length=10) for nu in (2.0, 5.0)]
        >>> [f"{best.risk:.4f}" for best in ar.population_minima(tasks, ar.Linear())]
        ['0.7627', '0.6207']
    """
    if not isinstance(tasks, Sequence):
        raise refuse("tasks", repr(tasks), "a list of tasks")
    if not isinstance(attention, AbstractAttention):
        raise refuse("attention", repr(attention), "an attention, such as Softmax()")
    attention = attention.as_one_head()
    for task in tasks:
        check_problem(task, attention, one_head=True, known=True)
    if attention.knows_length:
        return [_length_minimum(task, attention, seed) for task in tasks]
    if attention.free_bias or attention.bias != 0.0:
        return biased_minima(tasks, attention, seed)
    scale_free = not attention.analytic and attention.is_homogeneous
    if scale_free and all(is_exact(task, attention) for task in tasks):
        return [unbiased_minimum(task, attention) for task in tasks]
    return search_minima(tasks, attention, seed)


def _length_minimum(task: AbstractTask, attention: AbstractAttention, seed: int) -> Minimum:
    """Of an attention that knows the length."""
    if len(task.length.lengths) > 1:
        return search_minima([task], attention, seed)[0]
    known, _ = attention.at_length(task.length.longest)
    return at_one_length(task, attention, population_minima([task], known, seed)[0])


def at_one_length(task: AbstractTask, attention: AbstractAttention, found: Minimum) -> Minimum:
    """The minimum of an attention that knows the length, from that of the attention it is among sequences of one."""
    _, stretch = attention.at_length(task.length.longest)
    overlaps = found.overlaps.stretched(1.0 / float(stretch))
    if not attention.free_bias:
        return Minimum(found.risk, overlaps, attention, found.result)
    unbiased, _ = attention.with_bias(0.0).at_length(task.length.longest)
    bias = (found.bias - float(unbiased.bias)) / float(stretch)
    return Minimum(found.risk, overlaps, attention.with_bias(bias), found.result)
