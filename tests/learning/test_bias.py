"""A bias that is learned beside `k` and `v`: identities, limits, and experiments (sections 6.2 and 12)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk._results import Result
from attnrisk.learning import equations, newton
from attnrisk.learning.newton import run_newton
from attnrisk.learning.problem import Problem
from attnrisk.simulation.erm import objective
from tests.agreement import distance

TASK, ALPHA, ONE = ar.SpikedSLR(2.0, 3), 4.0, ar.Ridge(1.0, 1.0)


@pytest.fixture(scope="module")
def erf():
    return ar.erm_asymptotics(TASK, ar.Erf(), ALPHA, ONE, log2_points=6)


@pytest.mark.optimised
def test_the_bias_is_stationary(erf):
    """At the bias found, a fixed one has the same risk, and the objective does not change with it."""
    assert erf.converged
    assert abs(float(erf.bias) + 0.333) < 0.02
    np.testing.assert_allclose(erf.identities, 0.0, atol=1e-6)
    best = float(erf.bias)
    here, above, below = (
        ar.erm_asymptotics(TASK, ar.get_attention("erf", best + it), ALPHA, ONE, log2_points=6)
        for it in (0.0, 0.1, -0.1)
    )
    assert here.bias is None
    assert abs(float(here.test_risk) - float(erf.test_risk)) < 1e-6
    assert abs(float(here.objective) - float(erf.objective)) < 1e-6
    slope = (float(above.objective) - float(below.objective)) / 0.2
    bend = (float(above.objective) + float(below.objective) - 2 * float(here.objective)) / 0.01
    assert bend > 0.05
    assert abs(slope) < 0.05 * bend


def test_few_searches_for_all_minima_while_a_bias_diverges(monkeypatch):
    """The fixed point is that of a search in every step."""
    found, searches, search = [], [], equations.minima_of
    for far in (newton._FAR, 0.0):
        asked = []

        def counted(attention, samples, unknowns, near, anew, asked=asked):
            asked.append(anew)
            return search(attention, samples, unknowns, near, anew)

        monkeypatch.setattr(newton, "_FAR", far)
        monkeypatch.setattr(equations, "minima_of", counted)
        free = ar.get_attention("softplus", "free")
        found.append(ar.erm_asymptotics(TASK, free, ALPHA, ONE, log2_points=4))
        searches.append(sum(asked))
    few, all_of_them = found
    assert searches[0] < searches[1] / 2
    assert float(few.test_risk) == pytest.approx(float(all_of_them.test_risk), abs=1e-6)
    assert float(few.objective) == pytest.approx(float(all_of_them.objective), abs=1e-8)
    assert few.result is Result.BECOMES_SOFTMAX


@pytest.mark.optimised
def test_a_ridge_on_the_bias(erf):
    """The derivative of the objective in `r_b` is `½ b²`, and a large ridge leaves no bias."""
    sides = [
        ar.erm_asymptotics(TASK, ar.Erf(), ALPHA, replace(ONE, b=b), log2_points=6)
        for b in (0.1, 0.0, 1e6)
    ]
    shrunk, none, gone = sides
    assert float(none.bias) == pytest.approx(float(erf.bias), abs=1e-6)
    assert float(erf.bias) < float(shrunk.bias) < 0
    mean_square = (float(shrunk.bias) ** 2 + float(erf.bias) ** 2) / 4
    assert float(shrunk.objective) - float(erf.objective) == pytest.approx(
        0.1 * mean_square, rel=0.05
    )
    plain = ar.erm_asymptotics(TASK, ar.get_attention("erf", 0.0), ALPHA, ONE, log2_points=6)
    assert float(gone.test_risk) == pytest.approx(float(plain.test_risk), abs=1e-5)


def test_a_bias_without_effect_is_not_learned():
    free = ar.Softmax().with_free_bias()
    assert Problem.of(TASK, free, 5, 0).layout.biases == 0
    assert Problem.of(TASK, ar.Linear().with_free_bias(), 5, 0).layout.biases == 1
    fit = ar.fit_erm(ar.sample(TASK, jax.random.key(0), 40, 10), free, ONE)
    assert fit.attention.bias == 0.0


def test_homogeneous_attentions_have_no_minimum_with_a_free_bias():
    """Along `(λk, λb)` the loss stays, and every ridge falls."""
    relu, data = ar.get_attention("relu", "free"), ar.sample(TASK, jax.random.key(0), 40, 20)
    scales = jnp.array([1.0, 0.1, 0.01])
    points = jnp.stack([jnp.stack([it * data.teacher[0], data.teacher[1]]) for it in scales])
    arrays = data.traceable(), relu.with_bias(0.0), ar.Ridge(1e-9, 1e-9, 1e-9)
    values, _ = objective(*arrays, points, -0.5 * scales[:, None])
    assert np.ptp(values) < 1e-6
    for refused in (
        lambda: ar.erm_asymptotics(TASK, relu, ALPHA, replace(ONE, b=1.0)),
        lambda: ar.fit_erm(data, relu, ONE),
    ):
        with pytest.raises(ValueError, match="shrink k and the bias together"):
            refused()


@pytest.mark.parametrize("shift", [-1.0, 8.0])
def test_a_power_of_a_shifted_score_has_no_minimum_with_a_free_bias(shift):
    """Ridges shrink `k` and `bias + shift` together."""
    power = ar.Kernel(lambda score: 8.0 * jnp.log(jnp.abs(score + shift)), features=(-shift,))
    with pytest.raises(ValueError, match=f"with a fixed bias other than {-shift:g} it has one"):
        ar.erm_asymptotics(TASK, power.with_free_bias(), ALPHA, ONE)
    assert Problem.of(TASK, power, 4, 0).layout.biases == 0
    near = ar.Kernel(lambda score: jnp.log(0.1 + (score + shift) ** 8), features=())
    assert Problem.of(TASK, near.with_free_bias(), 4, 0).layout.biases == 1  # only nearly a power


def test_a_bias_that_moves_nothing_tells_no_fixed_points_apart():
    """As one that has diverged; one that matters does."""
    problem = Problem.of(TASK, ar.Erf(), 4, 0)
    found = run_newton(problem, ALPHA, ONE, problem.starts(ONE)[0])
    bias, flat = found.layout.places.bias, found.step.jacobian.copy()
    unit = np.eye(found.x.size)[:, bias]
    moved = 3.0 * unit.ravel()
    step = found.step._replace(target=found.step.target + moved)
    other = found._replace(x=found.x + moved, step=step)
    assert not found.is_same(other)
    flat[:, bias] = unit
    found, other = (
        each._replace(step=each.step._replace(jacobian=flat)) for each in (found, other)
    )
    assert found.is_same(other)


@pytest.mark.parametrize(
    ("name", "ridge_b", "result"),
    [("elu+1", 0.0, Result.BECOMES_SOFTMAX), ("softplus", 1e-7, Result.CONVERGED)],
)
def test_a_bias_on_which_nothing_depends_is_unknown(name, ridge_b, result):
    """Elu+1 is an exponential of all scores below `−b`; a ridge keeps the bias finite."""
    free, ridge = ar.get_attention(name, "free"), replace(ONE, b=ridge_b)
    found = ar.erm_asymptotics(TASK, free, ALPHA, ridge, log2_points=5)
    assert found.result is result
    assert float(found.bias.error) == np.inf


@pytest.mark.parametrize(("root", "side"), [(1.5, 1.0), (3.0, 1.0), (-0.5, -1.0)])
def test_a_power_of_one_side_has_no_minimum_with_a_free_bias(root, side):
    """It vanishes at the scores on the other side of its root."""
    power = ar.Kernel(lambda score: 2.0 * jnp.log(jnp.maximum(side * (score - root), 0.0)))
    with pytest.raises(ValueError, match=f"with a fixed bias other than {root:g} it has one"):
        ar.erm_asymptotics(TASK, power.with_free_bias(), ALPHA, ONE)


def _step(above, below):
    return lambda score: jnp.where(score > 0.7, above, below)


@pytest.mark.parametrize(
    "step",
    [ar.Kernel(_step(0.0, -3.0)), ar.Kernel(_step(0.0, -jnp.inf)), ar.Elementwise(_step(1.0, 0.0))],
    ids=["floor", "none", "elementwise"],
)
def test_a_step_has_no_minimum_with_a_free_bias(step):
    """Where it jumps at a score of zero only the sign of the scores matters, and ridges shrink `k`."""
    with pytest.raises(ValueError, match=r"with a fixed bias other than 0\.7 it has one"):
        ar.erm_asymptotics(TASK, step.with_free_bias(), ALPHA, ONE)
    assert Problem.of(TASK, step, 4, 0).layout.biases == 0
    stairs = ar.Elementwise(lambda score: _step(1.0, 0.0)(score) + _step(1.0, 0.0)(score - 1.0))
    assert Problem.of(TASK, stairs.with_free_bias(), 4, 0).layout.biases == 1


def test_the_gradient_in_the_bias(rng):
    data = ar.sample(ar.SpikedSLR(2.0, ar.uniform(2, 3)), jax.random.key(1), 30, 8)
    arrays = data.traceable(), ar.Sigmoid(), ar.Ridge(0.3, 0.7, 0.2)
    points, bias = jnp.asarray(rng.normal(size=(1, 2, 8))), jnp.array([[0.4]])
    (_, (_, slope)) = objective(*arrays, points, bias)
    values = [objective(*arrays, points, bias + step)[0][0] for step in (1e-5, -1e-5)]
    assert float(slope[0, 0]) == pytest.approx(float(values[0] - values[1]) / 2e-5, rel=1e-6)


def test_sgd_learns_the_bias_of_the_gradient_flow():
    """With all data at every step and a small step, the same end as L-BFGS."""
    data = ar.sample(TASK, jax.random.key(2), 400, 40)
    fit = ar.fit_erm(data, ar.Erf(), ar.Ridge(0.5, 0.5))
    start = fit.vectors + 0.01
    path = ar.fit_sgd(
        data, ar.Erf(bias=float(fit.attention.bias) + 0.05), 0.05, 400, 400,
        weight_decay=2 * 0.5 / data.alpha, start=start,
    )  # fmt: skip
    assert path.biases.shape == (len(path.times), 1)
    assert (
        abs(path.biases[-1, 0] - fit.attention.bias)
        < 0.01
        < abs(path.biases[0, 0] - fit.attention.bias)
    )
    assert path.attention.bias == path.biases[-1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["erf", "softplus", "elu+1"])
def test_experiments_agree(name):
    """At three sizes, `1/D` removed; a theory with another bias is rejected."""
    attention = ar.get_attention(name, "free")
    ridge = ar.Ridge(0.3, 0.3, 0.05)
    theory = ar.erm_asymptotics(TASK, attention, ALPHA, ridge, log2_points=10)
    dims, runs = (100, 200, 400), []
    for dim in dims:
        fits = [
            ar.fit_erm(
                ar.sample(TASK, jax.random.key(seed), int(ALPHA * dim), dim), attention, ridge
            )
            for seed in range(32)
        ]
        runs.append([(fit.attention.bias, fit.train_error, float(fit.test_risk)) for fit in fits])
    columns = [[[run[at] for run in size] for size in runs] for at in range(3)]
    numbers = theory.bias, theory.train_error, theory.test_risk
    assert all(abs(distance(dims, *each)) < 4 for each in zip(columns, numbers, strict=True))
    other = attention.with_free_bias(False).with_bias(float(theory.bias) + 1.5)
    wrong = ar.erm_asymptotics(TASK, other, ALPHA, ridge, log2_points=10)
    assert abs(distance(dims, columns[1], wrong.train_error)) > 4


@pytest.mark.slow
def test_softplus_becomes_softmax_where_that_is_better():
    """Much data of many tokens: the bias falls without bound, and the risk is that of softmax."""
    task, ridge = ar.SpikedSLR(6.0, 10), ar.Ridge(0.3, 0.1)
    found = ar.erm_asymptotics(
        task, ar.get_attention("softplus", "free"), 30.0, ridge, log2_points=6
    )
    softmax = ar.erm_asymptotics(task, ar.Softmax(), 30.0, ridge, log2_points=6)
    assert found.converged
    assert float(found.test_risk) <= float(softmax.test_risk) + 1e-3
    assert found.result in (Result.CONVERGED, Result.BECOMES_SOFTMAX)
