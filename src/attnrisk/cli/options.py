"""The options that commands share, and what their words mean to the library.

Numbers stay words until the library reads them, so that it refuses a bad one as it does in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..attention import AbstractAttention
    from ..population import Overlaps
    from ..tasks import MaxSLR, SpikedSLR

INTERRUPTED = 130  # the exit code of a process that Ctrl-C ended

Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A running Dask scheduler, as tcp://host:8786, whose workers compute in place of this machine.",
        show_default=False,
    ),
]
StorePlace = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FILE",
        help="Where the answers are kept; if not given, in the data folder of the user.",
        show_default=False,
    ),
]
TaskName = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="spiked|max",
        help="spiked: the relevant token is shifted. max: it is the one most aligned with k*.",
    ),
]
Nu = Annotated[
    str,
    typer.Option(
        metavar="NUMBER",
        help="How clearly the relevant token stands out: ν ≥ 0; for max also inf.",
    ),
]
Length = Annotated[
    str,
    typer.Option(
        metavar="LAW",
        help="Tokens in a sequence: 10, or 1-3 (each as likely), or 1:0.25,8:0.75.",
    ),
]
Noise = Annotated[
    str,
    typer.Option(metavar="NUMBER", help="Standard deviation of the label noise, Δ ≥ 0."),
]
Spread = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Standard deviation γ > 0 of the relevant token, spiked only; 1 if not given.",
        show_default=False,
    ),
]
Alpha = Annotated[
    str,
    typer.Option(
        metavar="NUMBER",
        help="Sequences to learn from, per dimension: α = N/D > 0.",
        show_default=False,
    ),
]
Attentions = Annotated[
    list[str],
    typer.Option(
        "--attention",
        metavar="NAME",
        help="A name that `attnrisk attentions` lists, several of them (repeat, or a,b), or all.",
    ),
]
AttentionName = Annotated[
    str,
    typer.Option("--attention", metavar="NAME", help="A name that `attnrisk attentions` lists."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object in place of a table.")]


def _overlap(meaning: str) -> Any:
    return typer.Option(
        metavar="NUMBER",
        help=meaning,
        show_default=False,
        rich_help_panel="Overlaps: give any to look, or to start, there; those left out are 0",
    )


MKk = Annotated[str | None, _overlap("k·k*/D")]
MKv = Annotated[str | None, _overlap("k·v*/D")]
MVk = Annotated[str | None, _overlap("v·k*/D")]
MVv = Annotated[str | None, _overlap("v·v*/D")]
QKk = Annotated[str | None, _overlap("k·k/D")]
QKv = Annotated[str | None, _overlap("k·v/D")]
QVv = Annotated[str | None, _overlap("v·v/D")]


def read_task(
    name: str, nu: str, length: str, noise: str, spread: str | None
) -> SpikedSLR | MaxSLR:
    """The task that the options describe."""
    from .._check import one_of, refuse
    from ..tasks import TASKS, SpikedSLR, parse_lengths

    kind = TASKS[one_of("task", name, TASKS)]
    law = parse_lengths(length)
    if spread is None:
        return kind(nu, law, noise)
    if kind is not SpikedSLR:
        raise refuse("spread", spread, f"left out where the task is {name}")
    return SpikedSLR(nu, law, noise, spread)


def read_whole(name: str, word: str, least: int, most: int) -> int:
    """A whole number in this range."""
    from .._check import refuse

    allowed = f"a whole number from {least} to {most}"
    try:
        number = int(word)
    except ValueError:
        raise refuse(name, repr(word), allowed) from None
    if not least <= number <= most:
        raise refuse(name, number, allowed)
    return number


def read_overlaps(given: dict[str, str | None]) -> Overlaps | None:
    """The overlaps, or `None` where no one was given."""
    from .._check import real
    from ..population import Overlaps

    numbers = {name: real(name, word) for name, word in given.items() if word is not None}
    return Overlaps(**numbers) if numbers else None


def read_attentions(
    words: Iterable[str], suited: Callable[[AbstractAttention], bool] = lambda attention: True
) -> list[AbstractAttention]:
    """The attentions named, each once, in the order given; `all` stands for those that are suited."""
    from ..attention import CATALOGUE, get_attention

    names = [name.strip() for word in words for name in word.split(",")]
    every = [name for name in CATALOGUE if suited(get_attention(name))] if "all" in names else []
    listed = [one for name in names for one in (every if name == "all" else [name])]
    return [get_attention(name) for name in dict.fromkeys(listed)]
