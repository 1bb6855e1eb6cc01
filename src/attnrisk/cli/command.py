"""Common parts of all commands: reading options, showing progress, printing the result."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature
from types import SimpleNamespace
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from .._check import Refusal, refuse
from .options import JSON, Options, flag_of
from .render import Shown, print_json, print_parts, working

ASK, LEARN = "Infinite data", "Finite data"
JUDGE, REPRODUCE, EXPLORE = "Evaluate and compare", "Figures and sweeps", "Interactive page"


class _Help:
    """Help without Python types, such as `--help <bool>` and `NAME <str>`."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if (each.name or "").endswith("_completion"):
                each.metavar = ""
            if isinstance(each, TyperArgument):
                each.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        return params

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        option.metavar = ""
        return option


class _Command(_Help, TyperCommand): ...


class _Group(_Help, TyperGroup): ...


app = typer.Typer(
    cls=_Group,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Function = Callable[[Any], Shown | None]


def command(panel: str, doing: str, *options: Options) -> Callable[[Function], Function]:
    """Make a command of a function, whose argument has what each option stands for, by its name, `progress`,
    and `print_now`, which prints a part of the answer before the rest is there. `doing` is shown to someone who waits.
    """
    parameters = [parameter for one in (*options, JSON) for parameter in one.parameters]

    def register(function: Function) -> Function:
        def run(json: bool = False, **words: Any) -> None:
            try:
                with working(doing) as progress:
                    read = {one.name: one.value(words) for one in options}
                    print_now = (lambda *parts: None) if json else print_parts
                    shown = function(
                        SimpleNamespace(**read, progress=progress, print_now=print_now)
                    )
            except KeyboardInterrupt:
                shown = Shown().interrupted()
            except Refusal as error:
                raise _as_given(error, options) from None
            if shown is not None:
                _print(shown, json)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        app.command(rich_help_panel=panel, cls=_Command)(run)
        return function

    return register


def _as_given(error: Refusal, options: tuple[Options, ...]) -> Refusal:
    """The refusal with the name of the option as it is typed: `--ridge-k` for `ridge_k`."""
    if error.parts is None:
        return error
    name, given, allowed = error.parts
    first, _, rest = name.partition(" ")  # as in `length probabilities`
    named = [one for one in options if one.is_named]
    typed = {one.name: ", ".join(flag_of(each.name) for each in one.parameters) for one in named}
    typed |= {each.name: flag_of(each.name) for one in named for each in one.parameters}
    return refuse(f"{typed.get(first, first)} {rest}".rstrip(), given, allowed)


def _print(shown: Shown, as_json: bool) -> None:
    as_json = as_json or shown.always_json
    if as_json and shown.fields:
        print_json(shown.fields)
    elif not as_json:
        print_parts(*shown.parts)
    if shown.note:
        typer.echo(shown.note, err=True)
    raise typer.Exit(shown.code)
