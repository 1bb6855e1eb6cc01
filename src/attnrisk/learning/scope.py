"""Which tasks the equations of sections 6 and 7 are for, and which attentions can be learned at all."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._check import refuse
from ..attention import AbstractAttention
from ..tasks import AbstractTask, MaxSLR, SpikedSLR

Solvable = SpikedSLR | MaxSLR


def solvable(task: AbstractTask, longest: Mapping[Any, int], asked: str) -> Solvable:
    """The task, if it is one of them and no longer than its kind may be."""
    if not isinstance(task, SpikedSLR | MaxSLR):
        raise refuse("task", task.name, f"spiked or max where {asked} is asked")
    if isinstance(task, SpikedSLR) and task.spread != 1.0:
        raise refuse("spread", f"{task.spread:g}", f"1 where {asked} is asked")
    if task.length.longest > longest[type(task)]:
        allowed = f"at most {longest[type(task)]} where {asked} of this task is asked"
        raise refuse("length", str(task.length), allowed)
    return task


def learner(attention: AbstractAttention) -> AbstractAttention:
    """The attention, if a ridge on `k` leaves it a minimum."""
    if heeds_scale(attention):
        return attention
    allowed = "one that heeds the scale of its scores: a ridge shrinks the k of this one for nothing, without end"
    raise refuse("attention", attention.name, allowed)


def heeds_scale(attention: AbstractAttention) -> bool:
    """Whether weights change when all scores are stretched, or never change at all.

    Those of ReLU over its sum do not. The shorter `k`, the smaller the penalty, and the loss stays: the objective falls
    towards `k = 0`, where there are no such weights, and has no minimum.
    """
    scores = np.random.default_rng(0).standard_normal((16, 3))
    plain, stretched = (np.asarray(_weights(attention, scale * scores)) for scale in (1.0, 8.0))
    return not np.allclose(plain, stretched, rtol=1e-6, atol=1e-9) or np.ptp(plain) < 1e-9


@eqx.filter_jit
def _weights(attention: AbstractAttention, scores: Any) -> Any:
    return jax.vmap(attention)(scores)
