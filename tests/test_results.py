"""Estimates: bounds and standard errors are not mixed, and an estimate has a record as every answer."""

import math

import pytest

import attnrisk as ar

BOUND, STANDARD = ar.Estimate(1.0, 0.3), ar.Estimate(0.5, 0.4, ar.ErrorKind.STANDARD)


def test_bounds_add_and_standard_errors_add_in_quadrature():
    assert (BOUND - BOUND).error == pytest.approx(0.6)
    assert (STANDARD + STANDARD).error == pytest.approx(math.hypot(0.4, 0.4))
    assert float(1.0 - STANDARD) == 0.5


def test_the_two_kinds_are_not_mixed():
    with pytest.raises(ValueError, match="of one kind to be added"):
        BOUND + STANDARD
    with pytest.raises(ValueError, match="a standard error bounds nothing"):
        STANDARD.as_kind(ar.ErrorKind.BOUND)
    assert (BOUND.as_kind(ar.ErrorKind.STANDARD) + STANDARD).error == pytest.approx(0.5)


def test_an_estimate_has_a_record():
    assert ar.record(STANDARD) == {"value": 0.5, "error": 0.4, "kind": "standard error"}
