"""The Bayes risk with several features: one-token integrals of the likelihood ratio, at any length (section 10).

With `M_0(u) = E_0[e^{-tΛ}]` for a token of noise and `M_1(u) = E_1[e^{-tΛ}]` for the needle, `t = e^{-u}`, and since
expectations over the needle are those over noise with weight `Λ`, the probability of a wrong location is

    1 − E[p_ε] = E[Σ_{ℓ≠ε} p_ℓ] = ∫du t M_1² (L−1) M_0^{L−2} .

The features fall into blocks, such that every component of the mixture acts on one block. Then `Λ` is a sum over
blocks of functions of independent fields, and `M_0` is a product of integrals over each. A single component, on any
number of features, has the moments `E[Λ^p]` in closed form, and its integrals are inverse Mellin transforms; several
components, or a single feature, are integrated by equal steps.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from .._results import Estimate
from ..numerics.arrays import as_arrays
from ..numerics.qmc import mean_estimate
from ..numerics.quadrature import estimate_from, log_complement
from ..tasks import FeatureSLR
from .engines.sobol import RANDOMISATIONS, SobolScores, draw_points

MOST_ON_GRID = 3  # features of a block with several components; a grid over more takes minutes
# Two rules by the dimension of the largest grid: right to some 10^{-8·fineness}.
_FINENESS = {0: (1.7, 2.1), 1: (1.7, 2.1), 2: (1.3, 1.6), 3: (0.8, 1.0)}
# The integrand in u is below (L−1) e^{-|u|}, since M_1 = E_0[Λ e^{-tΛ}] ≤ 1/(e t), and beyond log L + 38 it is below
# 10^-16. Equal steps in τ, u = τ + e^{τ−knee}.
_RUNAWAY = 2.8
_BEFORE = 3.6  # below the smallest log Λ the integrand dies like exp(-e^|u|)
_MOST_NUMBERS = 2**21  # in an array of nodes times transform nodes
# Contours keep this distance from the poles of Γ at 0 and −1. A sum over a contour with steps h is that over all images
# of u at distances of 2π/h, some 90·fineness, and right to e^{-90·fineness·distance} relative to the integrand. At the
# last frequency |Γ| has fallen by e^{-π·26/2}.
_DISTANCE, _PERIOD, _LAST_FREQUENCY = 0.3, 90.0, 26.0
# Noise of density below e^{-40} of what ends the transform: needles there are found with certainty.
_CERTAIN = 40.0
_MELLIN_ROUNDING = 1e-13  # of sums of terms whose phases turn some hundred times
_LEFT = -np.linspace(_DISTANCE, 1.0 - _DISTANCE, 5)
_RIGHT = np.geomspace(_DISTANCE, 400.0, 40)


class Block(NamedTuple):
    """Components that act on features of their own: their means, covariances and weights there."""

    means: Float[np.ndarray, "J d"]
    covariances: Float[np.ndarray, "J d d"]
    weights: Float[np.ndarray, " J"]

    @property
    def grid_dimension(self) -> int:
        """Dimension of the grid of a block; `None` for a single component on several features."""
        features = self.means.shape[1]
        return features if features == 1 or len(self.means) > 1 else 0


def blocks_of(task: FeatureSLR) -> tuple[list[Block], float]:
    """The blocks of the features, and the weight of components without any shift."""
    law = task.shift_law
    means, weights = np.asarray(law.means, float), np.asarray(law.weights, float)
    spreads = np.asarray(law.all_covariances, float)
    touched = (means != 0) | (np.abs(spreads).sum(2) != 0)
    remaining, found = set(np.flatnonzero(touched.any(0)).tolist()), []
    while remaining:
        block, size = {min(remaining)}, 0
        while len(block) > size:
            size = len(block)
            acting = touched[:, sorted(block)].any(1)
            block |= set(np.flatnonzero(touched[acting].any(0)).tolist())
        axes = sorted(block)
        acting = touched[:, axes].any(1) & (weights > 0)
        remaining -= block
        if acting.any():
            centres, inner = means[np.ix_(acting, axes)], spreads[np.ix_(acting, axes, axes)]
            if len(centres) == 1 and not inner.any():  # one atom, along an axis of its own
                centres, inner = np.sqrt((centres**2).sum(1, keepdims=True)), np.zeros((1, 1, 1))
            found.append(Block(centres, inner, weights[acting]))
    return found, float(weights[~touched.any(1)].sum())


def features_missed(task: FeatureSLR) -> Estimate | None:
    """`1 − E[p_ε]`; `None` if a block with several components has too many features for a grid."""
    blocks, unmoved = blocks_of(task)
    dimension = max((block.grid_dimension for block in blocks), default=0)
    if dimension > MOST_ON_GRID:
        return None
    found = estimate_from(*(_missed(task, blocks, unmoved, f) for f in _FINENESS[dimension]))
    inverted = any(not block.grid_dimension for block in blocks)
    return Estimate(found.value, found.error + _MELLIN_ROUNDING * found.value * inverted)


def _missed(task: FeatureSLR, blocks: list[Block], unmoved: float, fineness: float) -> float:
    knee = math.log(float(task.length.longest)) + 38.0 * min(1.0, fineness / 1.7)
    end = knee + _RUNAWAY + math.log(fineness)
    radius = math.sqrt(2.0 * (end + _CERTAIN))
    grids = [grid_of(block, fineness, radius) if block.grid_dimension else None for block in blocks]
    lows = [math.log(unmoved)] if unmoved > 0 else []
    for block, grid in zip(blocks, grids, strict=True):
        lows.append(_lowest(block) if grid is None else float(grid.log_ratio[grid.has_mass].min()))
    low = max(min(lows, default=0.0) - _BEFORE - math.log(fineness), -end)
    step = 0.42 / fineness
    tau = low + step * np.arange(math.ceil((end - low) / step) + 1)
    run = np.exp(tau - knee)
    u, du = tau + run, step * (1.0 + run)
    t = np.exp(-u)
    found = [
        _mellin(block, u, fineness) if grid is None else grid.integrals(u)
        for block, grid in zip(blocks, grids, strict=True)
    ]
    # M_1 = Σ_b M_1b Π_{b'≠b} M_0b'; what has no shift contributes e^{-t w} to every product.
    log_kept, needle = -t * unmoved, unmoved * np.exp(-t * unmoved)
    noise = np.exp(-t * unmoved)
    for own, lost in found:
        needle, noise = needle * (1.0 - lost) + own * noise, noise * (1.0 - lost)
        log_kept = log_kept + log_complement(lost)
    beside = np.asarray(task.length.powers(log_kept, 1, drop=1))
    return float(np.sum(du * t * needle**2 * beside))


def _lowest(block: Block) -> float:
    """A value below `log Λ` of all but a negligible part of the needles, for a single component."""
    (spread,), (weight,) = block.covariances, block.weights
    precision = np.linalg.inv(np.eye(len(spread)) + spread)
    (mean,) = block.means
    signal = float(mean @ precision @ mean)
    floor = -0.5 * np.linalg.slogdet(np.eye(len(spread)) + spread)[1]
    # At 9 deviations of the field along the mean.
    return math.log(weight) + floor - signal / 2 - 9.0 * math.sqrt(signal)


class Grid(NamedTuple):
    """Equal steps along the features of a block: `log Λ`, the mass of noise and that of the needle at each node."""

    log_ratio: Float[np.ndarray, " n"]
    noise: Float[np.ndarray, " n"]
    needle: Float[np.ndarray, " n"]

    @property
    def has_mass(self) -> np.ndarray:
        """Nodes of more than a negligible mass."""
        return self.noise + self.needle > 1e-17 * np.max(self.noise + self.needle)

    def integrals(self, u: Float[np.ndarray, " u"]) -> tuple[np.ndarray, np.ndarray]:
        """`Σ_j w_j E_j[e^{-tΛ}]` and `1 − E_0[e^{-tΛ}]`."""
        kept, lost = np.empty_like(u), np.empty_like(u)
        size = max(1, _MOST_NUMBERS // len(self.noise))
        for start in range(0, u.size, size):
            part = slice(start, start + size)
            # e^60 is enough: e^{-e^60} = 0.
            w = np.exp(np.minimum(self.log_ratio - u[part, None], 60.0))
            gone = -np.expm1(-w)
            kept[part], lost[part] = (1.0 - gone) @ self.needle, gone @ self.noise
        return kept, lost


def grid_of(block: Block, fineness: float, radius: float) -> Grid:
    """A grid that covers noise and components within a radius, fine enough for the steepest `log Λ` on it.

    Of a needle at `|x| > r` with `Λ < Λ_0` the probability is at most `Λ_0` times that of noise at `|x| > r`: beyond
    the radius it is found with certainty. Atoms so far away that `Λ < e^{-60}` within it are left out.
    """
    sizes = np.sqrt((block.means**2).sum(1))
    near = sizes < radius + math.sqrt(radius**2 + 120.0)
    near |= np.abs(block.covariances).sum((1, 2)) > 0
    means, spreads, weights = (each[near] for each in block)
    dimension = means.shape[1]
    window = math.sqrt(2.0 * (18.4 * fineness + 8.0))
    deviations = np.sqrt(1.0 + np.diagonal(spreads, axis1=1, axis2=2))
    low = np.min(means - window * deviations, 0, initial=-window)
    high = np.max(means + window * deviations, 0, initial=window)
    lows, highs = np.maximum(low, -radius), np.minimum(high, radius)
    # The slope of log Λ where the transform passes it: that of an atom is |μ|; that of a Gaussian grows with the field,
    # and the fields where e^{-tΛ} passes from one to zero at t = e^{-38} have a slope of at most 9.
    wide = 9.0 * fineness**0.5 * (np.max(spreads, initial=0.0) > 0)
    step = 0.5 / fineness / max(float(np.max(sizes[near], initial=0.0)), wide, 1.0)
    axes = [
        np.arange(math.floor(a / step), math.ceil(b / step) + 1) * step
        for a, b in zip(lows, highs, strict=True)
    ]
    x = np.stack([each.ravel() for each in np.meshgrid(*axes, indexing="ij")], -1)
    cell, log_2pi = dimension * math.log(step), dimension * math.log(2.0 * math.pi)
    log_noise = cell - 0.5 * (x**2).sum(1) - 0.5 * log_2pi
    log_needle = np.full(len(x), -np.inf)
    for mean, spread, weight in zip(means, spreads, weights, strict=True):
        full = np.eye(dimension) + spread
        apart, precision = x - mean, np.linalg.inv(full)
        exponent = -0.5 * np.einsum("nf,fg,ng->n", apart, precision, apart)
        scale = math.log(weight) - 0.5 * np.linalg.slogdet(full)[1]
        log_needle = np.logaddexp(log_needle, cell + scale + exponent - 0.5 * log_2pi)
    log_ratio = np.maximum(log_needle, -1e300) - log_noise  # without any component near, no Λ
    noise, needle = np.exp(log_noise), np.exp(log_needle)
    heavy = noise + needle > 1e-22
    return Grid(log_ratio[heavy], noise[heavy], needle[heavy])


def _mellin(
    block: Block, u: Float[np.ndarray, " u"], fineness: float
) -> tuple[np.ndarray, np.ndarray]:
    """The same two integrals for a single component, `Λ = w e^{xᵀPx/2 + m·x − c}`, in any dimension.

    `e^{-w} = (1/2πi) ∫ Γ(z) w^{-z} dz` to the right of zero, and `1 − e^{-w}` is minus the same to the left of it, down
    to −1. The contour of each `u` is the one on which the integrand is least: there little cancels.
    """
    from scipy.special import loggamma  # a tenth of a second of import that only features pay

    (mean,), (spread,), (weight,) = block
    values, frame = np.linalg.eigh(spread)
    values = np.maximum(values, 0.0)
    pull = frame.T @ mean / (1.0 + values)
    kept, constant = (
        values / (1.0 + values),
        0.5 * float(pull @ (frame.T @ mean)) + 0.5 * np.log1p(values).sum(),
    )

    def log_moment(p: Any) -> Any:
        """`log E_0[Λ^p]`, for `Re p < 1 + 1/max(values)`."""
        rest = 1.0 - p[..., None] * kept
        quadratic = (p[..., None] ** 2 * pull**2 / rest - np.log(rest)).sum(-1) / 2
        return p * math.log(weight) - p * constant + quadratic

    step = 2.0 * math.pi / (_PERIOD * fineness)
    frequencies = np.arange(-_LAST_FREQUENCY, _LAST_FREQUENCY, step)

    def invert(contours: np.ndarray, moved: float) -> np.ndarray:
        """`(1/2πi) ∫ Γ(z) e^{uz} E_0[Λ^{moved−z}] dz`."""
        sizes = loggamma(contours + 0j).real + log_moment(moved - contours)
        chosen, found = np.argmin(sizes + u[:, None] * contours, 1), np.empty_like(u)
        for each in np.unique(chosen):
            z, rows = contours[each] + 1j * frequencies, chosen == each
            terms = loggamma(z) + log_moment(moved - z) + u[rows, None] * z
            found[rows] = np.exp(terms).real.sum(1) * step / (2.0 * math.pi)
        return found

    lost = -invert(_LEFT, 0.0)
    # E_1 with weight w: Σ_j w_j E_j[f] = E_0[Λ f].
    needle = invert(_RIGHT, 1.0)
    return np.clip(needle, 0.0, weight), np.clip(lost, 0.0, 1.0)


def sobol_features_missed(task: FeatureSLR, seed: int) -> Estimate:
    """`1 − E[p_ε]` as an average over Sobol points of the fields of all tokens, with a standard error."""
    points = draw_points(SobolScores, task, task.features, seed, RANDOMISATIONS)
    return mean_estimate(_random_missed(*as_arrays((SobolScores(points), task))))


@eqx.filter_jit
def _random_missed(engine: SobolScores, task: FeatureSLR) -> Any:
    def at_point(task: FeatureSLR, point: Array) -> Array:
        """The posterior at one point; the first token is the relevant one."""
        drawn = 1 + task.shift_uniforms
        fields = ndtri(point[drawn:]).reshape(-1, task.features)
        needle = jnp.arange(len(fields)) == 0
        fields = fields + needle[:, None] * task.draw_shift(point[1:drawn])
        return 1.0 - task.posterior(fields)[0]

    return engine.average(task, partial(at_point, task))
