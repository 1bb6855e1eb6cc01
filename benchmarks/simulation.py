"""Simulations: passes over the data against bare matrix products, and fits against SciPy.

`python -m benchmarks.simulation --device gpu` measures the size of the paper on an accelerator instead.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.simulation.erm import TOLERANCE, default_starts, objective
from benchmarks.population import Row

TASK, RIDGE, ATTENTION = ar.SpikedSLR(2.0, 3), ar.Ridge(1.0, 1.0), ar.Softmax()
TURNS = 20  # of a loop on an accelerator
N, DIM = 4000, 2000  # 192 MB in double precision: far more than a cache holds


def seconds(function: Callable[[], Any], repeats: int = 9) -> float:
    """The least time of a call, after one to compile: others on the machine only add to it."""
    jax.block_until_ready(function())
    return min(timed(function)[0] for _ in range(repeats))


def first_points(data: ar.Dataset, starts: int) -> Any:
    """Where fits start."""
    return jnp.stack(list(default_starts(data, ATTENTION).values())[:starts])


def evaluation(data: ar.Dataset, starts: int) -> Callable[[], Any]:
    """The objective and its gradient, ready to call."""
    points = first_points(data, starts)
    arrays = data.traceable(), as_arrays(ATTENTION), as_arrays(RIDGE)
    return lambda: objective(*arrays, points)


def products(rows: np.ndarray, columns: int) -> float:
    """Seconds of `X W` and `Xᵀ G` by the fastest of NumPy (at once, or column by column) and XLA."""
    rng = np.random.default_rng(0)
    right = rng.normal(size=(rows.shape[1], columns)).astype(rows.dtype)
    left = rng.normal(size=(rows.shape[0], columns)).astype(rows.dtype)
    held = jnp.asarray(rows)
    forward = [lambda: rows @ right, lambda: [rows @ column for column in right.T]]
    back = [lambda: rows.T @ left, lambda: left.T @ rows, lambda: [c @ rows for c in left.T]]
    for precise in (jax.jit(lambda x, w: x @ w), jax.jit(lambda x, w: (w.T @ x.T).T)):
        forward.append(lambda precise=precise: precise(held, jnp.asarray(right)))
    for precise in (jax.jit(lambda x, g: x.T @ g), jax.jit(lambda x, g: g.T @ x)):
        back.append(lambda precise=precise: precise(held, jnp.asarray(left)))
    return min(map(seconds, forward)) + min(map(seconds, back))


def plain_numpy(data: ar.Dataset) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """The objective as one would write it for SciPy."""
    tokens, labels = (np.asarray(leaf) for leaf in (data.groups[0].tokens, data.groups[0].labels))
    rows = tokens.reshape(-1, data.dim)
    labels = labels.ravel()
    root = np.sqrt(data.dim)

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        k, v = flat.reshape(2, -1)
        chi, z = (
            (rows @ vector.astype(rows.dtype)).reshape(labels.size, -1) / root for vector in (k, v)
        )
        phi = np.exp(chi - chi.max(1, keepdims=True))
        sigma = phi / phi.sum(1, keepdims=True)
        mean = np.sum(sigma * z, 1)
        off = mean - labels
        by_chi = off[:, None] * sigma * (z - mean[:, None]) / root
        by_z = off[:, None] * sigma / root
        by_k, by_v = (by.ravel().astype(rows.dtype) @ rows for by in (by_chi, by_z))
        value = 0.5 * (off @ off + RIDGE.k * k @ k + RIDGE.v * v @ v)
        return value, np.concatenate([by_k + RIDGE.k * k, by_v + RIDGE.v * v]).astype(float)

    return value_and_gradient


def compiled(data: ar.Dataset) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """The objective that `fit_erm` minimises, for SciPy."""
    arrays = data.traceable(), as_arrays(ATTENTION), as_arrays(RIDGE)

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, (gradient, _) = objective(*arrays, jnp.asarray(flat).reshape(1, -1, data.dim))
        return float(value[0]), np.asarray(gradient).ravel()

    return value_and_gradient


def scipy_fit(data: ar.Dataset, function: Callable[[np.ndarray], Any]) -> tuple[float, int]:
    """The lowest objective that L-BFGS-B finds from the same starts, to the same norm of the gradient, and how many
    evaluations it takes."""
    least = TOLERANCE[data.precision] * np.linalg.norm(np.asarray(data.groups[0].labels))
    norms: dict[bytes, float] = {}
    found = []

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(flat)
        norms[flat.tobytes()] = float(np.linalg.norm(gradient))
        return value, gradient

    def stop(intermediate_result: Any) -> None:
        if norms[intermediate_result.x.tobytes()] <= least:
            raise StopIteration

    options = {"gtol": 0.0, "ftol": 0.0, "maxiter": 2000}
    for start in default_starts(data, ATTENTION).values():
        flat = np.asarray(start).ravel()
        run = minimize(evaluate, flat, jac=True, method="L-BFGS-B", options=options, callback=stop)
        found.append((run.fun / data.dim, run.nfev))
    return min(value for value, _ in found), sum(count for _, count in found)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and what it returned; on one core its own seconds, not those it waits for others."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    start = clock()
    found = jax.block_until_ready(function())
    return clock() - start, found


def peak_memory() -> float:
    """The most memory that drawing and fitting take, over that of the data; in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulation", "--peak"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(ran.stdout)["ratio"])


