"""The Bayes risk with several features: reference values, the spiked task, identities, and random sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.population.feature_bayes import (
    Block,
    _mellin,
    blocks_of,
    features_missed,
    grid_of,
    sobol_features_missed,
)

TURNED = ar.ShiftMixture(
    [[2.0, 1.0], [1.0, -1.0]], [0.3, 0.7], [[[1.0, 0.5], [0.5, 1.0]], [[0.5, 0.0], [0.0, 0.0]]]
)
LAWS = {
    "flipped": ar.flipped(4.0),
    "one-of": ar.one_of([9.0, 6.0, 4.0], [0.5, 0.3, 0.2]),
    "gaussian": ar.gaussian([9.0, 5.0, 2.0]),
    "one gaussian": ar.gaussian([3.0]),
    "some unmoved": ar.ShiftMixture([[2.0], [0.0]]),
    "turned": TURNED,
}

# Section 10, all digits; that of the Gaussian law corrects the theory's 0.53269716 (see `test_random_sequences`).
REFERENCE = [
    (ar.flipped(4.0), 2, 0.2043335125, 1e-10),
    (ar.flipped(4.0), 10, 0.5786167000, 1e-10),
    (ar.one_of([9.0, 6.0, 4.0]), 10, 0.43567395, 1e-8),
    (ar.gaussian([9.0]), 10, 0.53244760, 1e-8),
]


@pytest.mark.parametrize(("law", "length", "value", "digits"), REFERENCE, ids=str)
def test_reference_values(law, length, value, digits):
    found = ar.bayes_risk(ar.FeatureSLR(law, length))
    assert abs(float(found) - value) < 0.5 * digits + 1e-15
    assert float(found.error) < 1e-12


@pytest.mark.parametrize("length", [1, 2, 10, 10**6, ar.uniform(1, 3)], ids=str)
@pytest.mark.parametrize("nu", [0.0, 0.1, 2.0, 40.0])
def test_one_atom_is_the_spiked_task(nu, length):
    spiked, law = ar.SpikedSLR(nu, length, noise=0.3), ar.ShiftMixture([[np.sqrt(nu)]])
    found, known = ar.bayes_risk(ar.FeatureSLR(law, length, noise=0.3)), ar.bayes_risk(spiked)
    assert abs(float(found) - float(known)) <= float(found.error) + float(known.error)
    chi = np.linspace(-2.0, 3.0, 5)
    posterior = ar.FeatureSLR(law, 5).posterior(chi[:, None])
    np.testing.assert_allclose(posterior, ar.SpikedSLR(nu, 5).posterior(chi), rtol=1e-13)


def test_one_atom_has_the_sequences_of_the_spiked_task():
    key, law = jax.random.key(3), ar.ShiftMixture([[2.0]])
    known = ar.sample(ar.SpikedSLR(4.0, 3), key, 20, 10)
    found = ar.sample(ar.FeatureSLR(law, 3), key, 20, 10)
    for ours, theirs in zip(found.groups, known.groups, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)


def _sequences(law, length, n, rng):
    """Fields of sequences whose first token is the relevant one."""
    component = rng.choice(len(law.means), size=n, p=law.weights)
    roots = np.linalg.cholesky(law.all_covariances + 1e-30 * np.eye(law.features))
    own = np.einsum("nfg,ng->nf", roots[component], rng.normal(size=(n, law.features)))
    fields = rng.normal(size=(n, length, law.features))
    fields[:, 0] += law.means[component] + own
    return fields


def _log_ratio(law, x):
    """Densities by SciPy."""
    from scipy.stats import multivariate_normal as normal

    one = np.eye(law.features)
    parts = [
        w * normal.pdf(x, mean, one + spread)
        for w, mean, spread in zip(law.weights, law.means, law.all_covariances, strict=True)
    ]
    return np.log(sum(parts)) - np.log(normal.pdf(x, np.zeros(law.features), one))


@pytest.mark.parametrize("name", LAWS)
def test_random_sequences(name, rng):
    """The risk, and the Nishimori identity `E[p_ε] = E[Σp²]`, over sequences drawn token by token."""
    law, length, n = LAWS[name], 4, 200_000
    fields = _sequences(law, length, n, rng)
    posterior = np.asarray(jax.jit(jax.vmap(ar.FeatureSLR(law, length).posterior))(fields))
    log_ratio = _log_ratio(law, fields[:50])
    expected = np.exp(log_ratio) / np.exp(log_ratio).sum(1, keepdims=True)
    np.testing.assert_allclose(posterior[:50], expected.reshape(50, length), rtol=1e-9)
    exact = 1.0 - float(ar.bayes_risk(ar.FeatureSLR(law, length)))
    for sample in (posterior[:, 0], (posterior**2).sum(1)):
        assert abs(sample.mean() - exact) < 4.0 * sample.std() / np.sqrt(n)
    wrong = np.asarray(
        jax.jit(jax.vmap(ar.FeatureSLR(LAWS["flipped"], length).posterior))(fields[..., :1])
    )
    if (
        name != "flipped"
    ):  # the negative control: with the posterior of another law the identity fails
        gap = wrong[:, 0] - (wrong**2).sum(1)
        assert abs(gap.mean()) > 6.0 * gap.std() / np.sqrt(n)


def test_random_points_say_which_of_two_values_is_right():
    """The Gaussian law with s = 9 at L = 10: `theory.md` had 0.53269716, more than six standard errors away."""
    found = sobol_features_missed(ar.FeatureSLR(ar.gaussian([9.0]), 10), seed=1)
    assert abs(float(found) - 0.53244760) < 3.0 * float(found.error)
    assert abs(float(found) - 0.53269716) > 4.0 * float(found.error)


def test_two_rules_for_one_component():
    """A Gaussian on one feature by equal steps and by the inverse Mellin transform."""
    block = Block(np.array([[0.7]]), np.array([[[4.0]]]), np.array([0.6]))
    u = np.linspace(-3.0, 25.0, 40)
    by_steps, by_moments = grid_of(block, 2.0, 13.0).integrals(u), _mellin(block, u, 2.0)
    np.testing.assert_allclose(by_steps[0], by_moments[0], atol=3e-13)
    np.testing.assert_allclose(by_steps[1], by_moments[1], atol=3e-13)


def test_a_rotation_of_the_features_changes_nothing(rng):
    """Three orthogonal atoms, each a block of its own, become one block on a grid of three dimensions."""
    law = ar.one_of([5.0, 3.0, 2.0], [0.5, 0.2, 0.3])
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    turned = ar.ShiftMixture(law.means @ turn, law.weights)
    assert [block.grid_dimension for block in blocks_of(ar.FeatureSLR(turned, 5))[0]] == [3]
    found, known = (ar.bayes_risk(ar.FeatureSLR(each, 5)) for each in (turned, law))
    assert abs(float(found) - float(known)) <= float(found.error) + float(known.error)
    assert float(found.error) < 1e-6


def test_features_beyond_a_grid_have_a_standard_error(rng):
    law = ar.ShiftMixture(rng.normal(size=(5, 4)))
    task = ar.FeatureSLR(law, 3)
    assert features_missed(task) is None
    found = ar.bayes_risk(task)
    assert found.kind is ar.ErrorKind.STANDARD
    fields = _sequences(law, 3, 200_000, rng)
    sample = np.asarray(jax.jit(jax.vmap(task.posterior))(fields))[:, 0]
    error = np.hypot(float(found.error), sample.std() / np.sqrt(len(sample)))
    assert abs(1.0 - sample.mean() - float(found)) < 4.0 * error


def test_the_bayes_risk_falls_with_the_signal_and_rises_with_the_length():
    risks = [float(ar.bayes_risk(ar.FeatureSLR(ar.gaussian([s, 1.0]), 10))) for s in (1, 9, 1e4)]
    assert np.all(np.diff(risks) < 0)
    lengths = [1, 10, 10**3, 10**6, 10**12]
    risks = [float(ar.bayes_risk(ar.FeatureSLR(ar.one_of([30.0, 1e8]), n))) for n in lengths]
    assert np.all(np.diff(risks) > 0)
    assert risks[-1] < 0.5  # half of the needles are found with certainty


def test_shifts_have_their_law(rng):
    uniforms = jnp.asarray(rng.random((100_000, TURNED.uniforms)))
    drawn = np.asarray(jax.jit(jax.vmap(TURNED.draw))(uniforms))
    mean = TURNED.weights @ TURNED.means
    second = np.einsum("j,jf,jg->fg", TURNED.weights, TURNED.means, TURNED.means)
    second += np.einsum("j,jfg->fg", TURNED.weights, TURNED.covariances)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(drawn.T @ drawn / len(drawn), second, atol=0.05)


@pytest.mark.parametrize("text", ["flipped:9", "one-of:9,6,4", "gaussian:9,5,2"])
def test_words_and_laws(text):
    assert str(ar.parse_features(text)) == text
    assert repr(ar.FeatureSLR(ar.parse_features(text), 3)).startswith(f"FeatureSLR(features={text}")
