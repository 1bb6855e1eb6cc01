"""Single-location regression: the law of the length, the kinds of task, and the spiked one (section 1 of the theory).

The label depends on one hidden token. A task belongs to one of three kinds, planted, selected or weighted, and its kind
decides which exact method applies; everything else about it is data.
"""

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._check import Refusal, is_traced, real, refuse, shown
from .._results import AbstractValue
from .location import AbstractLocation, PlantedLocation
from .shifts import ShiftMixture

LONGEST, MOST_LENGTHS = 10**12, 10**6
_BLOCK = 512  # lengths summed at a time, so that a law over 10^6 lengths needs little memory


class LengthLaw(AbstractValue):
    """Distribution of the number of tokens in a sequence, with finite support.

    Tasks accept it as `length`, or an integer for a fixed length.

    Args:
        lengths: An integer, a list of `n` distinct integers, or another `LengthLaw`.
        probabilities: A list of `n` probabilities; may be left out for a single length.

    Examples:
        >>> law = ar.LengthLaw([1, 8], [0.25, 0.75])
        >>> print(law, law.mean())
        1:0.25,8:0.75 6.25
    """

    lengths: Any
    probabilities: Any

    def __init__(self, lengths: Any, probabilities: Any = None):
        if isinstance(lengths, LengthLaw) and probabilities is None:
            self.lengths, self.probabilities = lengths.lengths, lengths.probabilities
            return
        allowed = f"made of whole numbers from 1 to {LONGEST:g}"
        try:
            if np.iscomplexobj(lengths) or np.iscomplexobj(probabilities):
                raise TypeError
            sizes = np.atleast_1d(lengths).astype(float)
            weights = np.atleast_1d(1.0 if probabilities is None else probabilities).astype(float)
        except OverflowError:  # a whole number of hundreds of digits
            raise refuse("length", "[beyond 1e308]", allowed) from None
        except (TypeError, ValueError):
            raise refuse("length", shown((lengths, probabilities)), allowed) from None
        if sizes.size == 0 or sizes.ndim > 1 or sizes.shape != weights.shape:
            given = f"{sizes.size} lengths, {weights.size} probabilities"
            raise refuse("length", given, "a non-empty list of lengths, each with a probability")
        more = ", …" * (sizes.size > 4)
        few, chances = (", ".join(f"{x:g}" for x in each[:4]) + more for each in (sizes, weights))
        if not np.all((sizes == np.floor(sizes)) & (sizes >= 1) & (sizes <= LONGEST)):
            raise refuse("length", f"[{few}]", allowed)
        if len(np.unique(sizes)) < len(sizes):
            raise refuse("length", f"[{few}]", "a list without repetition")
        if not np.all(weights >= 0) or not abs(weights.sum() - 1) <= 1e-9:
            given = f"[{chances}] (sum {weights.sum():g})"
            raise refuse("length probabilities", given, "numbers ≥ 0 of sum one")
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
        """The largest length."""
        return self.lengths[-1]

    def mean(self, values: Any = None) -> Any:
        """`E[values(L)]` for an array with one value per length; `E[L]` without an argument."""
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
    """Fixed sequence length.

    Args:
        length: Number of tokens, at least 1.

    Returns:
        The distribution, a `LengthLaw`.

    Examples:
        >>> ar.fixed(10)
        LengthLaw(10)
    """
    return LengthLaw(length)


def uniform(shortest: int, longest: int) -> LengthLaw:
    """Uniform distribution of the sequence length.

    Args:
        shortest: Smallest length, included.
        longest: Largest length, included.

    Returns:
        The distribution, a `LengthLaw`.

    Examples:
        >>> ar.uniform(1, 3).mean()
        np.float64(2.0)
    """
    allowed = f"a range of 1 to {MOST_LENGTHS:g} lengths, the shortest first"
    try:
        first, last = real("shortest", shortest), real("longest", longest)
    except Refusal:
        first, last = 1.0, 0.0
    if not first <= last < first + MOST_LENGTHS:
        raise refuse("length", f"{shown(shortest)}-{shown(longest)}", allowed)
    lengths = np.arange(first, last + 1)
    return LengthLaw(lengths, np.full(lengths.size, 1 / lengths.size))


