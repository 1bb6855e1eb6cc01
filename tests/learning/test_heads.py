"""The equations with two heads that share a value vector, against the reference values of section 10."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.attention.general import AbstractGeneral
from attnrisk.learning.erm import RANDOMISATIONS, Problem
from attnrisk.learning.samples import draw
from attnrisk.learning.unknowns import Layout, Order, Unknowns, pack
from attnrisk.tasks import AbstractPlanted, LengthLaw, fixed
from attnrisk.tasks.location import AbstractLocation, Weights

SHIFT = 3.0


class FlippedLocation(AbstractLocation):
    """The shift is `±SHIFT`, equally likely."""

    variance: Any

    def weigh(self, means, mask=None):
        log = jnp.logaddexp(SHIFT * means[0], -SHIFT * means[0]) - jnp.log(2.0 * means.shape[-1])
        return Weights(log - SHIFT**2 * (1.0 - self.variance[0, 0]) / 2, jnp.tanh(SHIFT * means))

    def score(self, weights, probability):
        return SHIFT * weights.slopes * probability

    def visited(self, length):
        return 1

    @property
    def precision(self):
        return SHIFT**2 * jnp.ones((1, 1))

    @property
    def softmax_scale(self):
        return None


class Flipped(AbstractPlanted):
    name: ClassVar[str] = "flipped"
    shift: float = SHIFT
    length: LengthLaw = fixed(3)
    noise: float = 0.0
    spread: float = 1.0

    @property
    def shift_uniforms(self):
        return 1

    def draw_shift(self, uniforms):
        return jnp.where(uniforms < 0.5, SHIFT, -SHIFT)

    def log_odds(self, chi):
        return jnp.logaddexp(SHIFT * chi, -SHIFT * chi)

    def location_given(self, unknown_variance):
        return FlippedLocation(unknown_variance)


class AveragedHeads(AbstractGeneral):
    name: ClassVar[str] = "averaged heads"

    @property
    def keys(self):
        return 2

    def __call__(self, scores, mask=None):
        return jax.nn.softmax(scores)

    def attend(self, scores, mask=None):
        return jnp.mean(jax.nn.softmax(scores, -1), 0)


def _fixed_point(alpha, ridge, start):
    task, attention = Flipped(), AveragedHeads()
    problem = Problem(task, attention, draw(task, 2, 6, RANDOMISATIONS, 0))
    found = problem.find_fixed_point(alpha, ridge, problem.starts(ridge)[start])
    assert found.result.converged
    return found


@pytest.mark.slow
def test_heads_specialise_with_much_data():
    """To three standard errors of a thousand samples, which are small for all but the overlap of the two heads."""
    found = _fixed_point(8.0, ar.Ridge(0.1, 1.0), 1)
    keys = Order(np.array([[0.862], [-0.874]]), *(np.diag([q] * 2) for q in (2.20, 4.70)))
    keys.Q[[0, 1], [1, 0]], keys.V[[0, 1], [1, 0]] = -0.547, -0.78
    reference = pack(Unknowns(keys, Order(*(np.array([[it]]) for it in (0.897, 0.926, np.nan)))))
    errors = np.array([found.error(unit) for unit in np.eye(found.x.size)])
    given = ~np.isnan(reference)
    assert np.all(np.abs(found.x - reference)[given] < 3 * errors[given])
    assert np.all(errors[:2] < 0.1)
    assert errors[-3] < 0.02
    assert np.mean(found.step.train) == pytest.approx(0.339, abs=0.03)


@pytest.mark.slow
def test_heads_collapse_with_little_data():
    """Onto one direction, orthogonal to `k*`; how they share its length is known less well from a thousand samples."""
    found = _fixed_point(4.0, ar.Ridge(0.5, 1.0), 0)
    keys, values = found.layout.unpack(found.x)
    np.testing.assert_allclose(keys.M, 0.0, atol=1e-3)
    assert keys.Q[0, 1] / np.sqrt(keys.Q[0, 0] * keys.Q[1, 1]) > 0.95
    assert np.mean(np.diag(keys.Q)) == pytest.approx(0.203, abs=0.04)
    np.testing.assert_allclose([values.M[0, 0], values.Q[0, 0]], [0.624, 0.577], atol=0.02)
    assert np.mean(found.step.train) == pytest.approx(0.442, abs=0.03)


def _unknowns(rng, heads, features):
    M = rng.normal(size=(heads, features))
    half, loose = rng.normal(size=(2, heads, heads))
    keys = Order(M, M @ M.T + half @ half.T, loose @ loose.T)
    return Unknowns(keys, Order(*(np.array([[each]]) for each in (0.3, 0.5, 0.7))))


@pytest.mark.parametrize(("heads", "features"), [(1, 1), (2, 1), (2, 3)])
def test_flat_vectors_and_free_numbers_hold_all_unknowns(heads, features, rng):
    layout, given = Layout(heads, features), _unknowns(rng, heads, features)
    x = pack(given)
    jax.tree.map(np.testing.assert_array_equal, layout.unpack(x), given)
    free = layout.to_free(x)
    np.testing.assert_allclose(layout.from_free(free), x, rtol=1e-9)
    steps = 1e-6 * np.eye(x.size)
    differences = [layout.from_free(free + it) - layout.from_free(free - it) for it in steps]
    slope = layout.free_slope(free)
    np.testing.assert_allclose(slope, np.stack(differences, 1) / 2e-6, atol=1e-6)
    assert np.linalg.matrix_rank(slope) == x.size
    anywhere = layout.unpack(layout.from_free(rng.normal(size=x.size)))
    for M, Q, V in anywhere:
        assert np.all(np.linalg.eigvalsh(Q - M @ M.T) > 0)
        assert np.all(np.linalg.eigvalsh(V) > 0)


def test_a_target_with_a_negative_response_is_replaced(rng):
    layout = Layout(2, 1)
    given = _unknowns(rng, 2, 1)
    x = pack(given)
    target, valid = layout.tamed(x, x)
    assert valid
    np.testing.assert_array_equal(target, x)
    wrong = pack(given._replace(keys=given.keys._replace(V=-given.keys.V)))
    target, valid = layout.tamed(x, wrong)
    assert not valid
    keys = layout.unpack(target).keys
    np.testing.assert_allclose(keys.V, 2 * given.keys.V)
    np.testing.assert_allclose(keys.M, -2 * given.keys.M)
