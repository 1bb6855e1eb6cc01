"""Several features: the relevant token carries a random shift along them (section 10)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import of_type, real
from .location import AbstractLocation, MixtureLocation
from .shifts import ShiftMixture
from .slr import AbstractNeedle, LengthLaw


class FeatureSLR(AbstractNeedle):
    """Single-location regression with several features: the relevant token is shifted by `Σ_f θ_f k*_f/√D`.

    `θ` is drawn from a mixture of Gaussians. One atom on one feature is the spiked task.

    Args:
        features: Distribution of `θ`, a `ShiftMixture` such as `flipped(9.0)`, `one_of([9.0, 6.0])` or
            `gaussian([9.0, 5.0])`.
        length: Number of tokens: an integer or a `LengthLaw`.
        noise: Standard deviation `Δ ≥ 0` of the label noise.

    Examples:
        >>> task = ar.FeatureSLR(ar.flipped(4.0), length=10)
        >>> print(f"{ar.bayes_risk(task):.6f}")
        0.578617
    """

    name: ClassVar[str] = "features"
    has_random_shift: ClassVar[bool] = True
    no_optimum: ClassVar[str] = (
        "with features the overlap of k is a matrix, and its equations are written for a number"
    )
    spread: ClassVar[float] = 1.0
    shift_law: ShiftMixture
    length: LengthLaw
    noise: Any

    def __init__(self, features: ShiftMixture, length: Any, noise: Any = 0.0):
        allowed = "a law of shifts, such as one_of([9.0, 6.0]), flipped(9.0) or gaussian([9.0])"
        self.shift_law = of_type("features", features, ShiftMixture, allowed)
        self.length = LengthLaw(length)
        self.noise = real("noise", noise, minimum=0.0)

    @property
    def features(self) -> int:  # type: ignore[override]
        return self.shift_law.features

    @property
    def strength(self) -> Any:
        """Largest root mean square shift of a component."""
        law = self.shift_law
        spreads = np.trace(np.asarray(law.all_covariances), axis1=1, axis2=2)
        return np.sqrt(np.max(np.sum(np.asarray(law.means) ** 2, 1) + spreads))

    @property
    def shift_uniforms(self) -> int:
        return self.shift_law.uniforms

    def log_odds(self, chi: Float[Array, "L F"]) -> Float[Array, " L"]:
        """`log Λ` of each token."""
        return self.shift_law.log_ratio(chi)

    def log_tilt(self, chi: Float[Array, "L F"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_odds(chi)) - jnp.log(chi.shape[0])

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        return self.shift_law.draw(uniforms)

    def location_given(self, unknown_variance: Any) -> AbstractLocation:
        return MixtureLocation(self.shift_law, jnp.atleast_2d(jnp.asarray(unknown_variance, float)))

    def __repr__(self) -> str:
        return f"FeatureSLR(features={self.shift_law}, length={self.length}, noise={self.noise})"
