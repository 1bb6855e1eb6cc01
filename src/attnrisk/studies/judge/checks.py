"""Checks that a function is an attention: `L` finite weights for `L` scores, equivariant under permutations."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .words import KERNEL, LOG_KERNEL, few, reject, single_precision, untraceable, wrong_shape

LENGTHS = (1, 2, 3, 7)
SCALES = (0.1, 1.0, 5.0, 30.0, 1e3, 1e4)
LARGE = 300.0  # scores that only a long k makes, and whose exponentials are in the range of numbers
DRAWS = 16  # of each scale
# Sequences that are evaluated at once. With more, a function that never returns aborts the exit of the interpreter: XLA
# runs larger programs in threads of its own.
_PART = DRAWS
_SHORT = 50  # tokens of a sequence that costs little, so that a part may be filled up
_HUGE = 1e100  # the square of a weight is still a number
SAME = 1e-9  # relative to the largest weight of a sequence: rounding is far below, other families far above

Function = Callable[[Any], Any]


def check(function: Function, name: str) -> None:
    """Refuse a function that does not return `L` finite weights, or depends on the order of the tokens."""
    for length in LENGTHS:
        check_shape(function, name, length)
    rng, largest, usual = np.random.default_rng(0), 0.0, 0.0
    for length in LENGTHS:
        scores = draw(rng, length)
        sizes = np.abs(_checked_values(function, name, scores))
        largest, usual = max(largest, sizes.max()), max(usual, sizes[: 2 * DRAWS].max())
        _check_order(function, name, scores, rng.permutation(length))
    if largest == 0:
        raise reject(name, "all its weights are zero, whatever the scores")
    if usual > _HUGE:
        raise reject(name, f"its weights at scores of order one are as large as {usual:.0e}")
    once = draw(rng, LENGTHS[2])[DRAWS]
    weights = [call(function, once[None])[0]]
    for _ in range(2):  # traced anew each time
        weights.append(np.asarray(jax.jit(lambda scores: function(scores))(once)))
    if not all(same(weights[0][None], each[None]) for each in weights[1:]):
        raise reject(name, "it gives other weights for the same scores when it is called again")


def draw(rng: np.random.Generator, length: int) -> np.ndarray:
    """Sequences of all scales, the smallest first."""
    scales = np.repeat(SCALES, DRAWS)[:, None]
    return np.asarray(scales * rng.standard_normal((scales.size, length)))


def check_shape(function: Function, name: str, length: int) -> None:
    """Refuse a function that does not return `L` weights in double precision."""
    scores = jax.ShapeDtypeStruct((length,), np.float64)
    try:
        weights = jax.eval_shape(function, scores)
    except Exception as error:  # whatever a stranger's function raises is told to whom it belongs
        raise untraceable(name, error) from error
    shape = getattr(weights, "shape", None)
    if shape is None:
        raise reject(name, f"it returns a {type(weights).__name__} in place of one array")
    if shape != (length,):
        raise reject(name, wrong_shape(shape, length))
    if weights.dtype != np.float64:
        raise single_precision(name, weights.dtype)


def check_masked(function: Callable[..., Any], name: str) -> None:
    """Refuse a function that does not map scores and a mask to as many real weights."""
    length = LENGTHS[-1]
    scores = jax.ShapeDtypeStruct((length,), np.float64)
    try:
        weights = jax.eval_shape(function, scores, jax.ShapeDtypeStruct((length,), bool))
    except SystemExit:
        raise reject(name, "it ends the program, as sys.exit does") from None
    except Exception as error:  # whatever a stranger's function raises is told to whom it belongs
        raise untraceable(name, error) from error
    is_real = hasattr(weights, "dtype") and jnp.issubdtype(weights.dtype, jnp.floating)
    if not is_real or weights.shape != (length,):
        raise reject(name, f"for {length} scores and a mask it returns {weights}")


def check_phi(phi: Function, name: str) -> None:
    """Refuse a kernel that is negative or NaN, zero everywhere, or not a function of one score."""
    try:
        value: Any = jax.eval_shape(phi, jax.ShapeDtypeStruct((), np.float64))
        shape = getattr(value, "shape", None)
    except Exception as error:  # whatever a stranger's function raises is told to whom it belongs
        raise untraceable(name, error, KERNEL) from error
    if shape != ():
        made = "no array" if shape is None else f"an array of shape {shape}"
        raise reject(name, f"it returns {made} for one score", KERNEL)
    if value.dtype != np.float64:
        raise reject(name, f"it returns {value.dtype} where float64 is expected", KERNEL)
    scores = np.linspace(-SCALES[3], SCALES[3], 601)
    values = np.asarray(jax.jit(jax.vmap(phi))(scores))
    for wrong, what in ((np.isnan(values), "not a number"), (values < 0, "negative")):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[np.argmin(np.abs(scores[wrong]))])
            reason = f"it is {what} at the score {scores[at]:.3g}: {values[at]:.3g}"
            raise reject(name, reason, KERNEL)
    if not values.any():
        raise reject(name, "it is zero at all scores from -30 to 30", KERNEL)
    try:
        together = np.asarray(jax.jit(phi)(scores))
    except Exception:  # it takes one score, as it should
        return
    if together.shape == values.shape and not np.allclose(together, values, equal_nan=True):
        reason = "its value at a score depends on the other scores: it is an attention; leave out --kernel"
        raise reject(name, reason, KERNEL)


def check_log_phi(given: Any, name: str) -> None:
    """Refuse a kernel whose `log φ` is NaN somewhere, which its weights hide, or seems to be `φ` itself."""
    scores = np.append(np.linspace(-LARGE, LARGE, 601), (10.0, 20.0))
    known, _ = given.at_length(float(LENGTHS[-1]))
    values = np.asarray(jax.jit(known.log_phi)(scores))
    wrong = np.isnan(values)
    if wrong.any():
        raise reject(name, f"its log φ is nan at the score {scores[np.argmax(wrong)]:g}")
    near, far = values[-2:]
    if far > 100.0 * near > 0:
        reason = "its log φ grows like an exponential: it seems to be φ, whose logarithm is wanted"
        raise reject(name, reason, LOG_KERNEL)


def _checked_values(function: Function, name: str, scores: np.ndarray) -> np.ndarray:
    weights, size = call(function, scores), np.abs(scores).max(-1, keepdims=True)
    bad = np.isnan(weights) | (np.isinf(weights) & (size < LARGE))  # exponentials may overflow
    if not bad.any():
        return weights
    first = int(np.argmax(bad.any(-1)))
    value = weights[first][bad[first]][0]
    reason = f"it gives {value:g} for the scores {few(scores[first])}"
    if scores.shape[-1] == 1:
        reason += ", a sequence of one token"
    if (scores[first] < 0).all():
        reason += ", which are all negative: is it a division by zero, or the logarithm or root of a negative number?"
    raise reject(name, reason)


def _check_order(function: Function, name: str, scores: np.ndarray, order: np.ndarray) -> None:
    weights, reordered = call(function, scores)[:, order], call(function, scores[:, order])
    if same(weights, reordered):
        return
    if np.isnan(weights).any() or np.isnan(reordered).any():
        raise reject(name, "its weights are nan in some calls and finite in others")
    with np.errstate(invalid="ignore"):
        worst = float(np.nanmax(np.abs(weights - reordered)))
    reason = (
        "its weights depend on the order of the tokens: the same scores in another order get weights that differ by "
        f"{worst:.2g}. The relevant token can be at any position, so the function must be permutation-equivariant"
    )
    raise reject(name, reason)


def call(function: Function, scores: Any) -> np.ndarray:
    """The weights of many sequences."""
    scores = np.asarray(scores, float)
    count, length = scores.shape
    if length > _SHORT:
        return np.asarray(_call(function, jnp.asarray(scores)))
    # In parts of one size, so that there is one program for each length.
    filled = np.pad(scores, ((0, -count % _PART), (0, 0)), mode="edge")
    parts = [_call(function, jnp.asarray(part)) for part in filled.reshape(-1, _PART, length)]
    return np.concatenate([np.asarray(part) for part in parts])[:count]


@eqx.filter_jit
def _call(function: Function, scores: Array) -> Array:
    return jax.vmap(function)(scores)


def same(weights: np.ndarray, others: np.ndarray) -> bool:
    """Whether two sets of weights are the same, each sequence by its largest weight."""
    scale = np.abs(weights).max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # both may be infinite
        near = np.abs(weights - others) <= SAME * scale
    return bool(np.all(near | (weights == others)))
