import numpy as np

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
