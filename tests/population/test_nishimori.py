"""`E[p_ε] = E[Σp²]` for a student that knows the teacher: two different integrals, one number."""

import numpy as np
import pytest

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.plan import plan
from attnrisk.population.risk import compiled_profile

LENGTHS = [1, 2, 10, ar.uniform(1, 3), ar.LengthLaw([1, 100], [0.25, 0.75])]
ORDER = 12


def _profile(task, scale):
    engine = plan(task, ar.Softmax(), max(scale, 1.0), order=ORDER)
    return compiled_profile(*as_arrays((engine, task, ar.Softmax(), scale)))


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("nu", [0.0, 0.3, 1.0, 5.0, 30.0])
def test_spiked(nu, length):
    a, b = _profile(ar.SpikedSLR(nu, length), np.sqrt(nu))
    assert abs(float(a - b)) < 1e-12


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("nu", [0.0, 0.3, 1.0, 2.0])
def test_max(nu, length):
    a, b = _profile(ar.MaxSLR(nu, length), nu)
    assert abs(float(a - b)) < 1e-12


@pytest.mark.parametrize("nu", [6.0])
def test_sharper_max(nu):
    task = ar.MaxSLR(nu, 3)
    found = ar.population_risk(task, ar.Softmax(), ar.aligned(nu))
    assert abs(float(found) - float(ar.bayes_risk(task))) <= float(found.error)
    assert float(found.error) < 1e-10


@pytest.mark.parametrize("length", LENGTHS[1:], ids=str)
def test_identity_fails_for_another_student(length):
    """The negative control: at the wrong scale the two integrals differ."""
    a, b = _profile(ar.SpikedSLR(2.0, length), 2.0)
    assert abs(float(a - b)) > 1e-3
