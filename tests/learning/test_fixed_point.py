"""The iteration: which fixed point it finds, and what it says when it finds none."""

import numpy as np

from attnrisk.learning.fixed_point import MOST_STEPS, TOLERANCE, find_fixed_point


def _two_wells(lift):
    """A monotone map with stable fixed points near 0 and 2 and an unstable one at 1, if `lift` is small."""

    def move(x):
        first = x[0] - 0.3 * x[0] * (x[0] - 1.0) * (x[0] - 2.0) + lift
        return np.stack([first, 0.5 * x[1] + 0.1 * first])

    return move


def test_each_start_finds_the_fixed_point_next_to_it():
    move = _two_wells(0.01)
    low, high = find_fixed_point(move, np.zeros(2)), find_fixed_point(move, np.array([3.0, 3.0]))
    for end in (low, high):
        assert end.converged
        assert float(end.residual) <= TOLERANCE
        np.testing.assert_allclose(move(end.point), end.point, atol=TOLERANCE)
    assert 0.0 < low.point[0] < 0.1
    assert 2.0 < high.point[0] < 2.1


def test_a_bottleneck_is_passed():
    """Where the lower fixed point has just gone, the iteration is slow but does not stop there."""
    fold = 0.3 * 2 / (3 * np.sqrt(3))  # the depth of the cubic between 0 and 1
    before, after = (
        find_fixed_point(_two_wells(scale * fold), np.zeros(2)) for scale in (0.999, 1.001)
    )
    assert before.converged
    assert before.point[0] < 0.45
    assert after.converged
    assert after.point[0] > 2.0


def test_it_is_faster_than_the_plain_iteration():
    """Which, contracting by 0.9 a step, would take two hundred."""
    matrix = np.array([[0.9, 0.0], [0.1, 0.6]])
    end = find_fixed_point(lambda x: matrix @ x + np.array([0.1, 0.1]), np.zeros(2))
    assert end.converged
    assert end.steps < 30
    np.testing.assert_allclose(end.point, [1.0, 0.5], atol=1e-7)


def test_no_fixed_point():
    end = find_fixed_point(lambda x: x + 1.0, np.zeros(2))
    assert not end.converged
    assert end.steps == MOST_STEPS


def test_nonsense_ends_at_once():
    end = find_fixed_point(lambda x: x * np.nan, np.zeros(2))
    assert not end.converged
    assert end.steps == 0
