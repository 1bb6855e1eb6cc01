"""Several problems in one compiled call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnrisk.numerics.minimise import BATCH, map_batch


def _roots(problem):
    x, power = problem
    return jnp.sum(x) ** power, x * 2.0


@pytest.mark.parametrize("count", [1, 3, BATCH])
def test_a_loop_on_a_cpu_and_arrays_elsewhere_agree(count, monkeypatch, rng):
    problems = [(rng.random(4), np.asarray(0.5)) for _ in range(count)]
    found = map_batch(_roots, problems)
    assert len(found) == count
    for (x, power), (total, doubled) in zip(problems, found, strict=True):
        np.testing.assert_allclose(total, x.sum() ** power, rtol=1e-14)
        np.testing.assert_array_equal(doubled, 2.0 * x)
    jax.clear_caches()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    arrays = map_batch(_roots, problems)
    for one, other in zip(found, arrays, strict=True):
        np.testing.assert_allclose(one[0], other[0], rtol=1e-14)
    jax.clear_caches()


def test_empty_places_are_not_computed():
    entered = []

    def value(x):
        jax.debug.callback(entered.append, x)
        return x

    map_batch(value, [np.asarray(1.0), np.asarray(2.0)])
    jax.effects_barrier()
    assert [float(x) for x in entered] == [1.0, 2.0]


def test_problems_of_several_shapes_keep_their_order(rng):
    problems = [rng.random(size) for size in (3, 2**22, 3, 1, 2**22, *[3] * BATCH)]
    found = map_batch(jnp.sum, problems)
    np.testing.assert_allclose(found, [each.sum() for each in problems], rtol=1e-12)


def test_large_problems_are_not_stacked(monkeypatch):
    """Copies of large tables would cost more than they save."""
    stacked = []
    monkeypatch.setattr(np, "stack", lambda leaves: stacked.append(len(leaves)) or np.array(leaves))
    map_batch(jnp.sum, [np.zeros(2**22), np.zeros(2**22)])
    map_batch(jnp.sum, [np.zeros(2), np.zeros(2)])
    assert stacked == [1, 1, BATCH]
