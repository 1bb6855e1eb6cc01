"""Corners of the population risk against direct integration: long sequences, narrow residuals, long and short `k`.

The references use neither the rules of the package nor its transform of a ratio: equal steps in the fields themselves,
or in the Gumbel noise of a perturbed argmax, over windows and with steps far beyond what double precision needs.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import erf, erfc, expit, log_ndtr
from scipy.stats import binom, norm

import attnrisk as ar
from attnrisk.population.bias import shifted_power_minimum
from attnrisk.population.minimum import Search
from attnrisk.population.uncompiled import uncompiled_minima

STEP = 0.2  # in the exponent of a Gumbel cdf: equal steps have an error of e^(−π²/STEP)


def _steps(low, high, step):
    return np.arange(round(low / step), round(high / step) + 1) * step


def _normal(low, high, step):
    """Nodes and weights of the standard Gaussian in equal steps."""
    x = _steps(low, high, step)
    return x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * step


def _gumbel_sums(mean, scale, u):
    """Of `mean + scale·χ + Gumbel`, `χ ~ N(0, 1)`: the chance to be above `u` and below it, and the density there."""
    x, mass = _normal(-14.0, scale + 14.0, STEP / max(scale, 1.0))
    found = []
    for part in np.array_split(u, 1 + u.size // 256):
        rate = np.exp(np.minimum(mean + scale * x - part[:, None], 700.0))
        found.append([-np.expm1(-rate) @ mass, np.exp(-rate) @ mass, (rate * np.exp(-rate)) @ mass])
    return np.concatenate(found, 1)


# ReLU on max, where the scores follow the fields with little noise.

# 1 − 2A + B at ν = 2, L = 3, m_kk = 1.5, v = v*, by residual: an integral over signs, angles and radii of the scores.
RELU = {0.0: 0.4573006448404, 0.05: 0.4578228794650}


@pytest.mark.optimised
@pytest.mark.parametrize("residual", RELU)
def test_relu_with_a_narrow_residual(residual):
    overlaps = ar.Overlaps(m_kk=1.5, m_vv=1.0, q_kk=1.5**2 + residual**2, q_vv=1.0)
    found = ar.population_risk(ar.MaxSLR(2.0, 3), ar.Relu(), overlaps)
    assert abs(float(found) - RELU[residual]) <= found.error + 1e-12
    assert found.error < 1e-6


# Element-wise attentions on max: A = E[r h] and B = L E[h²] over a Gaussian field, where r is the density of the
# relevant token's field over that of any token's.

SPACING = 0.02
FIELD, MASS = _normal(-13.0, 14.0, SPACING)


def _relevance(nu, length):
    """`L Φ^{L−1}`, or `L E[p_1 | χ*_1]` as the chance that `νχ*_1 + Gumbel` is the largest."""
    if np.isinf(nu):
        return length * np.exp((length - 1) * log_ndtr(FIELD))
    step = nu * SPACING
    noise = _steps(-4.0, 120.0, step)
    u = _steps(nu * FIELD[0] + noise[0], nu * FIELD[-1] + noise[-1], step)
    above, _, _ = _gumbel_sums(0.0, nu, u)
    others = np.exp((length - 1) * np.log1p(-np.minimum(above, 1 - 1e-16)))
    density = np.exp(-noise - np.exp(-noise)) * step
    return length * np.lib.stride_tricks.sliding_window_view(others, noise.size) @ density


@pytest.mark.parametrize(
    ("nu", "length", "attention", "weight", "least", "m_kk", "bias"),
    [
        (np.inf, 10**8, ar.Erf(), lambda s: erfc(-s), 0.50104633, 4.5406, -25.6805),
        (8.0, 10**9, ar.Sigmoid(), expit, 0.76860236, 7.5040, -46.461),
    ],
)
def test_elementwise_minima_in_long_sequences(nu, length, attention, weight, least, m_kk, bias):
    found = ar.population_minimum(ar.MaxSLR(nu, length), attention)
    relevant = _relevance(nu, length) * MASS
    assert abs(relevant.sum() - 1) < 1e-9

    def risk(m_kk, bias):
        weights = weight(m_kk * FIELD + bias)
        return 1 - (relevant @ weights) ** 2 / (length * (MASS @ weights**2))

    assert abs(risk(m_kk, bias) - least) < 1e-7
    at = float(found.overlaps.m_kk), float(found.attention.bias)
    assert abs(float(found.risk) - risk(*at)) <= found.risk.error + 1e-9
    assert abs(float(found.risk) - least) <= found.risk.error + 1e-8
    np.testing.assert_allclose(at, (m_kk, bias), rtol=1e-2)


@pytest.mark.parametrize("length", [2, 10**6, 10**8, 10**12])
def test_elementwise_floor_at_the_largest_field(length):
    """`1 − L ∫ n Φ^{2L−2} = (L−1)/(2L−1)`."""
    floor = ar.elementwise_floor(ar.MaxSLR(np.inf, length, noise=0.5))
    assert abs(float(floor) - 0.25 - (length - 1) / (2 * length - 1)) <= floor.error + 1e-15
    assert floor.error < 1e-8


def test_elementwise_floor_of_a_soft_maximum():
    floor = ar.elementwise_floor(ar.MaxSLR(8.0, 10**9))
    expected = 1 - MASS @ _relevance(8.0, 10**9) ** 2 / 10**9
    assert abs(float(floor) - expected) <= floor.error + 1e-9
    assert floor.error < 1e-8


# Refusals.


def test_elementwise_floor_refuses_a_spread():
    """There a token's value tells of its location too, and weights by the key field alone are not the best."""
    with pytest.raises(ValueError, match="spread"):
        ar.elementwise_floor(ar.SpikedSLR(0.05, 5, 0.0, 1.8))


