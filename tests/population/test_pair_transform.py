"""Exact engines for heads and features: reference values, Monte Carlo, derivatives and honest errors (section 10)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import attend

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.engines import heads as engine_of_heads
from attnrisk.population.engines.base import HeadRange, head_range
from attnrisk.population.overlaps import overlaps_of
from attnrisk.population.plan import heads_engine
from attnrisk.population.risk import compiled_risk

FLIPPED = ar.flipped(4.0)
MIXED = ar.ShiftMixture(
    [[2.0, 0.5], [-1.0, 1.5]], [0.3, 0.7], [[[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.3], [0.3, 0.5]]]
)


def _keys(*rows, value=1.0):
    """Overlaps of keys in the span of the features, and `v` along `v*`."""
    keys = np.array(rows, float)
    M = np.zeros((len(keys) + 1, keys.shape[1] + 1))
    M[:-1, :-1], M[-1, -1] = keys, value
    return ar.Overlaps(M, M @ M.T)


def _common_factor(task, attention, *rows):
    """`Δ² + 1 − A²/B`, from the risks at two lengths of `v`."""
    once, twice = (
        float(ar.population_risk(task, attention, _keys(*rows, value=v))) - 1.0 for v in (1.0, 2.0)
    )
    a, b = once - twice / 4.0, twice / 2.0 - once  # −2A + B and −4A + 4B
    return 1.0 - a**2 / b


@pytest.mark.optimised
def test_reference_value():
    """Section 10, six digits; a search over heads finds those of softmax."""
    heads = ar.Heads(ar.SoftmaxPlusOne(), 2, bias=-4.355)
    found = _common_factor(ar.FeatureSLR(FLIPPED, 10), heads, [2.029], [-2.029])
    assert found == pytest.approx(0.612804, abs=6e-7)


@pytest.mark.optimised
def test_opposite_heads_see_nothing_in_two_tokens():
    """The average of `softmax(χ)` and `softmax(−χ)` over two tokens is one half for each: the risk is 1/2, whatever the
    keys; `theory.md` had 0.494987 for the least."""
    task, heads = ar.FeatureSLR(FLIPPED, 2), ar.Heads(ar.Softmax(), 2)
    assert _common_factor(task, heads, [1.5], [-1.5]) == pytest.approx(0.5, abs=1e-11)


def _monte_carlo(task, attention, overlaps, n, rng):
    """Mean and standard error of the loss over sequences drawn token by token."""
    law, length = task.shift_law, int(task.length.longest)
    values, vectors = np.linalg.eigh(np.asarray(overlaps.residual))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    teacher = rng.normal(size=(n, length, task.features + 1))
    component = rng.choice(len(law.means), size=n, p=law.weights)
    roots = np.linalg.cholesky(law.all_covariances + 1e-30 * np.eye(law.features))
    shift = np.einsum("nfg,ng->nf", roots[component], rng.normal(size=(n, law.features)))
    teacher[:, 0, :-1] += law.means[component] + shift
    own = rng.normal(size=(n, length, len(root)))
    student = teacher @ np.asarray(overlaps.M).T + own @ root.T
    label = teacher[:, 0, -1] + task.noise * rng.normal(size=n)
    weights = np.asarray(attend(attention.attend, jnp.asarray(student[..., :-1].swapaxes(1, 2))))
    losses = (label - (weights * student[..., -1]).sum(1)) ** 2
    return losses.mean(), losses.std() / np.sqrt(n)


OFF = overlaps_of(0.6 * np.random.default_rng(5).normal(size=(3, 6)), teachers=3)
PROBLEMS = {
    "one length, off the manifold": (MIXED, 1, OFF),
    "off the manifold": (MIXED, 3, OFF),
    "on the manifold": (MIXED, 4, _keys([1.5, 0.3], [-0.7, 1.0])),
    "one plane": (ar.gaussian([4.0, 1.0]), 3, _keys([1.0, 0.0], [-1.0, 0.0])),
}
ATTENTIONS = [
    ar.Heads(ar.Softmax(), 2),
    ar.Heads(ar.SoftmaxPlusOne(), 2, weights=[0.8, 0.4], bias=[-1.0, 0.5]),
    ar.BayesSoftmax(2, bias=[0.3, -0.4]),
    ar.BayesSoftmax(2, tied=True, weights=[0.3, 0.7]),
]


QUICK = {(0, "off the manifold"), (0, "on the manifold"), (1, "off the manifold"), (2, "one plane")}


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        pytest.param(at, name, marks=[] if (at, name) in QUICK else pytest.mark.slow)
        for at in range(len(ATTENTIONS))
        for name in PROBLEMS
    ],
)
def test_random_sequences(at, problem, rng):
    (law, length, overlaps), attention = PROBLEMS[problem], ATTENTIONS[at]
    task = ar.FeatureSLR(law, length, noise=0.2)
    found = ar.population_risk(task, attention, overlaps)
    assert found.kind is ar.ErrorKind.BOUND
    assert float(found.error) < 1e-8
    plain = attention.given_norms(jnp.diagonal(overlaps.Q)[:-1])
    mean, error = _monte_carlo(task, plain, overlaps, 100_000, rng)
    assert abs(float(found) - mean) < 4 * error


KINKED = {
    "relu": (0.4, {"off the manifold"}),
    "relu2": (-0.5, set()),
    "softpick": (-0.3, {"one plane"}),
    "elu+1": (-1.0, set()),
    "ssmax": (0.0, {"off the manifold"}),
}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param(name, problem, marks=[] if problem in quick else pytest.mark.slow)
        for name, (_, quick) in KINKED.items()
        for problem in PROBLEMS
    ],
)
def test_kernels_with_kinks_or_a_length_against_random_sequences(name, problem, rng):
    """All weights may be zero, where all kernels vanish."""
    law, length, overlaps = PROBLEMS[problem]
    task = ar.FeatureSLR(law, length, noise=0.2)
    heads = ar.Heads(ar.get_attention(name), 2, weights=[0.7, 0.4], bias=[KINKED[name][0], 0.1])
    found = ar.population_risk(task, heads, overlaps)
    assert found.kind is ar.ErrorKind.BOUND
    assert float(found.error) < 3e-8 * max(1.0, float(found))  # risks off the manifold are up to 8
    mean, error = _monte_carlo(task, heads, overlaps, 100_000, rng)
    assert abs(float(found) - mean) < 4 * error


def test_scalable_softmax_is_softmax_with_longer_keys():
    """At each of two lengths; their average is the risk of the law of both."""
    overlaps, heads = OFF, ar.Heads(ar.ScalableSoftmax(), 2, bias=[0.3, -0.2])
    both = ar.FeatureSLR(MIXED, ar.LengthLaw([2, 4], [0.25, 0.75]))
    plain, longer = ar.Heads(ar.Softmax(), 2), (overlaps.stretched(np.log(each)) for each in (2, 4))
    risks = [
        _by_pairs(ar.FeatureSLR(MIXED, length), plain, at, 1.6)
        for length, at in zip((2, 4), longer, strict=True)
    ]
    found = _by_pairs(both, heads, overlaps, 1.6)
    assert abs(risks[0] - risks[1]) > 0.01
    assert found == pytest.approx(0.25 * risks[0] + 0.75 * risks[1], abs=1e-11)


@pytest.mark.optimised
def test_three_joint_heads(rng):
    """A grid of three dimensions against sequences, and against the product where scores are independent."""
    law = ar.one_of([4.0, 3.0, 2.0])
    task, attention = ar.FeatureSLR(law, 4), ar.BayesSoftmax(3, tied=True)
    overlaps = overlaps_of(0.5 * rng.normal(size=(4, 8)), teachers=4)
    found = ar.population_risk(task, attention, overlaps)
    plain = attention.given_norms(jnp.diagonal(overlaps.Q)[:-1])
    mean, error = _monte_carlo(task, plain, overlaps, 100_000, rng)
    assert abs(float(found) - mean) < 4 * error
    exact = ar.bayes_risk(task)
    apart = ar.population_risk(task, attention, _keys(*law.means))
    engine = heads_engine(task, attention, HeadRange(2.0, 4.0), 1.0)
    joint = float(compiled_risk(*as_arrays((engine, task, attention, _keys(*law.means)))))
    assert abs(float(apart) - float(exact)) < 1e-10
    assert abs(joint - float(exact)) < 1e-7


@pytest.mark.optimised
@pytest.mark.parametrize("length", [1, 10**6], ids=str)
def test_bayes_softmax_on_the_atoms_has_the_bayes_risk(length):
    task = ar.FeatureSLR(ar.flipped(9.0), length)
    found = ar.population_risk(task, ar.BayesSoftmax(2, tied=True), _keys([3.0], [-3.0]))
    assert abs(float(found) - float(ar.bayes_risk(task))) < 1e-10
    wrong = ar.population_risk(task, ar.BayesSoftmax(2, tied=True), _keys([3.0], [3.0]))
    assert length == 1 or float(wrong) - float(found) > 1e-3


def test_the_cost_does_not_depend_on_the_length():
    def size(length):
        task = ar.FeatureSLR(FLIPPED, length)
        rule = heads_engine(task, ar.Heads(ar.Softmax(), 2), HeadRange(2.0, 4.0), 1.5).rule
        return rule.x.size, rule.nodes

    costs = [nodes * points**2 for points, nodes in map(size, (2, 10, 10**3, 10**6))]
    assert max(costs) <= 1.1 * costs[0]


def test_long_sequences_against_random_scores(rng):
    """L = 400, where scores drawn token by token are still affordable; values are integrated out."""
    task, heads = ar.FeatureSLR(ar.flipped(12.0), 400), ar.Heads(ar.SoftmaxPlusOne(), 2, bias=-8.0)
    fields, kappa, v = rng.normal(size=(20_000, 400)), 3.0, 1.4
    fields[:, 0] += rng.choice([-1.0, 1.0], size=20_000) * np.sqrt(12.0)
    strengths = [np.exp(sign * kappa * fields - 8.0) for sign in (1.0, -1.0)]
    weights = sum(0.5 * each / (1.0 + each.sum(1, keepdims=True)) for each in strengths)
    losses = 1.0 - 2.0 * v * weights[:, 0] + v**2 * (weights**2).sum(1)
    found = _by_pairs(task, heads, _keys([kappa], [-kappa], value=v), 1.0)
    assert abs(found - losses.mean()) < 4 * losses.std() / np.sqrt(losses.size)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("on_manifold", [True, False], ids=["on", "off"])
@pytest.mark.parametrize("length", [1, 10, 1000], ids=str)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kernel", [ar.SoftmaxPlusOne(), ar.Relu()], ids=lambda kernel: kernel.name)
def test_heads_of_any_length_against_random_sequences(kernel, count, length, on_manifold, rng):
    heads = ar.Heads(kernel, count, bias=-np.log(length) / 2)
    task = ar.FeatureSLR(MIXED, length, noise=0.2)
    vectors = 0.8 * rng.normal(size=(count + 1, count + 4))
    overlaps = _keys(*vectors[:-1, :2]) if on_manifold else overlaps_of(vectors, teachers=3)
    found = ar.population_risk(task, heads, overlaps)
    assert found.kind is ar.ErrorKind.BOUND
    mean, error = _monte_carlo(task, heads, overlaps, min(100_000, 2 * 10**6 // length), rng)
    assert abs(float(found) - mean) < 4 * error + float(found.error)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("length", [10**4, 10**6], ids=str)
@pytest.mark.parametrize("name", ["softmax", "relu2", "softpick"])
def test_two_heads_among_a_million_tokens(name, length, rng):
    """Sequences token by token, with the values integrated out: `1 − 2vE[a_ε] + v²E[Σa²]`."""
    nu = 4 * np.log(length)
    kappa, v = 3.0, 1.9
    bias = 0.0 if name == "softmax" else -kappa * np.sqrt(2 * np.log(length))
    heads = ar.Heads(ar.get_attention(name), 2, bias=bias)
    task = ar.FeatureSLR(ar.flipped(nu), length)

    def strength(scores):
        top = kappa * np.sqrt(nu) + bias
        return {
            "softmax": np.exp(scores - top),
            "relu2": np.maximum(scores, 0.0) ** 2,
            "softpick": np.abs(np.expm1(scores)),
        }[name]

    losses = []
    for _ in range(2000 if length < 10**5 else 100):
        fields = rng.standard_normal(length)
        fields[0] += rng.choice([-1.0, 1.0]) * np.sqrt(nu)
        weights = np.zeros(length)
        for sign in (1.0, -1.0):
            scores = sign * kappa * fields + bias
            strengths = strength(scores)
            own = strengths * (scores > 0) if name == "softpick" else strengths
            weights += 0.5 * own / max(strengths.sum(), 1e-300)
        losses.append(1.0 - 2.0 * v * weights[0] + v**2 * np.sum(weights**2))
    error = np.std(losses) / np.sqrt(len(losses))
    found = float(ar.population_risk(task, heads, _keys([kappa], [-kappa], value=v)))
    assert abs(found - np.mean(losses)) < 4 * error


# Attention, overlaps and the fineness of the rule. Analytic rules may be coarse: a part of them that moves with the
# vectors unnoticed then matters more. At kinks coarse ones jump where a node passes from one side to the other.
# Cases of one kernel and fineness share compiled code; softpick vanishes at its kink.
SLOPES = {
    "pairs": (ATTENTIONS[1], OFF, 0.6),
    "kinks": (ar.Heads(ar.Softpick(), 2, bias=[-1.0, 0.5]), OFF, 0.8),
    "opposite kinks": (
        ar.Heads(ar.Softpick(), 2, bias=-0.5),
        _keys([1.3, 0.2], [-1.3, -0.2]),
        0.8,
    ),
    "independent kinks": (ar.Heads(ar.Softpick(), 2), _keys([1.2, 0.0], [0.0, 1.1]), 0.8),
    "nearly independent kinks": (
        ar.Heads(ar.Softpick(), 2),
        _keys([1.2, 1e-9], [0.0, 1.1]),
        0.8,
    ),
    "opposite": (ATTENTIONS[1], _keys([1.3, 0.2], [-1.3, -0.2]), 0.6),
    "joint": (ATTENTIONS[2], OFF, 0.6),
}


@eqx.filter_jit
def _expand(engine, task, attention, vectors):
    """The risk and its gradient in the vectors."""
    return jax.value_and_grad(lambda at: engine.risk(task, attention, overlaps_of(at, 3)))(vectors)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if attention.analytic else [pytest.mark.optimised])
        for name, (attention, *_) in SLOPES.items()
    ],
)
def test_gradients_are_those_of_finite_differences(name, rng):
    """On vectors, where opposite heads have scores that determine each other, in a direction that moves all of them."""
    attention, overlaps, fineness = SLOPES[name]
    task = ar.FeatureSLR(MIXED, 3)
    M, root = np.asarray(overlaps.M), np.linalg.cholesky(overlaps.residual + 1e-12 * np.eye(3))
    vectors = np.concatenate([M, 0.0 * root if "opposite" in name else root], 1)
    engine = heads_engine(task, attention, HeadRange(2.5, 4.0, -1.0, 1.0), fineness)
    direction, step = rng.normal(size=vectors.shape), 1e-4
    (ahead, _), (_, slope), (behind, _) = (
        _expand(*as_arrays((engine, task, attention, vectors + moved * direction)))
        for moved in (step, 0.0, -step)
    )
    difference = (float(ahead) - float(behind)) / (2 * step)
    assert np.sum(np.asarray(slope) * direction) == pytest.approx(difference, abs=2e-7)


def _by_pairs(task, heads, overlaps, fineness):
    """The risk by the pair transform, with a rule of this fineness."""
    engine = heads_engine(task, heads, head_range(task, heads, overlaps), fineness)
    return float(compiled_risk(*as_arrays((engine, task, heads, overlaps))))


# A bias, the fineness of the reference, and how many overlaps. `population_risk` takes 1.6, and 1 at kinks, where rules
# of 1.8 and 2.4 give the digits of 1.4.
HONEST = {
    "softmax": (0.0, 1.9, 2),
    "taylor-2": (0.5, 1.9, 2),
    "relu2": (0.3, 1.4, 1),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.optimised] if "relu" in name else [])
        for name in HONEST
    ],
)
def test_errors_are_not_understated(name, rng, monkeypatch):
    """Against a much finer rule; one at kinks is finer than `population_risk` ever takes."""
    bias, fineness, count = HONEST[name]
    heads = ar.Heads(ar.get_attention(name), 2, bias=[bias, -0.2])
    task = ar.FeatureSLR(ar.one_of([5.0, 2.0]), 6)
    for _ in range(count):
        vectors = rng.normal(size=(3, 6))
        vectors *= 1.15 / np.linalg.norm(vectors, axis=1, keepdims=True)  # one shape of rules
        overlaps = overlaps_of(vectors, teachers=3)
        found = ar.population_risk(task, heads, overlaps)
        with monkeypatch.context() as patch:
            patch.setattr(engine_of_heads, "_FINEST_AT_KINKS", fineness)
            exact = _by_pairs(task, heads, overlaps, fineness)
        assert abs(exact - float(found)) <= float(found.error)
        assert float(found.error) < 1e-8


@pytest.mark.parametrize(
    "attention", [ar.Softmax(), ar.Softplus(), ar.Relu(bias=-0.4)], ids=lambda a: a.name
)
def test_the_engine_of_heads_with_one_head(attention, rng):
    """On a planted task with a spread, by panels and by equal steps, or by clusters at a kink."""
    task = ar.SpikedSLR(3.0, ar.uniform(1, 4), noise=0.1, spread=0.8)
    overlaps, heads = overlaps_of(rng.normal(size=(2, 4))), ar.Heads(attention, 1)
    plain = ar.population_risk(task, attention, overlaps)
    largest = float(plain.error) + (1e-11 if attention.analytic else 1e-8)
    assert abs(_by_pairs(task, heads, overlaps, 1.6) - float(plain)) < largest
