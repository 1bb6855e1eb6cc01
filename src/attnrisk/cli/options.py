"""The options of the commands, each defined once, and how they are read.

Numbers stay strings until the library reads them, so an invalid one gives the same error as in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .. import _check
from .._check import Refusal, one_of, real, refuse
from .._files import writable_file, writable_folder

if TYPE_CHECKING:
    from ..attention import AbstractAttention
    from ..population import Overlaps
    from ..tasks import AbstractTask

LARGEST, LARGEST_SEED = 10**8, 2**32 - 1
REQUIRED = Parameter.empty


class Options(NamedTuple):
    """An argument of a command: its parameters on the command line, and the function that reads them."""

    name: str
    parameters: tuple[Parameter, ...]
    read: Callable[..., Any]
    is_named: bool = True  # and not a bare word


def flag_of(name: str) -> str:
    """`--ridge-k` for `ridge_k`."""
    return f"--{name.replace('_', '-')}"


def option(
    name: str,
    help: str,
    default: Any = None,
    metavar: str = "NUMBER",
    read: Callable[[Any], Any] = str,
    kind: Any = str,
    **more: Any,
) -> Options:
    """An option with a value; `None` if it is left out and has no default. Shells complete known values."""
    shown = default not in (None, REQUIRED, False)
    if "|" in metavar:
        more["autocompletion"] = _completion(lambda: metavar.split("|"))
    elif name == "attention":
        more["autocompletion"] = _completion(_catalogue)
    declared = typer.Option(flag_of(name), metavar=metavar, help=help, show_default=shown, **more)
    return _declared(name, default, kind, declared, read)


def _completion(words: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]


def _catalogue() -> list[str]:
    from ..attention import CATALOGUE

    return list(CATALOGUE)


def argument(
    name: str,
    help: str,
    metavar: str,
    default: Any = REQUIRED,
    read: Callable[[Any], Any] = str,
    kind: Any = str,
) -> Options:
    """A positional argument, or several."""
    declared = typer.Argument(metavar=metavar, help=help, show_default=False)
    return _declared(name, default, kind, declared, read)._replace(is_named=False)


def _declared(
    name: str, default: Any, kind: Any, declared: Any, read: Callable[[Any], Any]
) -> Options:
    annotation: Any = Annotated[kind | None if default is None else kind, declared]
    one = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    return Options(name, (one,), lambda **words: None if words[name] is None else read(words[name]))


def flag(name: str, help: str) -> Options:
    """An option without a value."""
    return option(name, help, False, "", bool, bool)


def number(name: str, help: str, default: Any = REQUIRED, **limits: Any) -> Options:
    """A number within the limits of `real`."""
    return option(name, help, default, read=lambda word: float(real(name, word, **limits)))


def whole(name: str, help: str, least: int, most: int, default: Any = REQUIRED) -> Options:
    """A whole number in this range."""

    def read(word: str) -> int:
        try:
            given: Any = int(word)
        except ValueError:  # which is refused as it was given
            given = word
        return _check.whole(name, given, least, most)

    return option(name, help, default, read=read)


def choice(name: str, help: str, words: Sequence[str], default: str | None) -> Options:
    """An option with one of these values."""
    return option(name, help, default, "|".join(words), lambda word: one_of(name, word, words))


def _group(name: str, members: Sequence[Options], read: Callable[..., Any]) -> Options:
    """Several options that define one object."""
    return Options(name, tuple(one.parameters[0] for one in members), read)


def task(nu: str = "5", length: str = "3", spread: bool = True, features: bool = False) -> Options:
    """The options of the task; with `features`, `--task features` is allowed."""
    which = "spiked: the relevant token is shifted along k*. max: it has the largest component along k*."
    lengths = "Number of tokens: 10 (fixed), 1-3 (uniform) or 1:0.25,8:0.75 (probabilities)."
    deviation = (
        "Standard deviation γ > 0 of the relevant token, spiked only; 1 by default. With another one the norm of a "
        "token reveals the location as D → ∞, and the Bayes risk is the label noise alone."
    )
    if features:
        which += " features: it has a random shift along several directions."
    law = (
        "Distribution of the shift, for --task features: flipped:9, one-of:9,6,4 or gaussian:9,5,2."
    )
    members = [
        option("task", which, "spiked", "spiked|max|features" if features else "spiked|max"),
        *([option("features", law, metavar="LAW")] if features else []),
        option("nu", "Signal strength ν ≥ 0; inf is allowed for max.", nu),
        option("length", lengths, length, "LAW"),
        option("noise", "Standard deviation of the label noise, Δ ≥ 0.", "0"),
        *([option("spread", deviation)] if spread else []),
    ]

    def read(task: str, **words: Any) -> AbstractTask:
        if not features:
            return _read_task(task, **words)
        one_of("task", task, ("spiked", "max", "features"))
        shift = words.pop("features")
        if task != "features":
            if shift is not None:
                raise refuse("features", repr(shift), f"left out where the task is {task}")
            return _read_task(task, **words)
        for name, usual in (("nu", nu), ("spread", None)):
            if words.get(name) != usual:
                raise refuse(name, words[name], "left out where the task is features")
        return _read_features(shift, words["length"], words["noise"])

    return _group("task", members, read)


def _read_features(shift: str | None, length: str, noise: str) -> AbstractTask:
    from ..tasks import FeatureSLR, parse_features, parse_lengths

    if shift is None:
        allowed = "like flipped:9, one-of:9,6,4 or gaussian:9,5,2 where the task is features"
        raise refuse("features", "(nothing)", allowed)
    return FeatureSLR(parse_features(shift), parse_lengths(length), noise)


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


def _read_attention(attention: str, bias: str) -> AbstractAttention:
    from ..attention import get_attention

    return get_attention(attention, bias)


_BIAS = option(
    "bias",
    "Constant added to the scores: a number, or free (optimised). By default as in the papers: "
    "free for erf and sigmoid, 0 for the others.",
    "default",
    "free|NUMBER",
)


def attentions(
    suited: Callable[[AbstractAttention], bool] = lambda attention: True,
) -> Options:
    """Several distinct attentions in the order given; `all` means all suitable ones."""
    meaning = "Names listed by `attnrisk attentions` (repeat the option, or a,b), or all."

    def read(attention: list[str], bias: str) -> list[AbstractAttention]:
        from ..attention import CATALOGUE

        names = [name.strip() for word in attention for name in word.split(",")]
        every = {name: _read_attention(name, bias) for name in CATALOGUE if "all" in names}
        every = {name: each for name, each in every.items() if suited(each)}
        listed = [one for name in names for one in (every if name == "all" else [name])]
        return [_read_attention(name, bias) for name in dict.fromkeys(listed)]

    one = option("attention", meaning, ["softmax"], "NAME", kind=list[str])
    return _group("attentions", [one, _BIAS], read)


def heads(suited: Callable[[AbstractAttention], bool] = lambda attention: True) -> Options:
    """Several attentions, each with a number of heads; `all` means all suitable ones."""
    listed = attentions(suited)
    count = whole("heads", "Number of heads of each attention.", 1, 100, "1")

    def read(attention: list[str], bias: str, heads: str) -> list[AbstractAttention]:
        from ..attention import BayesSoftmax, get_heads

        number = count.read(heads=heads)
        names = [name.strip() for word in attention for name in word.split(",")]
        plain = [name for name in dict.fromkeys(names) if name != BayesSoftmax.name]
        found = listed.read(attention=plain, bias=bias) if plain else []
        if number > 1:
            found = [get_heads(each.name, number, bias) for each in found]
        joint = BayesSoftmax.name in names
        return [*found, *([get_heads(BayesSoftmax.name, number, bias)] if joint else [])]

    return Options("attentions", (*listed.parameters, *count.parameters), read)


def one_with_heads() -> Options:
    """One attention with a number of heads."""
    every = heads()

    def read(attention: str, bias: str, heads: str) -> AbstractAttention:
        found = every.read(attention=[attention], bias=bias, heads=heads)
        if len(found) != 1:
            raise refuse("attention", repr(attention), "a single one here")
        return found[0]

    return Options("attention", (*_NAME.parameters, *every.parameters[1:]), read)


def overlaps(use: str) -> Options:
    """The seven overlaps of one head."""
    panel = f"Overlaps: give any of them to {use}; the others are 0"
    pairs = {"m": ("kk", "kv", "vk", "vv"), "q": ("kk", "kv", "vv")}
    members = [
        option(
            f"{kind}_{pair}",
            f"{pair[0]}·{pair[1]}{'*' if kind == 'm' else ''}/D",
            rich_help_panel=panel,
        )
        for kind in pairs
        for pair in pairs[kind]
    ]
    return _group("overlaps", members, _read_overlaps)


def _read_overlaps(**words: str | None) -> Overlaps | None:
    from ..population import Overlaps

    numbers = {name: real(name, word) for name, word in words.items() if word is not None}
    try:
        return Overlaps(**numbers) if numbers else None
    except Refusal as error:
        raise Refusal(f"{', '.join(map(flag_of, numbers))}: {error}") from None


def _read_alpha(alpha: Any) -> float:
    from ..learning.scope import check_alpha

    return check_alpha(alpha)


def _read_size(alpha: str, dim: str) -> tuple[int, int]:
    from ..simulation.data import sequence_count

    columns = DIM.read(dim=dim)
    return sequence_count(alpha, columns), columns


def ridge(default: str | None) -> Options:
    """The ridge penalties on `k` and `v` (`None` if they may be left out) and on a free bias."""
    unless = "" if default else "; 1 by default"
    both = [
        number(f"ridge_{of}", f"Ridge penalty on {of}, r_{of} > 0{unless}.", default, above=0.0)
        for of in "kv"
    ]
    on_bias = "Ridge penalty on a free bias, r_b ≥ 0, in D r_b b²/2."
    every = [*both, number("ridge_b", on_bias, "0", minimum=0.0)]
    return _group(
        "ridge",
        every,
        lambda **words: tuple(each.read(**{each.name: words[each.name]}) for each in every),
    )


def seed(what: str) -> Options:
    """The random seed."""
    return whole("seed", f"Seed (an integer) of {what}.", 0, LARGEST_SEED, "0")


def out(help: str, default: str | None, folder: bool = False) -> Options:
    """A file or folder to write, checked before the computation."""
    read = writable_folder if folder else writable_file
    return option("out", help, default, "FOLDER" if folder else "FILE", read)


_NAME = option("attention", "A name listed by `attnrisk attentions`.", "softmax", "NAME")
ATTENTION = _group("attention", [_NAME, _BIAS], _read_attention)
ALPHA = option(
    "alpha",
    "Number of training sequences per dimension, α = N/D > 0.",
    REQUIRED,
    read=_read_alpha,
)
DIM = whole("dim", "Dimension D of a token, ≥ 2.", 2, LARGEST)
SIZE = _group("size", [ALPHA, DIM], _read_size)
PRECISION = choice(
    "precision", "Floating-point type of the tokens.", ("float32", "float64"), "float64"
)
STREAM = flag("stream", "Draw the tokens again at every pass: slower, needs little memory.")
STORE = option(
    "store",
    "SQLite file with the results; by default in the user's data folder.",
    None,
    "FILE",
    Path,
)
SCHEDULER = option(
    "scheduler",
    "Address of a running Dask scheduler whose workers compute, such as tcp://host:8786.",
    metavar="ADDRESS",
)
JSON = flag("json", "Print one JSON object instead of a table.")
