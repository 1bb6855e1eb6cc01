"""Functions of a user: constants, wrong shapes, and weights that no integral can use."""

import jax.numpy as jnp
import pytest

import attnrisk as ar

TASK = ar.SpikedSLR(nu=2.0, length=5)
SCORES = jnp.array([-1.0, 0.5, 2.0])
KINDS = {"log_phi": ar.Kernel, "weight": ar.Elementwise, "function": ar.General}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_number_is_a_constant_attention(kind):
    """Equal weights: the best `v` is `v*`, and the risk is that of the mean, `1 − 1/L`."""
    attention = kind(lambda scores: 1.0)
    expected = 1.0 / 3.0 if kind is ar.Kernel else 1.0
    assert attention(SCORES).tolist() == pytest.approx([expected] * 3)
    found = ar.population_minimum(TASK, attention).risk
    assert abs(float(found) - 0.8) <= found.error + 1e-12


@pytest.mark.parametrize(
    "function",
    [jnp.sum, lambda scores: jnp.ones(3), lambda scores: None, lambda scores: scores + 1j],
    ids=["number", "other", "none", "complex"],
)
@pytest.mark.parametrize("name", KINDS)
def test_other_shapes_and_types_are_refused(name, function):
    for ask in (ar.population_minimum, lambda *a: ar.population_risk(*a, ar.aligned(1.0))):
        with pytest.raises(ValueError, match=rf"^{name} = .* a real number for each score"):
            ask(TASK, KINDS[name](function))


NAN = [ar.Kernel(jnp.log), ar.Elementwise(jnp.sqrt), ar.General(jnp.sqrt)]


@pytest.mark.parametrize("attention", NAN, ids=lambda each: each.name)
def test_weights_that_are_nan_are_refused(attention):
    assert bool(jnp.isnan(attention(SCORES)).any())
    with pytest.raises(ValueError, match=r"^attention = .* at some scores"):
        ar.population_minimum(TASK, attention)
    with pytest.raises(ValueError, match=r"^attention = .* not finite"):
        ar.population_risk(TASK, attention, ar.aligned(1.0))
    with pytest.raises(ValueError, match=r"^attention = .* at some scores"):
        ar.erm_asymptotics(TASK, attention, 2.0, ar.Ridge(1.0, 1.0))


def test_an_analytic_attention_that_is_nan_is_refused():
    with pytest.raises(ValueError, match=r"^attention = elementwise .* not finite"):
        ar.population_minimum(TASK, ar.Elementwise(jnp.sqrt, analytic=True, features=()))


@pytest.mark.parametrize(
    ("attention", "why"),
    [
        (ar.Elementwise(lambda x: 1e200 * jnp.maximum(x, 0.0)), "as large as 2e"),
        (ar.Elementwise(lambda x: 1e200 / (1 + jnp.exp(-x)), analytic=True), "not finite"),
        (ar.Elementwise(lambda x: 1e-200 * jnp.maximum(x, 0.0)), "so small"),
        (ar.Elementwise(lambda x: 1e-200 / (1 + jnp.exp(-x)), analytic=True), "so small"),
        (ar.Kernel(lambda x: 1e300 + x), "log_phi has the size 1e"),
        (ar.Kernel(lambda x: x - 1e12), "log_phi has the size 1e"),
        (ar.Kernel(lambda x: 1e300 + x, analytic=True), "log_phi has the size 1e"),
    ],
)
def test_weights_of_an_extreme_size_are_refused(attention, why):
    with pytest.raises(ValueError, match=rf"^attention = {attention.name} .*{why}"):
        ar.population_minimum(TASK, attention)


def test_the_size_of_weights_does_not_matter():
    small, large, plain = (
        ar.population_minimum(TASK, ar.Elementwise(lambda x, s=s: s / (1.0 + jnp.exp(-x)))).risk
        for s in (1e-4, 1e90, 1.0)
    )
    for found in (small, large):
        assert abs(float(found) - float(plain)) <= found.error + plain.error
