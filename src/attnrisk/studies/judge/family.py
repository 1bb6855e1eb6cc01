"""Recognition of the family of a function, by calling it.

A candidate of each family is built from the function's values on one or two scores. The function belongs to a family
if that candidate gives the same weights on other sequences.
"""

import ctypes
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._check import Refusal, real, refuse_single_precision, shown
from ...attention import (
    AbstractAttention,
    AbstractElementwise,
    AbstractKernel,
    General,
    Kernel,
    get_attention,
)
from .bridge import Foreign, bridged
from .checks import (
    DRAWS,
    LARGE,
    LENGTHS,
    SAME,
    SCALES,
    Function,
    call,
    check,
    check_log_phi,
    check_phi,
    check_shape,
    draw,
    same,
)
from .per_length import family_per_length
from .tasks import JUDGED
from .words import reject, single_precision

LIMIT = 60.0  # seconds; most functions are recognised within two
_LONGEST_LIMIT = 1e6  # seconds: more overflows the clock of some platforms

# Scores whose kernels are known, near enough to any score that e^χ can be compared with e^rung in double precision.
_SPACING, _FARTHEST = 200.0, 6e4

# Scores at one of which a kernel is taken to be one, small, so that an ε in its denominator is seen beside it.
_BASES, _ROUNDING = (1.0, -1.0, 4.0, -4.0), 1e-14

# Mean difference of weights, relative to the largest, from an ε ≤ 1e-5 that is left out; and tokens of a long sequence.
_SMALL, _MANY = 1e-4, 10_000

# Where a function may bend: a derivative that still jumps after so many halvings of an interval has a kink in it.
_BENDS, _INTERVALS, _HALVINGS, _JUMP = 8.0, 256, 30, 1e-3
_SMOOTH = 3  # derivatives; equal steps are accurate enough if these are continuous
_ROUNDED = 1e-6  # of the largest lower derivative: what is smaller may be rounding