@pytest.mark.parametrize("function", [ar.elementwise_floor, ar.linear_risk])
def test_closed_forms_refuse_weighted_tasks(function):
    task = ar.WeightedSLR(lambda location, chi: chi[location] - 0.5, 3)
    with pytest.raises(ValueError, match="task"):
        function(task)


def test_a_search_of_the_manifold_alone_says_so():
    """With a spread above one, a `k` along `v*` finds the needle by its size: Taylor-2 does better off the manifold."""
    task = ar.SpikedSLR(0.3, 4, 0.0, 1.6)
    found = ar.population_minimum(task, ar.Taylor2())
    k, v = np.array([-0.46386, 4.0]), np.array([0.025237, 0.86598])
    off = ar.Overlaps(
        m_kk=k[0], m_kv=k[1], m_vk=v[0], m_vv=v[1], q_kk=k @ k, q_kv=k @ v, q_vv=v @ v
    )
    lower = ar.population_risk(task, ar.Taylor2(), off)
    assert abs(float(lower) - 1.14395588) < 1e-6
    if float(found.risk) > float(lower):
        assert found.result is ar.Result.ON_MANIFOLD
        assert abs(float(found.risk) - 1.263907929) < 1e-8


# The Bayes risk of long sequences: the chance that `c_ν χ* + Gumbel` is not the largest at the relevant token.


def _spiked_missed(nu, length):
    scale = np.sqrt(nu)
    u = _steps(-60.0, nu + 16 * scale + np.log(length) + 45.0, STEP)
    above, _, density = _gumbel_sums(0.0, scale, u)
    _, relevant_below, _ = _gumbel_sums(nu, scale, u)
    others = np.exp((length - 2) * np.log1p(-np.minimum(above, 1 - 1e-16)))
    return (length - 1) * np.sum(density * others * relevant_below) * STEP


def _max_missed(nu, length):
    u = _steps(-60.0, 16 * nu + 45.0, STEP)
    above, _, density = _gumbel_sums(0.0, nu, u)
    others = np.exp((length - 2) * np.log1p(-np.minimum(above, 1 - 1e-16)))
    return length * (length - 1) * np.sum(density**2 * others) * STEP


@pytest.mark.parametrize(
    ("nu", "length", "expected"),
    [
        (5.0, 10, 0.359807983557),
        (20.0, 10**10, 0.9964019906274),
        (60.0, 10**8, 0.03294091522646),
        (60.0, 10**9, 0.07188173240831),
        (60.0, 10**12, 0.3378093586939),
        (100.0, 10**12, 0.003247921846603),
    ],
)
def test_bayes_risk_of_long_spiked_sequences(nu, length, expected):
    found = ar.bayes_risk(ar.SpikedSLR(nu, length))
    missed = _spiked_missed(nu, length)
    assert abs(missed - expected) < 1e-12
    assert abs(float(found) - missed) <= found.error + 2e-15
    assert found.error < 1e-6


@pytest.mark.parametrize(
    ("nu", "length", "expected"),
    [
        (5.0, 10**8, 0.9513203341649),
        (5.0, 10**12, 0.9986675000623),
        (8.0, 10**8, 0.6895064679967),
        (8.0, 10**12, 0.8406623077012),
        (12.0, 10**12, 0.5851893927489),
    ],
)
def test_bayes_risk_of_long_max_sequences(nu, length, expected):
    found = ar.bayes_risk(ar.MaxSLR(nu, length))
    missed = _max_missed(nu, length)
    assert abs(missed - expected) < 1e-12
    assert abs(float(found) - missed) <= found.error + 2e-15
    assert found.error < 1e-6


