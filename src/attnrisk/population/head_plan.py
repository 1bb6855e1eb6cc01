"""Which engine integrates several heads or features, and by which rule (section 10)."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..attention import AbstractAttention, AbstractKernel, BayesSoftmax, Heads
from ..numerics.quadrature import trapezoid
from ..tasks import AbstractNeedle, AbstractTask
from .engines import NeedleBayesSoftmax, NeedleHeads
from .engines.heads import score_nodes
from .overlaps import Overlaps
from .plan import SOFTMAX

_SHARED_SCALE = 1.2
MOST_JOINT_HEADS = 3  # of Bayes-softmax, whose grid has a dimension for each


class HeadRange(NamedTuple):
    """Scores that an engine for heads serves: the largest deviation and the largest mean of a token's score, and the
    lowest and the highest bias."""

    deviation: float
    shift: float
    lowest_bias: float = 0.0
    highest_bias: float = 0.0


def has_exact_heads(task: AbstractTask, attention: AbstractAttention) -> bool:
    """Whether heads or features are integrated by deterministic quadrature (section 10)."""
    if not isinstance(task, AbstractNeedle):
        return False
    if isinstance(attention, BayesSoftmax):
        return attention.keys <= MOST_JOINT_HEADS
    kernel = attention.attention if isinstance(attention, Heads) else attention
    return isinstance(kernel, AbstractKernel) and kernel.analytic and not kernel.knows_length


def head_range(
    task: AbstractNeedle, attention: AbstractAttention, overlaps: Overlaps
) -> tuple[HeadRange, bool]:
    """The scores at these overlaps, and whether those of different heads, and `z`, are independent."""
    law, features = task.shift_law, task.features
    M, Q, squares = (np.asarray(each) for each in (overlaps.M, overlaps.Q, np.diagonal(overlaps.Q)))
    along = M[:, :features]
    carried = np.einsum("pf,jfg,qg->jpq", along, np.asarray(law.all_covariances), along)
    spread = max(1.0, float(task.spread) ** 2)
    deviations = np.sqrt(spread * squares + np.diagonal(carried, axis1=1, axis2=2))[:, :-1]
    shift = float(np.abs(along[:-1] @ np.asarray(law.means).T).max())
    kernel = attention.attention.bias if isinstance(attention, Heads) else 0.0
    bias = kernel + np.asarray(attention.given_norms(jnp.asarray(squares[:-1])).bias)
    crossed = np.abs(np.tril(Q, -1)).sum() + np.abs(np.tril(carried, -1)).sum()
    crossed += np.abs(M[:-1, features:]).sum() + np.abs(M[-1, :features]).sum()
    within = HeadRange(float(deviations.max()), shift, float(bias.min()), float(bias.max()))
    return within, bool(crossed == 0.0)


def heads_engine(
    task: AbstractNeedle,
    attention: AbstractAttention,
    within: HeadRange,
    fineness: float,
    independent: bool = False,
    widened: float = 1.0,
) -> NeedleHeads | NeedleBayesSoftmax:
    """An engine of equal steps, right to some `10^{-8·fineness}`; `widened` steps give another of the same shape.

    Where scores of Bayes-softmax are `independent`, they need no grid.
    """
    deviation, shift, low, high = within
    steps = math.ceil(math.log(max(deviation, 1.0)) / math.log(_SHARED_SCALE) - 1e-9)
    deviation = _SHARED_SCALE**steps  # neighbouring problems share compiled code
    lengths = float(task.length.lengths[0]), float(task.length.longest)
    kernel: Any = attention.attention if isinstance(attention, Heads) else attention
    if isinstance(attention, BayesSoftmax):
        # A sum over heads lies up to log H above the largest, and no head is needed to reach as low as the lowest.
        kernel, low, high = SOFTMAX, 0.0, math.log(attention.keys)
    elif kernel.exponential and not kernel.constant:
        low = high = 0.0
    needle = -shift if lengths[0] == 1 else 0.0
    tokens = [(high + shift, deviation), (low - shift, deviation), (low + needle, deviation)]
    rule = trapezoid(deviation, lengths, fineness, widened, kernel, tokens)
    reach = math.sqrt(2.0 * (18.4 * fineness + 4.0 + math.log(lengths[1])))
    near = np.abs(rule.x) <= widened * reach * (1.0 + 1e-9)
    rule = eqx.tree_at(lambda at: (at.x, at.mass), rule, (rule.x[near], rule.mass[near]))
    if not isinstance(attention, BayesSoftmax):
        return NeedleHeads(rule)
    g, mass = score_nodes(rule.x, rule.mass, 1 if independent else attention.keys)
    return NeedleBayesSoftmax(rule, g, mass, independent)
