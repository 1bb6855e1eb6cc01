"""The options of the commands, each defined once, and the objects that their words stand for.

Numbers stay words until the library reads them, so that it refuses a bad one as it does in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .._check import one_of, real, refuse

if TYPE_CHECKING:
    from ..attention import AbstractAttention
    from ..population import Overlaps
    from ..tasks import AbstractTask

LARGEST, LARGEST_SEED = 10**8, 2**32 - 1
REQUIRED = Parameter.empty


class Options(NamedTuple):
    """What a command takes by this name: parameters on the command line, and how their words are read."""

    name: str
    parameters: tuple[Parameter, ...]
    read: Callable[..., Any]


def _parameter(name: str, default: Any, kind: Any, declared: Any) -> Parameter:
    kind = kind | None if default is None else kind
    annotation: Any = Annotated[kind, declared]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _word(
    name: str, help: str, default: Any, metavar: str = "NUMBER", kind: Any = str, **more: Any
) -> Parameter:
    shown = default not in (None, REQUIRED)
    flag = f"--{name.replace('_', '-')}"
    declared = typer.Option(flag, metavar=metavar, help=help, show_default=shown, **more)
    return _parameter(name, default, kind, declared)


def _one(parameter: Parameter, read: Callable[[Any], Any]) -> Options:
    """What is left out and has no default is `None`."""
    name = parameter.name
    return Options(
        name, (parameter,), lambda **words: None if words[name] is None else read(words[name])
    )


def flag(name: str, help: str) -> Options:
    """An option that is there or not."""
    declared = typer.Option(f"--{name.replace('_', '-')}", metavar="", help=help)
    return _one(_parameter(name, False, bool, declared), bool)


def argument(
    name: str, help: str, metavar: str, default: Any = REQUIRED, read: Callable[[str], Any] = str
) -> Options:
    """A word without a name."""
    declared = typer.Argument(metavar=metavar, help=help, show_default=False)
    return _one(_parameter(name, default, str, declared), read)


def text(
    name: str, help: str, metavar: str, default: Any = None, read: Callable[[str], Any] = str
) -> Options:
    """A word."""
    return _one(_word(name, help, default, metavar), read)


def number(
    name: str,
    help: str,
    default: Any = REQUIRED,
    most: float | None = None,
    below: float | None = None,
    **limits: Any,
) -> Options:
    """A number within the limits of `real`, at most `most` and `below` another."""

    def read(word: str) -> float:
        value = float(real(name, word, **limits if most is None and below is None else {}))
        low, high = limits.get("minimum"), limits.get("above")
        fits = (low is None or value >= low) and (high is None or value > high)
        if fits and (most is None or value <= most) and (below is None or value < below):
            return value
        lowest = f"≥ {low:g}" if high is None else f"> {high:g}"
        highest = f"≤ {most:g}" if below is None else f"< {below:g}"
        raise refuse(name, f"{value:g}", f"a number {lowest} and {highest}")

    return _one(_word(name, help, default), read)


def whole(name: str, help: str, least: int, most: int, default: Any = REQUIRED) -> Options:
    """A whole number in this range."""

    def read(word: str) -> int:
        allowed = f"a whole number from {least} to {most}"
        try:
            value = int(word)
        except ValueError:
            raise refuse(name, repr(word), allowed) from None
        if not least <= value <= most:
            raise refuse(name, word, allowed)
        return value

    return _one(_word(name, help, default), read)


def choice(name: str, help: str, words: Sequence[str], default: str | None) -> Options:
    """One of these words."""
    parameter = _word(name, help, default, "|".join(words))
    return _one(parameter, lambda word: one_of(name, word, words))


def task(nu: str = "5", length: str = "3", spread: bool = True) -> Options:
    """The retrieval task."""
    which = "spiked: the relevant token is shifted. max: it is the one most aligned with k*."
    lengths = "Tokens in a sequence: 10, or 1-3 (each as likely), or 1:0.25,8:0.75."
    deviation = "Standard deviation γ > 0 of the relevant token, spiked only; 1 if not given."
    parameters = (
        _word("task", which, "spiked", "spiked|max"),
        _word("nu", "Signal strength of the relevant token: ν ≥ 0; for max also inf.", nu),
        _word("length", lengths, length, "LAW"),
        _word("noise", "Standard deviation of the label noise, Δ ≥ 0.", "0"),
        *((_word("spread", deviation, None),) if spread else ()),
    )
    return Options("task", parameters, _read_task)


def _read_task(
    task: str, nu: str, length: str, noise: str, spread: str | None = None
) -> AbstractTask:
    from dataclasses import fields

    from ..tasks import TASKS, parse_lengths

    kind: Any = TASKS[one_of("task", task, TASKS)]
    given = {"nu": nu, "length": parse_lengths(length), "noise": noise}
    if spread is not None:
        if "spread" not in {field.name for field in fields(kind)}:
            raise refuse("spread", spread, f"left out where the task is {task}")
        given["spread"] = spread
    return kind(**given)


def _read_attention(word: str) -> AbstractAttention:
    from ..attention import get_attention

    return get_attention(word)


def attentions(suited: Callable[[AbstractAttention], bool] = lambda attention: True) -> Options:
    """Several attentions, each once, in the order given; `all` stands for those that are suited."""
    meaning = "A name that `attnrisk attentions` lists, several of them (repeat, or a,b), or all."

    def read(attention: list[str]) -> list[AbstractAttention]:
        from ..attention import CATALOGUE

        names = [name.strip() for word in attention for name in word.split(",")]
        every = [name for name in CATALOGUE if "all" in names and suited(_read_attention(name))]
        listed = [one for name in names for one in (every if name == "all" else [name])]
        return [_read_attention(name) for name in dict.fromkeys(listed)]

    parameter = _word("attention", meaning, ["softmax"], "NAME", list[str])
    return Options("attentions", (parameter,), read)


def _read_overlaps(**words: str | None) -> Overlaps | None:
    from ..population import Overlaps

    numbers = {name: real(name, word) for name, word in words.items() if word is not None}
    return Overlaps(**numbers) if numbers else None


def _read_sizes(alpha: str, dim: str) -> tuple[int, int]:
    size = DIM.read(dim=dim)
    samples = max(1, round(real("alpha", alpha, above=0.0) * size))
    if samples > LARGEST:
        raise refuse("alpha", alpha, f"such that N = alpha · dim is from 1 to {LARGEST}")
    return samples, size


def ridge(default: str | None) -> Options:
    """The ridges on `k` and `v`, `None` where they may be left out."""
    unless = "" if default else "; 1 if not given"
    both = [
        number(f"ridge_{of}", f"Ridge on {of}, r_{of} > 0{unless}.", default, above=0.0)
        for of in "kv"
    ]

    def read(**words: str | None) -> tuple[float | None, ...]:
        return tuple(one.read(**{one.name: words[one.name]}) for one in both)

    return Options("ridge", tuple(one.parameters[0] for one in both), read)


def seed(what: str) -> Options:
    """The seed of what is random."""
    return whole("seed", f"A whole number, for {what}.", 0, LARGEST_SEED, "0")


def out(help: str, default: str | None, folder: bool = False) -> Options:
    """A file or folder to write; that it can be written is found out before the work."""
    read = writable_folder if folder else writable_file
    return text("out", help, "FOLDER" if folder else "FILE", default, read)


def writable_file(given: str) -> Path:
    """The path of a file that is not there, or a regular one, in a folder that can be written."""
    path = Path(given)
    if path.exists() and not path.is_file():
        raise refuse("out", repr(given), "a file, or a name that is free")
    writable_folder(given, path.parent)
    return path


def writable_folder(given: str, folder: Path | None = None) -> Path:
    """The path of a folder, made if missing, in which a file can be made."""
    from tempfile import TemporaryFile

    path = folder or Path(given)
    try:
        path.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()
    except (FileExistsError, NotADirectoryError):
        raise refuse("out", repr(given), "a folder, or a name that is free") from None
    except OSError as error:
        allowed = f"a place that can be written ({error.strerror})"
        raise refuse("out", repr(given), allowed) from None
    return path


ATTENTION = text(
    "attention", "A name that `attnrisk attentions` lists.", "NAME", "softmax", _read_attention
)
ALPHA = number("alpha", "Sequences to learn from, per dimension: α = N/D > 0.", above=0.0)
DIM = whole("dim", "Dimension D of a token, ≥ 2.", 2, LARGEST)
SIZES = Options("sizes", (*ALPHA.parameters, *DIM.parameters), _read_sizes)
OVERLAPS = Options(
    "overlaps",
    tuple(
        _word(
            f"{kind}_{pair}",
            f"{pair[0]}·{pair[1]}{'*' if kind == 'm' else ''}/D",
            None,
            rich_help_panel="Overlaps: give any to look, or to start, there; those left out are 0",
        )
        for kind, pairs in {"m": ("kk", "kv", "vk", "vv"), "q": ("kk", "kv", "vv")}.items()
        for pair in pairs
    ),
    _read_overlaps,
)
PRECISION = choice(
    "precision", "Of the tokens; all else is float64.", ("float32", "float64"), "float64"
)
STREAM = flag("stream", "Draw the tokens anew at every pass: slow, in little memory.")
STORE = text(
    "store",
    "Where the answers are kept; if not given, in the data folder of the user.",
    "FILE",
    read=Path,
)
SCHEDULER = text(
    "scheduler",
    "A running Dask scheduler, as tcp://host:8786, whose workers compute instead.",
    "ADDRESS",
)
JSON = flag("json", "Print one JSON object in place of a table.")
