"""Lengths to a million, strengths to 10^4, overlaps at scale 10^3: finite, and right to the stated error."""

import numpy as np
import pytest
from scipy.stats import norm

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.panels import bulk, normal_rule
from attnrisk.population.engines import selection
from attnrisk.population.plan import plan
from attnrisk.population.risk import compiled_profile, compiled_risk

FINE = 20  # order of a rule far beyond the ones in use
MIXTURE = ar.LengthLaw([1, 2, 10**6], [0.3, 0.3, 0.4])


def _fine_risk(task, attention, overlaps):
    engine = plan(task, attention, float(np.sqrt(overlaps.q_kk)), order=FINE)
    return float(compiled_risk(*as_arrays((engine, task, attention, overlaps))))


@pytest.mark.parametrize("length", [1, 10**6, MIXTURE], ids=str)
@pytest.mark.parametrize("nu", [0.0, 1e-6, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("task", [ar.SpikedSLR, ar.MaxSLR])
def test_bayes_risk(task, nu, length):
    found = ar.bayes_risk(task(nu, length))
    mean_inverse = (task(nu, length).length.probabilities / task(nu, length).length.lengths).sum()
    assert float(found) + float(found.error) >= 0
    assert float(found) <= 1 - mean_inverse + float(found.error)
    assert float(found.error) < 1e-8
    if nu == 0:
        assert abs(float(found) - (1 - mean_inverse)) <= float(found.error)


@pytest.mark.parametrize("scale", [1e-3, 1.0, pytest.param(1e3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "length"),
    [("softmax", 10**6)]
    + [(name, MIXTURE) for name in ("softmax", "softplus", "relu", "softmax-1", "erf")],
    ids=str,
)
def test_the_error_is_honest(name, length, scale):
    """It never understates the distance to a far finer rule."""
    task, attention = ar.SpikedSLR(40.0, length), ar.get_attention(name)
    overlaps = ar.Overlaps(
        m_kk=0.7 * scale,
        m_kv=0.3 * scale,
        m_vk=-0.4,
        m_vv=0.8,
        q_kk=1.2 * scale**2,
        q_kv=0.25 * scale,
        q_vv=1.5,
    )
    found = ar.population_risk(task, attention, overlaps)
    fine = _fine_risk(task, attention, overlaps)
    assert abs(float(found) - fine) <= float(found.error) + 1e-12 * abs(fine)
    assert float(found.error) < 1e-7 * max(1.0, abs(fine))


@pytest.mark.slow
@pytest.mark.parametrize(("nu", "length"), [(0.0, 10**6), (1e4, 1), (np.inf, 10**6)])
def test_max_task_with_noise_in_k(nu, length):
    overlaps = ar.Overlaps(m_kk=700.0, m_vv=0.8, q_kk=1.2e6, q_vv=1.5)
    found = ar.population_risk(ar.MaxSLR(nu, length), ar.Softmax(), overlaps)
    assert np.isfinite(float(found))
    assert float(found.error) < 1e-6
    if length == 1:
        assert abs(float(found) - (1 - 2 * 0.8 + 1.5)) <= float(found.error)


@pytest.mark.optimised
def test_two_engines_for_the_max_task_agree():
    """With a table of fields, and without: different nodes in every variable."""
    for nu in (2.0, np.inf):
        task = ar.MaxSLR(nu, 10)
        tabled, untabled = (
            compiled_profile(*as_arrays((plan(task, ar.Softmax(), scale), task, ar.Softmax(), 3.0)))
            for scale in (3.0, 33.0)
        )
        np.testing.assert_allclose(tabled.label, untabled.label, rtol=1e-9)
        np.testing.assert_allclose(tabled.power, untabled.power, rtol=1e-9)


@pytest.mark.slow
def test_a_student_sharper_than_any_table():
    """Aligned overlaps are integrated exactly; others are extrapolated and say with which error."""
    task = ar.MaxSLR(np.inf, 3)
    exact = ar.population_risk(task, ar.Softmax(), ar.aligned(100.0))
    tilted = ar.Overlaps(m_kk=100.0, m_vv=1.0, q_kk=100.0**2 + 1e-6, q_vv=1.0)
    extrapolated = ar.population_risk(task, ar.Softmax(), tilted)
    assert float(exact.error) < 1e-6 < float(extrapolated.error) < 1e-2
    assert abs(float(exact) - float(extrapolated)) <= float(extrapolated.error)


@pytest.mark.parametrize("m_kk", [40.0, -40.0, 2e4])
def test_elementwise_weights_of_any_length_of_k(m_kk):
    """Weights that grow with the scores, and bounded ones, against panels that shrink towards the kink."""
    task, (points, weights) = ar.MaxSLR(np.inf, 3), np.polynomial.legendre.leggauss(20)
    half = np.append(np.geomspace(1e-8, 10.0, 120), 10.0)
    edges = np.concatenate([-half[::-1], [0.0], half])
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x = (middle[:, None] + width[:, None] * points).ravel()
    mass = (width[:, None] * weights).ravel() * norm.pdf(x)
    for attention in (ar.ElementwiseRelu(), ar.Sigmoid(bias=1.0)):
        h = np.asarray(attention.weight(attention.bias + m_kk * x))
        a, b = np.sum(mass * 3.0 * norm.cdf(x) ** 2 * h), 3.0 * np.sum(mass * h**2)
        found = ar.population_risk(task, attention, ar.aligned(m_kk, a / b))
        assert abs(float(found) - (1.0 - a**2 / b)) <= float(found.error) + 1e-12
        assert float(found.error) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("attention", [ar.ElementwiseRelu(), ar.Sigmoid(bias=1.0)])
def test_elementwise_weights_are_extrapolated_with_their_size(attention):
    """Off the manifold by next to nothing: the exact risk, though `v` is too short for any smaller `k`."""
    task, m_kk, m_vv = ar.MaxSLR(np.inf, 3), 2e3, 1.0 if attention.analytic else 5e-4
    exact = ar.population_risk(task, attention, ar.aligned(m_kk, m_vv))
    tilted = ar.Overlaps(m_kk=m_kk, m_vv=m_vv, q_kk=m_kk**2 * (1.0 + 1e-12), q_vv=m_vv**2)
    found = ar.population_risk(task, attention, tilted)
    assert abs(float(found) - float(exact)) <= float(found.error) + 1e-11
    assert float(found.error) < 1e-2


def test_below_the_largest_field_lie_whole_panels_and_a_part():
    """The cumulative sum against product integration of each node by itself."""
    task_edges = np.sort(np.append(bulk(10, 2), 0.3))
    table = selection._hard(task_edges, 8)
    values = np.stack([np.cos(table.fields), np.exp(-(table.fields**2))], 1)
    for at in (0, 5, 40, 111, table.fields.size - 1):
        x = table.fields[at]
        edges = np.append(np.linspace(-9.5, x, 200), x)
        nodes, mass = normal_rule(edges, 10)
        below = mass @ np.stack([np.cos(nodes), np.exp(-(nodes**2))], 1)
        np.testing.assert_allclose(table.integrate_below(values)[at], below, atol=1e-11)
        assert abs(table.above[at] - norm.sf(x)) < 1e-13


def test_a_law_over_many_lengths():
    """A thousand lengths are summed in two blocks; each block alone is summed at once."""
    many, overlaps = ar.uniform(1, 1000), ar.aligned(1.5)
    found = ar.population_risk(ar.SpikedSLR(3.0, many), ar.Softmax(), overlaps)
    halves = ar.LengthLaw(range(1, 513), np.full(512, 1 / 512)), ar.uniform(513, 1000)
    parts = [
        float(ar.population_risk(ar.SpikedSLR(3.0, h), ar.Softmax(), overlaps)) for h in halves
    ]
    assert abs(float(found) - (0.512 * parts[0] + 0.488 * parts[1])) < 1e-12
