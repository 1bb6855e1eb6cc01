"""The options of the commands, each defined once, and how they are read.

Numbers stay strings until the library reads them, so an invalid one gives the same error as in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import attnrisk as ar

from .. import _check
from .._check import Refusal, one_of, real, refuse
from .._files import writable_file, writable_folder

LARGEST, LARGEST_SEED = 10**8, 2**32 - 1
REQUIRED = Parameter.empty


class Options(NamedTuple):
    """An argument of a command: its parameters on the command line, and the function that reads them."""

    name: str
    parameters: tuple[Parameter, ...]
    read: Callable[..., Any]
    is_named: bool = True  # and not a bare word

    def value(self, words: Mapping[str, Any]) -> Any:
        """What the words of its parameters stand for."""
        return self.read(**{each.name: words[each.name] for each in self.parameters})


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
        more["autocompletion"] = _completion(lambda: list(ar.CATALOGUE))
    declared = typer.Option(flag_of(name), metavar=metavar, help=help, show_default=shown, **more)
    return _declared(name, default, kind, declared, read)


def _completion(words: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]


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


def _group(name: str, members: Sequence[Options], join: Callable[..., Any]) -> Options:
    """Several options that define one object, a function of their values."""

    def read(**words: Any) -> Any:
        return join(**{each.name: each.value(words) for each in members})

    return Options(name, tuple(each.parameters[0] for each in members), read)


def task(nu: str = "5", length: str = "3", spread: bool = True, features: bool = False) -> Options:
    """The options of the task; with `features`, `--task features` is allowed."""
    which = "spiked: the relevant token is shifted along k*. max: it has the largest component along k*."
    which += " features: it has a random shift along several directions." * features
    laws = "flipped:9, one-of:9,6,4 or gaussian:9,5,2"
    members = [
        choice("task", which, ("spiked", "max", *["features"] * features), "spiked"),
        option("features", f"Distribution of the shift, for --task features: {laws}.", None, "LAW"),
        option("nu", "Signal strength ν ≥ 0; inf is allowed for max.", nu),
        option(
            "length",
            "Number of tokens: 10 (fixed), 1-3 (uniform) or 1:0.25,8:0.75 (probabilities).",
            length,
            "LAW",
        ),
        option("noise", "Standard deviation of the label noise, Δ ≥ 0.", "0"),
        option(
            "spread",
            "Standard deviation γ > 0 of the relevant token, spiked only; 1 by default. With another one the norm of a "
            "token reveals the location as D → ∞, and the Bayes risk is the label noise alone.",
        ),
    ]
    there = {"features": features, "spread": spread}
    members = [each for each in members if there.get(each.name, True)]
    usual = {"nu": nu, "spread": None, "features": None}

    def read(task: str, length: str, noise: str, **words: str | None) -> ar.AbstractTask:
        from ..tasks import TASKS

        takes = {"spiked": ("nu", "spread"), "max": ("nu",), "features": ("features",)}[task]
        for name, given in words.items():
            if name not in takes and given != usual[name]:
                raise refuse(name, given, f"left out where the task is {task}")
        if task == "features":
            shift = words["features"]
            if shift is None:
                raise refuse("features", "(nothing)", f"like {laws} where the task is features")
            return ar.FeatureSLR(ar.parse_features(shift), ar.parse_lengths(length), noise)
        own = {name: words[name] for name in takes if words.get(name) is not None}
        return TASKS[task](length=ar.parse_lengths(length), noise=noise, **own)

    return _group("task", members, read)


_BIAS = option(
    "bias",
    "Constant added to the scores: a number, or free (optimised). By default as in the papers: "
    "free for erf and sigmoid, 0 for the others.",
    "default",
    "free|NUMBER",
)
HEADS = whole("heads", "Number of heads of each attention.", 1, 100, "1")


def heads(suited: Callable[[ar.AbstractAttention], bool] = lambda attention: True) -> Options:
    """Several distinct attentions, each with a number of heads; `all` means all suitable ones."""
    meaning = "Names listed by `attnrisk attentions` (repeat the option, or a,b), or all."

    def read(attention: list[str], bias: str, heads: int) -> list[ar.AbstractAttention]:
        names = [name.strip() for word in attention for name in word.split(",")]
        known = ar.CATALOGUE if "all" in names else ()
        every = [name for name in known if suited(ar.get_attention(name, bias))]
        listed = [one for name in names for one in (every if name == "all" else [name])]
        return [named_attention(name, bias, heads) for name in dict.fromkeys(listed)]

    several = option("attention", meaning, ["softmax"], "NAME", read=list, kind=list[str])
    return _group("attentions", [several, _BIAS, HEADS], read)


def named_attention(attention: str, bias: str, heads: int) -> ar.AbstractAttention:
    """Heads of an attention of the catalogue, or Bayes-softmax."""
    if heads == 1 and attention != ar.BayesSoftmax.name:
        return ar.get_attention(attention, bias)
    return ar.get_heads(attention, heads, bias)


def overlaps(use: str) -> Options:
    """The seven overlaps of one head."""
    panel = f"Overlaps: give any of them to {use}; the others are 0"
    products = {f"m_{k}{to}": f"{k}·{to}*/D" for k in "kv" for to in "kv"}
    products |= {f"q_{pair}": f"{pair[0]}·{pair[1]}/D" for pair in ("kk", "kv", "vv")}
    members = [option(name, what, rich_help_panel=panel) for name, what in products.items()]

    def read(**words: str | None) -> ar.Overlaps | None:
        numbers = {name: real(name, word) for name, word in words.items() if word is not None}
        try:
            return ar.Overlaps(**numbers) if numbers else None
        except Refusal as error:
            raise Refusal(f"{', '.join(map(flag_of, numbers))}: {error}") from None

    return _group("overlaps", members, read)


def ridge(default: str | None) -> Options:
    """The ridge penalties on `k` and `v` (`None` if they may be left out) and on a free bias."""
    unless = "" if default else "; 1 by default"
    both = [
        number(f"ridge_{of}", f"Ridge penalty on {of}, r_{of} > 0{unless}.", default, above=0.0)
        for of in "kv"
    ]
    on_bias = "Ridge penalty on a free bias, r_b ≥ 0, in D r_b b²/2."
    every = [*both, number("ridge_b", on_bias, "0", minimum=0.0)]
    return _group("ridge", every, lambda **ridges: tuple(ridges.values()))


def seed(what: str) -> Options:
    """The random seed."""
    return whole("seed", f"Seed (an integer) of {what}.", 0, LARGEST_SEED, "0")


def out(help: str, default: str | None, folder: bool = False) -> Options:
    """A file or folder to write, checked before the computation."""
    read = writable_folder if folder else writable_file
    return option("out", help, default, "FOLDER" if folder else "FILE", read)


def _read_alpha(alpha: Any) -> float:
    from ..learning.scope import check_alpha

    return check_alpha(alpha)


def _read_size(alpha: str, dim: int) -> tuple[int, int]:
    from ..simulation.data import sequence_count

    return sequence_count(alpha, dim), dim


def _read_workers(scheduler: str | None, workers: int | None) -> dict[str, Any]:
    if scheduler is not None and workers is not None:
        raise refuse("workers", workers, "left out where a scheduler is given: it has its own")
    return {"scheduler": scheduler, "workers": workers}


ONE_WITH_HEADS = _group(
    "attention",
    [
        option("attention", "A name listed by `attnrisk attentions`.", "softmax", "NAME"),
        *(_BIAS, HEADS),
    ],
    named_attention,
)
_ALPHA = option("alpha", "Number of training sequences per dimension, α = N/D > 0.", REQUIRED)
ALPHA = _group("alpha", [_ALPHA], _read_alpha)
SIZE = _group(
    "size", [_ALPHA, whole("dim", "Dimension D of a token, ≥ 2.", 2, LARGEST)], _read_size
)
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
WORKERS = _group(
    "workers",
    [
        SCHEDULER,
        whole("workers", "Number of local processes; by default one per core.", 1, 10_000, None),
    ],
    _read_workers,
)
JSON = flag("json", "Print one JSON object instead of a table.")
