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


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory):
    """The store of whoever runs the tests is not theirs to touch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20250921)
