import jax
import jax.numpy as jnp
import pytest

from attnrisk.numerics.minimise import minimise_scalar


def _minimise(function, low, start, high):
    return jax.jit(
        lambda low, start, high: minimise_scalar(function, low, start, high, function(start))
    )(*map(jnp.asarray, (low, start, high)))


@pytest.mark.parametrize("start", [-4.0, 0.0, 2.9])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x - 0.3) ** 2,
        lambda x: -jnp.exp(-((x - 0.3) ** 2) / 2),  # concave where it starts
        lambda x: jnp.log(jnp.cosh(2 * (x - 0.3))) + 1e3,  # straight where it starts
        lambda x: jnp.abs(x - 0.3),
    ],
    ids=["parabola", "bell", "wedge", "kink"],
)
def test_finds_the_minimum(function, start):
    found, value = _minimise(function, -5.0, start, 3.0)
    assert abs(float(found) - 0.3) < 1e-5
    assert float(value) == float(function(found))


def test_is_never_worse_than_its_start():
    found, value = _minimise(lambda x: jnp.sqrt(jnp.abs(x)), -1.0, 0.0, 1.0)
    assert (float(found), float(value)) == (0.0, 0.0)
    found, value = _minimise(lambda x: jnp.where(x < 1, jnp.inf, x), -2.0, 2.0, 6.0)
    assert 1 <= float(found) <= 2


def test_a_flat_function_takes_few_steps():
    calls = []

    def constant(x):
        jax.debug.callback(calls.append, x)
        return 0.0 * x

    minimise_scalar(constant, -1.0, 0.0, 1.0, 0.0)
    jax.effects_barrier()
    assert len(calls) <= 5