class AbstractTask(AbstractValue):
    """A task: the distribution of the location given the teacher fields `χ*`, of the length, and the label noise `Δ`.

    The teacher has `features` key directions and `v*`. `has_random_shift` says that the shift of the relevant token
    along them is drawn from a law. `no_optimum` is why the Bayes optimum of section 7 does not cover the task; empty
    where it does.
    """

    name: eqx.AbstractClassVar[str]
    length: eqx.AbstractVar[LengthLaw]
    features: ClassVar[int] = 1  # key directions of the teacher
    has_random_shift: ClassVar[bool] = False
    no_optimum: ClassVar[str] = "its location has no known law given noisy fields"
    noise: eqx.AbstractVar[float]
    spread: eqx.AbstractVar[float]  # standard deviation of the relevant token's fields

    @property
    def relevant_field(self) -> Any:
        """Mean teacher field of the relevant token, if the task shifts it."""
        return 0.0

    @property
    @abstractmethod
    def strength(self) -> Any:
        """The norm of `k` along `k*` at which softmax is the posterior of the location; 1 if none is known."""

    @property
    def label_variance(self) -> Any:
        """`E[y²]`, the risk of predicting zero."""
        return self.spread**2 + self.noise**2

    @abstractmethod
    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        """`log g(ε, χ)` for every location `ε`, up to a common term."""

    @abstractmethod
    def log_tilt(self, chi: Float[Array, " L"]) -> Float[Array, ""]:
        """`log E_ε[g(ε, χ)]`, the log density ratio of the fields with respect to Gaussian ones."""

    def posterior(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        """Posterior distribution of the location given the teacher key-fields."""
        return jax.nn.softmax(self.log_odds(chi))

    @property
    def shift_uniforms(self) -> int:
        """Number of uniform random numbers that determine the shift of the relevant token."""
        return 0

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        """Mean field of the relevant token along each feature, from uniform random numbers."""
        return jnp.zeros(self.features)

    def teacher_uniforms(self, length: int) -> int:
        """Number of uniform random numbers that determine the teacher fields of a sequence in theories of learning.

        None where the student's fields are Gaussian given the location, so that the teacher's are not needed.
        """
        return 0

    def draw_teacher(
        self, uniforms: Float[np.ndarray, "s u"], lengths: Int[np.ndarray, " s"]
    ) -> Float[np.ndarray, "s _"]:
        """Teacher key-fields of Gaussian tokens; tokens that are exchangeable have the relevant one first."""
        return np.zeros((len(uniforms), 0))

    def visited(self, length: int) -> int:
        """Number of locations, from the first on, that an average over such sequences has to include."""
        return 1

    def visit(
        self,
        correlation: Float[Array, "H F"],
        normals: Float[Array, "H L"],
        shift: Float[Array, " F"],
        teacher: Float[Array, " T"],
    ) -> tuple[Float[Array, " e"], Float[Array, "e F L"]]:
        """Probability of each visited location, and the derivative of its logarithm in the teacher fields.

        Its mean given the student's fields is enough: these are a factor of `Q` times `normals`, with the given
        correlation to the teacher's, plus the part of the shift.
        """
        known = correlation.T @ correlation
        location = self.location_given(jnp.eye(len(known)) - known)
        first = jnp.eye(normals.shape[-1])[0]
        weights = location.weigh(correlation.T @ normals + jnp.outer(known @ shift, first))
        return jnp.ones(1), location.score(weights, first)[None]

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        """Distribution of the location given teacher fields with Gaussian noise of this variance (spread 1)."""
        allowed = "one whose location has a known law given noisy fields: planted (spiked) or selected (max)"
        raise refuse("task", self.name, allowed)

    def __repr__(self) -> str:
        listed = ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return f"{type(self).__name__}({listed})"


class AbstractSamplable(AbstractTask):
    """A task with an exact sampler.

    Each sequence has Gaussian tokens and some additional random numbers, its location noise. They determine the
    location and how the token there is changed.
    """

    @abstractmethod
    def key_information(self, alpha: Any) -> Any:
        """An upper bound on `q̂_k` of section 7 with `α` samples per dimension."""

    @abstractmethod
    def location_noise(
        self, rng: np.random.Generator, uniform: Float[np.ndarray, "s 1"], longest: int
    ) -> Float[np.ndarray, "s _"]:
        """Location noise of sequences of up to `longest` tokens, from these uniform numbers and draws of `rng`."""

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
        """Each Gaussian token as it would be if it were the relevant one; `keys` are the teacher key directions."""


class AbstractNeedle(AbstractSamplable):
    """Tasks in which tokens are independent given the location, and only the relevant one has another distribution.

    Its teacher key-fields have a mean drawn from `shift_law`, and all its fields have standard deviation `spread`
    around their mean.
    """

    shift_law: eqx.AbstractVar[ShiftMixture]

    def key_information(self, alpha: Any) -> Any:
        """The value with known locations, from the mean of the relevant tokens."""
        return alpha * self.strength**2

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
    """Tasks with one feature, along which the relevant token is always shifted by `shift`."""

    no_optimum: ClassVar[str] = ""
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


class SpikedSLR(AbstractPlanted):
    """Spiked single-location regression: the relevant token is shifted by `√ν k*/√D`.

    With `spread ≠ 1` this is the task of Marion et al. (arXiv 2410.01537). The norm of a token then reveals the
    location as `D → ∞`, so the Bayes risk is the label noise alone, and there is no posterior given the fields.

    Args:
        nu: Signal strength `ν ≥ 0`.
        length: Number of tokens: an integer or a `LengthLaw`.
        noise: Standard deviation `Δ ≥ 0` of the label noise.
        spread: Standard deviation `γ > 0` of the relevant token.

    Examples:
        >>> task = ar.SpikedSLR(nu=5.0, length=10)
        >>> print(f"{ar.bayes_risk(task):.6f}")
        0.359808
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
        """Mean teacher field of the relevant token, `√ν`."""
        return self.nu**0.5

    def log_odds(self, chi: Float[Array, " L"]) -> Float[Array, " L"]:
        if not is_traced(self.spread) and self.spread != 1.0:
            raise refuse("spread", self.spread, "1 where the posterior of the location is asked")
        return jnp.sqrt(self.nu) * chi
