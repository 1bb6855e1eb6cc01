"""Policy for every test: double precision, warnings are errors (pyproject), and compiled code that is let go of."""

import gc
import os
import shutil
import signal

# Test files, both workers and the commands that they start compile much the same: what took long is kept on disk. Read
# by jax when it is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.abspath(".pytest_cache/compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as commands do; read by NumPy

import jax
import numpy as np
import pytest

import attnrisk  # noqa: F401 -- switches double precision on


def pytest_collection_finish():
    """Tracing makes many objects, few of them garbage: look for it less often, and not among the modules imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Under `make test` compile with few optimisations, which takes a quarter of the time.

    Tests marked `optimised`, which run for longer than they compile, are compiled with the optimisations that are left
    by `XLA_FLAGS`.
    `make test-all` leaves all settings of the compiler as users have them.
    """
    fast = jax.config.read("jax_disable_most_optimizations")
    optimised = item.get_closest_marker("optimised") is not None
    jax.config.update("jax_disable_most_optimizations", fast and not optimised)
    try:
        return (yield)
    finally:
        jax.config.update("jax_disable_most_optimizations", fast)


@pytest.fixture(autouse=True, scope="module")
def _release_compiled_code():
    """Each module compiles its own rules; kept together they would fill the memory."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True, scope="session")
def _interrupts():
    """In the background of a script SIGINT is ignored, also by the commands that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests of a process: Playwright cannot be started twice."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()
