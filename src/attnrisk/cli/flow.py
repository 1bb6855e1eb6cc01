"""`attnrisk flow`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .options import (
    AttentionName,
    Json,
    Length,
    MKk,
    MKv,
    MVk,
    MVv,
    Noise,
    Nu,
    QKk,
    QKv,
    QVv,
    Spread,
    TaskName,
    read_overlaps,
    read_task,
    read_whole,
)
from .output import (
    facts,
    print_json,
    print_rich,
    significant,
    table,
    task_fields,
    task_words,
    with_error,
)
from .progress import working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .._results import Estimate
    from ..attention import AbstractAttention
    from ..flow.flow import Flow
    from ..population import Overlaps
    from ..tasks import AbstractTask

_FIRST = 1e-2  # time of the first record after the start: what moves sooner hardly moves the risk
_PER_DECADE = 3
_DIGITS = 8  # of a risk in a table
_MOST_RUNS, _LARGEST_SEED = 10_000, 2**32 - 1

_WHY = {
    "converged": "converged: the gradient vanished",
    "time over": "NOT CONVERGED: it was still moving when the time was over",
    "left the domain": "NOT CONVERGED: |k| grew beyond the lengths that are followed",
}
_STARTS = ("random", "mismatched")
_TEACHER = ("m_kk", "m_kv", "m_vk", "m_vv")
_ALL = (*_TEACHER, "R_kk", "R_kv", "R_vv")

Runs = Annotated[
    str,
    typer.Option(metavar="NUMBER", help="How many starts; for several, a line for each."),
]
Start = Annotated[
    str | None,
    typer.Option(
        metavar="random|mismatched",
        help="random (if not given): k and v near 0. mismatched: k near v*, v near k*.",
        show_default=False,
    ),
]
Size = Annotated[
    str,
    typer.Option(metavar="NUMBER", help="Standard deviation of each component of a start, η > 0."),
]
Seed = Annotated[
    str, typer.Option(metavar="NUMBER", help="A whole number, for other random starts.")
]
Time = Annotated[str, typer.Option(metavar="NUMBER", help="How long to follow the flow, > 0.")]


class Moment(NamedTuple):
    """A point of a path."""

    time: float
    risk: Estimate
    overlaps: Overlaps
    bias: float | None
    gradient_norm: float


class Run(NamedTuple):
    """A path up to where it stopped, which is its last moment, and why it stopped."""

    result: str
    path: list[Moment]

    @property
    def end(self) -> Moment:
        """Where it stopped."""
        return self.path[-1]

    @property
    def converged(self) -> bool:
        """Whether it came to rest."""
        return self.result == "converged"


def flow(
    task: TaskName = "spiked",
    nu: Nu = "2",
    length: Length = "10",
    noise: Noise = "0",
    spread: Spread = None,
    attention: AttentionName = "softmax",
    runs: Runs = "1",
    start: Start = None,
    size: Size = "0.1",
    seed: Seed = "0",
    time: Time = "1e5",
    m_kk: MKk = None,
    m_kv: MKv = None,
    m_vk: MVk = None,
    m_vv: MVv = None,
    q_kk: QKk = None,
    q_kv: QKv = None,
    q_vv: QVv = None,
    as_json: Json = False,
) -> None:
    """Where training with infinite data leads: gradient flow of the population risk on k and v.

    Example: attnrisk flow --nu 2 --attention softmax --start mismatched --runs 5
    """
    given = {
        "m_kk": m_kk,
        "m_kv": m_kv,
        "m_vk": m_vk,
        "m_vv": m_vv,
        "q_kk": q_kk,
        "q_kv": q_kv,
        "q_vv": q_vv,
    }
    with working("gradient flow"):
        from ..attention import get_attention as named
        from ..flow.flow import gradient_flow

        problem = read_task(task, nu, length, noise, spread)
        student = named(attention)
        times = _read_times(time)
        starts = _read_starts(read_overlaps(given), start, runs, size, seed)
        found = _runs(gradient_flow(problem, student, starts, times), student)
    if as_json:
        _print_fields(problem, attention, found)
        return
    title = f"{attention} on the {task_words(problem)}"
    if len(found) == 1:
        print_rich(*(_path_table(title, found[0], names) for names in (_ALL, _TEACHER)))
        print_rich(_panel(title, found[0]))
    else:
        print_rich(*(_runs_table(title, found, names) for names in (_ALL, _TEACHER)))


def _read_times(word: str) -> list[float]:
    """The start, then as many times a decade up to the end."""
    from .._check import real

    end = real("time", word, above=0.0)
    first = min(_FIRST, end / 10)
    steps = math.ceil(_PER_DECADE * math.log10(end / first))
    return [0.0, *(end * 10 ** (-step / _PER_DECADE) for step in range(steps, -1, -1))]


def _read_starts(
    overlaps: Overlaps | None, start: str | None, runs: str, size: str, seed: str
) -> Overlaps:
    """One start for each run."""
    import jax
    import numpy as np

    from .._check import one_of, real, refuse
    from ..flow.flow import random_starts

    count = read_whole("runs", runs, 1, _MOST_RUNS)
    key = jax.random.key(read_whole("seed", seed, 0, _LARGEST_SEED))
    if overlaps is None:
        start = one_of("start", start or _STARTS[0], _STARTS)
        around = random_starts(key, count, real("size", size, above=0.0))
        return around if start == "random" else _around_swapped(around)
    if start is not None:
        raise refuse("start", repr(start), "left out where overlaps are given")
    if count != 1:
        raise refuse("runs", count, "1 where overlaps are given")
    return jax.tree.map(np.atleast_1d, overlaps)


def _around_swapped(around: Overlaps) -> Overlaps:
    """The same components, around `k = v*`, `v = k*` in place of zero."""
    import jax
    import jax.numpy as jnp

    from ..population.overlaps import overlaps_of, vectors_of

    swapped = jnp.eye(2, 4)[::-1]
    return jax.vmap(lambda one: overlaps_of(swapped + vectors_of(one)))(around)


def _runs(flow: Flow, attention: AbstractAttention) -> list[Run]:
    biased = attention.free_bias
    return [_run(flow, run, biased) for run in range(len(flow.result))]


def _run(flow: Flow, run: int, biased: bool) -> Run:
    end_time = float(flow.end_time[run])
    before = [column for column, time in enumerate(flow.times) if time < end_time]
    path = [_moment(flow, run, column, biased) for column in before]
    end = _moment(flow, run, -1, biased)._replace(time=end_time)
    return Run(str(flow.result[run]), [*path, end])


def _moment(flow: Flow, run: int, column: int, biased: bool) -> Moment:
    import jax

    here = run, column
    risk, overlaps = jax.tree.map(lambda leaf: leaf[here], (flow.risk, flow.overlaps))
    return Moment(
        time=float(flow.times[column]),
        risk=risk,
        overlaps=overlaps,
        bias=float(flow.bias[here]) if biased else None,
        gradient_norm=float(flow.gradient_norm[here]),
    )


def _print_fields(task: AbstractTask, attention: str, runs: list[Run]) -> None:
    common = {"attention": attention, "task": task_fields(task)}
    fields = [_fields(run) for run in runs]
    print_json((fields[0] if len(fields) == 1 else {"runs": fields}) | common)


def _fields(run: Run) -> dict[str, Any]:
    path = [_moment_fields(moment) for moment in run.path]
    return {"result": run.result, "converged": run.converged} | path[-1] | {"path": path}


def _moment_fields(moment: Moment) -> dict[str, Any]:
    return {
        "time": moment.time,
        "risk": float(moment.risk.value),
        "risk_error": float(moment.risk.error),
        "overlaps": moment.overlaps.as_dict(),
        "bias": moment.bias,
        "gradient_norm": moment.gradient_norm,
    }


def _path_table(title: str, run: Run, names: Sequence[str]) -> RenderableType:
    rows = table(f"Gradient flow, {title}", "time", "risk", *names, "gradient")
    for moment in run.path:
        rows.add_row(*_cells(moment, names), f"{moment.gradient_norm:.1g}")
    return rows


def _runs_table(title: str, runs: list[Run], names: Sequence[str]) -> RenderableType:
    rows = table(f"Ends of gradient flow, {title}", "time", "risk", *names, "result")
    for run in runs:
        rows.add_row(*_cells(run.end, names), run.result if run.converged else f"! {run.result}")
    moving = sum(not run.converged for run in runs)
    if moving:
        rows.caption = f"! NOT CONVERGED: {moving} of {len(runs)} runs"
        rows.caption_justify = "left"
    return rows


def _cells(moment: Moment, names: Sequence[str]) -> list[str]:
    """Time, risk, and the overlaps and residuals of these names."""
    (r_kk, r_kv), (_, r_vv) = moment.overlaps.residual
    numbers = moment.overlaps.as_dict() | {"R_kk": r_kk, "R_kv": r_kv, "R_vv": r_vv}
    time = f"{float(f'{moment.time:.3g}'):g}"  # 1250, where three digits alone would be 1.25e+03
    return [time, significant(moment.risk, _DIGITS), *(f"{numbers[name]:z.3f}" for name in names)]


def _panel(title: str, run: Run) -> RenderableType:
    end = run.end
    numbers = [f"{name} = {number:z.6f}" for name, number in end.overlaps.as_dict().items()]
    rows = {
        "result": _WHY[run.result],
        "time": f"{end.time:.6g}",
        "risk": with_error(end.risk),
        "gradient": f"{end.gradient_norm:.1g}",
        "overlaps": ", ".join(numbers[:4]),
        "": ", ".join(numbers[4:]),
    }
    if end.bias is not None:
        rows["bias"] = f"{end.bias:.8g}"
    return facts(f"End of the flow, {title}", rows)
