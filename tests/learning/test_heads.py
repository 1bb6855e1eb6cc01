"""The equations with heads that share a value vector, against the reference values of section 10 and experiments."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.learning import problem
from attnrisk.learning.newton import run_newton
from attnrisk.learning.unknowns import Layout, Order, Unknowns, pack
from attnrisk.population.overlaps import overlaps_of

TASK, HEADS = ar.FeatureSLR(ar.flipped(9.0), 3), ar.Heads(ar.Softmax(), 2)
MIXED = ar.ShiftMixture(
    [[2.0, 0.5], [-1.0, 1.5]], [0.3, 0.7], [[[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.3], [0.3, 0.5]]]
)


@pytest.mark.parametrize("law", [ar.flipped(9.0), ar.one_of([4.0, 2.0]), MIXED], ids=str)
def test_the_weight_of_a_location_is_the_mean_of_the_likelihood_ratio(law, rng):
    """`G(ω) = E[Λ(x)]` over `x ~ N(ω, U)` by Gauss–Hermite nodes, and its slope by differences."""
    features = law.features
    half = 0.5 * rng.normal(size=(features, features))
    variance = half @ half.T / (1.0 + np.linalg.norm(half @ half.T, 2))
    location = ar.FeatureSLR(law, 3).location_given(variance)
    means = rng.normal(size=(features, 3))
    nodes, mass = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[nodes] * features, indexing="ij"), -1).reshape(-1, features)
    weights = np.prod(np.meshgrid(*[mass / mass.sum()] * features, indexing="ij"), 0).ravel()

    log_ratio, weigh = map(eqx.filter_jit, (law.log_ratio, location.weigh))

    def expected(mean):
        fields = mean + grid @ np.linalg.cholesky(variance).T
        return float(weights @ np.exp(np.asarray(log_ratio(fields))))

    found = weigh(means)
    for token, mean in enumerate(means.T):
        assert np.exp(found.log[token]) * 3 == pytest.approx(expected(mean), rel=1e-9)
        for feature, step in enumerate(1e-5 * np.eye(features)):
            slope = np.log(expected(mean + step) / expected(mean - step)) / 2e-5
            assert found.slopes[feature, token] == pytest.approx(slope, rel=1e-5, abs=1e-7)
    masked = weigh(means, np.array([True, True, False]))
    assert masked.log[2] == -jnp.inf


def test_separation_of_heads():
    def of(*keys):
        vectors = np.zeros((len(keys) + 1, 6))
        vectors[:-1, :2], vectors[-1, 2] = keys, 1.0
        return ar.head_separation(overlaps_of(vectors, 3))

    assert of([1.0, 0.0], [2.0, 0.0]) == pytest.approx(0.0)
    assert of([1.0, 0.0], [0.0, 2.0]) == pytest.approx(1.0)
    assert of([1.0, 1.0], [-3.0, -3.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="two heads"):
        of([1.0, 0.0])


BAD = {
    "at most 3": (TASK, ar.Heads(ar.Softmax(), 4), 1.0),
    "at most 16": (ar.FeatureSLR(ar.flipped(9.0), 17), HEADS, 1.0),
    "alpha = 0": (TASK, HEADS, 0.0),
    "scale": (TASK, ar.Heads(ar.get_attention("relu"), 2), 1.0),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_input_is_refused(said):
    task, attention, alpha = BAD[said]
    with pytest.raises(ValueError, match=said):
        ar.erm_asymptotics(task, attention, alpha, ar.Ridge(1.0, 1.0))


ONE_DIRECTION = [
    ar.SpikedSLR(2.0, 3),
    ar.SpikedSLR(2.0, 3, spread=0.7),
    ar.MaxSLR(2.0, 3),
    ar.WeightedSLR(lambda at, chi: chi[at] - 0.5, 3),
]


@pytest.mark.parametrize(
    ("task", "all_fixed_points"),
    [
        (ONE_DIRECTION[1], True),
        (ONE_DIRECTION[2], False),
    ],
    ids=["spread", "max"],
)
def test_heads_on_one_direction_are_copies_of_one_head(task, all_fixed_points, monkeypatch):
    """Two of ridge `r_k` are one of ridge `2 r_k`, on as many points, and not one of ridge `r_k`."""
    heads, ridge = ar.Heads(ar.Linear(), 2), ar.Ridge(0.5, 1.0)
    if all_fixed_points:  # also those of the equations of two heads, which do not converge
        few = {"most_steps": 15}  # as in 80
        monkeypatch.setattr(
            problem, "run_newton", lambda *it, **more: run_newton(*it, **more | few)
        )
        two = ar.erm_asymptotics(task, heads, 4.0, ridge, log2_points=3)
    else:
        single = problem.Problem.of(task, heads.as_copies(), 5, 0)
        two = min(single.copies(heads, 4.0, ridge, single), key=lambda it: float(it.objective))
    one, other = (
        ar.erm_asymptotics(task, ar.Linear(), 4.0, ar.Ridge(r_k, 1.0), log2_points=5)
        for r_k in (1.0, 0.5)
    )
    assert two.converged
    for name in ("test_risk", "train_error"):
        found, right, wrong = (float(getattr(each, name)) for each in (two, one, other))
        assert found == pytest.approx(right, rel=1e-8)
        assert abs(found - wrong) > 1e-3
    np.testing.assert_allclose(two.M.value, one.M.value[[0, 0, 1]], rtol=1e-8)


@pytest.mark.parametrize(
    ("task", "heads"),
    [
        (ONE_DIRECTION[0], ar.Heads(ar.Softmax(), 2, weights=[0.7, 0.3])),
        (ONE_DIRECTION[3], ar.Heads(ar.Softmax(), 2)),
    ],
    ids=["unequal", "weighted task"],
)
def test_other_heads_on_one_direction_are_refused_by_the_theory(task, heads):
    with pytest.raises(ValueError, match=r"heads = 2 is not allowed.*equal weights"):
        ar.erm_asymptotics(task, heads, 4.0, ar.Ridge(0.5, 1.0))


@pytest.mark.parametrize(
    "task", ONE_DIRECTION[1:3], ids=lambda task: f"{task.name} {task.spread:g}"
)
def test_two_linear_heads_are_one_in_an_experiment(task):
    """On one dataset: the same predictions as one head with twice the ridge, and with the same ridge others."""
    data = ar.sample(task, jax.random.key(0), 120, 30)
    fits = [
        ar.fit_erm(data, attention, ar.Ridge(ridge, 1.0), tolerance=1e-9)
        for attention, ridge in (
            (ar.Heads(ar.Linear(), 2), 0.5),
            (ar.Linear(), 1.0),
            (ar.Linear(), 0.5),
        )
    ]
    two, one, other = (float(fit.train_error) for fit in fits)
    assert two == pytest.approx(one, rel=1e-6)
    assert abs(two - other) > 1e-3
    np.testing.assert_allclose(fits[0].vectors[0], fits[0].vectors[1], atol=1e-4)
    np.testing.assert_allclose(fits[0].vectors[0], fits[1].k, atol=1e-4)


def _fixed_point(alpha, ridge, start):
    of_heads = problem.Problem.of(TASK, HEADS, 7, 0)
    found = run_newton(of_heads, alpha, ridge, of_heads.starts(ridge)[start])
    assert found.result.converged
    return found


def test_the_error_of_the_test_risk_of_heads_is_not_understated(rng):
    of_heads = problem.Problem.of(TASK, HEADS, 4, 0)
    x = of_heads.starts(ar.Ridge(0.5, 1.0))[1].x
    found, _ = of_heads.test_risk(x)
    M, Q, _ = of_heads.layout.unpack(x).matrices()
    known = ar.population_risk(TASK, HEADS, ar.Overlaps(M, Q))
    assert float(known.error) < 1e-9
    assert abs(float(found) - float(known)) < 1.1 * float(found.error) < 1e-4


@pytest.mark.slow
def test_heads_specialise_with_much_data():
    """To three standard errors of two thousand samples, which are small for all but the overlap of the two heads."""
    found = _fixed_point(8.0, ar.Ridge(0.1, 1.0), 1)
    keys = Order(np.array([[0.862], [-0.874]]), *(np.diag([q] * 2) for q in (2.20, 4.70)))
    keys.Q[[0, 1], [1, 0]], keys.V[[0, 1], [1, 0]] = -0.547, -0.78
    reference = pack(Unknowns(keys, Order(*(np.array([[it]]) for it in (0.897, 0.926, np.nan)))))
    errors = np.array([found.error(unit) for unit in np.eye(found.x.size)])
    given = ~np.isnan(reference)
    assert np.all(np.abs(found.x - reference)[given] < 3 * errors[given])
    assert np.all(errors[:2] < 0.1)
    assert errors[-3] < 0.02
    assert np.mean(found.step.train) == pytest.approx(0.339, abs=0.03)


@pytest.mark.slow
def test_heads_collapse_with_little_data():
    """Onto one direction, orthogonal to `k*`. The reference is from Monte Carlo, right to about 0.01."""
    found = ar.erm_asymptotics(TASK, HEADS, 4.0, ar.Ridge(0.5, 1.0), log2_points=5)
    assert found.converged
    assert float(found.separation_growth) < 1.0
    np.testing.assert_allclose(found.M.value[:2], 0.0, atol=1e-9)
    np.testing.assert_allclose(found.Q.value[:2, :2], 0.203, atol=0.015)
    np.testing.assert_allclose([float(found.m_v), float(found.q_v)], [0.624, 0.577], atol=0.01)
    assert float(found.train_error) == pytest.approx(0.442, abs=0.01)


def _unknowns(rng, heads, features):
    M = rng.normal(size=(heads, features))
    half, loose = rng.normal(size=(2, heads, heads))
    keys = Order(M, M @ M.T + half @ half.T, loose @ loose.T)
    return Unknowns(keys, Order(*(np.array([[each]]) for each in (0.3, 0.5, 0.7))))


@pytest.mark.parametrize(("heads", "features"), [(1, 1), (2, 1), (2, 3)])
def test_flat_vectors_and_free_numbers_hold_all_unknowns(heads, features, rng):
    layout, given = Layout(heads, features), _unknowns(rng, heads, features)
    x = pack(given)
    jax.tree.map(np.testing.assert_array_equal, layout.unpack(x), given)
    free = layout.to_free(x)
    np.testing.assert_allclose(layout.from_free(free), x, rtol=1e-9)
    steps = 1e-6 * np.eye(x.size)
    differences = [layout.from_free(free + it) - layout.from_free(free - it) for it in steps]
    slope = layout.free_slope(free)
    np.testing.assert_allclose(slope, np.stack(differences, 1) / 2e-6, atol=1e-6)
    assert np.linalg.matrix_rank(slope) == x.size
    anywhere = layout.unpack(layout.from_free(rng.normal(size=x.size)))
    for M, Q, V in anywhere.blocks:
        assert np.all(np.linalg.eigvalsh(Q - M @ M.T) > 0)
        assert np.all(np.linalg.eigvalsh(V) > 0)


def test_a_target_with_a_negative_response_is_replaced(rng):
    layout = Layout(2, 1)
    given = _unknowns(rng, 2, 1)
    x = pack(given)
    target, valid = layout.tamed(x, x)
    assert valid
    np.testing.assert_array_equal(target, x)
    wrong = pack(given._replace(keys=given.keys._replace(V=-given.keys.V)))
    target, valid = layout.tamed(x, wrong)
    assert not valid
    keys = layout.unpack(target).keys
    np.testing.assert_allclose(keys.V, 2 * given.keys.V)
    np.testing.assert_allclose(keys.M, -2 * given.keys.M)


def _fits(alpha, ridge, dim, runs):
    return [
        ar.fit_erm(
            ar.sample(TASK, jax.random.key(seed), round(alpha * dim), dim),
            HEADS,
            ar.Ridge(ridge, 1.0),
            jax.random.key(seed + 100),
        )
        for seed in range(runs)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "ridge"), [(4.0, 0.5), (8.0, 0.1)])
def test_experiments_approach_the_fixed_point(alpha, ridge):
    """L-BFGS at three dimensions. The error of the theory from a thousand points is about 0.02."""
    theory = ar.erm_asymptotics(TASK, HEADS, alpha, ar.Ridge(ridge, 1.0), log2_points=6)
    assert theory.converged
    assert np.max(np.abs(theory.identities)) < 0.05
    for dim, runs in ((150, 6), (300, 4), (600, 2)):
        fits = _fits(alpha, ridge, dim, runs)
        errors = np.array([fit.train_error for fit in fits])
        tolerance = 3 * errors.std(ddof=1) / np.sqrt(runs) + 0.02 + 3.0 / dim
        assert abs(errors.mean() - float(theory.train_error)) < tolerance
        apart = np.mean([ar.head_separation(fit.overlaps) for fit in fits])
        assert abs(apart - ar.head_separation(theory.overlaps)) < 0.3


def test_one_head_learns_its_bias_as_elsewhere():
    """As one atom of a feature law, integrated by the other engine; and on two atoms, where it lowers the objective
    below that of a bias of zero."""
    attention, ridge = ar.get_attention("softplus", "free"), ar.Ridge(0.3, 0.3, 0.05)
    ours, known = (
        ar.erm_asymptotics(task, attention, 4.0, ridge, log2_points=5)
        for task in (ar.FeatureSLR(ar.one_of([2.0]), 3), ar.SpikedSLR(2.0, 3))
    )
    assert float(ours.bias) == pytest.approx(float(known.bias), abs=1e-6)
    assert float(ours.test_risk) == pytest.approx(float(known.test_risk), abs=1e-5)
    free, zero = (
        ar.erm_asymptotics(TASK, attention, 4.0, each, log2_points=5)
        for each in (ridge, replace(ridge, b=1e6))
    )
    assert free.converged
    assert abs(float(zero.bias)) < 1e-4
    assert float(free.objective) < float(zero.objective) - 1e-3
