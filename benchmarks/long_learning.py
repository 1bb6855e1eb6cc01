"""Learning curves of long sequences with tuned ridges, `ν = 4 log L`: the data of `attnrisk figure samples`.

`python -m benchmarks.long_learning FILE [SECONDS]` starts a process for each curve or part of one and appends a line to
the file for each point; with `FILE LENGTH ATTENTION LOG2_POINTS ALPHAS` it is one of them. They
need jax, equinox, jaxtyping and scipy alone.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SIGNAL = 4.0  # c of ν = c log L

JOBS = [
    (10, "softmax", 8, "8,4,3,2,1.5,1,0.7"),
    (10, "erf", 8, "16,8,6,4,3,2,1.5,1"),
    (10, "linear", 8, "64,32,16,8,6,4,3,2"),
    (100, "softmax", 6, "8,4,3"),
    (100, "softmax", 6, "2,1.5,1"),
    (100, "erf", 6, "32,16,12"),
    (100, "erf", 6, "8,6,4"),
    (100, "linear", 5, "64,16"),
    (1000, "softmax", 4, "6"),
    (1000, "softmax", 4, "4"),
    (1000, "softmax", 4, "3"),
    (1000, "softmax", 4, "2"),
    (1000, "erf", 4, "64"),
    (1000, "erf", 4, "32"),
    (1000, "erf", 4, "16"),
    (1000, "erf", 4, "8"),
]


def curve(out: Path, length: int, name: str, log2_points: int, alphas: list[float]) -> None:
    """From many data to few, each point from the ridges of the one before."""
    import numpy as np

    import attnrisk as ar

    task, ridge = ar.SpikedSLR(SIGNAL * np.log(length), length), None
    for alpha in alphas:
        begun = time.perf_counter()
        attention = ar.get_attention(name)
        found = ar.tuned_erm_asymptotics(task, attention, alpha, 0, log2_points, ridge)
        ridge = found.ridge if found.converged else None
        row = {
            **{"length": length, "attention": name, "log2_points": log2_points, "alpha": alpha},
            **{"risk": float(found.test_risk), "error": float(found.test_risk.error)},
            **{"ridge_k": float(found.ridge.k), "ridge_v": float(found.ridge.v)},
            **{"bias": found.bias and float(found.bias), "result": str(found.result)},
            **{"warning": found.warning, "seconds": round(time.perf_counter() - begun, 1)},
        }
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def run(out: Path, seconds: float) -> None:
    """All curves, each in a process of its own."""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    alone = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "benchmarks.long_learning", str(out)]
    started = [subprocess.Popen([*command, *map(str, job)], env=os.environ | alone) for job in JOBS]
    end = time.monotonic() + seconds
    for process in started:
        try:
            process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        words = sys.argv[1:]
        numbers = [float(each) for each in words[4].split(",")]
        curve(Path(words[0]), int(words[1]), words[2], int(words[3]), numbers)
    else:
        run(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e6)
