"""Which tasks the equations of sections 6 and 7 cover, up to which length, and which attentions can be learned."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._check import of_type, refuse, shown, whole
from ..attention import AbstractAttention
from ..tasks import AbstractSamplable, AbstractTask, MaxSLR, SpikedSLR

# Beyond these a minimum is not told from rounding, or lies at longer keys than can be integrated.
LOUDEST, STRONGEST, MOST_DATA = 1e4, 1e6, 1e3  # label noise, ν and α
RIDGES = 1e-9, 1e9


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
    known: Any = check_noise(_covered(task, "learned_length", "learning from finite data"))
    if STRONGEST < known.nu < np.inf:
        raise refuse("nu", f"{known.nu:g}", f"at most {STRONGEST:g} where k is learned, or inf")
    return known


def check_noise(task: Any) -> Any:
    """The task, if its labels are not all noise."""
    if task.noise > LOUDEST:
        raise refuse("noise", f"{task.noise:g}", f"at most {LOUDEST:g} where v is learned")
    return task


def check_seed(seed: int) -> int:
    """A seed of scrambled points."""
    return whole("seed", seed, 0, 2**32 - 1)


def optimisable(task: AbstractTask, asked: str = "the Bayes optimum") -> AbstractSamplable:
    """The task, if section 7 covers it."""
    return _covered(task, "optimal_length", asked)


def _covered(task: AbstractTask, limit: str, asked: str) -> Any:
    if type(task) not in LIMITS:
        given = task.name if isinstance(task, AbstractTask) else shown(task)
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
    of_type("attention", attention, AbstractAttention, "an attention, such as Softmax()")
    if attention.is_scale_sensitive:
        return attention
    allowed = (
        "one that depends on the scale of its scores: for this one the empirical risk has no minimum, since a ridge "
        "shrinks k without limit and the loss stays; with a fixed bias other than 0 it has one"
    )
    raise refuse("attention", attention.name, allowed)
