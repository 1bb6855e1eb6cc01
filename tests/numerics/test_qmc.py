import numpy as np
import pytest
from scipy.stats import qmc

from attnrisk.numerics.qmc import mean_estimate, sobol


def test_the_standard_error_is_honest():
    """Over many seeds the truth lies within two standard errors about as often as it should, and never far."""
    distances = []
    for seed in range(40):
        points = sobol(3, 7, 16, seed)
        found = mean_estimate(np.exp(points.sum(-1)).mean(-1))
        distances.append((float(found) - (np.e - 1) ** 3) / float(found.error))
    distances = np.abs(distances)
    assert np.mean(distances < 2.13) > 0.85  # Student's t with 15 degrees of freedom: 0.95
    assert np.all(distances < 6)


def test_points_are_reproducible_and_inside_the_cube():
    first, again, other = sobol(4, 5, 2, 1), sobol.__wrapped__(4, 5, 2, 1), sobol(4, 5, 2, 2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.min() > 0
    assert first.max() < 1
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize(
    ("dimension", "log2_points"), [(1, 0), (1, 5), (2, 14), (7, 9), (41, 10), (3003, 3)]
)
def test_points_are_those_of_scipy(dimension, log2_points):
    expected = [
        qmc.Sobol(dimension, rng=np.random.default_rng(child)).random_base2(log2_points)
        for child in np.random.SeedSequence(5).spawn(2)
    ]
    found = sobol(dimension, log2_points, 2, 5)
    np.testing.assert_array_equal(found, np.clip(expected, 1e-16, 1 - 1e-16))


def test_more_coordinates_than_are_tabulated_are_refused():
    with pytest.raises(ValueError, match="at most 21201 coordinates"):
        sobol(21202, 1, 1, 0)
