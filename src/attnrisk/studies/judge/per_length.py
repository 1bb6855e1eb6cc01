"""Functions that use the number of tokens, such as SSMax: their family at each fixed length.

JAX traces a function of `L` scores without computing it, and `L` is a number in the trace. Evaluated with one score, or
with two, in place of `L`, the trace gives the weight or the kernel that the function would have. This is compared with
the function itself on sequences that really have so many tokens.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array

from ..._check import is_traced, refuse
from ...attention import AbstractAttention, Elementwise, Kernel
from .checks import DRAWS, Function, call, draw, same

_COMPARED = (2, 7, 50)  # tokens
_SCALES = 4  # of scores, the smallest: the ratio of two exponentials is in the range of numbers
_LARGEST_LOG = 700.0  # of a ratio of kernels
_BASES = (0.0, 1.0, -1.0, 4.0, -4.0)  # scores beside one of which a kernel is looked at
_CALLS = ("pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")


def family_per_length(
    function: Function, lengths: Sequence[int], kinks: Callable[[Function], list[float]]
) -> AbstractAttention | None:
    """A kernel or an element-wise attention of `(score, length)` that agrees with the function, if there is one.

    It serves these `lengths` of the tasks.
    """
    longer = sorted({*lengths} - {*_COMPARED})
    try:
        traces = {size: _trace(function, size) for size in _COMPARED}
        kinds: list[tuple[Any, Callable[..., Array]]] = [(Elementwise, _weight)]
        base = _base(traces)
        if base is not None:
            kinds.append((Kernel, partial(_log_phi, base)))
        for kind, read in kinds:
            if _agrees(kind(_at_each(read, traces)), function, _COMPARED):
                # Only here: a function of another family may be slow, or fail, at many tokens.
                traces |= {size: _trace(function, size) for size in longer}
                at_length = _at_each(read, traces)
                if _agrees(kind(at_length), function, longer):
                    return _with_kinks(kind, at_length, kinks)
                return None
    except Exception:
        # The user's function, or its trace with another number of scores, failed: it has neither form, and is then
        # judged as a general attention, where its own errors are reported.
        return None
    return None


def _trace(function: Function, size: int) -> ClosedJaxpr:
    return jax.make_jaxpr(function)(jax.ShapeDtypeStruct((size,), np.float64))


def _weights(trace: ClosedJaxpr, size: int, scores: Array) -> Array:
    """The weights of a function of `size` scores, evaluated on fewer."""
    (weights,) = _evaluate(trace, size, scores.size, [scores])
    return weights


def _evaluate(trace: ClosedJaxpr, size: int, count: int, inputs: Sequence[Any]) -> list[Any]:
    """A trace, with arrays of `count` elements in place of `size`."""
    if any(size in np.shape(each) for each in trace.consts):
        raise ValueError("a constant for each token cannot be resized")
    jaxpr = trace.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*trace.consts, *inputs), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        given, name = [read(each) for each in equation.invars], equation.primitive.name
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if name in _CALLS and isinstance(inner, ClosedJaxpr):
            found = _evaluate(inner, size, count, given)
        elif any(isinstance(each, ClosedJaxpr) for each in equation.params.values()):
            raise ValueError(f"{name} cannot be resized")
        else:
            resized = {key: _resized(each, size, count) for key, each in equation.params.items()}
            found = equation.primitive.bind(*given, **resized)
            found = found if equation.primitive.multiple_results else [found]
        values |= dict(zip(equation.outvars, found, strict=True))
    return [read(each) for each in jaxpr.outvars]


def _resized(parameter: Any, size: int, count: int) -> Any:
    """A shape for `count` elements in place of `size`."""
    if not isinstance(parameter, tuple):
        return parameter
    return tuple(count if type(each) is int and each == size else each for each in parameter)


def _weight(trace: ClosedJaxpr, size: int, score: Array) -> Array:
    return _weights(trace, size, score[None])[0]


def _log_phi(base: float, trace: ClosedJaxpr, size: int, score: Array) -> Array:
    """`log φ(score)/φ(base)`, at most `_LARGEST_LOG`."""
    own, other = _weights(trace, size, jnp.stack([score, jnp.full_like(score, base)]))
    least = math.exp(-_LARGEST_LOG)
    logarithm = jnp.log(jnp.where(own > 0, own, 1.0)) - jnp.log(jnp.maximum(other, least))
    return jnp.where(own > 0, logarithm, -jnp.inf)


def _at_each(
    read: Callable[..., Array], traces: dict[int, ClosedJaxpr]
) -> Callable[[Any, Any], Array]:
    """The function of a score and of one of these lengths, which may be traced."""
    sizes = np.array(sorted(traces), float)
    branches = [
        jnp.vectorize(partial(read, traces[size], size), signature="()->()")
        for size in sorted(traces)
    ]

    def at_length(score: Any, length: Any) -> Array:
        score = jnp.asarray(score, float)
        if is_traced(length):
            at = jnp.minimum(jnp.searchsorted(jnp.asarray(sizes), length), sizes.size - 1)
            found = jax.lax.switch(at, branches, score)
            return jnp.where(jnp.asarray(sizes)[at] == length, found, jnp.nan)
        if float(length) not in sizes:
            allowed = f"one of {', '.join(f'{each:g}' for each in sizes)} for this function"
            raise refuse("length", length, allowed)
        return branches[sizes.tolist().index(float(length))](score)

    return at_length


def _with_kinks(
    kind: type[Kernel] | type[Elementwise],
    function: Callable[[Any, Any], Array],
    kinks: Callable[[Function], list[float]],
) -> AbstractAttention | None:
    """Quadrature needs the kinks, which must be at the same scores at each length."""

    def at(size: int, score: Array) -> Array:
        return jnp.maximum(function(score, size), -_LARGEST_LOG)

    few, many = (kinks(partial(at, size)) for size in _COMPARED[1:])
    if few != many:
        return None
    return kind(function, features=tuple(sorted({0.0, *few})), analytic=not few)


def _base(traces: dict[int, ClosedJaxpr]) -> float | None:
    """A score at which the kernel does not vanish, at any length."""

    @jax.jit
    def vanishes(base: Array) -> Array:
        pairs = [_weights(traces[size], size, jnp.full(2, base)) for size in _COMPARED]
        return ~jnp.all(jnp.stack(pairs) > 0)

    return next((base for base in _BASES if not vanishes(base)), None)


def _agrees(candidate: Any, function: Function, lengths: Sequence[int]) -> bool:
    """On several sequences of each length, and on one where they are long."""
    rng = np.random.default_rng(5)
    for length in lengths:
        is_long = length > _COMPARED[-1]
        one = rng.standard_normal((1, length))
        scores = one if is_long else draw(rng, length)[: _SCALES * DRAWS]
        if not same(call(function, scores), call(candidate, scores)):
            return False
    return True
