"""Single-location regression: the law of the length, the kinds of task, and three tasks (section 1 of docs/theory.md).

The label depends on one hidden token. A task belongs to one of three kinds, planted, selected or weighted, and its kind
decides which exact method applies; everything else about it is data.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._check import Refusal, function, is_traced, real, refuse, shown
from .._results import AbstractValue
from .location import AbstractLocation, PlantedLocation, SelectedLocation
from .shifts import ShiftMixture

LONGEST, MOST_LENGTHS = 10**12, 10**6
_BLOCK = 512  # lengths summed at a time, so that a law over 10^6 lengths needs little memory


class LengthLaw(AbstractValue):
    """How many tokens a sequence has: a probability for each of finitely many lengths.

    Without probabilities, of a single length; of a law, the same law.
    """

    lengths: Any
    probabilities: Any

    def __init__(self, lengths: Any, probabilities: Any = None):
        if isinstance(lengths, LengthLaw) and probabilities is None:
            self.lengths, self.probabilities = lengths.lengths, lengths.probabilities
            return
        allowed = f"made of whole numbers from 1 to {LONGEST:g}"
        try:
            sizes = np.atleast_1d(lengths).astype(float)
            weights = np.atleast_1d(1.0 if probabilities is None else probabilities).astype(float)
        except OverflowError:  # a whole number of hundreds of digits
            raise refuse("length", "[beyond 1e308]", allowed) from None
        except (TypeError, ValueError):
            raise refuse("length", repr((lengths, probabilities)), allowed) from None
        if sizes.size == 0 or sizes.ndim > 1 or sizes.shape != weights.shape:
            given = f"{sizes.size} lengths, {weights.size} probabilities"
            raise refuse("length", given, "a non-empty list of lengths, each with a probability")
        few = ", ".join(f"{size:g}" for size in sizes[:4]) + (", …" if sizes.size > 4 else "")
        whole = np.isfinite(sizes) & (sizes == np.floor(sizes))
        if not np.all(whole & (sizes >= 1) & (sizes <= LONGEST)):
            raise refuse("length", f"[{few}]", allowed)
        if len(np.unique(sizes)) < len(sizes):
            raise refuse("length", f"[{few}]", "a list without repetition")
        if not np.all(weights >= 0) or not abs(weights.sum() - 1) <= 1e-9:
            allowed = "numbers ≥ 0 of sum one"
            few = ", ".join(f"{each:g}" for each in weights[:4])
            given = f"[{few}{', …' * (weights.size > 4)}] (sum {weights.sum():g})"
            raise refuse("length probabilities", given, allowed)
        order = np.argsort(sizes)
        self.lengths, self.probabilities = sizes[order].astype(np.int64), weights[order]

    def __str__(self) -> str:
        if len(self.lengths) == 1:
            return str(self.lengths[0])
        if np.ptp(self.probabilities) < 1e-12 and np.all(np.diff(self.lengths) == 1):
            return f"{self.lengths[0]}-{self.lengths[-1]}"
        pairs = zip(self.lengths, self.probabilities, strict=True)
        return ",".join(f"{length}:{probability:g}" for length, probability in pairs)

    def __repr__(self) -> str:
        return f"LengthLaw({self})"

    @property
    def longest(self) -> Any:
        """The largest length of the law."""
        return self.lengths[-1]

    def mean(self, values: Any = None) -> Any:
        """`E[values(L)]` for values given per length; `E[L]` without any."""
        return (self.probabilities * (self.lengths if values is None else values)).sum()

    def powers(self, log_base: Float[Any, "*batch"], order: int, drop: int) -> Float[Any, "*batch"]:
        """`E[(L−drop)!/(L−drop−order)! · base^(L−drop−order)]`, a derivative of the generating function.

        What `L − drop` equal tokens contribute when `order` of them are singled out; zero where there
        are not that many.
        """
        xp, base = log_base.__array_namespace__(), log_base[..., None]
        count = xp.asarray(self.lengths, float) - drop
        ways = xp.asarray(self.probabilities, float) * xp.where(count >= order, 1.0, 0.0)
        for others in range(order):
            ways = ways * xp.maximum(count - others, 0.0)
        exponent = xp.maximum(count - order, 0.0)
        if count.size <= _BLOCK:
            return xp.sum(ways * xp.exp(exponent * base), -1)
        blocks = [
            jnp.pad(each, (0, -count.size % _BLOCK)).reshape(-1, _BLOCK)
            for each in (ways, exponent)
        ]
        return jax.lax.scan(
            lambda total, block: (total + jnp.sum(block[0] * jnp.exp(block[1] * base), -1), None),
            jnp.zeros_like(log_base),
            blocks,
        )[0]


def fixed(length: int) -> LengthLaw:
    """Every sequence has `length` tokens."""
    return LengthLaw(length)


def uniform(shortest: int, longest: int) -> LengthLaw:
    """Each length from `shortest` to `longest`, both included, equally likely."""
    allowed = f"a range of 1 to {MOST_LENGTHS:g} lengths, the shortest first"
    try:
        first, last = real("shortest", shortest), real("longest", longest)
    except Refusal:
        first, last = 1.0, 0.0
    if not first <= last < first + MOST_LENGTHS:
        raise refuse("length", f"{shown(shortest)}-{shown(longest)}", allowed)
    lengths = np.arange(first, last + 1)
    return LengthLaw(lengths, np.full(lengths.size, 1 / lengths.size))


def parse_lengths(text: str) -> LengthLaw:
    """`10`, `1-3` (uniform) or `1:0.25,8:0.75` as a law."""
    parts = str(text).split(",")
    try:
        if ":" in parts[0]:
            pairs = [part.split(":") for part in parts]
            lengths, probabilities = [int(a) for a, _ in pairs], [float(b) for _, b in pairs]
        else:
            lengths = [int(each) for each in str(text).replace("-", " -", 1).split(" -")]
    except ValueError:
        raise refuse("length", repr(text), "like 10, 1-3 or 1:0.25,8:0.75") from None
    if ":" in parts[0]:
        return LengthLaw(lengths, probabilities)
    return uniform(*lengths) if len(lengths) == 2 else LengthLaw(lengths)


class AbstractTask(AbstractValue):
    """A law of the location given the teacher fields `χ*`, a law of the length, and a label noise `Δ`.

    The teacher's vectors are `features` key directions and `v*`.
    """

    name: eqx.AbstractClassVar[str]
    length: eqx.AbstractVar[LengthLaw]
    features: ClassVar[int] = 1  # key directions of the teacher
    noise: eqx.AbstractVar[float]
    spread: eqx.AbstractVar[float]  # standard deviation of the relevant token's fields

    @property
    def relevant_field(self) -> Any:
        """The mean teacher field of the relevant token, where it is moved by the task."""
        return 0.0

    @property
    @abstractmethod
    def strength(self) -> Any:
        """The scale of `k` along `k*` at which softmax is the posterior, or one where none is known."""

    @property
    def label_variance(self) -> Any:
        """`E[y²]`, the risk of predicting zero."""
        return self.spread**2 + self.noise**2

    @abstractmethod
    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        """`log g(ε, χ)` of every location `ε`, up to a term common to all."""

    @abstractmethod
    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log E_ε[g(ε, χ)]`, the density of the fields over that of Gaussian ones."""

    def posterior(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        """The law of the location given the teacher key-fields."""
        return jax.nn.softmax(self.log_odds(chi))

    def __repr__(self) -> str:
        listed = ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return f"{type(self).__name__}({listed})"


class AbstractSamplable(AbstractTask):
    """A task with an exact sampler: from Gaussian tokens and some more numbers for each sequence, called its noise,
    a location is chosen and the token there moved."""

    @property
    def shift_uniforms(self) -> int:
        """How many random numbers decide the shift of the relevant token."""
        return 0

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        """The mean of the relevant token's field along each feature, from uniform numbers."""
        return jnp.zeros(self.features)

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        """The law of the location where the teacher fields are known up to this variance (of spread 1)."""
        allowed = "one whose location has a known law given noisy fields: planted (spiked) or selected (max)"
        raise refuse("task", self.name, allowed)

    @abstractmethod
    def location_noise(
        self, rng: np.random.Generator, uniform: Float[np.ndarray, "s 1"], longest: int
    ) -> Float[np.ndarray, "s _"]:
        """The noise of sequences of up to `longest` tokens: of these uniform numbers, and what else `rng` draws."""

    @abstractmethod
    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L F"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        """The location in each sequence; `chi` are the fields of its Gaussian tokens along the key directions."""

    @abstractmethod
    def move_relevant(
        self,
        tokens: Float[Array, "s L D"],
        keys: Float[Array, "F D"],
        noise: Float[Array, "s _"],
    ) -> Float[Array, "s L D"]:
        """What each Gaussian token would become if it were the relevant one; `keys` are the teacher's directions."""


class AbstractNeedle(AbstractSamplable):
    """Given the location, tokens are independent, and only the relevant one has a law of its own.

    Its teacher key-fields have a mean that is drawn from `shift_law`, and all its fields have standard deviation
    `spread` around it.
    """

    shift_law: eqx.AbstractVar[ShiftMixture]

    def location_noise(
        self, rng: np.random.Generator, uniform: Float[np.ndarray, "s 1"], longest: int
    ) -> Float[np.ndarray, "s _"]:
        return np.concatenate([uniform, rng.random((len(uniform), self.shift_uniforms))], 1)

    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L F"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        return jnp.floor(noise[:, 0] * jnp.sum(mask, -1)).astype(int)

    def move_relevant(
        self,
        tokens: Float[Array, "s L D"],
        keys: Float[Array, "F D"],
        noise: Float[Array, "s _"],
    ) -> Float[Array, "s L D"]:
        shifts = jax.vmap(self.draw_shift)(noise[:, 1:]) @ keys / jnp.sqrt(keys.shape[-1])
        spread = jnp.asarray(self.spread, tokens.dtype)
        return spread * tokens + shifts[:, None].astype(tokens.dtype)


class AbstractPlanted(AbstractNeedle):
    """One feature, along which the relevant token is always moved by `shift`."""

    shift: eqx.AbstractVar[Any]

    @property
    def relevant_field(self) -> Any:
        return self.shift

    @property
    def strength(self) -> Any:
        return self.shift

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_odds(chi) - self.shift**2 / 2) - jnp.log(chi.size)

    @property
    def shift_law(self) -> ShiftMixture:  # type: ignore[override]
        """One atom."""
        return ShiftMixture(jnp.reshape(self.shift, (1, 1)))

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        return jnp.atleast_1d(jnp.asarray(self.shift))

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return PlantedLocation(self.shift, unknown_variance)


