"""Compiled code between runs: kept, shared, bounded, and never in the way."""

import json
import os
import shutil
import subprocess
import sys

import jax
import pytest

from attnrisk import _compile_cache
from attnrisk._compile_cache import (
    VARIABLE,
    compile_quickly,
    enable_compile_cache,
    release_compiled_code,
)

RISK = """
import json, sys
from attnrisk._compile_cache import enable_compile_cache
folder = enable_compile_cache()
import jax
counts = {"hits": 0, "misses": 0}
def count(event, **_):
    for name in counts:
        counts[name] += event == f"/jax/compilation_cache/cache_{name}"
jax.monitoring.register_event_listener(count)
import attnrisk as ar
found = ar.population_risk(ar.SpikedSLR(2.0, 3), ar.Erf(), ar.aligned(0.9))
print(json.dumps({"risk": float(found), "folder": str(folder), **counts}))
"""


def _start(place):
    """As users start it, compiled in full; what is compiled in no time is kept too, on a machine of any speed."""
    foreign = "CACHE", "OPTIMIZATIONS"
    kept = {key: value for key, value in os.environ.items() if not any(w in key for w in foreign)}
    return subprocess.Popen(
        [sys.executable, "-c", RISK],
        env={**kept, VARIABLE: str(place), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert not err
    return json.loads(out)


@pytest.fixture(autouse=True)
def _jax_settings_are_kept(monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder that two processes wrote at once, a copy of it, and the risk that both found."""
    place, copy = (tmp_path_factory.mktemp(name) for name in ("written", "copy"))
    first, second = (_start(place) for _ in range(2))
    (risk,) = {_answer(each)["risk"] for each in (first, second)}
    return place, shutil.copytree(place, copy, dirs_exist_ok=True), risk


@pytest.fixture
def filled(written):
    """The folder as it was written, that of the entries within, and the risk; jax finds nothing in a folder moved."""
    place, copy, risk = written
    shutil.rmtree(place)
    shutil.copytree(copy, place)
    (folder,) = place.iterdir()
    return place, folder, risk


def test_after_two_processes_wrote_at_once_a_third_compiles_nothing(filled):
    place, _, risk = filled
    third = _answer(_start(place))
    assert third["risk"] == risk
    assert third["hits"] > 0
    assert third["misses"] == 0


def test_what_a_killed_process_left_is_compiled_again(filled):
    place, folder, risk = filled
    entries = sorted(folder.glob("*-cache"))
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:100])
        entry.with_name(entry.name.removesuffix("-cache") + "-atime").unlink()
    after = _answer(_start(place))
    assert after["risk"] == risk
    assert after["misses"] > 0
    assert sorted(folder.glob("*-cache")) == entries
    assert min(entry.stat().st_size for entry in entries) > 100


def test_a_damaged_entry_is_passed_over_in_silence(filled):
    place, folder, risk = filled
    for entry in folder.glob("*-cache"):
        entry.write_bytes(b"damaged")
    assert _answer(_start(place))["risk"] == risk


@pytest.mark.parametrize("word", ["off", "0", "OFF"])
def test_it_can_be_switched_off(monkeypatch, word):
    monkeypatch.setenv(VARIABLE, word)
    assert enable_compile_cache() is None


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    found = _answer(_start(tmp_path / "file" / "folder"))
    assert found["folder"] == "None"
    assert found["hits"] == 0


def test_the_settings_of_jax_have_the_say(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert enable_compile_cache() is None


FLAGS = """
import os
from attnrisk._compile_cache import compile_quickly
compile_quickly()
import jax
print(jax.jit(lambda x: 2.0 * x)(1.5), os.environ.get("XLA_FLAGS", ""))
"""


@pytest.mark.parametrize("given", ["", "--xla_cpu_use_fusion_emitters=true"])
def test_commands_compile_quickly_unless_told_otherwise(given):
    environment = {**os.environ, "XLA_FLAGS": given}
    ran = subprocess.run(
        [sys.executable, "-c", FLAGS], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["3.0", given or "--xla_cpu_use_fusion_emitters=false"]


def test_flags_are_left_alone_once_jax_is_imported(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    compile_quickly()
    assert os.environ["XLA_FLAGS"] == ""


@pytest.mark.parametrize(("allowed", "traced"), [("15", 2), ("16", 1), ("", 1)])
def test_compiled_code_is_released_near_the_limit_of_mappings(
    tmp_path, monkeypatch, allowed, traced
):
    """LLVM ends a process that maps more; where no limit can be read there is none."""
    limit, traces = tmp_path / "max_map_count", []
    if allowed:
        limit.write_text(allowed)
    monkeypatch.setattr(_compile_cache, "_MOST_MAPPINGS", limit)
    mappings = tmp_path / "maps"
    mappings.write_text(8 * "0-1 r--p\n")
    monkeypatch.setattr(_compile_cache, "_MAPPINGS", mappings)

    @jax.jit
    def double(x):
        traces.append(x)
        return 2 * x

    for _ in range(2):
        assert double(2.0) == 4.0
        release_compiled_code()
    assert len(traces) == traced
