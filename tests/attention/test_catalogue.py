"""Every attention of the catalogue is what it says it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import attnrisk as ar

SCORES = jnp.array([0.3, -1.2, 2.0, 0.9, 0.31])


@pytest.mark.parametrize("name", ar.CATALOGUE)
class TestEvery:
    def test_normalised_or_not(self, name, rng):
        attention, entry = ar.get_attention(name), ar.CATALOGUE[name]
        sums = np.asarray(jax.vmap(attention)(jnp.asarray(rng.normal(size=(20, 4))))).sum(1)
        if name == "softmax-1":
            assert all(0 < total < 1 for total in sums)
            assert not entry.normalised
        elif name in ("relu", "relu2"):
            assert all(min(abs(total), abs(total - 1)) < 1e-12 for total in sums)
        else:
            assert entry.normalised == bool(np.allclose(sums, 1.0))

    def test_treats_all_tokens_alike(self, name, rng):
        attention, order = ar.get_attention(name), rng.permutation(5)
        np.testing.assert_allclose(attention(SCORES[order]), attention(SCORES)[order], atol=1e-14)

    def test_gives_finite_weights_and_derivatives_at_any_score(self, name):
        attention = ar.get_attention(name)
        for scores in (SCORES, 1e4 * SCORES, -1e4 * jnp.abs(SCORES), jnp.zeros(5), SCORES[:1]):
            weights = attention(scores)
            assert weights.shape == scores.shape
            assert bool(jnp.all(jnp.isfinite(weights)))
            assert bool(jnp.all(jnp.isfinite(jax.jacobian(attention)(scores))))

    def test_name_and_family_agree_with_the_table(self, name):
        attention = ar.get_attention(name)
        assert attention.name == name
        assert attention.family in ("kernel", "element-wise", "general")
        assert ar.CATALOGUE[name].source


@pytest.mark.parametrize(
    ("name", "phi"),
    [
        ("softmax", np.exp),
        ("softplus", lambda x: np.log1p(np.exp(x))),
        ("elu+1", lambda x: np.where(x < 0, np.exp(x), 1 + x)),
        ("relu", lambda x: np.maximum(x, 0)),
        ("relu2", lambda x: np.maximum(x, 0) ** 2),
        ("taylor-2", lambda x: 1 + x + x**2 / 2),
    ],
)
def test_kernels_by_their_formula(name, phi):
    values = phi(np.asarray(SCORES))
    np.testing.assert_allclose(ar.get_attention(name)(SCORES), values / values.sum(), rtol=1e-12)


def test_relu_of_negative_scores_attends_to_nothing():
    np.testing.assert_array_equal(ar.Relu()(-jnp.abs(SCORES)), 0.0)


def test_softmax_plus_one_by_its_formula():
    values = np.exp(np.asarray(SCORES))
    np.testing.assert_allclose(ar.SoftmaxPlusOne()(SCORES), values / (1 + values.sum()), rtol=1e-12)


def _entmax_by_bisection(scores, alpha):
    """The definition: `[(α−1)χ − τ]_+^{1/(α−1)}` with `τ` such that the weights sum to one."""
    scaled = (alpha - 1) * np.asarray(scores)

    def weights(threshold):
        return np.maximum(scaled - threshold, 0) ** (1 / (alpha - 1))

    threshold = brentq(lambda t: weights(t).sum() - 1, scaled.max() - 1, scaled.max(), xtol=1e-15)
    return weights(threshold)


@pytest.mark.parametrize(("name", "alpha"), [("sparsemax", 2.0), ("entmax-1.5", 1.5)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_sparse_attentions_by_bisection(name, alpha, scale):
    found = ar.get_attention(name)(scale * SCORES)
    np.testing.assert_allclose(found, _entmax_by_bisection(scale * SCORES, alpha), atol=1e-12)


def test_top_k_keeps_k():
    weights = np.asarray(ar.TopKSoftmax(k=3)(SCORES))
    assert (weights > 0).sum() == 3
    kept = np.exp(np.sort(np.asarray(SCORES))[-3:])
    np.testing.assert_allclose(np.sort(weights)[-3:], kept / kept.sum(), rtol=1e-12)
    np.testing.assert_allclose(ar.TopKSoftmax(k=9)(SCORES), ar.Softmax()(SCORES), rtol=1e-12)


def test_own_attentions_work_like_those_of_the_catalogue():
    """The three ways to bring one's own, each written as a copy of a catalogue member."""
    task, overlaps = ar.SpikedSLR(2.0, 3), ar.Overlaps(m_kk=0.9, m_vv=0.8, q_kk=1.3, q_vv=1.1)
    pairs = [
        (ar.Kernel(lambda x: x), ar.Softmax()),
        (ar.Elementwise(jax.nn.sigmoid, bias=-0.5), ar.Sigmoid(bias=-0.5)),
        (ar.General(jax.nn.softmax), ar.Softmax()),
    ]
    for own, known in pairs:
        found, expected = (ar.population_risk(task, each, overlaps) for each in (own, known))
        assert abs(float(found) - float(expected)) <= 4 * float(found.error) + 1e-12
