"""Tasks and length laws: what they mean, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import TASKS, mixed_log_weight

import attnrisk as ar


def test_posterior_of_the_location():
    chi = jnp.array([0.3, -1.0, 2.0])
    for task, slope in ((ar.SpikedSLR(4.0, 3), 2.0), (ar.MaxSLR(4.0, 3), 4.0)):
        np.testing.assert_allclose(jax.nn.softmax(task.log_odds(chi)), jax.nn.softmax(slope * chi))
    hard = jax.nn.softmax(ar.MaxSLR(np.inf, 3).log_odds(chi))
    np.testing.assert_array_equal(hard, [0, 0, 1])


@pytest.mark.parametrize("length", [1, 3, 20])
def test_weights_have_mean_one(length, rng):
    task = ar.WeightedSLR(mixed_log_weight, length)
    chi = jnp.asarray(rng.normal(size=(200_000, length)))
    weight = np.exp(np.asarray(jax.jit(jax.vmap(lambda c: task.log_weight(0, c)))(chi)))
    assert abs(weight.mean() - 1) < 4 * weight.std() / np.sqrt(weight.size)


def test_a_weight_without_mean_one_is_refused():
    task = ar.WeightedSLR(lambda location, chi: chi[location], 2)
    with pytest.raises(ValueError, match=r"log_weight .* E\[g\] = 1"):
        ar.bayes_risk(task)


def test_a_weighted_task_agrees_with_the_same_task_by_name():
    weighted = ar.WeightedSLR(lambda e, chi: jnp.sqrt(2.0) * chi[e] - 1.0, 3, noise=0.5)
    found, exact = ar.bayes_risk(weighted), ar.bayes_risk(ar.SpikedSLR(2.0, 3, noise=0.5))
    assert abs(float(found) - float(exact)) < 4 * float(found.error)


def test_label_variance():
    assert ar.SpikedSLR(1.0, 2, noise=2.0, spread=0.5).label_variance == 4.25
    assert ar.MaxSLR(1.0, 2, noise=0.5).label_variance == 1.25


def test_a_spread_gives_the_location_away():
    assert float(ar.bayes_risk(TASKS["spiked-spread"])) == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("text", "lengths", "probabilities"),
    [("10", [10], [1.0]), ("1-3", [1, 2, 3], [1 / 3] * 3), ("8:0.75,1:0.25", [1, 8], [0.25, 0.75])],
)
def test_length_laws_from_text(text, lengths, probabilities):
    law = ar.parse_lengths(text)
    np.testing.assert_array_equal(law.lengths, lengths)
    np.testing.assert_allclose(law.probabilities, probabilities)
    again = ar.parse_lengths(str(law))
    np.testing.assert_array_equal(again.lengths, law.lengths)


@pytest.mark.parametrize("drop", [0, 1])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_powers_are_derivatives_of_the_generating_function(order, drop):
    law = ar.LengthLaw([1, 2, 7], [0.2, 0.3, 0.5])

    def generating(base):
        return sum(
            p * base ** (float(n) - drop)
            for n, p in zip(law.lengths, law.probabilities, strict=True)
        )

    derivative = generating
    for _ in range(order):
        derivative = jax.grad(derivative)
    found = law.powers(jnp.log(jnp.array(0.7)), order, drop)
    assert abs(float(found) - float(derivative(0.7))) < 1e-14


def test_tasks_are_hashable_and_equal_by_their_numbers():
    task = ar.SpikedSLR(5.0, 3)
    assert {task: 1}[ar.SpikedSLR(5, ar.fixed(3))] == 1
    assert task != ar.SpikedSLR(5.0, 4)
    assert task != ar.MaxSLR(5.0, 3)
    for make in (
        lambda: ar.FeatureSLR(ar.flipped(9.0), 3),
        lambda: ar.WeightedSLR(mixed_log_weight, ar.uniform(1, 3)),
        lambda: ar.aligned(1.0),
    ):
        assert make() == make()
        assert hash(make()) == hash(make())


def test_with_another_spread_there_is_no_posterior():
    with pytest.raises(ValueError, match=r"spread = 2\.0"):
        ar.SpikedSLR(1.0, 3, spread=2.0).posterior(jnp.ones(3))


@pytest.mark.parametrize("transform", [jax.jit, jax.grad])
@pytest.mark.parametrize(
    "ask",
    [
        lambda task: ar.bayes_risk(task).value,
        lambda task: ar.linear_risk(task).value,
        lambda task: ar.population_minimum(task, ar.Softmax()).risk.value,
        lambda task: ar.population_risk(task, ar.Softmax(), ar.aligned(1.0)).value,
    ],
)
def test_a_traced_task_is_refused_where_its_numbers_must_be_known(ask, transform):
    with pytest.raises(ValueError, match=r"task = \(traced by jit, grad or vmap\)"):
        transform(lambda nu: ask(ar.MaxSLR(nu, 3)))(2.0)


BAD_INPUT = [
    (lambda: ar.SpikedSLR(-1.0, 3), "nu = -1"),
    (lambda: ar.SpikedSLR(np.nan, 3), "nu = nan"),
    (lambda: ar.SpikedSLR(np.inf, 3), "nu = inf"),
    (lambda: ar.SpikedSLR("much", 3), "nu = 'much'"),
    (lambda: ar.SpikedSLR(np.ones(2), 3), "nu = array"),
    (lambda: ar.SpikedSLR(1.0, None), "length"),
    (lambda: ar.FeatureSLR("a", 3), "features = 'a'"),
    (lambda: ar.FeatureSLR([[2.0]], 3), "features = "),
    (lambda: ar.one_of(5.0), "nus = 5.0"),
    (lambda: ar.one_of([1.0, -1.0]), "nus = -1"),
    (lambda: ar.one_of([1.0, 2.0], [0.5, 0.6]), "weights = "),
    (lambda: ar.flipped("a"), "nu = 'a'"),
    (lambda: ar.gaussian([[1.0]]), "variances = "),
    (lambda: ar.ShiftMixture([1.0]), "means = (of shape (1,))"),
    (lambda: ar.ShiftMixture([[1.0]], covariances=[[[-1.0]]]), "covariances = "),
    (lambda: ar.ShiftMixture([[1.0]], covariances=[[1.0]]), "covariances = (of shape (1, 1))"),
    (lambda: ar.ShiftMixture([[1.0]], name=3), "name = 3"),
    (lambda: ar.parse_features("flipped:1,2"), "features = 'flipped:1,2'"),
    (lambda: ar.parse_features("one-of:a"), "features = 'one-of:a'"),
    (lambda: ar.parse_features("two-of:1"), "features = 'two-of:1'"),
    (lambda: ar.parse_features("gaussian:-1"), "features = 'gaussian:-1'"),
    (lambda: ar.uniform("a", 3), "length = 'a'-3"),
    (lambda: ar.parse_lengths(None), "length = None"),
    (lambda: ar.WeightedSLR(None, 3), "log_weight = None"),
    (lambda: ar.Kernel(None), "log_phi = None"),
    (lambda: ar.Elementwise(3), "weight = 3"),
    (lambda: ar.General("x"), "function = 'x'"),
    (lambda: ar.Softmax(bias="x"), "bias = 'x'"),
    (lambda: ar.Heads("softmax", 2), "attention = 'softmax'"),
    (lambda: ar.Heads(ar.Softmax(), "a"), "count = 'a'"),
    (lambda: ar.aligned("a"), "m_kk = 'a'"),
    (lambda: ar.Overlaps("a", "b"), "overlaps = 'a'"),
    (lambda: ar.Overlaps(m_kk=None), "m_kk = None"),
    (lambda: ar.bayes_risk("x"), "task = 'x'"),
    (lambda: ar.linear_scale("x"), "task = 'x'"),
    (lambda: ar.mean_of_largest("x"), "length"),
    (lambda: ar.population_minima(3, ar.Softmax()), "tasks = 3"),
    (lambda: ar.population_minima(["x"], ar.Softmax()), "task = 'x'"),
    (lambda: ar.population_minima([ar.SpikedSLR(1.0, 2)], "x"), "attention = 'x'"),
    (
        lambda: ar.population_minimum(ar.SpikedSLR(1.0, 2), ar.Sparsemax(), seed="a"),
        "seed = 'a'",
    ),
    (lambda: ar.MaxSLR(-0.1, 3), "nu = -0.1"),
    (lambda: ar.MaxSLR(1.0, 3, noise=-1), "noise = -1"),
    (lambda: ar.SpikedSLR(1.0, 3, spread=0), "spread = 0"),
    (lambda: ar.SpikedSLR(1.0, 0), "length"),
    (lambda: ar.SpikedSLR(1.0, 2.5), "length"),
    (lambda: ar.SpikedSLR(1.0, np.nan), "length"),
    (lambda: ar.SpikedSLR(1.0, 3, noise=1e200), "noise = 1e+200"),
    (lambda: ar.SpikedSLR(1.0, 10**20), "length"),
    (lambda: ar.uniform(1, 10**11), "length = 1-100000000000"),
    (lambda: ar.LengthLaw([], []), "length"),
    (lambda: ar.LengthLaw([1, 2], [0.5, 0.6]), "length probabilities"),
    (lambda: ar.LengthLaw([1, 2], [1.5, -0.5]), "length probabilities"),
    (lambda: ar.LengthLaw([1, 2], [np.nan, 1.0]), "length probabilities"),
    (lambda: ar.LengthLaw([2, 2], [0.5, 0.5]), "length"),
    (lambda: ar.uniform(3, 1), "length = 3-1"),
    (lambda: ar.parse_lengths("ten"), "length = 'ten'"),
    (lambda: ar.parse_lengths("1:0.5,2"), "length = '1:0.5,2'"),
    (lambda: ar.parse_lengths("-3"), "length"),
    (lambda: ar.parse_lengths(""), "length = ''"),
    (lambda: ar.Overlaps(m_kk=2.0, q_kk=1.0), "overlaps"),
    (lambda: ar.Overlaps(q_kk=np.nan), "q_kk = nan"),
    (lambda: ar.get_attention("sofmax"), "did you mean softmax"),
    (lambda: ar.TopKSoftmax(k=0), "k = 0"),
    (lambda: ar.Kernel(lambda x: x, constant=-1.0), "constant = -1"),
    (
        lambda: ar.population_risk(ar.SpikedSLR(1.0, 10**6), ar.Sparsemax(), ar.aligned(1.0)),
        "length = 1000000",
    ),
]


@pytest.mark.parametrize(("make", "words"), BAD_INPUT, ids=[words for _, words in BAD_INPUT])
def test_bad_input_is_refused_in_one_line(make, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011 -- the words are checked below
        make()
    message = str(error.value)
    assert words in message
    assert "\n" not in message
    assert "not allowed" in message
    assert " must " in message
