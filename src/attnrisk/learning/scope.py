"""Which tasks the equations of sections 6 and 7 are for, and which attentions can be learned at all."""

from collections.abc import Mapping
from typing import Any

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
    if attention.is_scale_sensitive:
        return attention
    allowed = "one that heeds the scale of its scores: a ridge shrinks the k of this one for nothing, without end"
    raise refuse("attention", attention.name, allowed)
