"""Removing heads one by one, and the increase of the risk (section 10)."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._check import of_type, refuse
from .._results import Estimate
from ..attention import AbstractAttention
from ..numerics.arrays import as_arrays
from ..numerics.quadrature import estimate_from
from ..tasks import AbstractNeedle
from .engines import Correlations
from .engines.base import head_range
from .heads_minimum import HeadsMinimum
from .overlaps import Overlaps
from .plan import has_exact_heads, heads_engine

_FINENESS = 0.6, 0.9  # of two rules: the value is that of the second, their difference the error


class Pruned(eqx.Module):
    """The remaining heads, by index, and their risk with the norm of `v` optimised again."""

    recorded: ClassVar = ("kept", "risk")
    kept: list[int]
    risk: Estimate


def prune_heads(task: AbstractNeedle, found: HeadsMinimum) -> list[Pruned]:
    """Remove heads one at a time, always the head whose removal increases the risk least.

    Keys, biases and head weights are kept; only the norm of `v` is optimised again.

    Args:
        task: The task, with a shifted token.
        found: A minimum for `Heads` of a kernel, from `population_minimum`.

    Returns:
        A list of `Pruned`, from all heads to a single one.
    """
    of_type("found", found, HeadsMinimum, "what population_minimum returns for heads")
    attention = found.attention
    if attention.head_weights is None or not has_exact_heads(task, attention):
        raise refuse("attention", attention.name, "heads of a kernel, such as softmax")
    M = np.array(found.overlaps.M)
    M[-1, -1] = 1.0  # `v` of length one: its best length follows from A and B
    unit = Overlaps(M, M @ M.T)
    within = head_range(task, attention, unit)
    rough, fine = (
        _by_head(*as_arrays((heads_engine(task, attention, within, each), task, attention, unit)))
        for each in _FINENESS
    )
    weights = np.asarray(attention.head_weights)

    def risk(by_head: Correlations, kept: list[int]) -> float:
        c = weights[kept]
        label, power = (np.asarray(each) for each in by_head)
        spread = c @ power[np.ix_(kept, kept)] @ c  # zero where all weights are
        explained = (c @ label[kept]) ** 2 / spread if spread > 0 else 0.0
        return float(task.label_variance - explained)

    kept, steps = list(range(attention.keys)), []
    while True:
        steps.append(Pruned(list(kept), estimate_from(risk(rough, kept), risk(fine, kept))))
        if len(kept) == 1:
            return steps
        kept = min(([h for h in kept if h != out] for out in kept), key=lambda it: risk(fine, it))


@eqx.filter_jit
def _by_head(
    engine: Any, task: AbstractNeedle, attention: AbstractAttention, overlaps: Overlaps
) -> Correlations:
    return Correlations(*(jnp.asarray(each) for each in engine.by_head(task, attention, overlaps)))
