"""Values known to ten digits or more, from an independent derivation."""

import numpy as np
import pytest

import attnrisk as ar

SPIKED_BAYES = [
    (1, 2, 0.324943297662),
    (5, 2, 0.084396512539),
    (2, 3, 0.352423268884),
    (5, 10, 0.359807983557),
    (2, 10, 0.66652084492),
]
OFF_MANIFOLD = [
    (2, 1.1302335821, 9.5329800846),
    (3, 1.1040716693, 12.6451373721),
    (10, 1.0777289670, 37.9302383848),
]


@pytest.mark.parametrize(("nu", "length", "value"), SPIKED_BAYES)
def test_bayes_risk(nu, length, value):
    assert abs(float(ar.bayes_risk(ar.SpikedSLR(nu, length))) - value) < 1e-11


@pytest.mark.parametrize(("nu", "length", "value"), SPIKED_BAYES)
def test_softmax_at_the_teacher_is_bayes(nu, length, value):
    found = ar.population_risk(ar.SpikedSLR(nu, length), ar.Softmax(), ar.aligned(np.sqrt(nu)))
    assert abs(float(found) - value) < 1e-11


@pytest.mark.parametrize(("length", "softmax", "linear"), OFF_MANIFOLD)
def test_off_the_manifold(length, softmax, linear):
    overlaps = ar.Overlaps([[0.7, 0.3], [-0.4, 0.8]], [[1.2, 0.25], [0.25, 1.5]])
    task = ar.SpikedSLR(2.0, length)
    assert abs(float(ar.population_risk(task, ar.Softmax(), overlaps)) - softmax) < 1e-10
    assert abs(float(ar.population_risk(task, ar.Linear(), overlaps)) - linear) < 1e-10


@pytest.mark.parametrize(
    ("m_kk", "nu", "length", "a"), [(2, 2, 3, 0.645819), (1, 3, 4, 0.487055), (3, 1, 10, 0.288912)]
)
def test_max_label_correlation(m_kk, nu, length, a):
    """`A` is read off two risks that differ in the sign of `v`."""
    task = ar.MaxSLR(nu, length)
    plus, minus = (
        float(ar.population_risk(task, ar.Softmax(), ar.aligned(float(m_kk), sign)))
        for sign in (1.0, -1.0)
    )
    assert abs((minus - plus) / 4 - a) < 1e-6


@pytest.mark.parametrize(
    ("nu", "length", "values"),
    [
        (2, 3, {"softplus": 0.369829, "erf": 0.444590, "linear": 0.461538}),
        (5, 10, {"softplus": 0.491432, "erf": 0.457644, "linear": 0.620690}),
    ],
)
def test_least_risk(nu, length, values):
    for name, value in values.items():
        found = ar.population_minimum(ar.SpikedSLR(nu, length), ar.get_attention(name))
        assert found.attained
        assert abs(float(found.risk) - value) < 1e-6
