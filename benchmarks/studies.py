"""Studies and the command line, as at a terminal: every row starts processes of its own."""

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnrisk as ar
from attnrisk._compile_cache import VARIABLE
from attnrisk.numerics.arrays import as_arrays
from attnrisk.population.plan import light_plan
from attnrisk.studies import Store, Study, read_study, sweep
from benchmarks.population import Row, seconds

POINTS, CALLS, FASTER = 400, 5, 20.0
NU, LENGTHS = {"from": 1, "to": 8, "points": POINTS // 4}, [2, 3, 5, 10]
FIGURE = 120.0  # seconds
BATCH = 8
EXAMPLE = Path(__file__).parents[1] / "examples" / "attentions.toml"
EXAMPLE_SECONDS = 43.0  # what it took with one compiled search for each point of the max task
ON_MAX = 0.3  # seconds of a kernel's minimum on the max task


def _call(*arguments: str) -> float:
    """Seconds of the command line, from its start to its end."""
    command = [sys.executable, "-c", "from attnrisk.cli import main; main()", *arguments]
    begun = time.perf_counter()
    cold = {**os.environ, VARIABLE: "off"}
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=cold)
    return time.perf_counter() - begun


def figure() -> list[Row]:
    """Figure 2, from an empty store."""
    with TemporaryDirectory() as folder:
        store = f"{folder}/answers.sqlite"
        took = _call("figure", "2", "--out", f"{folder}/out", "--store", store)
    return [
        Row("figure 2, from an empty store", f"{took:.0f} s", f"≤ {FIGURE:g} s", took <= FIGURE)
    ]


def one_sweep(study: Study) -> float:
    """Seconds of a sweep in two processes, their start included."""
    begun = time.perf_counter()
    with TemporaryDirectory() as folder, Store(Path(folder) / "answers.sqlite") as store:
        end = sweep(study, store, workers=2)
    if end.done - end.failed != len(study):
        raise RuntimeError(f"{end.failed} of {len(study)} points failed")
    return time.perf_counter() - begun


def one_call() -> float:
    """Seconds of one point asked by the command line, of several, two at a time as on two cores."""
    command = [sys.executable, "-c", "from attnrisk.cli import main; main()", "population"]
    begun = time.perf_counter()
    for call in range(CALLS):
        options = [f"--nu={1 + call}", "--length=10", "--attention=linear", "--json"]
        pair = [subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) for _ in "ab"]
        if any(each.wait() for each in pair):
            raise RuntimeError("the command line failed")
    return (time.perf_counter() - begun) / (2 * CALLS)


def sweeping() -> list[Row]:
    """It needs two cores."""
    linear = Study(question="population", nu=NU, length=LENGTHS, attention="linear")
    swept, called = one_sweep(linear), POINTS * one_call()
    ratio = called / swept
    example = read_study(EXAMPLE)
    took = one_sweep(example)
    return [
        Row(
            f"sweep of {EXAMPLE.name}, {len(example)} points, two processes",
            f"{took:.0f} s",
            f"≤ {EXAMPLE_SECONDS:g} s",
            took <= EXAMPLE_SECONDS,
        ),
        Row(f"sweep of {POINTS} population minima, two processes", f"{swept:.1f} s", "", True),
        Row(
            "as many calls of the command line, two at a time, over the sweep",
            f"{ratio:.0f}×",
            f"≥ {FASTER:g}×",
            ratio >= FASTER,
        ),
    ]


def on_max() -> list[Row]:
    """The points of softmax on the max task in the example, on one core, compilation left out."""
    example = read_study(EXAMPLE)
    tasks = [
        ar.MaxSLR(nu, int(length)) for nu in example.nu or () for length in example.length or ()
    ]
    ar.population_minima(tasks, ar.Softmax())
    begun = time.process_time()
    ar.population_minima(tasks, ar.Softmax())
    each = (time.process_time() - begun) / len(tasks)
    what = f"minimum of softmax on the max task, mean of {len(tasks)}, processor time"
    return [Row(what, f"{each:.2f} s", f"≤ {ON_MAX:g} s", each <= ON_MAX)]


def batching() -> list[Row]:
    """Several points in one call, over one after another."""
    tasks = [ar.SpikedSLR(nu, 10) for nu in np.linspace(4.0, 5.0, BATCH).tolist()]
    found = []
    for attention in (ar.Erf(), ar.Softmax()):
        together = seconds(lambda: ar.population_minima(tasks, attention))  # noqa: B023
        singly = seconds(lambda: [ar.population_minimum(task, attention) for task in tasks])  # noqa: B023
        what = f"{BATCH} minima of {attention.name} singly, over all at once"
        found.append(Row(what, f"{singly / together:.1f}×", "", True))
    return [*found, *_kernels()]


def _kernels() -> list[Row]:
    """One softmax integral at several points: vectorised, over a compiled loop that takes one after another."""
    tasks = [ar.SpikedSLR(nu, 10) for nu in np.linspace(4.0, 5.0, BATCH).tolist()]
    plan = light_plan(tasks[0], ar.Softmax(), 16.0, 0.0, 16.0)
    how, attention = as_arrays((plan, ar.Softmax()))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(as_arrays, tasks))

    def one(task: ar.SpikedSLR) -> jax.Array:
        return jnp.stack(how.profile(task, attention, 2.0))

    vectorised, looped = (
        seconds(partial(eqx.filter_jit(batched(one)), stacked))
        for batched in (jax.vmap, lambda one: partial(jax.lax.map, one))
    )
    what = f"vmap over a compiled loop, one softmax integral at {BATCH} points"
    return [Row(what, f"{vectorised / looped:.1f}×", "", True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batching", action="store_true", required=True, help="on any device")
    parser.parse_args()
    for row in batching():
        print(row.what, row.found, row.bar, sep=" | ")
