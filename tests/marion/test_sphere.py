"""Unit vectors beside a teacher: the law of their starts, and what is refused."""

import jax
import numpy as np
import pytest

from attnrisk._check import Refusal
from attnrisk.marion.sphere import UnitPair, manifold_starts, sphere_starts

CROSS = ("m_kv", "m_vk", "q_kv")
FREE = ("m_kk", "m_vv", *CROSS)
KEY = jax.random.key(2410)


def free(cosines):
    """The five overlaps that unit vectors are free to have, last."""
    return np.stack([np.asarray(getattr(cosines, name)) for name in FREE], -1)


def test_sphere_starts_are_uniform():
    dim, repeats = 9, 40_000
    start = sphere_starts(KEY, dim, repeats)
    values = free(start.cosines)
    variance = np.mean(values**2, 0)
    error = np.sqrt(np.var(values**2, 0) / repeats)
    assert np.all(np.abs(variance - 1 / dim) < 5 * error)
    assert np.all(np.abs(variance - 1 / (dim - 1)) > 5 * error)
    correlation = np.corrcoef(values.T) - np.eye(len(FREE))
    assert np.abs(correlation).max() < 5 / np.sqrt(repeats)


def test_manifold_starts_are_uniform_there():
    dim, repeats = 9, 40_000
    start = manifold_starts(KEY, dim, repeats)
    for name in CROSS:
        assert np.all(getattr(start.cosines, name) == 0.0), name
    for name, room in (("m_kk", dim - 1), ("m_vv", dim - 2)):
        squares = np.asarray(getattr(start.cosines, name)) ** 2
        assert abs(squares.mean() - 1 / room) < 5 * squares.std() / np.sqrt(repeats), name


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ([[1.0, 0.1]], [[1.0, 0.0]]),
        ([[1.0, 0.0]], [[np.nan, 0.0]]),
        ([[1.0, 0.0]], [[1.0, 0.0, 0.0]]),
        ([1.0, 0.0], [1.0, 0.0]),
        ([[1.0]], [[1.0]]),
    ],
)
def test_bad_vectors(k, v):
    with pytest.raises(Refusal, match=r"^[kv] = "):
        UnitPair(k, v)


@pytest.mark.parametrize("starts", [sphere_starts, manifold_starts])
def test_bad_starts(starts):
    with pytest.raises(Refusal, match="dim"):
        starts(KEY, 3, 10)
    with pytest.raises(Refusal, match="repeats"):
        starts(KEY, 10, 0)


@pytest.mark.parametrize("starts", [sphere_starts, manifold_starts])
def test_single_precision_is_refused(starts):
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(Refusal, match="jax_enable_x64 = False"):
            starts(KEY, 9, 2)
    finally:
        jax.config.update("jax_enable_x64", True)