# Derivatives in the overlaps by complex steps of direct integrals over two tokens (section 4.1), for short and long k.


def _softmax(first, second):
    share = 1 / (1 + np.exp(second - first))
    return share, 1 - share


def _erf(first, second):
    return 1 + erf(first), 1 + erf(second)


def _risk(overlaps, weights, nu, step):
    m_kk, m_kv, m_vk, m_vv, q_kk, q_kv, q_vv = overlaps
    x, mass = _normal(-9.0, 9.0, step)
    shift, first, second = np.sqrt(nu), np.sqrt(q_kk) * x[:, None], np.sqrt(q_kk) * x
    a, b = weights(m_kk * shift + first + 0 * second, second + 0 * first)
    mean = a * (m_vk * shift + q_kv / q_kk * first) + b * q_kv / q_kk * second
    product = mean * m_kv / q_kk * first + a * (m_vv - q_kv * m_kv / q_kk)
    square = mean**2 + (a**2 + b**2) * (q_vv - q_kv**2 / q_kk)
    return 1 + mass @ (square - 2 * product) @ mass


@pytest.mark.parametrize("q_kk", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    ("attention", "weights"), [(ar.Softmax(), _softmax), (ar.Erf(), _erf)], ids=["softmax", "erf"]
)
def test_gradient_of_the_public_function(attention, weights, q_kk):
    """Under `jax.grad` the overlaps cannot be looked at, and one rule has to serve short and long `k`."""
    norm, step = np.sqrt(q_kk), 0.2 if q_kk <= 1 else 0.04
    at = np.array([0.6 * norm, 0.2 * norm, -0.3, 0.8, q_kk, 0.15 * norm, 1.2])
    names = "m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"

    def value(vector):
        overlaps = ar.Overlaps(**dict(zip(names, vector, strict=True)))
        return ar.population_risk(ar.SpikedSLR(2.0, 2), attention, overlaps).value

    found, gradient = jax.jit(jax.value_and_grad(value))(jnp.asarray(at))
    steps = at + 1e-30j * np.eye(7)
    expected = [_risk(each, weights, 2.0, step).imag / 1e-30 for each in steps]
    assert abs(float(found) - _risk(at + 0j, weights, 2.0, step).real) < 1e-9
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("nu", "length"), [(np.inf, 10**6), (np.inf, 10**12), (20.0, 10**8)])
def test_the_threshold_of_sigmoid_is_found_in_long_sequences(nu, length):
    """No search may miss the narrow range of biases between all tokens and none."""
    task = ar.MaxSLR(nu, length)
    found = ar.population_minimum(task, ar.Sigmoid())
    assert 0 < float(found.risk) - float(ar.elementwise_floor(task)) < 3e-3
    assert found.overlaps.m_kk < 15.5


def test_exponential_tails_select_where_all_scores_are_negative(rng):
    """As `k` grows softplus becomes ReLU, and the largest score where none is positive: here by sampling."""
    least = ar.population_minimum(ar.MaxSLR(math.inf, 3), ar.Softplus())
    scores = rng.standard_normal((400_000, 3))
    largest = scores.max(1, keepdims=True)
    kept = np.where(largest > 0, np.maximum(scores, 0.0), scores == largest)
    weights = kept / kept.sum(1, keepdims=True)
    a, b = weights.max(1), (weights**2).sum(1)
    risk = 1.0 - a.mean() ** 2 / b.mean()
    slope = -2.0 * a.mean() / b.mean() * a + (a.mean() / b.mean()) ** 2 * b
    error = slope.std() / math.sqrt(len(scores))
    assert least.result is ar.Result.K_DIVERGES
    assert abs(float(least.risk) - risk) < 4.0 * error


