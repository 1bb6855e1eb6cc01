"""Policy for every test: double precision, warnings are errors (pyproject), and compiled code that is let go of."""

import os

# Test files, both workers and the commands that they start compile much the same: what took long is kept on disk. Read
# by jax when it is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.abspath(".pytest_cache/compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import numpy as np
import pytest

import attnrisk  # noqa: F401 -- switches double precision on


@pytest.fixture(autouse=True, scope="module")
def _compiled_code(request):
    """Each module compiles its own rules; kept together they would fill the memory.

    `make test` compiles with few optimisations, which takes a quarter of the time. Modules marked `optimised` run for
    longer than they compile, and are compiled as users' programs are; so are all in `make test-all`.
    """
    fast = jax.config.read("jax_disable_most_optimizations")
    optimised = request.node.get_closest_marker("optimised") is not None
    jax.config.update("jax_disable_most_optimizations", fast and not optimised)
    yield
    jax.config.update("jax_disable_most_optimizations", fast)
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