class RecognisedKernel(AbstractKernel):
    """A function of whole sequences that is a normalised kernel: `log φ` is read off pairs of a score and a rung.

    Rungs are equally spaced scores from `lowest` where `φ` does not vanish; `φ` is one at the one nearest to zero.
    """

    name: ClassVar[str] = "kernel"
    function: Function = eqx.field(static=True)
    lowest: float = eqx.field(static=True)
    log_rungs: tuple[float, ...] = eqx.field(static=True)
    constant: float = eqx.field(static=True)
    features: tuple[float, ...] = eqx.field(static=True)
    analytic: bool = eqx.field(static=True)

    def log_phi(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        steps = jnp.round((jax.lax.stop_gradient(score) - self.lowest) / _SPACING)
        steps = jnp.clip(steps, 0, len(self.log_rungs) - 1)
        pairs = jnp.stack([score, self.lowest + _SPACING * steps], -1)
        weights = jnp.vectorize(self.function, signature="(n)->(n)")(pairs)
        known = jnp.asarray(np.array(self.log_rungs))[steps.astype(int)]
        return known + safe_log(weights[..., 0]) - safe_log(weights[..., 1])


class RecognisedPartialKernel(AbstractKernel):
    """A function of whole sequences that is a kernel whose tokens are in the denominator even where their weight is
    zero, such as softpick: `ψ(χ)/(constant + Σ φ)`, where `ψ` is either `φ` or zero.

    `φ` is one at the score `base`. It is read off `numerator`, a kernel for `ψ`, or off the weight of a token with the
    score `base` beside one with the score `χ`. If `approximate`, a small number in the denominator is left out that
    depends on the other scores, as where the largest is subtracted from all.
    """

    name: ClassVar[str] = "kernel"
    numerator: RecognisedKernel
    base: float = eqx.field(static=True)
    constant: float = eqx.field(static=True)
    features: tuple[float, ...] = eqx.field(static=True)
    analytic: bool = eqx.field(static=True)
    approximate: bool = eqx.field(static=True, default=False)

    def _pair_weights(self, score: Array) -> Array:
        """Of a token with this score, and of one with the score `base`."""
        pairs = jnp.stack([score, jnp.full_like(score, self.base)], -1)
        return jnp.vectorize(self.numerator.function, signature="(n)->(n)")(pairs)

    def log_phi(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        score = jnp.asarray(score, float)
        own, other = jnp.moveaxis(self._pair_weights(score), -1, 0)
        log_psi = self.numerator.log_phi(score) - self.numerator.log_phi(jnp.asarray(self.base))
        rest = 1.0 / jnp.where(other > 0, other, jnp.inf) - (1.0 + self.constant)
        return jnp.where(own > 0, log_psi, safe_log(rest))

    def share(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(self._pair_weights(jnp.asarray(score, float))[..., 0] > 0, 1.0, 0.0)


class RecognisedElementwise(AbstractElementwise):
    """A function of whole sequences that acts on each score alone."""

    name: ClassVar[str] = "element-wise"
    function: Function = eqx.field(static=True)
    features: tuple[float, ...] = eqx.field(static=True)
    analytic: bool = eqx.field(static=True)

    def weight(self, score: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.vectorize(self.function, signature="(n)->(n)")(score[..., None])[..., 0]


@dataclass(frozen=True)
class Clipped:
    """A function of scores that are clipped where it would overflow."""

    function: Function
    low: float
    high: float

    def __call__(self, scores: Float[Array, " L"]) -> Float[Array, " L"]:
        return self.function(jnp.clip(scores, self.low, self.high))


def safe_log(weight: Any) -> Array:
    """The logarithm, with a derivative that is 0, not NaN, where a weight vanishes."""
    weight = jnp.asarray(weight)
    positive = weight > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, weight, 1.0)), -jnp.inf)


def attention_name(given: Any) -> str:
    """The name of an attention or a function, for tables."""
    if isinstance(given, str):
        return given
    return str(getattr(given, "name", getattr(given, "__name__", shown(given))))


def recognise(
    given: Any, name: str, limit: float = LIMIT, lengths: Sequence[int] = JUDGED
) -> AbstractAttention:
    """The attention of a catalogue name, an attention of this package, or a function, with its family recognised.

    A function that reads the number of tokens is recognised for these `lengths`, by default all lengths of the tasks of
    `judge`, from 2 to a million tokens.

    A function that has not been recognised after `limit` seconds (60 by default) is refused, and so is one that ends
    the program; what it prints goes to standard error.
    """
    if not jax.config.read("jax_enable_x64"):
        raise refuse_single_precision()
    limit = real("limit", limit, above=0.0, maximum=_LONGEST_LIMIT)
    if isinstance(given, str):
        return get_attention(given)
    found: Future[AbstractAttention] = Future()

    def work() -> None:
        try:
            found.set_result(_recognised(given, name, lengths))
        except BaseException as error:  # raised again below
            found.set_exception(error)

    thread = Thread(target=work, daemon=True)
    with redirect_stdout(sys.stderr):
        thread.start()
        try:
            return found.result(limit)
        except TimeoutError:
            if found.done():
                raise  # it is the function's own
            # Python code is ended by an exception, else jax aborts when the program ends; compiled code goes on.
            ident = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
            thread.join(1.0)
            why = f"it did not return within the limit of {limit:g} s; give a larger limit if it is slow"
            raise reject(name, why) from None
        except (SystemExit, GeneratorExit):
            raise reject(name, "it ends the program, as sys.exit does") from None


def _recognised(given: Any, name: str, lengths: Sequence[int]) -> AbstractAttention:
    if isinstance(given, type) or not callable(given):
        reason = (
            "it is a class: create an instance" if isinstance(given, type) else "it is not callable"
        )
        raise reject(name, reason)
    if isinstance(given, AbstractAttention):
        if given.keys > 1:
            several = "it has several heads: use compare(..., heads=) or population_minimum"
            raise reject(name, several)
        if given.family == "kernel":
            check_log_phi(given, name)
        check(given, name)
        return given
    if isinstance(given, Normalised):
        check_phi(given.phi, name)
    try:
        for length in LENGTHS:
            check_shape(given, name, length)
    except Refusal as refusal:
        cause = refusal.__cause__
        in_python = cause is None or isinstance(cause, jax.errors.ConcretizationTypeError)
        foreign = None if in_python else bridged(given, name)
        if foreign is None:
            raise
        given = foreign
    if isinstance(given, Foreign) and not given.precision.endswith("float64"):
        raise single_precision(name, given.precision)
    function = _clipped(given)
    check(function, name)
    return function.kernel if isinstance(function, Normalised) else _family_of(function, lengths)


def overflows(given: Any) -> bool:
    """Whether a user's function is not finite for large scores, which are then clipped."""
    if isinstance(given, str | AbstractAttention):
        return False
    try:
        jax.eval_shape(given, jax.ShapeDtypeStruct((2,), np.float64))
    except Exception:  # it is called through a bridge
        given = bridged(given, "it")
    return _clipped(given) is not given


@dataclass(frozen=True)
class Normalised:
    """The attention `φ(χ)/Σφ` of a function `φ` of one score, clipped to `[low, high]`."""

    phi: Function
    low: float = -np.inf
    high: float = np.inf

    def _phi(self, scores: Array) -> Array:
        return jnp.vectorize(self.phi)(jnp.clip(scores, self.low, self.high))

    def __call__(self, scores: Array) -> Array:
        kernel = self._phi(scores)
        kernel = jnp.where(kernel < 0, jnp.nan, kernel)  # which `check` refuses
        total = jnp.sum(kernel)
        return jnp.where(total == 0, 0.0, kernel / jnp.where(total == 0, 1.0, total))

    @property
    def kernel(self) -> Kernel:
        """As an attention of this package."""
        bends = kinks(self._phi)
        return Kernel(
            lambda scores: safe_log(self._phi(scores)),
            features=_features(bends),
            analytic=not bends,
        )


def normalised(phi: Function) -> Function:
    """The attention `φ(χ)/Σφ` of a function `φ` of one score."""
    return Normalised(phi)


def _clipped(function: Function) -> Function:
    """The function, with large scores clipped if they overflow or make all weights vanish (a division by zero).

    Clipping is exact up to rounding there.
    """
    large = np.geomspace(LARGE, SCALES[-1], DRAWS)
    below, above = (call(function, np.stack([side, 0.9 * side], -1)) for side in (-large, large))
    apart = call(function, np.stack([large, -large], -1))
    low = -LARGE if np.isnan(below).any() else -np.inf
    high = LARGE if np.isnan(above).any() or np.isnan(apart).any() else np.inf
    if not np.isfinite([low, high]).any():
        return function
    if isinstance(function, Normalised):
        return replace(function, low=low, high=high)
    return Clipped(function, low, high)


def _family_of(function: Function, lengths: Sequence[int]) -> AbstractAttention:
    elementwise = RecognisedElementwise(function=function, features=(0.0,), analytic=True)
    if _agrees(elementwise, function):
        bends = kinks(elementwise.weight)
        return replace(elementwise, features=_features(bends), analytic=not bends)
    kernel = _kernel_of(function)
    if kernel is not None and _agrees(kernel, function):
        return kernel
    partial_kernel = None if kernel is None else _partial_kernel_of(kernel)
    if partial_kernel is not None:
        if _agrees(partial_kernel, function):
            return partial_kernel
        without = replace(partial_kernel, constant=0.0, approximate=True)
        if _nearly_agrees(without, function):
            return without
    foreign = isinstance(getattr(function, "function", function), Foreign)
    found = None if foreign else family_per_length(function, lengths, kinks)
    return General(function) if found is None else found


def _agrees(candidate: Function, function: Function) -> bool:
    """On sequences of several tokens, then of one, on which most candidates agree."""
    rng = np.random.default_rng(1)
    drawn = [draw(rng, length) for length in (1, LENGTHS[-1])]
    return all(same(call(function, scores), call(candidate, scores)) for scores in drawn[::-1])


def _nearly_agrees(candidate: Function, function: Function) -> bool:
    """Whether the mean difference of the weights is small, in short sequences and in a long one."""
    rng = np.random.default_rng(6)
    drawn = [draw(rng, length)[DRAWS:] for length in (1, LENGTHS[-1])]
    for scores in (*drawn, rng.standard_normal((1, _MANY))):
        weights, others = call(function, scores), call(candidate, scores)
        largest = np.abs(weights).max(-1).mean()
        if not np.abs(weights - others).max(-1).mean() <= _SMALL * largest:
            return False
    return True


def _kernel_of(function: Function) -> RecognisedKernel | None:
    """The kernel that the function would be, if it were one."""
    every = np.arange(-_FARTHEST, _FARTHEST + _SPACING, _SPACING)
    rungs = every[call(function, np.stack([every, every], -1))[:, 0] > 0]
    if rungs.size < 2 or np.any(np.diff(rungs) != _SPACING):
        return None
    steps = call(function, np.stack([rungs[:-1], rungs[1:]], -1))
    if not np.all(steps > 0):
        return None
    logs = np.append(0.0, np.cumsum(np.log(steps[:, 1]) - np.log(steps[:, 0])))
    nearest = int(np.argmin(np.abs(rungs)))
    logs -= logs[nearest]
    alone = call(function, rungs[nearest, None, None])  # φ/(constant + φ), where φ is one
    constant = 1.0 / float(alone[0, 0]) - 1.0
    if constant < -SAME:
        return None
    # Beside the first, higher derivatives may not be finite, beside the second, where it begins not be visible.
    beside = [
        jax.vmap(lambda score, base=base: function(jnp.stack([score, base]))[0])
        for base in rungs[nearest : nearest + 2]
    ]
    begins = kinks(lambda score: jnp.where(beside[0](score) > 0, 1.0, 0.0))
    bends = sorted({*begins, *(bend for weight in beside for bend in kinks(weight))})
    return RecognisedKernel(
        function=function,
        lowest=float(rungs[0]),
        log_rungs=tuple(logs.tolist()),
        constant=constant if constant > SAME else 0.0,
        features=_features(bends),
        analytic=not bends,
    )


def _partial_kernel_of(numerator: RecognisedKernel) -> RecognisedPartialKernel | None:
    """The kernel that a function with these numerators would be, if its denominator had the other tokens too."""
    if len(numerator.log_rungs) > 2 * _FARTHEST / _SPACING:
        return None  # no weight vanishes
    function = numerator.function
    alone = call(function, np.array(_BASES)[:, None])[:, 0]
    if not np.any(alone > 0):
        return None
    at = int(np.argmax(alone > 0))
    constant = 1.0 / float(alone[at]) - 1.0
    if constant < -_ROUNDING:
        return None
    base = jnp.asarray(_BASES[at])
    bends = kinks(jax.vmap(lambda score: function(jnp.stack([score, base]))[1]))
    return RecognisedPartialKernel(
        numerator=numerator,
        base=_BASES[at],
        constant=constant if constant > _ROUNDING else 0.0,
        features=tuple(sorted({*numerator.features, *bends})),
        analytic=numerator.analytic and not bends,
    )


def _features(bends: Sequence[float]) -> tuple[float, ...]:
    """Where quadrature panels meet; zero is where most attentions change their behaviour."""
    return tuple(sorted({0.0, *bends}))


def kinks(function: Function) -> list[float]:
    """Scores where a function of one score or one of its derivatives jumps, by bisection of many intervals at once."""
    edges = np.linspace(-_BENDS, _BENDS, _INTERVALS + 1) + 1e-3  # beside zero, where kinks are
    derivatives = jax.jit(partial(_derivatives, function, _SMOOTH))
    try:
        jax.eval_shape(derivatives, edges)
    except ValueError:  # a callback has a first derivative only
        derivatives = jax.jit(partial(_derivatives, function, 1))

    def look(x: np.ndarray) -> np.ndarray:
        # Where a power begins, some are infinite or not a number.
        return np.nan_to_num(derivatives(x), nan=0.0, posinf=0.0, neginf=0.0)

    low, high = edges[:-1], edges[1:]
    at_low, at_high = look(low), look(high)
    scale = np.abs(at_low).max(0) + 1e-300
    scale = np.maximum(scale, _ROUNDED * np.maximum.accumulate(scale))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        at_middle = look(middle)
        left, right = (np.abs((at_middle - end) / scale).max(-1) for end in (at_low, at_high))
        is_left = left >= right
        low, high = np.where(is_left, low, middle), np.where(is_left, middle, high)
        at_low = np.where(is_left[:, None], at_low, at_middle)
        at_high = np.where(is_left[:, None], at_middle, at_high)
    jumps = np.abs((at_low - at_high) / scale).max(-1)
    return [round(float(x), 6) for x in (low + high)[jumps > _JUMP] / 2]


def _derivatives(function: Function, count: int, x: Array) -> Array:
    """The values of a function of one score and of its first derivatives (last axis)."""
    if count == 0:
        return function(x)[..., None]
    value, slope = jax.jvp(partial(_derivatives, function, count - 1), (x,), (jnp.ones_like(x),))
    return jnp.concatenate([value, slope[..., -1:]], -1)