class AbstractSelected(AbstractSamplable):
    """Tokens are plain Gaussian, and the location is drawn from `softmax(sharpness · χ*)` (`inf`: the argmax)."""

    sharpness: eqx.AbstractVar[Any]
    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return self.sharpness

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jnp.zeros(())

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return SelectedLocation(self.sharpness, unknown_variance)

    def location_noise(
        self, rng: np.random.Generator, uniform: Float[np.ndarray, "s 1"], longest: int
    ) -> Float[np.ndarray, "s _"]:
        return rng.gumbel(size=(len(uniform), longest))

    def choose_locations(
        self, noise: Float[Array, "s _"], chi: Float[Array, "s L F"], mask: Bool[Array, "s L"]
    ) -> Int[Array, " s"]:
        hard, scores = jnp.isinf(self.sharpness), chi[..., 0]
        soft = jnp.where(hard, 0.0, self.sharpness) * scores + noise
        return jnp.argmax(jnp.where(mask, jnp.where(hard, scores, soft), -jnp.inf), -1)

    def move_relevant(
        self,
        tokens: Float[Array, "s L D"],
        keys: Float[Array, "F D"],
        noise: Float[Array, "s _"],
    ) -> Float[Array, "s L D"]:
        return tokens


class AbstractWeighted(AbstractTask):
    """Tokens and location follow a weight `g(ε, χ*)` with `E[g] = 1` and no further structure."""

    spread: ClassVar[float] = 1.0

    @property
    def strength(self) -> Any:
        return 1.0

    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_odds(chi)) - jnp.log(chi.size)

    @abstractmethod
    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log g(ε, χ)`."""


class SpikedSLR(AbstractPlanted):
    """spiked-SLR: the relevant token is shifted by `√ν k*/√D`.

    With `spread ≠ 1` it is the task of Marion et al. (2410.01537), where the norm of a token gives the location away as
    `D → ∞`: there is no posterior of it given the fields.
    """

    name: ClassVar[str] = "spiked"
    nu: Any
    length: LengthLaw
    noise: Any
    spread: Any

    def __init__(self, nu: Any, length: Any, noise: Any = 0.0, spread: Any = 1.0):
        self.nu = real("nu", nu, minimum=0.0)
        self.length = LengthLaw(length)
        self.noise = real("noise", noise, minimum=0.0)
        self.spread = real("spread", spread, above=0.0)

    @property
    def shift(self) -> Any:
        """Mean of the teacher field of the relevant token."""
        return self.nu**0.5

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        if not is_traced(self.spread) and self.spread != 1.0:
            raise refuse("spread", self.spread, "1 where the posterior of the location is asked")
        return jnp.sqrt(self.nu) * chi


class MaxSLR(AbstractSelected):
    """max-SLR: the location is drawn from `softmax(ν χ*)`; at `ν = inf` it is the token most aligned with `k*`."""

    name: ClassVar[str] = "max"
    nu: Any
    length: LengthLaw
    noise: Any

    def __init__(self, nu: Any, length: Any, noise: Any = 0.0):
        self.nu = real("nu", nu, minimum=0.0, infinite=True)
        self.length = LengthLaw(length)
        self.noise = real("noise", noise, minimum=0.0)

    @property
    def sharpness(self) -> Any:
        """Inverse temperature of the law of the location."""
        return self.nu

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        hard = jnp.where(chi == jnp.max(chi), 0.0, -jnp.inf)
        soft = jnp.where(jnp.isinf(self.nu), 0.0, self.nu) * chi
        return jnp.where(jnp.isinf(self.nu), hard, soft)


class WeightedSLR(AbstractWeighted):
    """`log_weight_fn(location, chi)` is `log g(ε, χ)`, with `E[g] = 1` under Gaussian `χ` and uniform `ε`."""

    name: ClassVar[str] = "weighted"
    log_weight_fn: Callable[[Any, Any], Any] = eqx.field(static=True)
    length: LengthLaw
    noise: Any

    def __init__(self, log_weight: Callable[[Any, Any], Any], length: Any, noise: Any = 0.0):
        self.log_weight_fn = function("log_weight", log_weight)
        self.length = LengthLaw(length)
        self.noise = real("noise", noise, minimum=0.0)

    def log_weight(self, location: Any, chi: Float[Array, " L"]) -> Float[Array, ""]:
        return self.log_weight_fn(location, chi)

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        return jax.vmap(self.log_weight, in_axes=(0, None))(jnp.arange(chi.shape[0]), chi)
