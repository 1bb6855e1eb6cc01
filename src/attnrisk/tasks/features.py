"""Several features: the relevant token carries one shift out of a mixture (section 10)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import numbers, real, refuse
from .slr import AbstractNeedle, LengthLaw


class FeatureSLR(AbstractNeedle):
    """The relevant token is shifted by `Σ_f θ_f k*_f/√D`, with `θ` a row of `atoms`, of probability `weights`.

    `one_of_features([9.0, 6.0])` and `flipped(9.0)` give the atoms of two named cases.
    """

    name: ClassVar[str] = "features"
    spread: ClassVar[float] = 1.0
    shift_uniforms: ClassVar[int] = 1
    atoms: Float[Any, "J F"]
    weights: Float[Any, " J"]
    length: LengthLaw
    noise: Any

    def __init__(self, atoms: Any, length: Any, noise: Any = 0.0, weights: Any = None):
        atoms = numbers("atoms", atoms)
        if atoms.ndim != 2 or not atoms.size or not np.all(np.isfinite(atoms)):
            allowed = "a table of finite shifts, a row for each atom"
            raise refuse("atoms", f"(of shape {atoms.shape})", allowed)
        equal = np.full(len(atoms), 1.0 / len(atoms))
        weights = equal if weights is None else numbers("weights", weights)
        proper = weights.shape == equal.shape and np.all(weights >= 0)
        if not proper or not abs(weights.sum() - 1) <= 1e-9:
            raise refuse("weights", weights, "a probability for each atom, of sum one")
        self.atoms, self.weights, self.length = atoms, weights, LengthLaw(length)
        self.noise = real("noise", noise, minimum=0.0)

    @property
    def features(self) -> int:  # type: ignore[override]
        return int(self.atoms.shape[1])

    @property
    def strength(self) -> Any:
        return np.sqrt(np.max(np.sum(np.asarray(self.atoms) ** 2, 1)))

    def log_odds(self, chi: Float[Array, "L F"]) -> Float[Array, " L"]:
        exponents = chi @ self.atoms.T - jnp.sum(self.atoms**2, 1) / 2
        return jax.nn.logsumexp(exponents, -1, b=self.weights)

    def log_tilt(self, chi: Float[Array, "L F"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_odds(chi)) - jnp.log(chi.shape[0])

    def draw_shift(self, uniforms: Float[Array, " n"]) -> Float[Array, " F"]:
        atom = jnp.sum(uniforms[0] > jnp.cumsum(self.weights)[:-1])
        return jnp.asarray(self.atoms)[atom]


def one_of_features(nus: Any) -> Float[np.ndarray, "F F"]:
    """Atoms `√ν_f e_f`: the needle carries one of the features, `f` with strength `ν_f`."""
    strengths = numbers("nu", nus)
    if strengths.ndim != 1:
        raise refuse("nu", nus, "a list of strengths, one for each feature")
    return np.diag(np.sqrt([real("nu", nu, minimum=0.0) for nu in strengths.tolist()]))


def flipped(nu: Any) -> Float[np.ndarray, "2 1"]:
    """Atoms `±√ν` of one feature."""
    root = np.sqrt(real("nu", nu, minimum=0.0))
    return np.array([[root], [-root]])
