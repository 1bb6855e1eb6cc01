"""An exponential Rosenbrock method for diffrax, for gradient flows of few variables.

A gradient flow slows down by orders of magnitude on its way: it is stiff, and explicit solvers take thousands of
steps. Here each step solves the flow linearised around its start exactly, in the frame of the Hessian, and corrects it
with one more gradient: the scheme exprb32 of Hochbruck, Ostermann and Schweitzer (SIAM J. Numer. Anal. 47, 2009), of
order three, with an error estimate of order two. Near a minimum it becomes Newton's method. `benchmarks/flow.py`
compares it with the implicit solvers of diffrax.
"""

import math
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_SERIES = 12  # terms, for arguments up to one half
_LARGEST = 50.0  # a step that grows by e^50 is refused in any case


class Linearised(eqx.Module):
    """The slope at the start of a step and its symmetric Jacobian, in the frame of its eigenvectors."""

    slope: Float[Array, " n"]
    rates: Float[Array, " n"]
    frame: Float[Array, "n n"]

    def phi(self, k: int, time: Any, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """`φ_k(time · J) vector`."""
        return self.frame @ (_phi(k, time * self.rates) * (self.frame.T @ vector))


def _phi(k: int, z: Float[Array, " n"]) -> Float[Array, " n"]:
    """`φ_k(z) = Σ_j z^j/(j+k)!`: `φ_0 = e^z`, `φ_{k+1}(z) = (φ_k(z) − 1/k!)/z`."""
    near = jnp.abs(z) < 0.5
    small = jnp.where(near, z, 0.0)
    series = jnp.zeros_like(z)
    for j in range(_SERIES, -1, -1):
        series = series * small + 1.0 / math.factorial(j + k)
    large = jnp.where(near, 1.0, jnp.minimum(z, _LARGEST))
    value = jnp.exp(large)
    for j in range(k):
        value = (value - 1.0 / math.factorial(j)) / large
    return jnp.where(near, series, value)


class Moving(eqx.Module):
    """A point, and its speed at the start of the last step: an event sees nothing but the state, and need not find the
    slope once more."""

    point: Float[Array, " n"]
    speed: Float[Array, ""]


class ExponentialPath(diffrax.AbstractLocalInterpolation):
    """The same scheme for a part of the step."""

    t0: Any  # type: ignore[misc]
    t1: Any  # type: ignore[misc]
    y0: Float[Array, " n"]
    linearised: Linearised
    remainder: Float[Array, " n"]

    def evaluate(self, t0: Any, t1: Any | None = None, left: bool = True) -> Moving:
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        time, part = t0 - self.t0, (t0 - self.t0) / (self.t1 - self.t0)
        part = jnp.where(self.t1 == self.t0, 0.0, part)
        first = self.linearised.phi(1, time, self.linearised.slope)
        second = 2.0 * part**2 * self.linearised.phi(3, time, self.remainder)
        speed = jnp.linalg.norm(self.linearised.slope)
        return Moving(self.y0 + time * (first + second), speed)


class ExponentialRosenbrock(diffrax.AbstractAdaptiveSolver):
    """exprb32 for a vector field with a symmetric Jacobian; its state is `Moving`."""

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar = ExponentialPath

    def order(self, terms: Any) -> int:
        return 3

    def init(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any) -> None:
        return None

    def step(
        self,
        terms: Any,
        t0: Any,
        t1: Any,
        y0: Any,
        args: Any,
        solver_state: None,
        made_jump: Any,
    ) -> tuple[Any, Any, dict[str, Any], None, Any]:
        time, point = t1 - t0, y0.point

        def field(point: Array) -> Array:
            return terms.vf(t0, Moving(point, y0.speed), args).point

        slope, tangent = jax.linearize(field, point)
        jacobian = jax.lax.map(tangent, jnp.eye(point.size))  # row by row: memory is that of one
        rates, frame = jnp.linalg.eigh((jacobian + jacobian.T) / 2)
        linearised = Linearised(slope, rates, frame)
        euler = time * linearised.phi(1, time, slope)
        remainder = field(point + euler) - slope - jacobian @ euler
        error = 2.0 * time * linearised.phi(3, time, remainder)
        y1 = Moving(point + euler + error, jnp.linalg.norm(slope))
        path = {"y0": point, "linearised": linearised, "remainder": remainder}
        return y1, Moving(error, jnp.zeros(())), path, None, diffrax.RESULTS.successful

    def func(self, terms: Any, t0: Any, y0: Any, args: Any) -> Any:
        return terms.vf(t0, y0, args)
