"""Compiled code, on disk and in memory: most of the time of a first call is compilation.

JAX's persistent compilation cache, in the cache folder of the user. Entries are keyed by JAX by the program, its
versions and its flags; the folder also by the processor, for which XLA compiles.
"""

import hashlib
import os
import platform
import sys
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

VARIABLE = "ATTNRISK_COMPILE_CACHE"  # a folder, or "off"
_LARGEST = 2**29  # bytes; the entries that were not used for longest are removed
_LEAST_SECONDS = 0.02  # of compilation, for an entry
_LOCK_SECONDS = 5.0
# XLA's older generator of fused loops: programs as fast, in two thirds of the time for compilation. XLA ends a program
# at a flag that it does not know, so only versions of jaxlib that were tried get it.
_QUICK_FLAG, _QUICK_VERSIONS = "xla_cpu_use_fusion_emitters", ("0.10.",)
# Compiled code takes many mappings of memory, some 300 for the search of a minimum. Where Linux allows no more of them,
# LLVM ends the process.
_MAPPINGS, _MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SHARE = 0.5  # of the mappings allowed


def enable_compile_cache() -> Path | None:
    """Cache compiled code on disk between runs.

    The command line does this for every command. If `JAX_COMPILATION_CACHE_DIR` is set, JAX's own settings are kept.

    Returns:
        The cache folder; `None` if caching is switched off (`ATTNRISK_COMPILE_CACHE=off`) or the folder cannot be
        written.
    """
    given = os.environ.get(VARIABLE, "")
    if given.lower() in ("off", "0", "no", "false"):
        return None
    folder = _folder(given)
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        return None  # XLA takes names in UTF-8 only
    if os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder)) != str(folder):
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_unfinished(folder)
    except OSError:
        return None
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": _LARGEST,
        "jax_persistent_cache_min_compile_time_secs": _LEAST_SECONDS,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache entry")
    for name, value in settings.items():
        if name.upper() in os.environ:
            continue
        os.environ[name.upper()] = str(value)  # for JAX when it is imported, and for workers
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)
    return folder


def compile_quickly() -> None:
    """Prefer short compilation on CPUs, if JAX is not imported yet and `XLA_FLAGS` does not decide it.

    The command line does this for every command.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    is_known = version("jaxlib").startswith(_QUICK_VERSIONS)
    if is_known and "jax" not in sys.modules and _QUICK_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_QUICK_FLAG}=false".strip()


def release_compiled_code() -> None:
    """Let go of all compiled code in memory, in a process that is near the limit of memory mappings."""
    with suppress(OSError, ValueError):
        most = int(_MOST_MAPPINGS.read_text(encoding="ascii"))
        with _MAPPINGS.open("rb") as mappings:
            used = sum(1 for _ in mappings)
        if used > _SHARE * most:
            import jax

            jax.clear_caches()


def _folder(given: str) -> Path:
    if given:
        base = Path(given).expanduser()
    else:
        from platformdirs import user_cache_path

        base = user_cache_path("attnrisk", appauthor=False) / "compiled"
    flags = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    machine = f"{platform.machine()} {platform.processor()} {flags}"
    key = hashlib.sha256(machine.encode()).hexdigest()[:8]
    return base / f"jax-{version('jax')}-{version('jaxlib')}-{key}"


def _remove_unfinished(folder: Path) -> None:
    """Remove incomplete entries of a killed process: those without an access time, which is written last."""
    from filelock import FileLock, Timeout

    with suppress(Timeout), FileLock(folder / ".lockfile", timeout=_LOCK_SECONDS):
        for entry in folder.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").exists():
                entry.unlink()
