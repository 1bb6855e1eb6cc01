"""The decoder: causal, in single precision, with any attention in place of softmax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk._check import Refusal
from attnrisk.trained import RECURRENCES, Decoder
from attnrisk.trained.model import causal_weights

LENGTH, TOKENS = 20, 11
# One of each family and each recurrence.
MIXERS = ("softmax", "relu", "erf", "sparsemax", *RECURRENCES)
HERE = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), (1, LENGTH))


def made(mixer, **more):
    return Decoder(jax.random.key(1), TOKENS, LENGTH, mixer, **{"width": 8, "layers": 1, **more})


def drawn(rng, length=LENGTH):
    return jnp.asarray(rng.integers(TOKENS, size=(1, length)), jnp.int32)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_the_future_changes_nothing(mixer, precision, rng):
    model = made(mixer, precision=precision)
    tokens = drawn(rng)
    other = tokens.at[0, 12:].set((tokens[0, 12:] + 1) % TOKENS)
    found, changed = (np.asarray(eqx.filter_jit(model)(each, HERE)) for each in (tokens, other))
    assert found.dtype == np.float32
    assert np.array_equal(found[0, :12], changed[0, :12])
    assert not np.allclose(found[0, 12:], changed[0, 12:])


@pytest.mark.parametrize("mixer", MIXERS)
def test_parameters_and_slopes_are_single_precision(mixer, rng):
    model = made(mixer)
    tokens = drawn(rng)
    slopes = eqx.filter_jit(eqx.filter_grad(lambda own: jnp.sum(own(tokens, HERE) ** 2)))(model)
    for each in jax.tree.leaves((eqx.filter(model, eqx.is_array), slopes)):
        assert each.dtype == jnp.float32
        assert bool(jnp.all(jnp.isfinite(each)))
    slope = float(jnp.max(jnp.abs(slopes.blocks[0].mixing.bias)))
    is_void = mixer not in ("relu", "erf", "gated-recurrence")
    assert slope < 1e-4 if is_void else slope > 1e-3


@eqx.filter_jit
def causal_and_alone(attention, scores):
    """The weights of all prefixes, and those of each alone, in double precision."""
    exact = scores[0, 0].astype(jnp.float64)
    alone = [attention(exact[end - 1, :end]) for end in range(1, 7)]
    return causal_weights(attention, scores)[0, 0], alone


@pytest.mark.parametrize("name", list(ar.CATALOGUE))
def test_weights_are_those_of_each_prefix(name, rng):
    scores = jnp.asarray(rng.standard_normal((1, 1, 6, 6)), jnp.float32)
    weights, alone = causal_and_alone(ar.get_attention(name), scores)
    for end in range(1, 7):
        # float32 of numbers below ten
        np.testing.assert_allclose(weights[end - 1, :end], alone[end - 1], atol=2e-6)
        assert (weights[end - 1, end:] == 0).all()


def test_a_general_attention_of_a_user_equals_the_kernel_that_it_is(rng):
    def mine(scores, mask):
        raised = jnp.where(
            mask, jnp.exp(scores - jnp.max(scores, where=mask, initial=-jnp.inf)), 0.0
        )
        return raised / jnp.sum(raised)

    scores = jnp.asarray(rng.standard_normal((2, 1, 9, 9)), jnp.float32)
    run = eqx.filter_jit(causal_weights)
    found, expected = (run(each, scores) for each in (ar.General(mine), ar.Softmax()))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.isfinite(eqx.filter_jit(made(ar.General(mine)))(drawn(rng), HERE)).all()


def test_a_kernel_of_a_user(rng):
    cubic = ar.Kernel(lambda score: 3.0 * jnp.log1p(jnp.exp(score)))
    assert np.isfinite(eqx.filter_jit(made(cubic, heads=2))(drawn(rng), HERE)).all()


def test_only_softmax_knows_positions_beyond_the_convolution(rng):
    """Two orders of the same far tokens: without rotary positions their sum is the same."""
    tokens, other = np.zeros((2, 1, LENGTH), np.int32)
    tokens[0, [6, 12]] = 5, 7
    other[0, [6, 12]] = 7, 5
    last = jnp.full((1, 1), LENGTH - 1, jnp.int32)

    def moves(mixer):
        model = made(mixer)
        run = eqx.filter_jit(model)
        found = [run(jnp.asarray(each), last) for each in (tokens, other)]
        return float(jnp.max(jnp.abs(found[0] - found[1])))

    assert moves("softplus") < 1e-5 < 1e-3 < moves("softmax")


def test_what_is_no_attention_is_refused():
    for bad, words in (
        ("sofmax", "did you mean softmax"),
        (3, "an attention"),
        (ar.General(lambda s: s), "mask"),
    ):
        with pytest.raises(Refusal, match=words):
            made(bad)


def test_a_gated_recurrence_begins_with_short_and_long_memories():
    """Gates that begin half open forget within two tokens, and recall over many is then not learned."""
    model = Decoder(jax.random.key(0), 8, 64, "gated-recurrence", width=16, heads=2)
    for block in model.blocks:
        memories = 1.0 / jax.nn.sigmoid(-block.mixing.bias)
        assert memories.shape == (2, 8)
        np.testing.assert_allclose(memories[:, [0, -1]], [[2.0, 256.0]] * 2, rtol=1e-4)
