"""What must hold at any overlaps, any length law and any strength of the task."""

import equinox as eqx
import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import EXACT, random_overlaps

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.bayes import location_missed
from attnrisk.population.plan import plan
from attnrisk.population.risk import compiled_profile, compiled_risk

NU = st.floats(0.0, 30.0)
LENGTH = st.integers(1, 1000)
SEED = st.integers(0, 2**32 - 1)


def _spiked_risk(task, attention, overlaps):
    engine = plan(task, attention, scale=6.0)
    return float(compiled_risk(*as_arrays((engine, task, attention, overlaps))))


@settings(max_examples=40, deadline=None)
@given(nu=NU, length=LENGTH, name=st.sampled_from(EXACT), seed=SEED)
def test_no_attention_beats_bayes(nu, length, name, seed):
    task = ar.SpikedSLR(nu, length)
    found = _spiked_risk(task, ar.get_attention(name), random_overlaps(np.random.default_rng(seed)))
    assert found >= float(location_missed(task).value) - 1e-8


@settings(max_examples=30, deadline=None)
@given(nu=NU, length=LENGTH, noise=st.floats(0.0, 2.0))
def test_softmax_reaches_bayes_on_the_spiked_task(nu, length, noise):
    task = ar.SpikedSLR(nu, ar.LengthLaw([1, length + 1], [0.5, 0.5]), noise=noise)
    found = _spiked_risk(task, ar.Softmax(), ar.aligned(np.sqrt(nu)))
    assert abs(found - float(ar.bayes_risk(task))) < 1e-8


@settings(max_examples=10, deadline=None)
@given(nu=st.floats(0.0, 4.0), length=st.integers(1, 100))
def test_softmax_reaches_bayes_on_the_max_task(nu, length):
    task = ar.MaxSLR(nu, length)
    engine = plan(task, ar.Softmax(), scale=4.0)
    a, b = compiled_profile(*as_arrays((engine, task, ar.Softmax(), nu)))
    found = float(1 - 2 * a + b)
    assert abs(found - float(ar.bayes_risk(task))) < 1e-8


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(EXACT), seed=SEED)
def test_risk_ignores_the_sign_of_v_and_y(name, seed):
    """`v, v* → −v, −v*` flips three overlaps and changes no risk."""
    overlaps = random_overlaps(np.random.default_rng(seed))
    signs = np.array([[1, -1], [-1, 1]])
    flipped = ar.Overlaps(signs * overlaps.M, signs * overlaps.Q)
    task, attention = ar.SpikedSLR(2.0, 3), ar.get_attention(name)
    risks = [_spiked_risk(task, attention, each) for each in (overlaps, flipped)]
    np.testing.assert_allclose(risks[0], risks[1], rtol=1e-11)


@settings(max_examples=20, deadline=None)
@given(
    # A kernel with and without kinks or a constant, one that knows the length, and one without a denominator.
    name=st.sampled_from(["softmax", "softmax-1", "relu", "ssmax", "erf"]),
    seed=SEED,
    weight=st.floats(0.0, 1.0),
)
def test_risk_of_a_mixture_is_the_mixture_of_risks(name, seed, weight):
    overlaps, attention = random_overlaps(np.random.default_rng(seed)), ar.get_attention(name)
    lengths, weights = [1, 5, 700], [weight / 2, 1 - weight, weight / 2]
    apart = [_spiked_risk(ar.SpikedSLR(2.0, length), attention, overlaps) for length in lengths]
    together = _spiked_risk(ar.SpikedSLR(2.0, ar.LengthLaw(lengths, weights)), attention, overlaps)
    np.testing.assert_allclose(together, np.dot(weights, apart), rtol=1e-9)


def test_work_does_not_depend_on_the_length():
    """The same compiled code serves ten tokens and a million."""

    def jaxpr(length):
        task, attention = ar.SpikedSLR(2.0, length), ar.Softmax()
        arrays = as_arrays((plan(task, attention, 8.0), task, attention, ar.aligned(1.0)))
        dynamic, static = eqx.partition(arrays, eqx.is_array)

        def risk(dynamic):
            engine, *problem = eqx.combine(dynamic, static)
            return engine.risk(*problem)

        return str(jax.make_jaxpr(risk)(dynamic))

    assert jaxpr(10) == jaxpr(10**6)
