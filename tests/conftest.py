"""Policy for every test: double precision, warnings are errors (pyproject), and a compile cache that is let go."""

import jax
import numpy as np
import pytest

import attnrisk  # noqa: F401 -- switches double precision on


@pytest.fixture(autouse=True, scope="module")
def _release_compiled_code():
    """Each module compiles its own rules; kept together they would fill the memory."""
    yield
    jax.clear_caches()


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20250921)
