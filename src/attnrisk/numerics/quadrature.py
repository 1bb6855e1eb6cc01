"""Quadrature for the exact method of section 4.2: one-token integrals, and the Laplace transform of the denominator.

`1/S = ∫ e^{-tS} dt` with `t = e^{-u}` turns an expectation over many tokens that share a denominator into one integral
over `u` of products of one-token integrals `E[F(mean + deviation·x)]`, `x ~ N(0, 1)`. A rule is a frozen object that
places the nodes in `x` and in `u`; its parameters are arrays, so that rules of one shape share compiled code.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import refuse
from .._results import Estimate

# Panel edges of a standard normal variable, in deviations. Beyond 9.5 lies a mass of 2e-21, nothing for the largest of
# 10^6 tokens; beyond 11.5 one of 1e-30, nothing for the largest of 10^12.
HALF = np.array([0.8, 1.6, 2.5, 3.4, 4.3, 5.2, 6.2, 7.6, 9.5])
MANY, FARTHEST = 1e6, 11.5


# Equal steps past the last token, where an integrand in u dies like e^{-u}: from _BEYOND on, u = τ + e^{τ - ...} with
# equal steps in τ, and _RUNAWAY further e^{-u} is below 10^-9.
_BEYOND, _RUNAWAY = 3.0, 2.8
_MOST_TERMS = 1e8  # of a sum, of which a scan has several; usual ones have up to 10^7
_SHARE = 32  # the least difference between two numbers of nodes, so that neighbouring problems share compiled code


LARGEST_LOG = 60.0  # e^{-e^60} is zero, and so are its products with any power of e^60
# e^{-700} is zero beside one, and beside one over any number of tokens; NumPy takes ten times as long for underflow.
_GONE = 700.0
# Numbers in an array that stays in the cache of a processor: NumPy takes a quarter of the time.
_BLOCK = 2**13
# An argument without variance is integrated as if it had this deviation: an error of order 1e-14. Derivatives divide by
# the deviation, and take this one for any below it.
NARROWEST = 1e-7

_CAUTION = (
    2.0  # the finer rule is far better where convergence is geometric, but little better at a kink
)
ROUNDING = 4e-15  # of a sum over the nodes of a rule, relative to the largest term

Nodes = tuple[Float[Array, "*u n"], Float[Array, "*u n"]]
Tokens = Sequence[tuple[Any, Any]]  # mean and deviation of the argument of each kind of token


class SupportsLogPhi(Protocol):
    """A positive function, the arguments where it is not smooth, the constant added to its sum, and the fraction
    in the numerator."""

    @property
    def features(self) -> tuple[float, ...]: ...

    @property
    def constant(self) -> float: ...

    def log_phi(self, argument: Any) -> Any: ...

    def share(self, argument: Any) -> Any: ...


def estimate_from(coarse: Any, fine: Any) -> Estimate:
    """The value of the finer of two rules, with their difference as error."""
    if np.ndim(fine) == 0 and not isinstance(fine, jax.core.Tracer):
        coarse, fine = float(coarse), float(fine)
    return Estimate(fine, _CAUTION * abs(fine - coarse) + ROUNDING * (1.0 + abs(fine)))


def normal_density(x: Any) -> Any:
    """`e^{-x²/2}/√(2π)`."""
    return x.__array_namespace__().exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


class AbstractRule(eqx.Module):
    """A quadrature rule for the integrands of section 4.2."""

    @abstractmethod
    def for_token(self, kernel: SupportsLogPhi, mean: Any, deviation: Any, u: Array) -> Nodes:
        """Nodes in `x` for functions of `tφ(mean + deviation·x)`, the same for all `u` or a row for each."""

    @abstractmethod
    def for_function(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Nodes:
        """Nodes in `x` for a function of `mean + deviation·x` that is not smooth at these arguments."""

    @abstractmethod
    def for_transform(self, kernel: SupportsLogPhi, tokens: Tokens, longest: Any) -> Nodes:
        """Nodes and measure in `u` for sums over up to `longest` such tokens; their places have no derivative.

        A constant in the denominator multiplies the measure by `e^{-t·constant}`.
        """


class Trapezoid(AbstractRule):
    """Equal steps, for integrands that are analytic around the real line.

    `x` and `mass` are the nodes for one token. In `u` there are `nodes`, from `before` where all tokens can be passed
    until all within `window` deviations are, and `after` it; `rare` is the probability of a token that, if all tokens
    have it, is negligible. At an accuracy of 10^-8 it needs a quarter of the nodes of panels in each direction. With
    NumPy arrays nothing is compiled.
    """

    x: Any
    mass: Any
    window: Any
    before: Any
    after: Any
    rare: Any
    nodes: int = eqx.field(static=True)

    def for_token(self, kernel: SupportsLogPhi, mean: Any, deviation: Any, u: Array) -> Nodes:
        return self.x, self.mass

    def for_function(self, features: tuple[float, ...], mean: Any, deviation: Any) -> Nodes:
        return self.x, self.mass

    def for_transform(self, kernel: SupportsLogPhi, tokens: Tokens, longest: Any) -> Nodes:
        ends = transform_range(
            kernel.log_phi, kernel.constant, tokens, longest, self.window, self.rare
        )
        return self.between(*ends, kernel.constant)

    def between(self, low: Any, top: Any, constant: float = 0.0) -> Nodes:
        """Nodes and measure in `u` where no sum over tokens has a logarithm below `low` or above `top`."""
        if isinstance(low, jax.Array):
            low, top = jax.lax.stop_gradient((low, top))
        low, knee, end = low - self.before, top + _BEYOND, top + self.after
        step = (end - low) / (self.nodes - 1)
        tau = low + step * np.arange(self.nodes)
        xp = tau.__array_namespace__()
        run = xp.exp(tau - knee)
        u, du = tau + run, step * (1.0 + run)
        return u, du * xp.exp(-constant * xp.exp(-u)) if constant > 0 else du


def trapezoid(
    scale: float,
    lengths: tuple[float, float] = (1.0, 1.0),
    fineness: float = 1.0,
    widened: float = 1.0,
    kernel: SupportsLogPhi | None = None,
    tokens: Tokens = (),
    coarsened: float = 1.0,
) -> Trapezoid:
    """A trapezoid rule for arguments of standard deviation up to `scale`: accurate to about `10^{-8·fineness}`.

    `lengths` are the shortest and the longest of the law. A `kernel` and the widest law of its `tokens` give the nodes
    of the transform, whose steps are `coarsened` by a factor. `widened` stretches steps and windows alike, at the same
    number of nodes: another rule of the same shape, with which the first can be compared.
    """
    # The error of equal steps is e^{-2π·strip/step}, and e^{-w} with w = e^χ is tame up to |Im χ| = π/2 (in u, where
    # no Gaussian helps, the factor is that of Γ(2 + 2πi/step)); e^{-x²/2} and e^{-e^u} are cut at as little.
    before = 3.2 + float(np.log(fineness))
    after = _BEYOND + _RUNAWAY + float(np.log(fineness))
    window = 6.0 * fineness**0.5  # deviations beyond which a single token is negligible
    shortest, longest = lengths
    # The power shortest − 1 of this probability is negligible.
    rare = float(np.exp(-(18.4 * fineness + 8.0) / (shortest - 1.0))) if shortest > 1 else 0.0
    step = 0.5 / fineness / max(scale, 1.0)
    count = int(np.ceil((FARTHEST if longest > MANY else HALF[-1]) / step))
    x = widened * step * np.arange(-count, count + 1)
    mass = widened * step * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)  # as in `normal_density`
    nodes = 0
    if kernel is not None:
        log_phi = jax.jit(type(kernel).log_phi)  # compiled once for each class of kernels
        with jax.ensure_compile_time_eval():
            low, top = transform_range(
                lambda argument: np.asarray(log_phi(kernel, argument)),
                kernel.constant,
                tokens,
                longest,
                window,
                rare,
            )
        needed = (float(top - low) + before + after) * fineness / coarsened / 0.42
        if not needed * x.size < _MOST_TERMS:
            allowed = (
                "less steep: divide its scores by a constant, or declare it with analytic=False"
            )
            raise refuse(
                "attention", "(whose weights differ by too many orders of magnitude)", allowed
            )
        unit = max(_SHARE, 2 ** (int(needed).bit_length() - 3))
        nodes = unit * int(np.ceil(needed / unit))
    wide = float(np.log(widened))
    return Trapezoid(
        x, mass, widened * window, before + 8.0 * wide, after + wide, rare / widened, nodes
    )


def transform_range(
    log_phi: Callable[[Any], Any],
    constant: float,
    tokens: Tokens,
    longest: Any,
    window: Any,
    rare: Any,
) -> tuple[Any, Any]:
    """Bounds on the logarithm of the sum over tokens, up to a negligible probability.

    All tokens but the first are distributed like the last: the probability that all lie in the lowest part of that
    distribution, of probability `rare`, is negligible.
    """
    x = np.linspace(-1.0, 1.0, 65) * window
    arguments = [mean + deviation * x for mean, deviation in tokens]
    xp = arguments[-1].__array_namespace__()
    values = log_phi(xp.stack(arguments))  # a call takes most of a millisecond on an accelerator
    mass = xp.exp(-0.5 * x**2)
    order = xp.argsort(values[-1])
    below = xp.cumsum(mass[order]) / xp.sum(mass)
    low = values[-1][order][xp.clip(xp.searchsorted(below, rare) - 1, 0, x.size - 1)]
    # A kernel may vanish at a single score of the grid.
    low = xp.maximum(low, xp.min(xp.where(xp.isfinite(values[-1]), values[-1], xp.inf)))
    top = xp.max(values) + xp.log(longest)
    # Weights of all scores may underflow, with a bias of a few hundred.
    top = xp.where(xp.isfinite(top), top, 0.0)
    low = xp.minimum(low, top)
    if constant > 0:
        level = xp.log(constant)
        low, top = xp.minimum(low, level), xp.maximum(top, level)
    return low, top


def log_complement(lost: Any) -> Any:
    """`log(1 - lost)`, accurate where `lost` is small, as a power of it needs; finite where rounding makes it one."""
    xp = lost.__array_namespace__()
    return xp.log1p(-xp.minimum(lost, 1.0 - 1e-16))


def transforms_at(kernel: SupportsLogPhi, arguments: Any, u: Any) -> tuple[Any, Any, Any]:
    """`1 - e^{-tφ}`, `tψ e^{-tφ}` and `(tψ)² e^{-tφ}` at given arguments, where `ψ` is the share of `φ`.

    NumPy arrays are of two dimensions together.
    """
    log_phi, share = kernel.log_phi(arguments), kernel.share(arguments)
    if not (isinstance(log_phi, np.ndarray) and isinstance(u, np.ndarray)):
        return _transforms(log_phi - u, share)
    shape = np.broadcast_shapes(log_phi.shape, u.shape)
    log_phi, u, share = (np.broadcast_to(each, shape) for each in (log_phi, u, share))
    found = np.empty((3, *shape))
    for rows in _blocks(*shape):
        found[:, rows] = _transforms(log_phi[rows] - u[rows], share[rows])
    return tuple(found)


def _transforms(log_w: Any, share: Any) -> tuple[Any, Any, Any]:
    """The same at `log tφ`."""
    xp = log_w.__array_namespace__()
    w = xp.exp(xp.clip(log_w, -_GONE, LARGEST_LOG))
    lost = -xp.expm1(-xp.minimum(w, _GONE))
    own = share * w
    first = own * (1.0 - lost)
    return lost, first, own * first


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """A few rows of a large array at a time, for NumPy."""
    step = max(1, _BLOCK // columns)
    return (slice(start, start + step) for start in range(0, rows, step))


def integrate_token(
    kernel: SupportsLogPhi, degree: int, mean: Any, deviation: Any, u: Any, rule: AbstractRule
) -> tuple[Any, Any, Any]:
    """`E[x^k F(tφ(mean + deviation·x))]` for the three functions of `transforms_at`; row `k`, column `u`.

    One matrix product where all `u` share their nodes.
    """
    x, weights = rule.for_token(kernel, mean, deviation, u)
    powers = u.__array_namespace__().stack([weights * x**k for k in range(degree + 1)], -1)
    if isinstance(x, np.ndarray) and isinstance(u, np.ndarray) and x.ndim == 1:
        log_phi, share = (each(mean + deviation * x) for each in (kernel.log_phi, kernel.share))
        sums = [
            [each @ powers for each in _transforms(log_phi - u[rows, None], share)]
            for rows in _blocks(u.size, x.size)
        ]
        lost, first, second = np.concatenate(sums, 1).swapaxes(1, 2)
        return lost, first, second
    product = "un,nk->ku" if x.ndim == 1 else "un,unk->ku"
    lost, first, second = transforms_at(kernel, mean + deviation * x, u[:, None])
    return (
        jnp.einsum(product, lost, powers),
        jnp.einsum(product, first, powers),
        jnp.einsum(product, second, powers),
    )


class Integrate(Protocol):
    """`E[x^k F(mean + deviation·x)]` of one or several `F`: row `k = 0 … degree` of each array."""

    def __call__(
        self, degree: int, mean: Array, deviation: Array, *constants: Any
    ) -> tuple[Float[Array, "k ..."], ...]: ...


def moments_by_parts(
    integrate: Integrate, degree: int, mean: Any, deviation: Any, *constants: Any
) -> tuple[Float[Array, "k ..."], ...]:
    """The output of `integrate`, with derivatives from Gaussian integration by parts.

    `d/dmean E[x^k F] = E[(x^{k+1} - k x^{k-1}) F]/deviation` and `d/ddeviation E[x^k F] = E[(x^{k+2} - (k+1) x^k)
    F]/deviation`: two more powers of `x` give every derivative in the same pass, and an `F` with a kink needs no
    derivative. All arrays that `integrate` uses must be among the `constants`. For a deviation that is a Python
    number, nothing is compiled or differentiated.
    """
    if not isinstance(deviation, jax.Array):
        deviation = deviation or NARROWEST
        return integrate(degree, mean, deviation, *constants)
    moments = jax.custom_jvp(lambda *arguments: integrate(degree, *arguments))

    @moments.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        mean, deviation, *constants = primals
        # Not `maximum`, which halves derivatives at the least deviation.
        wide = jnp.where(deviation < NARROWEST, NARROWEST, deviation)
        higher = moments_by_parts(integrate, degree + 2, mean, wide, *constants)

        def tangent(higher: Array) -> Array:
            k = jnp.arange(degree + 1.0).reshape(-1, *[1] * (higher.ndim - 1))
            value = higher[: degree + 1]
            below = jnp.concatenate([jnp.zeros_like(value[:1]), value[:-1]])
            by_mean = higher[1 : degree + 2] - k * below
            by_deviation = higher[2:] - (k + 1) * value
            return (by_mean * tangents[0] + by_deviation * tangents[1]) / wide

        return tuple(part[: degree + 1] for part in higher), tuple(map(tangent, higher))

    some = jnp.where(deviation == 0, NARROWEST, deviation)
    return moments(jnp.asarray(mean, float), some, *constants)
