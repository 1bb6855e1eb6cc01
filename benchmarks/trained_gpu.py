"""Trained models on one GPU: the data of figure 1, the recall benchmark of Arora et al., and a profile of a step.

`python -m benchmarks.trained_gpu figure1|zoology|long-recall|long-training|profile|draw`. The first four append a line
for each training to a CSV file as soon as a model is done, stop when their time is over, and skip what the file has
when they are run again. They need jax, equinox, jaxtyping and optax alone; `draw` makes the pictures of docs/images
from docs/data.
"""

import argparse
import csv
import fcntl
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_COLUMNS = (
    *("task", "attention", "width", "layers", "steps", "batch_size", "length", "pairs"),
    *("vocabulary", "precision", "learning_rate", "seed", "parameters", "accuracy", "loss"),
    *("bits_per_character", "best_accuracy", "validation_accuracy", "validation_loss"),
    *("train_loss", "seconds", "result"),
)


def models(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All models of the command."""
    from attnrisk.trained import (
        figure1_models,
        long_recall_models,
        long_training_models,
        zoology_models,
    )

    match args.what:
        case "figure1":
            return figure1_models(args.quick)
        case "zoology":
            return zoology_models(args.steps)
        case "long-recall":
            return long_recall_models()
        case _:
            return long_training_models()


def run(args: argparse.Namespace) -> None:
    """Share the models among processes: most of the time of a small model is tracing and compilation."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "benchmarks.trained_gpu", *sys.argv[1:], "--until"]
    command += [str(begun + args.seconds)]
    workers = [
        subprocess.Popen([*command, "--worker", str(index)], env=environment)
        for index in range(args.workers)
    ]
    codes = [worker.wait() for worker in workers]
    print(f"{time.time() - begun:.0f} s, exit codes {codes}", flush=True)
    sys.exit(max(codes))


def work(args: argparse.Namespace) -> None:
    """The share of one process."""
    import attnrisk  # noqa: F401 -- switches jax to double precision before it is used
    from attnrisk.trained import train_grid

    def watch(done: int, loss: float) -> None:
        if time.time() > args.until:
            raise KeyboardInterrupt

    for model in models(args)[args.worker :: args.workers]:
        name = f"{model['task']} L={model['length']} width {model['width']} {model['attention']}"
        if time.time() > args.until or is_kept(args.out, model):
            continue
        begun = time.time()
        found = train_grid(model, watch)
        if any(each["result"] == "interrupted" for each in found):
            print(f"{name}: time over", flush=True)
            continue
        seconds = time.time() - begun
        rows = [model | each | {"seconds": seconds / len(found)} for each in found]
        keep(args.out, rows, f"{args.what} --quick" if args.quick else args.what)
        best = min(found, key=lambda each: each["validation_loss"])
        shown = f"accuracy {best['accuracy']:.3f}, loss {best['loss']:.3f}"
        print(f"{name}: {shown} at rate {best['learning_rate']:g}, {seconds:.1f} s", flush=True)


def is_kept(out: Path, model: dict[str, Any]) -> bool:
    """Whether the file has this model already."""
    if not out.is_file():
        return False
    names = ("task", "attention", "width", "length", "steps")
    with out.open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return any(all(row[name] == str(model[name]) for name in names) for row in rows)


def keep(out: Path, rows: list[dict[str, Any]], said: str) -> None:
    """Append lines, one process at a time; the first writes where the file comes from."""
    import jax

    with out.open("a", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table = csv.DictWriter(file, _COLUMNS, extrasaction="ignore", lineterminator="\n")
        if file.tell() == 0:
            file.write(f"# python -m benchmarks.trained_gpu {said}\n")
            file.write(f"# {jax.devices()[0].device_kind}, {datetime.now(UTC):%Y-%m-%d}\n")
            file.write(f"# jax {jax.__version__}, Python {sys.version.split()[0]}\n")
            table.writeheader()
        table.writerows({"layers": 2, "precision": "float32"} | row for row in rows)


def profile(args: argparse.Namespace) -> None:
    """The share of a training step that its matrix products take: each is timed alone, and all are added up."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import attnrisk  # noqa: F401
    from attnrisk.trained import Setting, Text, losses_of, python_documentation

    print(jax.devices()[0].device_kind, f"jax {jax.__version__}", flush=True)
    task = Text(python_documentation(), args.length)
    for attention in args.attention:
        setting = Setting(task, attention, args.width, 4, batch=args.batch, precision="bfloat16")
        model = setting.start(jax.random.key(0))
        parameters, skeleton = eqx.partition(model, eqx.is_inexact_array)
        batch = jax.jit(lambda key: task.batch(key, args.batch))(jax.random.key(1))

        def slopes(parameters: Any, batch: Any, skeleton: Any = skeleton) -> Any:
            return jax.grad(lambda own: losses_of(eqx.combine(own, skeleton), batch)[0])(parameters)

        whole = seconds_of(jax.jit(slopes), parameters, batch)
        products = Counter(_products(jax.make_jaxpr(slopes)(parameters, batch).jaxpr))
        alone = flops = 0.0
        for (left, right, dimensions, precision, kinds), count in products.items():
            keys = jax.random.split(jax.random.key(2))
            given = [
                jax.random.normal(key, shape, jnp.float32).astype(kind)
                for key, shape, kind in zip(keys, (left, right), kinds, strict=True)
            ]

            def product(a: Any, b: Any, dimensions: Any = dimensions, kind: Any = precision) -> Any:
                return jax.lax.dot_general(a, b, dimensions, preferred_element_type=kind)

            alone += count * seconds_of(jax.jit(product), *given)
            shared = 1
            for at in dimensions[0][1] + dimensions[1][1]:
                shared *= right[at]
            rows = columns = 1
            for size in left:
                rows *= size
            for size in right:
                columns *= size
            flops += count * 2.0 * rows * columns / shared
        print(
            f"{attention}, width {args.width}, length {args.length}, batch {args.batch}, 4 layers: step "
            f"{whole * 1e3:.2f} ms, matrix products alone {alone * 1e3:.2f} ms ({alone / whole:.0%}), "
            f"{flops / whole / 1e12:.0f} TFLOP/s",
            flush=True,
        )


def _products(jaxpr: Any) -> list[Any]:
    """Shapes, dimensions and types of all matrix products; those in a loop as often as it turns."""
    found = []
    for each in jaxpr.eqns:
        if each.primitive.name == "dot_general":
            left, right = (variable.aval for variable in each.invars)
            kinds = left.dtype, right.dtype
            dimensions = each.params["dimension_numbers"]
            found.append(
                (left.shape, right.shape, dimensions, each.params["preferred_element_type"], kinds)
            )
        turns = each.params.get("length", 1) if each.primitive.name == "scan" else 1
        for inner in each.params.values():
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found += turns * _products(inner)
    return found


def seconds_of(function: Any, *given: Any) -> float:
    """The time of one call: the shortest of five rounds."""
    import jax

    jax.block_until_ready(function(*given))
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(5):
            found = function(*given)
        jax.block_until_ready(found)
        rounds.append((time.perf_counter() - begun) / 5)
    return min(rounds)


def draw(args: argparse.Namespace) -> None:
    """The pictures of figure 1 and of the prediction from docs/data."""
    from attnrisk._rows import as_csv
    from attnrisk.studies import Session, figures
    from attnrisk.studies.figures import figure1, prediction
    from attnrisk.studies.figures.style import context

    rows, data = figure1.measured(), _ROOT / "docs" / "data"
    longer = figure1.read((data / "long-recall.csv").read_text(encoding="utf-8"))
    predicted = prediction.predicted([*rows, *figure1.with_choices(longer)], Session())
    (data / "prediction.csv").write_text(as_csv(predicted), encoding="utf-8")
    for name, shown in (("1", rows), ("prediction", predicted)):
        with context():
            picture = figures.FIGURES[name].plot(shown)
            picture.savefig(_ROOT / "docs" / "images" / f"{figures.stem_of(name)}.svg")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="what", required=True)
    for name, workers in (("figure1", 6), ("zoology", 4), ("long-recall", 6), ("long-training", 4)):
        command = commands.add_parser(name)
        command.add_argument("--out", type=Path, default=_ROOT / "docs" / "data" / f"{name}.csv")
        command.add_argument("--seconds", type=float, default=540.0)
        command.add_argument("--workers", type=int, default=workers)
        command.add_argument("--quick", action="store_true")
        command.add_argument("--steps", type=int, default=1500)
        command.add_argument("--worker", type=int)
        command.add_argument("--until", type=float)
    command = commands.add_parser("profile")
    command.add_argument("--attention", nargs="+", default=["softmax", "softplus", "linear"])
    command.add_argument("--width", type=int, default=512)
    command.add_argument("--length", type=int, default=1024)
    command.add_argument("--batch", type=int, default=32)
    commands.add_parser("draw")
    args = parser.parse_args()
    if args.what in ("profile", "draw"):
        {"profile": profile, "draw": draw}[args.what](args)
    else:
        (run if args.worker is None else work)(args)


if __name__ == "__main__":
    main()