def test_the_error_of_a_minimum_holds_at_kinks_of_the_max_task():
    """Two tokens, by Gauss-Legendre panels that meet at the kinks; away from the field 0 those of the search do not."""
    task, attention = (
        ar.MaxSLR(2.0, 2),
        ar.Kernel(lambda x: jnp.clip(x, -3.0, 3.0), features=(-3.0, 3.0)),
    )

    def profile(m_kk):
        ends = np.sort([*range(-9, 10), -3.0 / m_kk, 3.0 / m_kk])
        points, weights = np.polynomial.legendre.leggauss(20)
        half = np.diff(ends)[:, None] / 2
        x = (ends[:-1, None] + half * (1.0 + points)).ravel()
        mass = (half * weights).ravel() * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
        size = np.exp(np.clip(m_kk * x, -3.0, 3.0))
        weight = size[:, None] / (size[:, None] + size)
        first = 1.0 / (1.0 + np.exp(-2.0 * (x[:, None] - x)))
        label = mass @ (first * weight + first.T * weight.T) @ mass
        return label, mass @ (weight**2 + weight.T**2) @ mass

    def least_risk(m_kk):
        label, power = profile(m_kk)
        return 1.0 - label**2 / power

    found = ar.population_minimum(task, attention)
    m_kk, m_vv = float(found.overlaps.m_kk), float(found.overlaps.m_vv)
    label, power = profile(m_kk)
    assert abs(1.0 - 2.0 * m_vv * label + m_vv**2 * power - float(found.risk)) < 1e-12
    least = minimize_scalar(
        least_risk, bounds=(1.0, 3.0), method="bounded", options={"xatol": 1e-9}
    )
    assert abs(least.fun - float(found.risk)) < found.risk.error < 1e-5


def _step_moments(nu, length, floor, threshold):
    """`A` and `B` of a step: the number of ordinary tokens whose field is above the threshold is binomial."""
    above = np.arange(length)
    others = binom.pmf(above, length - 1, norm.sf(threshold))
    label = power = 0.0
    passed = norm.sf(threshold - np.sqrt(nu))
    for own, share in ((1.0, passed), (floor, 1.0 - passed)):
        squares = own**2 + above + floor**2 * (length - 1 - above)
        total = own + above + floor * (length - 1 - above)
        label += share * others @ (own / total)
        power += share * others @ (squares / total**2)
    return label, power


def _step(floor, jump):
    return ar.Kernel(lambda x: jnp.where(x > jump, 0.0, jnp.log(floor)), features=(0.0, jump))


@pytest.mark.parametrize(
    ("floor", "m_kk"), [(0.01, 0.29), (1e-6, 2.0), (1e-100, 2.0), (1e-150, 0.5)]
)
def test_a_kernel_that_jumps(floor, m_kk):
    nu, length, m_vv, jump = 5.0, 10, 0.8, 0.5
    found = ar.population_risk(
        ar.SpikedSLR(nu, length),
        _step(floor, jump),
        ar.Overlaps(m_kk=m_kk, m_kv=0, m_vk=0, m_vv=m_vv, q_kk=m_kk**2, q_kv=0, q_vv=m_vv**2),
    )
    label, power = _step_moments(nu, length, floor, jump / m_kk)
    assert abs(float(found) - (1.0 - 2.0 * m_vv * label + m_vv**2 * power)) <= found.error + 1e-15
    assert found.error < 1e-8


@pytest.mark.parametrize(
    ("minima", "free"),
    [(ar.population_minima, True), (uncompiled_minima, True), (uncompiled_minima, False)],
)
def test_the_best_threshold_of_a_kernel_that_jumps(minima, free):
    """Only the ratio of the jump to the norm of `k` matters, and with a free bias a search over both finds a valley."""
    nu, length, floor, jump = 5.0, 10, 0.01, 0.5

    def explained(threshold):
        label, power = _step_moments(nu, length, floor, threshold)
        return label**2 / power

    least = minimize_scalar(lambda x: -explained(x), bounds=(0.5, 3.0), method="bounded")
    (found,) = minima([ar.SpikedSLR(nu, length)], _step(floor, jump).with_free_bias(free))
    assert found.result is ar.Result.CONVERGED
    assert abs(float(found.risk) - (1.0 + least.fun)) <= found.risk.error + 1e-9
    threshold = (jump - found.bias) / float(found.overlaps.m_kk)
    assert explained(threshold) == pytest.approx(-least.fun, abs=1e-7)


@pytest.mark.optimised
def test_a_step_with_a_bump_is_no_step():
    """Its bump lies between the scores of a coarse grid; its features name it."""

    def log_phi(x):
        return jnp.where(x > 0, 0.0, -2.0) + jnp.where(jnp.abs(x - 1.55) < 0.2, 3.0, 0.0)

    task, bump = ar.SpikedSLR(5.0, 5), ar.Kernel(log_phi, features=(0.0, 1.35, 1.75), bias=0.2)
    assert shifted_power_minimum(task, bump) is None
    (found,) = uncompiled_minima([task], bump)
    known = ar.population_minimum(task, bump)
    assert abs(float(found.risk) - float(known.risk)) <= found.risk.error + known.risk.error
    at_known = ar.population_risk(task, bump, known.overlaps)
    assert abs(float(at_known) - float(known.risk)) <= at_known.error + known.risk.error