def print_peak() -> None:
    """For the process of `peak_memory`: above what the interpreter and compiled code take."""
    small = ar.sample(TASK, jax.random.key(0), 20, 10)
    ar.fit_erm(small, ATTENTION, RIDGE)
    before = _resident("VmRSS")
    data = ar.sample(TASK, jax.random.key(0), 2 * N, DIM)
    ar.fit_erm(data, ATTENTION, RIDGE)
    print(json.dumps({"ratio": (_resident("VmHWM") - before) / data.nbytes}))


def _resident(name: str) -> int:
    """Bytes in memory now, or at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(name))
    return 1024 * int(line.split()[1])


def rows() -> list[Row]:
    """What is measured on a processor."""
    found = []
    for precision in ("float32", "float64"):
        data = ar.sample(TASK, jax.random.key(0), N, DIM, precision)
        bare = products(np.asarray(data.groups[0].tokens).reshape(-1, DIM), 2)
        one, two = (seconds(evaluation(data, starts)) for starts in (1, 2))
        found += [
            Row(
                f"X[k v] and Xᵀg alone, {precision}, 3·{N} × {DIM}",
                f"{1e3 * bare:.1f} ms",
                "",
                True,
            ),
            _ratio(f"objective and gradient, {precision}", one / bare, 1.3),
            Row("the same from two starts at once", f"{1e3 * two:.1f} ms", "", True),
        ]
    fit = ar.fit_erm(data, ATTENTION, RIDGE)
    ours = seconds(lambda: ar.fit_erm(data, ATTENTION, RIDGE), 5)
    label = f"fit, two starts, {fit.evaluations} evaluations, float64"
    found.append(Row(label, f"{ours:.2f} s", "", True))
    # Below 1.2 our own L-BFGS would not be worth its lines.
    for name, function, bar in (
        ("SciPy's L-BFGS-B on NumPy", plain_numpy(data), 3.0),
        ("SciPy's L-BFGS-B on our objective", compiled(data), 1.2),
    ):
        value, count = scipy_fit(data, function)
        ratio = seconds(lambda: scipy_fit(data, function), 5) / ours  # noqa: B023
        off = abs(fit.objective - value) / value
        found += [
            Row(
                f"{name}, {count} evaluations, over ours",
                f"{ratio:.1f}×",
                f"≥ {bar:g}×",
                ratio >= bar,
            ),
            Row("difference of their objectives, relative", f"{off:.0e}", "≤ 1e-8", off <= 1e-8),
        ]
    memory = peak_memory()
    return [*found, Row("peak memory over data", f"{memory:.2f}×", "≤ 1.3×", memory <= 1.3)]


def _ratio(what: str, ratio: float, most: float) -> Row:
    return Row(what, f"{ratio:.2f}× that", f"≤ {most}×", ratio <= most)


# On an accelerator.


def single_of(data: ar.Dataset) -> ar.Dataset:
    """The same tokens, rounded to single precision."""
    groups = tuple(
        eqx.tree_at(lambda group: group.tokens, group, group.tokens.astype(jnp.float32))
        for group in data.groups
    )
    return ar.Dataset(data.task, data.teacher, groups, "float32")


def print_device(n: int, dim: int) -> None:
    """Generation, evaluation and fit at the size of the paper, and what single precision costs."""
    print(f"{jax.devices()[0]}, jax {jax.__version__}, N = {n}, D = {dim}, L = 3", flush=True)
    double = ar.sample(TASK, jax.random.key(0), n, dim)
    single = single_of(double)
    tokens, size = single.groups[0].tokens, single.nbytes
    copied = seconds(lambda: jnp.copy(tokens), 20)
    looped = seconds(lambda: _many_copies(tokens), 9) / TURNS
    bandwidth = 2 * size / looped
    print(f"one copy, {1e3 * copied:.3f} ms, {2 * size / copied / 1e9:.0f} GB/s", flush=True)
    print(f"copies in a loop, {1e3 * looped:.3f} ms each, {bandwidth / 1e9:.0f} GB/s", flush=True)
    exact = _value_and_slope(evaluation(double, 2)())
    _print_evaluation(single, exact, bandwidth)
    best = _print_fit("float64", double)
    found = _print_fit("float32", single)
    cost = abs(found.objective - best.objective) / best.objective
    moved = max(
        abs(a - b)
        for a, b in zip(
            found.overlaps.as_dict().values(), best.overlaps.as_dict().values(), strict=True
        )
    )
    print(f"float32 moves the objective by {cost:.1e} (relative), overlaps by {moved:.1e}")
    del double, single, tokens
    _print_whole(n, dim)


@jax.jit
def _many_copies(tokens: Any) -> Any:
    """Each has to read and to write all, since the next reads what it wrote."""
    return jax.lax.fori_loop(0, TURNS, lambda _, held: held + 1.0, tokens)


@eqx.filter_jit
def _many_evaluations(arrays: Any, points: Any) -> Any:
    """Each at another point, where the last gradient leads."""
    return jax.lax.fori_loop(
        0, TURNS, lambda _, points: points - 1e-6 * objective(*arrays, points)[1][0], points
    )


def _value_and_slope(found: Any) -> list[np.ndarray]:
    """The objective and its gradient in the vectors; there is no learned bias."""
    value, (gradient, _) = found
    return [np.asarray(value), np.asarray(gradient)]


def _print_evaluation(data: ar.Dataset, exact: list[np.ndarray], bandwidth: float) -> None:
    """One call waits for the host; in a loop, as the copies, the card alone is measured."""
    arrays = data.traceable(), as_arrays(ATTENTION), as_arrays(RIDGE)
    for starts in (1, 2):
        call = evaluation(data, starts)
        value, gradient = _value_and_slope(call())
        alone = seconds(call, 20)
        points = first_points(data, starts)
        spent = seconds(lambda: _many_evaluations(arrays, points), 9) / TURNS  # noqa: B023
        rate = 2 * data.nbytes / spent
        off = np.abs(value / exact[0][:starts] - 1).max()
        slope = np.linalg.norm(gradient - exact[1][:starts]) / np.linalg.norm(exact[1][:starts])
        print(
            f"objective and gradient, {starts} start(s): one call {1e3 * alone:.3f} ms; "
            f"in a loop {1e3 * spent:.3f} ms, "
            f"{rate / 1e9:.0f} GB/s, {rate / bandwidth:.0%} of copies; objective {off:.0e}, gradient {slope:.0e} off",
            flush=True,
        )


def _print_fit(name: str, data: ar.Dataset) -> ar.ERMFit:
    ar.fit_erm(data, ATTENTION, RIDGE)
    spent, fit = timed(lambda: ar.fit_erm(data, ATTENTION, RIDGE))
    print(
        f"fit {name}: {spent:.3f} s, {fit.evaluations} evaluations, {fit.result}, objective "
        f"{fit.objective:.12g}, gradient {fit.gradient_norm:.1e}",
        flush=True,
    )
    return fit


def _print_whole(n: int, dim: int) -> None:
    """Generation and fit once compiled, single precision."""
    for seed in (1, 2):
        drawn, data = timed(lambda: ar.sample(TASK, jax.random.key(seed), n, dim, "float32"))  # noqa: B023
        fitted, fit = timed(lambda: ar.fit_erm(data, ATTENTION, RIDGE))  # noqa: B023
        risk, _ = timed(lambda: fit.test_risk)  # noqa: B023
        total = drawn + fitted
        print(
            f"generation {drawn:.3f} s, fit {fitted:.3f} s, together {total:.3f} s (bar 1.5 s once "
            f"compiled{', compiling now' if seed == 1 else ''}); test risk {risk:.3f} s",
            flush=True,
        )
        del data


def main() -> None:
    """The accelerator, or the peak of memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=5_000)
    parser.add_argument("--peak", action="store_true")
    given = parser.parse_args()
    if given.peak:
        print_peak()
    elif given.device == "gpu":
        print_device(given.n, given.dim)
    else:
        for row in rows():
            print(*row, sep=" | ")


if __name__ == "__main__":
    main()
