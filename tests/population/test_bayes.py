"""The Bayes risk by equal steps without compiled code, against compiled panels that serve any scale."""

import numpy as np
import pytest

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.panels import panels
from attnrisk.population import bayes

LENGTHS = [2, 10**6, ar.uniform(1, 3)]
ORDER, LONGEST = 16, 10**6


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("nu", [0.0, 5.0, 60.0])
def test_spiked(nu, length):
    task = ar.SpikedSLR(nu, length)
    exact = bayes.compiled_missed(
        bayes.planted_missed, *as_arrays((task, np.sqrt(nu), panels(np.sqrt(nu), LONGEST, ORDER)))
    )
    _check(task, exact)


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("nu", [0.3, 2.0, 8.0])
def test_max(nu, length):
    task = ar.MaxSLR(nu, length)
    exact = bayes.compiled_missed(
        bayes.selected_missed, *as_arrays((task, nu, panels(nu, LONGEST, ORDER, transform_cells=4)))
    )
    _check(task, exact)


def _check(task, exact):
    found = bayes.location_missed(task)
    assert found.error < 2e-13
    assert abs(found.value - float(exact)) <= found.error + 1e-14


def test_where_steps_end_panels_go_on():
    by_steps, by_panels = (
        bayes.location_missed(ar.MaxSLR(nu, 10))
        for nu in (bayes._MODERATE, np.nextafter(bayes._MODERATE, np.inf))
    )
    assert abs(by_steps.value - by_panels.value) <= by_steps.error + by_panels.error
