"""What all commands have in common: their options are read, they show progress, and their answer is printed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import Signature, signature
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .interrupts import INTERRUPTED, immediate
from .options import JSON, Options
from .progress import working
from .render import Shown, print_json, print_rich

ASK, LEARN = "Ask: infinite data", "Learn: finite data"
JUDGE, REPRODUCE, SERVE = "Judge", "Reproduce", "Serve"


class _Command(TyperCommand):
    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


class _Group(TyperGroup):
    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = ""  # else the help says that --help takes a <bool>
    return option


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Function = Callable[..., Shown | None]


def command(
    panel: str,
    doing: str,
    *options: Options,
    interrupt: Callable[[], AbstractContextManager[Any]] = immediate,
) -> Callable[[Function], Function]:
    """Make a command of a function, which is given what the options stand for, by their names, and `report` if it asks
    for it: a function that is told progress. `doing` is shown to someone who waits."""

    def register(function: Function) -> Function:
        def run(json: bool = False, **words: Any) -> None:
            try:
                with interrupt(), working(doing) if doing else nullcontext() as report:
                    values = {
                        one.name: one.read(
                            **{each.name: words[each.name] for each in one.parameters}
                        )
                        for one in options
                    }
                    if "report" in signature(function).parameters:
                        values["report"] = report
                    shown = function(**values)
            except KeyboardInterrupt:
                shown = Shown({}, [], "Interrupted")
            if shown is not None:
                _print(shown, json)

        listed = options if panel == SERVE else (*options, JSON)
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = Signature(  # type: ignore[attr-defined]
            [parameter for one in listed for parameter in one.parameters]
        )
        run.__annotations__ = {}
        app.command(rich_help_panel=panel, cls=_Command)(run)
        return function

    return register


def _print(shown: Shown, as_json: bool) -> None:
    if as_json and shown.fields:
        print_json(shown.fields)
    elif not as_json:
        for part in shown.parts:
            print_rich(*part if isinstance(part, tuple) else (part,))
    if shown.interrupted:
        typer.echo(shown.interrupted, err=True)
        raise typer.Exit(INTERRUPTED)
