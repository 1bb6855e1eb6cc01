"""Which tasks the equations of sections 6 and 7 cover, up to which length, and which attentions can be learned."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._check import refuse
from ..attention import AbstractAttention
from ..tasks import AbstractSamplable, AbstractTask, MaxSLR, SpikedSLR


class Limits(NamedTuple):
    """What a kind of task allows.

    The longest sequence for empirical risk minimisation and for the Bayes optimum, how many random numbers the latter
    takes (a power of two, for which a call takes a second), and a depth `log(1 + q̂_k)` beyond what any data give.
    """

    learned_length: int
    optimal_length: int
    log2_numbers: int
    key_depth: Callable[[Any, float], float]


LIMITS: dict[type[AbstractTask], Limits] = {
    # The mean of the relevant tokens, once all locations are known.
    SpikedSLR: Limits(32, 512, 19, lambda task, alpha: np.log1p(alpha * task.shift**2)),
    # At most q̂_k = O(α²): at ν = inf only a sample whose two largest fields are as close as √(1−q_k) has something
    # left to tell. The work for the optimum grows like the third power of the length.
    MaxSLR: Limits(32, 64, 16, lambda task, alpha: 2.0 * np.log1p(10.0 * alpha)),
}


def learnable(task: AbstractTask) -> AbstractSamplable:
    """The task, if section 6 covers it."""
    return _covered(task, "learned_length", "learning from finite data")


def optimisable(task: AbstractTask, asked: str = "the Bayes optimum") -> AbstractSamplable:
    """The task, if section 7 covers it."""
    return _covered(task, "optimal_length", asked)


def _covered(task: AbstractTask, limit: str, asked: str) -> Any:
    if type(task) not in LIMITS:
        given = task.name if isinstance(task, AbstractTask) else repr(task)
        raise refuse("task", given, f"spiked or max, the tasks with equations for {asked}")
    if task.spread != 1.0:
        allowed = f"1 for {asked}: with another, the norm of a token gives its location away"
        raise refuse("spread", f"{task.spread:g}", allowed)
    longest = getattr(LIMITS[type(task)], limit)
    if task.length.longest > longest:
        raise refuse("length", str(task.length), f"at most {longest} for {asked} of this task")
    return task


def learner(attention: AbstractAttention) -> AbstractAttention:
    """The attention, if a ridge on `k` leaves it a minimum."""
    if not isinstance(attention, AbstractAttention):
        raise refuse("attention", repr(attention), "an attention, such as Softmax()")
    if attention.is_scale_sensitive:
        return attention
    allowed = (
        "one that depends on the scale of its scores: for this one the empirical risk has no minimum, since a ridge "
        "shrinks k without limit and the loss stays"
    )
    raise refuse("attention", attention.name, allowed)