def test_a_low_floor_of_a_step_is_none_on_the_max_task():
    """Floors of 1e-12 and 1e-300 differ by some 1e-12 of the risk."""
    task = ar.MaxSLR(1.6, 5)
    high, low = (
        ar.population_risk(task, _step(floor, 0.5), ar.aligned(0.5, 0.8))
        for floor in (1e-12, 1e-300)
    )
    assert abs(float(high) - float(low)) <= high.error + low.error + 1e-12
    assert low.error < 1e-8


def _log_relu(x):  # one function, so that kernels with different constants share compiled code
    return jnp.log(jnp.maximum(x, 0.0))


def _relu_beside(constant, **options):
    return ar.Kernel(_log_relu, constant=constant, **options)


@pytest.mark.parametrize("task", [ar.SpikedSLR(2.0, 5), ar.MaxSLR(1.6, 5)], ids=["spiked", "max"])
def test_the_scale_of_relu_beside_a_constant_does_not_matter(task):
    """Only the ratio of `k` to the constant does."""
    plain = ar.population_risk(task, _relu_beside(1.0), ar.aligned(1.1752, 0.8))
    found = ar.population_risk(task, _relu_beside(1e-12), ar.aligned(1.1752e-12, 0.8))
    assert abs(float(found) - float(plain)) <= found.error + plain.error


@pytest.mark.optimised
def test_the_minimum_of_relu_beside_a_constant_has_its_scale():
    task = ar.SpikedSLR(2.0, 5)
    least, small = (ar.population_minimum(task, _relu_beside(each)) for each in (1.0, 1e-9))
    assert abs(float(small.risk) - float(least.risk)) < small.risk.error + least.risk.error
    assert float(small.overlaps.m_kk) == pytest.approx(1e-9 * float(least.overlaps.m_kk), rel=1e-6)


def test_a_search_has_the_scale_of_a_constant():
    """Norms of `k` and biases, where both are searched."""
    plain, small = (
        Search(ar.MaxSLR(1.6, 5), _relu_beside(constant, free_bias=True), 0).problem()
        for constant in (1.0, 1e-3)
    )
    at = np.searchsorted(small.lengths, 1e-3 * plain.lengths[plain.lengths > 0.01] - 1e-9)
    np.testing.assert_allclose(small.lengths[at], 1e-3 * plain.lengths[plain.lengths > 0.01])
    np.testing.assert_allclose(small.biases[at], 1e-3 * plain.biases[plain.lengths > 0.01])


def test_a_narrow_bump_is_found_on_the_max_task():
    """Panels of a search that do not meet at the bump see a minimum elsewhere."""
    task = ar.MaxSLR(1.6, 5)
    kernel = ar.Kernel(
        lambda x: jnp.where(jnp.abs(x - 1.5) < 0.01, 5.0, 0.0), features=(1.49, 1.51)
    )
    found = ar.population_minimum(task, kernel)
    m_vv, risks = float(found.overlaps.m_vv), []
    for m_kk in np.append(np.geomspace(0.3, 3.0, 9), float(found.overlaps.m_kk)):
        risks.append(ar.population_risk(task, kernel, ar.aligned(m_kk, m_vv)))
    assert abs(float(risks[-1]) - float(found.risk)) < found.risk.error + risks[-1].error
    assert float(found.risk) < min(map(float, risks[:-1])) < 0.7985
    assert found.risk.error < 1e-9


def test_weights_that_vanish_when_scores_are_stretched_are_not_homogeneous():
    bump = ar.Elementwise(lambda x: jnp.where(jnp.abs(x - 1.5) < 0.01, 5.0, 0.0))
    assert not bump.is_homogeneous


def test_an_attention_that_is_too_steep_says_so():
    """With equal steps its sums would not fit into the memory; with panels nothing is known of the risk."""
    task = ar.SpikedSLR(3.7, 6, spread=0.9)
    for log_phi in (lambda x: -(x**3), lambda x: 1e6 * x):
        with pytest.raises(ValueError, match="less steep"):
            ar.population_minimum(task, ar.Kernel(log_phi, analytic=True))
    with pytest.warns(RuntimeWarning, match="too steep"):
        found = ar.population_minimum(task, ar.Kernel(lambda x: 1e6 * x))
    assert not found.converged
