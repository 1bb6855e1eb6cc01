"""The chunked recurrences equal the plain recurrence and the quadratic form, in outputs and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnrisk.trained import chunked_recurrence
from attnrisk.trained.recurrence import CHUNK

LENGTHS = (CHUNK, 3 * CHUNK - 5)


def recurrence(q, k, v, log_decay=None):
    """One position after the other."""
    decay = jnp.ones_like(k) if log_decay is None else jnp.exp(log_decay)

    def step(state, now):
        q, k, v, decay = now
        state = decay[:, None] * state + k[:, None] * v
        return state, q @ state

    return jax.lax.scan(step, jnp.zeros((k.shape[1], v.shape[1])), (q, k, v, decay))[1]


def quadratic(q, k, v, log_decay=None):
    """All pairs of positions; the decays between them are products over a loop, without sums of logarithms."""
    length = q.shape[0]
    decay = jnp.ones_like(k) if log_decay is None else jnp.exp(log_decay)
    rows = []
    for i in range(length):
        between, weights = jnp.ones(k.shape[1]), []
        for j in range(i, -1, -1):
            weights.append(jnp.sum(q[i] * between * k[j]))
            between = between * decay[j]
        rows.append(jnp.stack(weights[::-1]) @ v[: i + 1])
    return jnp.stack(rows)


def drawn(rng, length, gates=3.0, dtype=jnp.float64):
    """Queries, keys, values, and gates that open and close over `gates` logits."""
    q, k, v = (rng.standard_normal((length, 5)) for _ in range(3))
    log_decay = jax.nn.log_sigmoid(gates * rng.standard_normal((length, 5)))
    return tuple(jnp.asarray(each, dtype) for each in (q, k, v, log_decay))


def gradients(function, given):
    arguments = tuple(range(len(given)))
    slopes = jax.grad(lambda *each: jnp.sum(jnp.sin(function(*each))), arguments)
    return jax.jit(slopes)(*given)


def agree(found, expected, tolerance):
    scale = max(1.0, float(np.max(np.abs(expected))))
    np.testing.assert_allclose(
        np.asarray(found, float) / scale, np.asarray(expected) / scale, atol=tolerance
    )


@pytest.mark.parametrize("decays", [False, True], ids=["plain", "decay"])
def test_the_two_plain_forms_are_the_same(rng, decays):
    given = drawn(rng, 7)[: 3 + decays]
    agree(recurrence(*given), quadratic(*given), 1e-13)


# float32 has 2^-24 = 6e-8, of sums of up to 43 products of numbers of order 1. In bfloat16 the inputs of products are
# rounded to 2^-9 = 2e-3, some twice; sums are in float32.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("decays", [False, True], ids=["plain", "decay"])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_change_nothing(rng, length, decays, dtype, tolerance):
    low = [each.astype(dtype) for each in drawn(rng, length)[: 3 + decays]]
    if decays:
        low[3] = low[3].astype(jnp.float32)  # as the model has it
    exact = [
        each.astype(jnp.float64) for each in low
    ]  # the rounding of the inputs is not what is tested
    found = chunked_recurrence(*low)
    assert found.dtype == jnp.float32
    agree(found, recurrence(*exact), tolerance)
    for own, expected in zip(
        gradients(chunked_recurrence, low), gradients(recurrence, exact), strict=True
    ):
        agree(own, expected, 4 * tolerance)  # of a longer chain of products


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_closed_gates_stay_finite(rng, dtype):
    """Logarithms of decays that sum to -10^5: their exponentials taken apart would overflow."""
    q, k, v, _ = drawn(rng, 2 * CHUNK, dtype=dtype)
    log_decay = jnp.full(k.shape, -3000.0, jnp.float32)
    found = chunked_recurrence(q, k, v, log_decay)
    wide = [each.astype(jnp.float64) for each in (q, k, v)]
    own = jnp.sum(wide[0] * wide[1], 1)[:, None] * wide[2]  # nothing is left of the past
    agree(found, own, 2e-2 if dtype == "bfloat16" else 1e-6)
    slopes = gradients(chunked_recurrence, (q, k, v, log_decay))
    assert all(bool(jnp.all(jnp.isfinite(each))) for each in slopes)
