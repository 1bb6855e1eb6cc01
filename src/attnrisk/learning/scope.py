"""Which tasks the equations of sections 6 and 7 cover, up to which length, and which attentions can be learned."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._check import of_type, real, refuse, whole
from ..attention import AbstractAttention
from ..tasks import AbstractSamplable, AbstractTask
from .asymptotics import Ridge

# Beyond these a minimum is not told from rounding, or lies at longer keys than can be integrated.
LOUDEST, STRONGEST, MOST_DATA = 1e4, 1e6, 1e3  # label noise, ν and α
RIDGES = 1e-9, 1e9

# Beyond these a call takes an hour. The second is of scores in all where these meet in more than a few sums, and of
# tokens where each location has to be visited.
_LONGEST, _LONGEST_DENSE = 1000, 32
MOST_HEADS = 3
_TOKENS = 10.0  # at which a kernel that knows the length is looked at
_FARTHEST = 1e6  # score at which a power may vanish
# Between ±_WIDE a jump is located by so many sections into so many parts, to double precision.
_WIDE, _PARTS, _SECTIONS = 30.0, 256, 6
# Scores, each paired with the next one outwards.
_NEAR = np.array([1.0, -1.0, 5.0, -5.0, 20.0, -20.0])
_PAIRS = np.array([_NEAR, _NEAR + np.sign(_NEAR)])


def learnable(task: AbstractTask, attention: AbstractAttention | None = None) -> AbstractTask:
    """The task, if section 6 covers it, by this attention if one is given."""
    of_type("task", task, AbstractTask, "a task, such as SpikedSLR(2.0, 3)")
    asked, longest, why = "learning from finite data", _LONGEST, ""
    if attention is not None:
        if not 1 <= attention.keys <= MOST_HEADS:
            allowed = f"at most {MOST_HEADS} where they are learned"
            raise refuse("heads", attention.keys, allowed)
        can_align = attention.keys > 1 and not task.has_random_shift
        if can_align and (attention.as_copies() is None or task.visited(longest) > 1):
            allowed = (
                "1 for learning on a task of one direction, or, but for weighted tasks, heads of equal weights and "
                "biases, which are copies of one: of others the equations do not determine V where keys are parallel; "
                "simulations support them"
            )
            raise refuse("heads", attention.keys, allowed)
    if task.visited(longest) > 1:
        longest, why = _LONGEST_DENSE, ", where each location of a sequence is visited"
    elif attention is not None and not attention.has_sums:
        longest = _LONGEST_DENSE // attention.keys
        why = "; more for one head of a kernel or element-wise attention, whose cost grows linearly with it"
    _check_length(task, longest, asked, why)
    strength = float(task.strength) ** (2 if task.has_random_shift else 1)
    signal = max(float(task.relevant_field) ** 2, strength)  # ν, or less where ν < 1
    if STRONGEST < signal < np.inf:
        raise refuse("nu", f"{signal:g}", f"at most {STRONGEST:g} where k is learned, or inf")
    return check_noise(task)


def check_noise(task: Any) -> Any:
    """The task, if its label noise does not exceed the limit."""
    if task.noise > LOUDEST:
        raise refuse("noise", f"{task.noise:g}", f"at most {LOUDEST:g} where v is learned")
    return task


def check_alpha(alpha: float) -> float:
    """A number of sequences per dimension."""
    return float(real("alpha", alpha, above=0.0, maximum=MOST_DATA))


def check_ridge(ridge: Ridge) -> Ridge:
    """Ridge penalties that are large enough for double precision."""
    of_type("ridge", ridge, Ridge, "of type Ridge, such as Ridge(k=1.0, v=1.0)")
    for name, given in (("ridge_k", ridge.k), ("ridge_v", ridge.v)):
        real(name, given, minimum=RIDGES[0], maximum=RIDGES[1])
    return ridge


def check_seed(seed: int) -> int:
    return whole("seed", seed, 0, 2**32 - 1)


def optimisable(task: AbstractTask, asked: str = "the Bayes optimum") -> AbstractSamplable:
    """The task, if section 7 covers it."""
    known: Any = of_type("task", task, AbstractTask, "a task, such as SpikedSLR(2.0, 3)")
    if known.no_optimum:
        raise refuse("task", known.name, f"spiked or max for {asked}: {known.no_optimum}")
    if known.spread != 1.0:
        allowed = f"1 for {asked}: with another, the norm of a token gives its location away"
        raise refuse("spread", f"{known.spread:g}", allowed)
    _check_length(known, _LONGEST, asked)
    return known


def _check_length(task: AbstractTask, longest: int, asked: str, why: str = "") -> None:
    if task.length.longest > longest:
        allowed = f"at most {longest} for {asked} here{why}"
        raise refuse("length", str(task.length), allowed)


def learner(attention: AbstractAttention) -> AbstractAttention:
    """The attention (for a single head the plain one), if its empirical risk with a ridge on `k` has a minimum."""
    of_type("attention", attention, AbstractAttention, "an attention, such as Softmax()")
    attention = attention.as_one_head()
    if attention.free_weights:
        allowed = (
            "average or numbers where heads are learned: no equation fixes a weight of each head"
        )
        raise refuse("weights", "free", allowed)
    if learns_bias(attention):
        scaleless = scaleless_bias(attention)
        if scaleless is None:
            return attention
        allowed = (
            "one that depends on the common scale of its scores and its bias where the bias is free: for this one the "
            "empirical risk has no minimum, since ridges shrink k and the bias together and the loss stays; with a "
            f"fixed bias other than {scaleless:g} it has one"
        )
    elif attention.is_scale_sensitive:
        return attention
    else:
        allowed = (
            "one that depends on the scale of its scores: for this one the empirical risk has no minimum, since a "
            "ridge shrinks k without limit and the loss stays"
        )
        if attention.with_bias(np.ones_like(attention.bias)).is_scale_sensitive:
            allowed += "; with a fixed bias other than 0 it has one"
    raise refuse("attention", attention.name, allowed)


def learns_bias(attention: AbstractAttention) -> bool:
    """Whether a bias is learned: it is free, and the weights of one head depend on it; those of several are fixed."""
    if not attention.free_bias or attention.keys > 1:
        return False
    return not attention.with_bias(np.zeros_like(attention.bias)).ignores_shifts


def split_bias(attention: AbstractAttention) -> tuple[AbstractAttention, Float[np.ndarray, " B"]]:
    """The attention without a bias that is learned, and the first value of this (of size 0 if there is none)."""
    if not learns_bias(attention):
        return attention, np.zeros(0)
    first = np.array(attention.bias, float)
    return attention.with_bias(np.zeros_like(first)), np.atleast_1d(first)


def join_bias(bare: AbstractAttention, bias: Float[np.ndarray, " B"]) -> AbstractAttention:
    """The attention with a bias that was learned, if there is one."""
    return bare.with_bias(np.reshape(bias, np.shape(bare.bias))) if bias.size else bare


def scaleless_bias(attention: AbstractAttention) -> float | None:
    """The bias with which the scale of the scores has no effect: 0 for ReLU, −8 for `(1 + χ/8)⁸`, that at which a step
    jumps; usually `None`.

    If there is one, and the bias is learned, the empirical risk has no minimum.
    """
    unbiased = attention.with_bias(np.zeros_like(attention.bias))
    if not unbiased.is_scale_sensitive:
        return 0.0
    if unbiased.family not in ("kernel", "element-wise"):
        return None
    known: Any = unbiased.at_length(_TOKENS)[0]
    is_kernel = unbiased.family == "kernel"
    roots = _jump(known.log_phi if is_kernel else known.weight)
    if is_kernel:
        # If φ is a power of the distance from its root, `1/(log φ)'` is linear. Of an exponential the root is infinite,
        # and φ may vanish on one side of it.
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # φ may vanish or be constant at a score
            near, far = 1.0 / np.asarray(jax.vmap(jax.vmap(jax.grad(known.log_phi)))(_PAIRS))
            powers = _PAIRS[0] - near * (_PAIRS[1] - _PAIRS[0]) / (far - near)
        roots = np.append(roots, powers[np.abs(powers) < _FARTHEST])
    for root in roots.tolist():
        if not unbiased.with_bias(root).is_scale_sensitive:
            return root
    return None


def _jump(function: Callable[[Any], Any]) -> Float[np.ndarray, " n"]:
    """The score at which a step jumps; none of a function with other than two values."""
    values, ends = jax.jit(lambda scores: function(scores)), (-_WIDE, _WIDE)
    for _ in range(_SECTIONS):
        scores = np.linspace(*ends, _PARTS + 1)
        found = np.asarray(values(scores))
        (before,) = np.nonzero(found[1:] != found[:-1])
        if before.size != 1:
            return np.zeros(0)
        ends = scores[before[0]], scores[before[0] + 1]
    return np.array(ends[:1])


def level_bias(task: AbstractTask, attention: AbstractAttention) -> float:
    """A bias `≤ 0` at which the weights of equal scores sum to about one, if their sum is larger at bias 0."""
    shifts = np.linspace(0.0, -6.0, 61)
    equal = jnp.zeros((attention.keys, round(task.length.mean())))
    totals = [float(jnp.sum(attention.attend(equal + shift))) for shift in shifts]
    below = [shift for shift, total in zip(shifts, totals, strict=True) if total <= 1.0]
    return float(below[0]) if below and totals[0] > 1.0 else 0.0
